"""Importance scores of nodes and edges, circuits that are chosen by them, and how faithful and how right these are."""

__all__ = ["evaluation", "graph", "mib"]
