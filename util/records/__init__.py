"""Checked studies, those of StaICC's prompts too; models and cached records; provenance, exports."""

__all__ = [
    "cache",
    "checked",
    "exports",
    "file_format",
    "model",
    "provenance",
    "staicc",
    "study",
]
