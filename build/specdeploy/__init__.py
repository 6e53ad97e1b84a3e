"""Decide, build, package and serve speculative decoding; see docs/design.md for the map."""

__version__ = "0.1.0"
