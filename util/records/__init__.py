"""Checked studies, those of StaICC's prompts too; cached records with their provenance; the model of a record."""

__all__ = ["cache", "checked", "file_format", "model", "provenance", "staicc", "study"]
