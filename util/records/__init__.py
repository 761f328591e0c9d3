"""Checked studies, those of StaICC's prompts too; their shards, models and cached records; provenance, exports."""

__all__ = ["cache", "checked", "exports", "file_format", "model", "provenance", "shards", "staicc", "study"]
