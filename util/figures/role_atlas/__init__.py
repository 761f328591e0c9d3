"""The role atlas: what every head of a model is, by score and effect."""
