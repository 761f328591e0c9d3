"""How the embedded model was made: corpus, tokenizer, training, evaluation."""
