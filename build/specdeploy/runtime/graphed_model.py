"""A decoder whose short steps are replayed as CUDA graphs, for everything that takes a DecoderModel."""

from collections.abc import Sequence
from typing import Self

from specdeploy.runtime.attention import Span
from specdeploy.runtime.cuda_graph import GraphPool
from specdeploy.runtime.kv_cache import KvCache
from specdeploy.runtime.model import DecoderModel, StepOutput
from specdeploy.runtime.static_step import StaticSteps


class GraphedModel(DecoderModel):
    """The engine and drafters give it their caches; it keeps the graphs of each for as long as it lives itself."""

    _general: DecoderModel
    _pool: GraphPool
    _steps: dict[int, StaticSteps]

    @classmethod
    def of(cls, model: DecoderModel, *, pool: GraphPool | None = None) -> Self:
        """The same model over the same weights. `pool`: graph memory shared with another model on the same stream."""
        graphed = cls.__new__(cls)
        graphed.__dict__.update(model.__dict__)
        graphed._general = model
        graphed._pool = pool or GraphPool(model.device)
        graphed._steps = {}
        return graphed

    def steps(self, cache: KvCache) -> StaticSteps:
        """The steps over a cache, to `prepare` them before the first request."""
        if id(cache) not in self._steps:  # the steps hold the cache, so its id stays its own
            self._steps[id(cache)] = StaticSteps(self._general, cache, pool=self._pool)
        return self._steps[id(cache)]

    def forward(
        self,
        token_ids: Sequence[int],
        spans: Sequence[Span],
        logit_positions: Sequence[int],
        cache: KvCache,
        *,
        hidden_layers: Sequence[int] = (),
        num_layers: int | None = None,
    ) -> StepOutput:
        """As DecoderModel's; the logits of a replayed step equal the general pass's up to rounding."""
        return self.steps(cache).forward(
            token_ids, spans, logit_positions, hidden_layers=hidden_layers, num_layers=num_layers
        )
