"""How the embedded model was made: corpus, tokenizer, training, evaluation."""

__all__ = ["corpus", "evaluate", "phase_change", "sources", "tokenizer", "training"]
