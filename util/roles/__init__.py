"""What heads do, measured: attention scores on repeated sequences, and indirect effects, for every figure that asks."""

__all__ = ["attention_scores", "function_vectors", "head_scores", "heads", "results", "sequences_study"]
