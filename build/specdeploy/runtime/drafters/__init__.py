"""Who proposes tokens: one file per drafter behind one small protocol."""

from specdeploy.runtime.drafters.auto import AutoDrafter
from specdeploy.runtime.drafters.base import Draft, Drafter, DraftRow, Observation
from specdeploy.runtime.drafters.draft_model import DraftModelDrafter
from specdeploy.runtime.drafters.layer_skip import LayerSkipDrafter
from specdeploy.runtime.drafters.ngram import NgramDrafter
from specdeploy.runtime.drafters.suffix import SuffixDrafter

__all__ = [
    "AutoDrafter",
    "Draft",
    "DraftModelDrafter",
    "DraftRow",
    "Drafter",
    "LayerSkipDrafter",
    "NgramDrafter",
    "Observation",
    "SuffixDrafter",
]
