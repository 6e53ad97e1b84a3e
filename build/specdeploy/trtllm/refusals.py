"""Everything a TensorRT-LLM lane refuses before it builds: one rule per row of the fact sheet's section 5, and more.

A row that is about a single request, or about something this project never writes, has no rule here: `GUARDS` names the
function that refuses it or makes it impossible. A test goes through both tables and through the rows.
"""

from dataclasses import dataclass

from specdeploy.errors import Violation
from specdeploy.trtllm.checkpoint_rules import CHECKPOINT_RULES, checkpoint_notes
from specdeploy.trtllm.engine_rules import ENGINE_RULES
from specdeploy.trtllm.llmapi_rules import LLMAPI_RULES
from specdeploy.trtllm.parallel_rules import PARALLEL_RULES
from specdeploy.trtllm.rule import DeploymentFacts, Refusal

__all__ = ["GUARDS", "REFUSALS", "DeploymentFacts", "Guard", "Refusal", "find_notes", "find_refusals"]

REFUSALS: tuple[Refusal, ...] = ENGINE_RULES + LLMAPI_RULES + CHECKPOINT_RULES + PARALLEL_RULES


@dataclass(frozen=True, slots=True)
class Guard:
    """Where a row is refused or made impossible outside this package: `place` is `module:function`."""

    row: str
    place: str
    how: str


GUARDS: tuple[Guard, ...] = (
    Guard(
        "guided decoding through Triton llmapi",
        "specdeploy.packager.repository:render_repository",
        "the stock model llmapi is never packed; `llm` declares the guided inputs and hands them to LLM objects",
    ),
    Guard(
        "guided decoding through Triton llmapi",
        "specdeploy.serving.request:parse_request",
        "without tensorrt_llm.guided_decoding_backend a guide is refused, never ignored",
    ),
    Guard(
        "guided decoding + use_rejection_sampling",
        "specdeploy.trtllm.llm_args:render_llm_args",
        "use_rejection_sampling is never written, and the config has no such key",
    ),
    Guard(
        "per-request drafting switch",
        "specdeploy.serving.adapters.llmapi_placement:place_request",
        "a request without drafts goes to the plain instance; where there is none it is refused",
    ),
    Guard(
        "speculation + guided decoding",
        "specdeploy.serving.adapters.llmapi_placement:place_request",
        "a guided request goes to the plain instance; where there is none it is refused",
    ),
    Guard(
        "speculation + guided decoding",
        "specdeploy.serving.adapters.draft_rounds:off_reason_of",
        "in the engine lane a guided request is never drafted for",
    ),
    Guard(
        "drafting through `ensemble`",
        "specdeploy.packager.repository:render_repository",
        "no ensemble is ever packed; `llm` drafts through its own rounds",
    ),
    Guard(
        "BLS drafting + stream / batch / context or generation logits / decoupled sub-models",
        "specdeploy.serving.request:parse_request",
        "logits and draft logits are refused by name",
    ),
    Guard(
        "BLS drafting + stream / batch / context or generation logits / decoupled sub-models",
        "specdeploy.packager.repository:render_repository",
        "`llm` takes one prompt, is decoupled and streams its own rounds; target and draft of draft_model are not",
    ),
    Guard(
        "`--gather_context_logits` + max_draft_len > 0",
        "specdeploy.builders.trtllm_commands:plan_commands",
        "the flag is never written",
    ),
    Guard(
        "beam > 1 with draft/target or Medusa",
        "specdeploy.serving.request:parse_request",
        "beam_width other than 1 is refused; engines are built with --max_beam_width 1",
    ),
    Guard(
        "logits processors + speculation",
        "specdeploy.trtllm.llm_args:render_llm_args",
        "neither the arguments nor the inputs of `llm` can carry one",
    ),
    Guard(
        "penalties + one-model speculation without enable_penalty",
        "specdeploy.serving.adapters.llmapi_placement:place_request",
        "such a request goes to the plain instance; where there is none enable_penalty is written, or it is refused",
    ),
    Guard(
        "NGram without explicit ngram size",
        "specdeploy.trtllm.llm_args:render_llm_args",
        "max_matching_ngram_size is always written",
    ),
    Guard(
        "overlap scheduler + NGram / user-provided",
        "specdeploy.trtllm.llm_args:render_llm_args",
        "disable_overlap_scheduler is true for NGram; code of the user's is no method here",
    ),
    Guard(
        "NVFP4 / FP4 weights or KV, DFlash/DSpark attention TRTLLM",
        "specdeploy.config.load:load_deployment",
        "neither DFlash nor DSpark is a method here",
    ),
    Guard(
        "triton max_batch_size > 0",
        "specdeploy.trtllm.llm_args:validate_llm_args",
        "triton_config is an unknown key of the arguments; the stock model that reads it is never packed",
    ),
    Guard(
        "streaming without decoupled in config.pbtxt",
        "specdeploy.packager.repository:public_model_config",
        "`llm` is decoupled in config.pbtxt itself, whatever starts the server",
    ),
    Guard(
        "unknown YAML key",
        "specdeploy.trtllm.llm_args:validate_llm_args",
        "arguments are checked against the fields of the version",
    ),
    Guard(
        "draft_len_schedule carried across 1.2.1 / mid-2026",
        "specdeploy.trtllm.llm_args:validate_llm_args",
        "the schedule is written from K by load for the version at hand; another meaning is refused",
    ),
    Guard(
        "draft and target with different tokenizers",
        "specdeploy.builders.pair:check_pair",
        "tokens that differ forbid the build",
    ),
)


def find_refusals(facts: DeploymentFacts) -> list[Violation]:
    """Every rule that forbids this deployment, in the order of `REFUSALS`; each place and reason once."""
    return list(dict.fromkeys(violation for refusal in REFUSALS for violation in refusal.find(facts)))


def find_notes(facts: DeploymentFacts) -> list[str]:
    """What no page answers about these checkpoints, one sentence each. It may work: nothing is refused for it."""
    return list(checkpoint_notes(facts))
