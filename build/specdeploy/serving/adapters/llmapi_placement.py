"""Which LLM instance runs a request, and why it is not drafted for: one pure function over one table.

An instance of the LLM API drafts for every request or for none; it has no switch per request. So a request that must
not be drafted for goes to the plain instance, and one that asks for what speculation does not honour goes there too.
What this version ignores silently on either is refused by name.

Read at NVIDIA/TensorRT-LLM; pull requests (PR) by number, files by commit or blob. A change counts from a release that
is known to hold it, which may be a later one than the first.

    greedy choice      default of every version (docs/source/features/sampling.md@05ce57bc)
    temperature,       plain: up to 1.1 only with enable_mixed_sampler, false by default (llm_args.py, blob 1520735490
    top_k, top_p       = 1.0.0); gone in 1.2.0rc (blob 1090804222), where the values of every request count
                       drafting: not documented up to 1.2.1, then with allow_advanced_sampling, automatic in PR 14745
                       (trtllm/sampling_arguments.py writes these two, and enable_penalty, where a version has them)
    min_p              ignored before PR 16590 (July 2026); one-model drafting takes it in one sampling mode only
    penalties          ignored before PR 16485 (July 2026, listed for 1.3.0rc24); drafting needs enable_penalty
    bad words          ignored before PR 16052 (July 2026)
    embedding bias     PR 6464 (August 2025)
    min_tokens         counted the prompt as well (sampler.py, blob 440197692); main subtracts it (blob 57042183823)
    log probabilities  never together with speculation: an assertion, later a refusal (PR 12546, PR 18401)
    guided decoding    ValueError with speculation up to 1.0; here always plain
    seed               per request since PR 17172 (August 2026); before, equal seeds need not give equal outputs
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from packaging.version import Version

from specdeploy.contract import DeploymentPlan
from specdeploy.errors import RequestError
from specdeploy.planner.schedule import OFF_BY_LOAD
from specdeploy.serving.request import ServingRequest
from specdeploy.serving.router import route
from specdeploy.trtllm.sampling_arguments import TORCH_SAMPLER_FEATURES, samples_while_drafting

PER_REQUEST_SAMPLING = Version("1.2.0rc0")
LOGIT_BIAS = Version("1.1.0")
MIN_P = Version("1.4.0rc1")
SEED = Version("1.4.0rc1")
_NEEDS_PLAIN = "tensorrt_llm.plain_instance: beside adds an instance that can"


class Instance(StrEnum):
    """The two LLM objects a deployment may have."""

    SPECULATIVE = "speculative"
    PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class Setup:
    """What an instance is: the TensorRT-LLM version that runs it and the arguments it was made with."""

    version: Version
    arguments: Mapping[str, Any]

    def speculation(self, key: str) -> Any:
        """One value of `speculative_config`, None where it is not written."""
        return (self.arguments.get("speculative_config") or {}).get(key)


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a request runs. `off_reason` None: it is drafted for."""

    instance: Instance
    off_reason: str | None


Rule = Callable[[Setup], str | None]  # why an instance made like this does not honour the feature; None = it does


@dataclass(frozen=True, slots=True)
class Feature:
    """Something a request may ask for. `field` is the input named in a refusal, `off_reason` what a client reads when
    the request is not drafted for because of it."""

    field: str
    off_reason: str
    is_asked: Callable[[ServingRequest], bool]
    on_plain: Rule
    while_drafting: Rule


def _always(setup: Setup) -> str | None:  # noqa: ARG001 - the signature is the contract
    return None


def _never(reason: str) -> Rule:
    return lambda setup: reason  # noqa: ARG005 - whatever the setup


def _since(version: Version, what: str) -> Rule:
    return lambda setup: None if setup.version >= version else f"TensorRT-LLM {setup.version} ignores {what}"


def _samples(setup: Setup) -> str | None:
    if setup.version >= PER_REQUEST_SAMPLING or setup.arguments.get("enable_mixed_sampler"):
        return None
    return f"TensorRT-LLM {setup.version} ignores it: it is not known to have enable_mixed_sampler"


def _samples_while_drafting(setup: Setup) -> str | None:
    if samples_while_drafting(setup.version, setup.arguments.get("speculative_config") or {}):
        return None
    return f"TensorRT-LLM {setup.version} is not documented to sample while it drafts"


def _sampled_log_probs(setup: Setup) -> str | None:
    if setup.version >= TORCH_SAMPLER_FEATURES:
        return None
    return f"TensorRT-LLM {setup.version} is not documented to give the model's own log probabilities when it samples"


def _penalises_while_drafting(setup: Setup) -> str | None:
    if reason := _since(TORCH_SAMPLER_FEATURES, "penalties")(setup):
        return reason
    if not setup.speculation("enable_penalty"):
        return "TensorRT-LLM refuses penalties while it drafts in an instance without enable_penalty"
    is_tree = setup.speculation("use_dynamic_tree") or setup.speculation("eagle_choices")
    return "TensorRT-LLM refuses penalties while it drafts trees" if is_tree else None


def _constrains(setup: Setup) -> str | None:
    if setup.arguments.get("guided_decoding_backend"):
        return None
    return "the LLM arguments name no guided_decoding_backend, and an unenforced constraint is never accepted"


def _differs(name: str, neutral: float) -> Callable[[ServingRequest], bool]:
    return lambda request: getattr(request.sampling, name) != neutral


