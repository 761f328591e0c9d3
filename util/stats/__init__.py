"""Confidence intervals, tests, splits and control sets. They turn arrays into numbers."""

__all__ = ["answers", "controls", "heads", "intervals", "splits", "tests"]
