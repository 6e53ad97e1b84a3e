"""Who proposes tokens: one file per drafter behind one small protocol."""

from specdeploy.runtime.drafters.base import Drafter, DraftRow
from specdeploy.runtime.drafters.draft_model import DraftModelDrafter
from specdeploy.runtime.drafters.ngram import NgramDrafter

__all__ = ["DraftModelDrafter", "DraftRow", "Drafter", "NgramDrafter"]
