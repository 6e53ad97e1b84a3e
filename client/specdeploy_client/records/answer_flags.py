"""What is odd about an answer, for many answers at once (R requests; flags are [R]).

A flag says what one answer looks like. How many of them make a comparison worthless is decided where cells are voided.
"""

import numpy as np
import numpy.typing as npt

from specdeploy_client.records.message_columns import NOT_REPORTED, Flags, LongInts, MessageColumns

# A loop: the last half of an answer, at least so many tokens, repeats what stood up to MAX_LOOP_PERIOD tokens before.
MIN_LOOP_TOKENS = 16
MAX_LOOP_PERIOD = 64
# Two messages of one stream closer than this came of one decoding step, or were held back and let go together: no step
# of a language model is that fast.
MIN_STEP_NS = 50_000
MIN_STEPS_TO_JUDGE = 4
MAX_STEP_TOKENS = 16  # K + 1 of a long draft, where the server does not count steps


def is_short(
    messages: MessageColumns, max_tokens: LongInts, had_to_reach_max: Flags, is_answered: Flags
) -> npt.NDArray[np.bool_]:
    """Answers with fewer tokens than asked for although their text could not end them.

    `had_to_reach_max` [R]: the request ignored the end of text, or the server says that the limit of tokens ended the
    answer. An unknown number of tokens is not short.
    """
    is_less = (messages.num_tokens != NOT_REPORTED) & (messages.num_tokens < max_tokens)
    return np.asarray(is_answered & had_to_reach_max & is_less)


def is_buffered(messages: MessageColumns, num_steps: LongInts) -> npt.NDArray[np.bool_]:
    """Answers whose messages do not show when their tokens were made, because something between held them back.

    Messages less than `MIN_STEP_NS` apart are one group: a server may send the tokens of a step one by one. There must
    be a group for at least every second step; where the server does not count steps, none may hold more tokens than a
    step gives. A message that does not say how many it carries has one, but if it is alone it has all of them.
    """
    num_requests = len(num_steps)
    starts_group = np.ones(len(messages.token_messages), dtype=np.bool_)
    is_first = np.zeros(len(messages.token_messages), dtype=np.bool_)
    is_first[messages.token_starts[:-1][messages.num_messages > 0]] = True
    starts_group[~is_first] = messages.gaps_ns >= MIN_STEP_NS
    firsts = np.flatnonzero(starts_group)
    owner = np.repeat(np.arange(num_requests), messages.num_messages)[firsts]
    num_groups = np.bincount(owner, minlength=num_requests)
    tokens = np.maximum(messages.tokens[messages.token_messages], 1)
    most_tokens = np.zeros(num_requests, dtype=np.int64)
    if firsts.size:
        np.maximum.at(most_tokens, owner, np.add.reduceat(tokens, firsts))
    most_tokens = np.where(num_groups == 1, np.maximum(most_tokens, messages.num_tokens), most_tokens)
    is_merged = (num_steps >= MIN_STEPS_TO_JUDGE) & (num_groups > 0) & (2 * num_groups < num_steps)
    return np.asarray(is_merged | ((num_steps == NOT_REPORTED) & (most_tokens > MAX_STEP_TOKENS)))


def has_drafting(num_draft_tokens: LongInts, speculation: npt.NDArray[np.int8]) -> npt.NDArray[np.bool_]:
    """Whether drafting was seen: drafted tokens, or, where the server cannot count them, its word that it was on."""
    return np.where(num_draft_tokens == NOT_REPORTED, speculation == 1, num_draft_tokens > 0)


def is_degenerate(starts: LongInts, tokens: LongInts) -> npt.NDArray[np.bool_]:
    """Answers that end running in circles: easy to draft, so they make speculation look better than it is.

    `tokens` of request r (ids, or stand-ins for words) are tokens[starts[r] : starts[r + 1]]. Their last half, at least
    `MIN_LOOP_TOKENS`, must be equal to what stands one period before, for some period up to `MAX_LOOP_PERIOD`.
    """
    lengths = np.diff(starts)
    loop_tokens = np.maximum(MIN_LOOP_TOKENS, lengths // 2)
    flags = np.zeros(len(lengths), dtype=np.bool_)
    undecided = np.flatnonzero(lengths > MIN_LOOP_TOKENS)
    for period in range(1, MAX_LOOP_PERIOD + 1):
        undecided = undecided[(lengths[undecided] >= loop_tokens[undecided] + period)]
        if not undecided.size:
            break
        # Three tokens rule nearly every answer out, so that few are compared in full.
        last = starts[undecided + 1] - 1
        hopeful = undecided[np.all([tokens[last - i] == tokens[last - i - period] for i in range(3)], axis=0)]
        flags[hopeful] = [_repeats(tokens, starts[row + 1], loop_tokens[row], period) for row in hopeful]
        undecided = undecided[~flags[undecided]]
    return flags


def _repeats(tokens: LongInts, end: int, num_tokens: int, period: int) -> bool:
    return bool(np.array_equal(tokens[end - num_tokens : end], tokens[end - num_tokens - period : end - period]))
