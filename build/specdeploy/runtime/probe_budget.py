"""How often rows that are off may try drafting again."""

# Part of the time of steps with rows that are off.
_SHARE = 0.01
# Limits in probes: what can be saved for a change for the better, and what a probe that was held up can cost.
_MAX_SAVED = 4.0
_MAX_DEBT = 16.0


class ProbeBudget:
    """Nanoseconds: a hundredth of the steps' time comes in, probes take out what they cost and bring what they gain.

    So failed probes cost 1 % at most, however dear they are, and follow each other the faster the cheaper they are;
    successful ones pay for the next.
    """

    def __init__(self) -> None:
        self._ns = 0.0

    def earn(self, step_ns: float) -> None:
        """A step with rows that are off."""
        self._ns += _SHARE * step_ns

    def can_pay(self, price_ns: float) -> bool:
        """Whether a probe of this price may be made now."""
        self._ns = min(self._ns, _MAX_SAVED * price_ns)
        return self._ns >= price_ns

    def settle(self, cost_ns: float, gain_ns: float, price_ns: float) -> None:
        """A probe that was to cost `price_ns` is over."""
        self._ns = max(self._ns - cost_ns + gain_ns, -_MAX_DEBT * price_ns)
