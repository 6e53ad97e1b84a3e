"""The third part of a step: each row keeps what the target agrees with, plus the target's own token."""

import logging
from collections.abc import Sequence

import torch

from specdeploy.runtime.kv_cache import KvCache
from specdeploy.runtime.request import RowUpdate
from specdeploy.runtime.row import Row
from specdeploy.runtime.sampling import (
    NonFiniteLogitsError,
    adjusted_logits,
    choose_token,
    target_probs,
    uniform_at,
)
from specdeploy.runtime.step_batch import RowStep, is_prefix
from specdeploy.runtime.verify import Verification, verify_chain, verify_sampled, verify_tree

_log = logging.getLogger(__name__)


class Commit:
    """Verifies the rows of one step against the logits [P, V] of its forward pass."""

    def __init__(self, logits: torch.Tensor, steps: Sequence[RowStep], cache: KvCache) -> None:
        """`logits` without the vocabulary's padding rows."""
        self._logits = logits
        self._cache = cache
        takes_argmax = any(step.first_logit is not None and _is_plain_greedy(step.row) for step in steps)
        self._argmax: list[int] = _finite_argmax(logits).tolist() if takes_argmax else []  # one for all rows

    def apply(self, step: RowStep) -> RowUpdate | None:
        """Append the row's output and advance it over what is kept. None while its prompt goes on.

        A row that cannot go on - no finite logits, or its stop matcher or grammar raised - ends with "error", alone.
        """
        try:
            return self._apply(step)
        except Exception as error:
            row = step.row
            _log.exception("request %s failed", row.request.request_id)
            if isinstance(error, NonFiniteLogitsError):
                self._cache.clear(row.slot)
            row.finish_reason, step.kept_nodes = "error", ()
            log_probs = () if row.request.wants_log_probs else None
            return RowUpdate(row.request.request_id, (), log_probs, "error", row.stats)

    def _apply(self, step: RowStep) -> RowUpdate | None:
        row, first = step.row, step.first_logit
        if first is None:
            row.num_cached += step.num_text
            return None
        verification = self._verify(step, first)
        nodes = step.kept_nodes = verification.accepted_nodes
        if row.finish_reason is None and not is_prefix(nodes):
            after_text = step.span.cached_len + step.num_text
            self._cache.move(row.slot, [after_text + node for node in nodes], after_text)
        row.num_cached += step.num_text + len(nodes)
        row.stats.count_step(len(step.draft.token_ids), len(nodes))
        log_probs = self._log_probs(first, verification) if row.request.wants_log_probs else None
        return RowUpdate(row.request.request_id, verification.token_ids, log_probs, row.finish_reason, row.stats)

    def _verify(self, step: RowStep, first: int) -> Verification:
        row, draft = step.row, step.draft
        if draft.parents is not None:
            after_text = first + 1  # logits row of draft token 0
            return verify_tree(
                draft.token_ids, draft.parents, lambda node: self._choose(row, after_text + node), row.append
            )
        if draft.probs is not None:
            sampling, num_output = row.request.sampling, row.num_output
            return verify_sampled(
                draft.token_ids,
                draft.probs,
                lambda index: target_probs(self._adjusted(row, first + index), sampling),
                lambda stream, index: uniform_at(sampling.seed, num_output + index, stream),
                row.append,
            )
        return verify_chain(draft.token_ids, lambda index: self._choose(row, first + index), row.append)

    def _choose(self, row: Row, index: int) -> int:
        """The target's token for the end of the row's text, from logits row `index`."""
        if _is_plain_greedy(row):
            token = self._argmax[index]
            if token < 0:
                raise NonFiniteLogitsError("the model computed no finite logits")
            return token
        return choose_token(self._adjusted(row, index), row.request.sampling, row.num_output)

    def _adjusted(self, row: Row, index: int) -> torch.Tensor:
        """Logits row `index` after everything the request changes in it, for the end of the row's text."""
        request, sampling = row.request, row.request.sampling
        logits = self._logits[index]
        if sampling.changes_logits:
            logits = adjusted_logits(
                logits,
                sampling,
                token_ids=row.token_ids,
                num_output=row.num_output,
                stop_ids=request.stop_ids,
                counts=row.counts,
            )
        if request.guided is None:
            return logits
        masked = logits if sampling.changes_logits else _copied(logits)
        request.guided.mask_logits(masked)
        if sampling.changes_logits and float(masked.max()) == float("-inf"):
            # Every legal token is banned. The grammar is what the client parses, so it outranks the bans.
            masked = _copied(self._logits[index])
            request.guided.mask_logits(masked)
        return masked

    def _log_probs(self, first: int, verification: Verification) -> tuple[float, ...]:
        """Of the output tokens under the target's own distribution, nothing adjusted."""
        places = [first, *(first + 1 + node for node in verification.accepted_nodes)]
        emitted = torch.tensor(verification.token_ids, device=self._logits.device)
        logits = self._logits[torch.tensor(places[: len(emitted)], device=self._logits.device)]
        log_softmax = torch.log_softmax(logits.float(), dim=-1)
        return tuple(log_softmax.gather(1, emitted.unsqueeze(1)).squeeze(1).tolist())


def _is_plain_greedy(row: Row) -> bool:
    request = row.request
    return request.sampling.is_greedy and not request.sampling.changes_logits and request.guided is None


def _finite_argmax(logits: torch.Tensor) -> torch.Tensor:
    """The largest logit's token of each row of [P, V], -1 where that logit is not finite (NaN counts as largest)."""
    tokens = logits.argmax(dim=-1)
    return torch.where(logits.gather(1, tokens.unsqueeze(1)).squeeze(1).isfinite(), tokens, -1)


def _copied(logits: torch.Tensor) -> torch.Tensor:
    return logits.to(torch.float32, copy=True)
