"""Importance scores of the parts of a model, circuits that are chosen by them, and how faithful and right these are."""

__all__ = ["attribution", "circuits", "evaluation", "exact", "graph", "mib", "planted", "readers"]
