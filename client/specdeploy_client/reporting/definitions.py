"""The words of the report: what every number is, and what helps where a cell is void."""

from typing import NamedTuple

from specdeploy.run_contract import MetricName, Percentile, VoidCode
from specdeploy_client.comparison.wording import DASH
from specdeploy_client.metrics import samples_needed

METRIC_NAMES = {MetricName.TTFT: "TTFT", MetricName.TPOT: "TPOT", MetricName.E2E: "e2e"}


class Definition(NamedTuple):
    """One word with its formula and what to know of it. Empty: there is no formula."""

    name: str
    formula: str
    text: str


DEFINITIONS = (
    Definition(
        "TTFT",
        "first message with a token - due",
        "Time to first token. Due is when the request should have been sent, so a stalled server cannot hide.",
    ),
    Definition(
        "TPOT",
        "(last - first message with a token) / (tokens - 1)",
        "Time per output token after the first, per request; none for answers of one token. Called ITL by AIPerf. Not "
        "the gap between messages: with speculation one message carries several tokens.",
    ),
    Definition("e2e", "last message - due", "Time to the whole answer. Called request latency by AIPerf."),
    Definition(
        "ICL",
        "message[i + 1] - message[i]",
        "Inter-chunk latency: the gap between messages, pooled over requests. Called ITL by vLLM. It rises with "
        "speculation although every token comes sooner, so it never counts as a gain or a loss.",
    ),
    Definition(
        "ITL per token",
        "(message[i + 1] - message[i]) / tokens of message i + 1",
        "The same gaps shared out over the tokens that ended them, each token counted once; the first token has none.",
    ),
    Definition("tokens per message", "tokens / messages with tokens", "The client's own view of acceptance."),
    Definition(
        "on/off ratio",
        "percentile with speculation / percentile without",
        "Below 1 speculation is faster: 0.62 is 38 % less time. Both arms answered the same requests, interleaved in "
        "blocks of one run. The interval is a bootstrap that resamples pairs, at the confidence that stands beside it.",
    ),
    Definition(
        "faster, slower, undecided",
        "interval below 1, above 1, around 1",
        "What the interval says. A void cell has no ratio at all, and says why.",
    ),
    Definition(
        "crossover",
        "load at which the ratio is 1",
        "Up to it speculation is faster; interpolated between measured levels in log2 of the load, with an interval.",
    ),
    Definition(
        "acceptance rate", "accepted / drafted", "Of draft tokens. Not measurable where the server does not count them."
    ),
    Definition(
        "mean acceptance length",
        "1 + accepted / steps",
        "Output tokens per step of the target, its own token counted. Per step over all requests together; per request "
        "as the mean of the requests' own.",
    ),
    Definition(
        "acceptance by position",
        "drafts accepted up to i / drafts",
        "Marginal: it never rises with i. Conditional: of the drafts accepted up to i - 1, those accepted at i too.",
    ),
    Definition(
        "tokens per step, step on/off",
        "(e2e - TTFT) / (steps - 1)",
        "In the table of methods, counted after the first token: the step that gives it verifies no draft. Step on/off "
        "minus 1 is the break-even in accepted tokens per step.",
    ),
    Definition(
        "throughput",
        "tokens / time of the blocks",
        "Of all requests of one arm of a cell together. A block of an open loop lasts as long as its requests were "
        "due, so that an arm that keeps up shows the rate that was asked for; one that falls behind what it gave.",
    ),
    Definition(
        "goodput",
        "requests that met every objective / time",
        "A failed request is not good; one that the client cancelled does not count.",
    ),
    Definition(
        "percentiles",
        "n >= 10 / (1 - q)",
        "Shown where ten samples lie beyond them: "
        + ", ".join(f"{percentile} from {samples_needed(percentile)} requests" for percentile in Percentile)
        + f". Otherwise {DASH}.",
    ),
)

VOID_REMEDIES: dict[VoidCode, str] = {
    VoidCode.ERRORS: "Read the errors in records.jsonl; ratios of a failing server say nothing.",
    VoidCode.TOO_FEW_PAIRS: "Raise --request-count.",
    VoidCode.TOO_FEW_TOKENS: "Ask for longer answers: --osl, or max_tokens of the prompts.",
    VoidCode.NOTHING_DRAFTED: "The on arm ran plain decoding: check the switch and the server's own limits.",
    VoidCode.OFF_ARM_DRAFTED: "The off arm speculated: check the switch.",
    VoidCode.LENGTHS_DIFFER: "Fix the output length (ignore the end of text), or verify outputs first.",
    VoidCode.PREFIX_CACHE_WARM: "Use prompts the server has not seen, or switch its prefix cache off.",
    VoidCode.PROMPTS_REPEATED: "Give more prompts, or lower --request-count.",
    VoidCode.WRONG_PROMPT_LENGTH: "Give the tokenizer and the chat template of the target.",
    VoidCode.DEGENERATE_OUTPUT: "Use natural prompts; loops are drafted too easily to be typical.",
    VoidCode.CLIENT_SATURATED: "Lower the load, or give the client another machine.",
    VoidCode.SENT_LATE: "Lower the load, or give the client more CPU.",
    VoidCode.SERVER_WARMING: "Raise --warmup-request-count.",
    VoidCode.MESSAGES_BUFFERED: "Something between server and client gathers messages: switch its buffering off.",
    VoidCode.INTERRUPTED: "Measure again.",
}
