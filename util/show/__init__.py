"""What numbers become, without a model: parts, words, panels, pictures, files."""
