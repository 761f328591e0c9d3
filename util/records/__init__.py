"""Requests, cached records with their provenance, and the model that a record was measured on."""

__all__ = ["cache", "checked", "file_format", "model", "provenance", "study"]
