"""What is kept: a study of one figure, and the store of what it measured."""
