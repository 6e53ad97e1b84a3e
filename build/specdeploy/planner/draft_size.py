"""How large a draft should be for a target, by published scaling laws.

SDSL (arXiv:2603.11053) fits N = 2.71e-3 M + 8.71e7 parameters for a target of M: about 1/200 of the target plus a
constant. TensorRT-LLM's best draft for a target of 405e9 among 1B, 3B and 8B is the one of 3B, 1/135 of it (the
vendor's post on four H200), which the law puts at 1.2e9: it is a direction, not a size to the digit.
"""

SLOPE = 2.71e-3
OFFSET = 8.71e7
# Within this factor of the law a draft is left alone: measured optima are as far from it.
TOLERANCE = 3.0


def best_draft_parameters(target_parameters: float) -> float:
    """Parameters of the draft that the law finds best for a target of `target_parameters` (active ones, for a mixture
    of experts)."""
    return SLOPE * target_parameters + OFFSET


def describe_draft_size(target_parameters: float, draft_parameters: float | None) -> str | None:
    """Advice in one line; None where the draft is about as large as the law has it."""
    best = best_draft_parameters(target_parameters)
    law = f"published scaling law (arXiv:2603.11053): about {billions(best)} parameters for a target of "
    law += billions(target_parameters)
    if draft_parameters is None:
        return law
    if best / TOLERANCE <= draft_parameters <= best * TOLERANCE:
        return None
    word = "smaller" if draft_parameters > best else "larger"
    return f"a {word} draft: this one has {billions(draft_parameters)}; {law}"


def billions(parameters: float) -> str:
    """`8.0B`, or `87M` below a billion."""
    return f"{parameters / 1e9:.3g}B" if parameters >= 1e9 else f"{parameters / 1e6:.0f}M"
