"""How likely the next draft token of a row is accepted, from what became of the earlier ones.

All rates are conditional: accepted at depth j, given that depth j - 1 was. A row starts with the engine's average and
moves to its own as it is verified; both forget, so that a change of the text is noticed.
"""

from collections.abc import Sequence

# Verifications after which one counts for 1/e: tens of tokens for a row, thousands for the average of all rows.
_ROW_MEMORY = 24
_ENGINE_MEMORY = 512
# The engine's average weighs as much as this many verifications of the row. Beyond the first token the row's rate one
# token earlier weighs too: depths that were not tried lately look like the depth before them.
_ENGINE_WEIGHT = 4.0
_DEPTH_WEIGHT = 2.0
# Before anything was verified. Too high is found out within a few steps, too low only by probing.
_INITIAL_RATE = 0.7
_LARGEST_UNIT = 1e100


class AcceptanceCounts:
    """Fading counts of trials and acceptances at each depth, from 1 on.

    `unit` is what the latest trial counts. It grows instead of all counts shrinking, which would be more work.
    """

    def __init__(self, max_draft_len: int, memory: int) -> None:
        self.unit = 1.0
        self.trials = [0.0] * max_draft_len
        self.accepted = [0.0] * max_draft_len
        self._growth = 1.0 / (1.0 - 1.0 / memory)

    def record(self, num_drafted: int, num_accepted: int) -> None:
        """A draft `num_drafted` deep of which `num_accepted` were accepted: the first miss is the last trial."""
        self.unit *= self._growth
        for index in range(min(num_accepted + 1, num_drafted, len(self.trials))):
            self.trials[index] += self.unit
            if index < num_accepted:
                self.accepted[index] += self.unit
        if self.unit > _LARGEST_UNIT:
            self.trials = [count / self.unit for count in self.trials]
            self.accepted = [count / self.unit for count in self.accepted]
            self.unit = 1.0


def row_counts(max_draft_len: int) -> AcceptanceCounts:
    """Counts of one row."""
    return AcceptanceCounts(max_draft_len, _ROW_MEMORY)


def engine_counts(max_draft_len: int) -> AcceptanceCounts:
    """Counts of all rows together."""
    return AcceptanceCounts(max_draft_len, _ENGINE_MEMORY)


def engine_rates(counts: AcceptanceCounts) -> list[float]:
    """The average row's rate at each depth; depths with little evidence follow the depth before them."""
    rates: list[float] = []
    before = _INITIAL_RATE
    for trials, accepted in zip(counts.trials, counts.accepted, strict=True):
        before = (accepted + counts.unit * before) / (trials + counts.unit)
        rates.append(before)
    return rates


def survival_of(counts: AcceptanceCounts, rates_of_engine: Sequence[float]) -> list[float]:
    """Probability that the first 1, 2, .. draft tokens of a row are all accepted; never rising."""
    survivals: list[float] = []
    product, before = 1.0, 0.0
    engine_weight, depth_weight = _ENGINE_WEIGHT * counts.unit, 0.0
    for trials, accepted, average in zip(counts.trials, counts.accepted, rates_of_engine, strict=True):
        expected = accepted + engine_weight * average + depth_weight * before
        before = expected / (trials + engine_weight + depth_weight)
        depth_weight = _DEPTH_WEIGHT * counts.unit  # the first token has none before it
        product *= before
        survivals.append(product)
    return survivals
