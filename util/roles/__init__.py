"""What heads do, measured: attention scores on repeated random sequences, for every figure that asks."""

__all__ = ["attention_scores", "function_vectors", "head_scores", "heads", "results", "sequences_study"]
