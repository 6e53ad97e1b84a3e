"""Experts that a step touches: the weights that a mixture of experts has to read."""

# Tokens that follow each other are routed alike: t of them touch as many experts as t^OVERLAP tokens routed at random.
# Fitted (least squares of logarithms) to published counts of experts that t tokens in a row touch per layer: 8.0, 13.4,
# 18.0, 35.0 of 256 at t = 1, 2, 3, 8, and 8, 22, 36, 56 of 128 at t = 1, 4, 8, 16, 8 a token in both. Worst error 7 %.
OVERLAP = 0.77


def experts_touched(num_experts: int, experts_per_token: int, random_tokens: float) -> float:
    """Mean experts that `random_tokens` tokens touch, each routed on its own: E (1 - ((E - k)/E)^t).

    MoESD, arXiv:2505.19645. Fractions of a token are allowed; one token touches exactly k.
    """
    if random_tokens <= 0:
        return 0.0
    return num_experts * float(1 - (1 - experts_per_token / num_experts) ** max(random_tokens, 1.0))


def random_tokens(num_sequences: float, tokens_per_sequence: float) -> float:
    """Tokens routed at random that touch as many experts as these do: n t^OVERLAP.

    Sequences are taken to be independent of each other, whatever they are about: with alike requests fewer experts
    are touched, and a step is faster than computed.
    """
    return num_sequences * float(max(tokens_per_sequence, 0.0) ** OVERLAP)
