"""How `llm` runs a request: one adapter per lane behind one small protocol."""

from specdeploy.serving.adapters.base import Adapter, Sink

__all__ = ["Adapter", "Sink"]
