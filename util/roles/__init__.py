"""What heads do, measured: attention scores, indirect effects, and roles by a rule, for every figure that asks."""

__all__ = [
    "attention_scores",
    "cuts",
    "function_vectors",
    "head_scores",
    "heads",
    "label_roles",
    "name_pairs",
    "name_roles",
    "results",
    "rules",
    "sequence_roles",
    "sequences_study",
    "vector_roles",
]
