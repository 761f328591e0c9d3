"""Checked studies, those of StaICC's prompts too; models and cached records; provenance, exports."""