FEATURES: tuple[Feature, ...] = (
    Feature(
        "guided_decoding_guide_type",
        "constrained",
        lambda request: request.guide is not None,
        _constrains,
        _never("a constrained request is not drafted for in this lane"),
    ),
    Feature(
        "return_log_probs",
        "log_probs",
        lambda request: request.wants_log_probs,
        _always,
        _never("TensorRT-LLM gives no log probabilities while it drafts"),
    ),
    Feature(
        "return_log_probs",
        "log_probs",
        lambda request: request.wants_log_probs and not request.sampling.is_greedy,
        _sampled_log_probs,
        _never("TensorRT-LLM gives no log probabilities while it drafts"),
    ),
    Feature(
        "temperature",
        "sampling",
        lambda request: not request.sampling.is_greedy,
        _samples,
        _samples_while_drafting,
    ),
    Feature(
        "seed",
        "seed",
        lambda request: request.is_seed_given and not request.sampling.is_greedy,
        _since(SEED, "the seed of a request"),
        _since(SEED, "the seed of a request"),
    ),
    Feature(
        "min_p",
        "min_p",
        lambda request: request.sampling.min_p > 0.0 and not request.sampling.is_greedy,
        _since(MIN_P, "min_p"),
        _never("TensorRT-LLM refuses min_p while it drafts"),
    ),
    *(
        Feature(
            name,
            "penalties",
            _differs(name, neutral),
            _since(TORCH_SAMPLER_FEATURES, "penalties"),
            _penalises_while_drafting,
        )
        for name, neutral in (("repetition_penalty", 1.0), ("presence_penalty", 0.0), ("frequency_penalty", 0.0))
    ),
    Feature(
        "bad_words",
        "bad_words",
        lambda request: bool(request.sampling.bad_words),
        _since(TORCH_SAMPLER_FEATURES, "bad words"),
        _never("TensorRT-LLM is not documented to ban words while it drafts"),
    ),
    Feature(
        "embedding_bias_words",
        "embedding_bias",
        lambda request: bool(request.sampling.logit_bias),
        _since(LOGIT_BIAS, "it"),
        _never("TensorRT-LLM is not documented to bias logits while it drafts"),
    ),
    Feature(
        "min_tokens",
        "min_tokens",
        # Without a stop id there is nothing to hold back; stop strings wait for min_tokens on our side.
        lambda request: request.sampling.min_tokens > 0 and bool(request.stop_ids),
        _since(TORCH_SAMPLER_FEATURES, "the length of the prompt when it counts min_tokens, and so min_tokens"),
        _never("TensorRT-LLM is not documented to honour min_tokens while it drafts"),
    ),
)


def place_request(
    request: ServingRequest, plan: DeploymentPlan, in_flight: int, *, speculative: Setup, plain: Setup | None
) -> Placement:
    """Where `request` runs with `in_flight` requests in flight, itself included. Decided once, not at every step.

    Off by load without a plain instance stays on the speculative one: its own draft_len_schedule or max_concurrency
    acts on it, and where a version has neither, it drafts at every load and says so. Raises RequestError naming the
    field that no instance honours.
    """
    _refuse_shorter_draft(request, plan)
    asked = [feature for feature in FEATURES if feature.is_asked(request)]
    blocking = [(feature, reason) for feature in asked if (reason := feature.while_drafting(speculative)) is not None]
    off_reason = _off_reason(request, plan, in_flight)
    is_by_load = off_reason is not None and _is_by_load(request, plan)
    if not blocking and off_reason is None:
        return Placement(Instance.SPECULATIVE, None)
    if plain is not None:
        for feature in asked:
            if (reason := feature.on_plain(plain)) is not None:
                raise RequestError(feature.field, reason, "Leave it out or serve a version that honours it")
        return Placement(Instance.PLAIN, _plain_reason(blocking, off_reason))
    if blocking:
        feature, reason = blocking[0]
        raise RequestError(feature.field, reason, f"Leave it out; {_NEEDS_PLAIN}")
    if is_by_load:
        follows_load = speculative.speculation("draft_len_schedule") or speculative.speculation("max_concurrency")
        return Placement(Instance.SPECULATIVE, off_reason if follows_load else None)
    field = "segment" if request.num_draft_tokens is None else "num_draft_tokens"
    raise RequestError(field, f"drafting cannot be off for one request ({off_reason})", f"{_NEEDS_PLAIN}")


def _plain_reason(blocking: list[tuple[Feature, str]], off_reason: str | None) -> str | None:
    """What the client asked for comes first, then what the plan says; a constraint is always named."""
    if off_reason is None or (blocking and blocking[0][0].off_reason == "constrained"):
        return blocking[0][0].off_reason
    return off_reason


def _off_reason(request: ServingRequest, plan: DeploymentPlan, in_flight: int) -> str | None:
    routed = route(plan, segment=request.segment, num_draft_tokens=request.num_draft_tokens)
    return None if routed.draft_len(in_flight) > 0 else routed.off_reason


def _is_by_load(request: ServingRequest, plan: DeploymentPlan) -> bool:
    """Whether another load would be drafted for."""
    segment = plan.segment(request.segment)
    return request.num_draft_tokens is None and (segment.off_reason or OFF_BY_LOAD) == OFF_BY_LOAD


def _refuse_shorter_draft(request: ServingRequest, plan: DeploymentPlan) -> None:
    """Depth is an argument of the instance: a request may switch it off, not shorten it."""
    wanted = request.num_draft_tokens
    if wanted is not None and 0 < wanted < plan.max_draft_len:
        raise RequestError(
            "num_draft_tokens",
            f"{wanted} is shorter than the {plan.max_draft_len} this lane always drafts",
            f"Send 0 or {plan.max_draft_len}, or leave it out",
        )
