"""Checked studies, those of StaICC's prompts too; cached records, their provenance, exports; the model of a record."""

__all__ = ["cache", "checked", "estimates", "exports", "file_format", "model", "provenance", "staicc", "study"]
