"""Prompts, the roles of their parts, and the tokens of these parts."""

__all__ = [
    "classification",
    "induction_pattern",
    "ioi",
    "prompt",
    "row_files",
    "sequences",
    "text_tasks",
    "token_types",
    "word_pair_prompts",
    "word_pairs",
    "words",
]
