"""How important the parts of a model are: nodes and edges of its component graph, and units by token type."""

__all__ = ["attribution", "exact", "paths"]
