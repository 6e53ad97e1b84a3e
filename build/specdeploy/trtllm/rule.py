"""The shape of a rule: facts of one deployment in, one violation or nothing out."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from packaging.version import Version

from specdeploy.checkpoint_contract import CheckpointInfo
from specdeploy.config.schema import DeploymentConfig, TensorRtLlmConfig
from specdeploy.contract import METHODS_WITH_DRAFT, Lane, Method, unsupported_reason
from specdeploy.errors import ConfigError, Violation
from specdeploy.trtllm.columns import unread_reason
from specdeploy.trtllm.versions import LAST_WITH_ENGINE_FLOW, engine_flow_refusal

# Methods of the engine lane whose converter joins a head and its target into one engine.
METHODS_WITH_HEAD = (Method.MEDUSA, Method.EAGLE, Method.REDRAFTER)


@dataclass(frozen=True, slots=True)
class DeploymentFacts:
    """What the rules judge. `target` and `draft` are None where the checkpoint is not on this machine, and `draft` also
    where the method needs none; `file` is the YAML file, for messages."""

    config: DeploymentConfig
    version: Version
    target: CheckpointInfo | None
    draft: CheckpointInfo | None
    file: str

    @property
    def section(self) -> TensorRtLlmConfig:
        """The section `tensorrt_llm`. Raises ConfigError in a lane that has none."""
        if self.config.tensorrt_llm is None:
            remedy = "Name at least version (such as 1.2.1) and gpu (h100 or h200)."
            raise ConfigError([self.violation("tensorrt_llm", f"lane {self.config.lane} needs this section", remedy)])
        return self.config.tensorrt_llm

    @property
    def lane(self) -> Lane:
        return self.config.lane

    @property
    def method(self) -> Method:
        return self.config.speculation.method

    @property
    def is_engine(self) -> bool:
        """Whether engines are compiled (lane trtllm_engine)."""
        return self.lane is Lane.TRTLLM_ENGINE

    @property
    def is_llmapi(self) -> bool:
        """Whether LLM objects are made (lane trtllm_llmapi)."""
        return self.lane is Lane.TRTLLM_LLMAPI

    @property
    def can_switch_per_request(self) -> bool:
        """Whether one engine serves requests with and without drafts (fact sheet sections 3.3 and 3.5).

        Only draft/target (no draft tokens handed over) and lookahead, (1, 1, 0) in a request.
        """
        return self.is_engine and self.method in (Method.DRAFT_MODEL, Method.LOOKAHEAD)

    @property
    def draft_tensor_parallel(self) -> int:
        """GPUs that share a layer of the draft: a head and the LLM API's draft run on those of the target."""
        section = self.section
        if self.is_engine and self.method is Method.DRAFT_MODEL and section.draft_tensor_parallel is not None:
            return section.draft_tensor_parallel
        return section.tensor_parallel

    def other_lane(self, lane: Lane, method: Method | None = None) -> str | None:
        """What to write to be served in `lane`, such as `lane trtllm_engine with version 1.2.1`; None where it has no
        `method` (default: the deployment's own). A remedy that is refused in its turn helps nobody."""
        if unsupported_reason(lane, method or self.method) is not None:
            return None
        changes = [] if method in (None, self.method) else [f"method {method}"]
        is_unknown = lane is Lane.TRTLLM_LLMAPI and unread_reason(self.version) is not None
        if is_unknown or (lane is Lane.TRTLLM_ENGINE and engine_flow_refusal(self.version) is not None):
            changes.append(f"version {LAST_WITH_ENGINE_FLOW}")
        return f"lane {lane}" + (f" with {' and '.join(changes)}" if changes else "")

    def checkpoints(self) -> Iterator[tuple[str, str, CheckpointInfo]]:
        """(role, config key, facts) of the checkpoints that are known."""
        if self.target is not None:
            yield "target", "target.checkpoint", self.target
        if self.draft is not None and self.method in METHODS_WITH_DRAFT:
            yield "draft", "speculation.draft.checkpoint", self.draft

    def violation(self, key: str, reason: str, remedy: str) -> Violation:
        """A violation of this deployment's file."""
        return Violation(self.file, key, reason, remedy)


def family(info: CheckpointInfo) -> str:
    """`LlamaForCausalLM` -> `Llama`; '' where config.json names no architecture."""
    return (info.architecture or "").split("For", 1)[0]


@dataclass(frozen=True, slots=True)
class Refusal:
    """One rule: `applies` gives what it forbids, None or nothing where it lets a deployment pass. `row` is the row of
    the fact sheet's section 5 that it implements, '' for a rule of its own."""

    code: str
    applies: Callable[[DeploymentFacts], Violation | Iterable[Violation] | None]
    row: str = ""

    def find(self, facts: DeploymentFacts) -> tuple[Violation, ...]:
        """Everything that this rule forbids."""
        found = self.applies(facts)
        if found is None:
            return ()
        return (found,) if isinstance(found, Violation) else tuple(found)
