"""Importance of parts of a model: scores of units by token type, and pruning by them."""

__all__ = ["pruning", "token_types", "units"]
