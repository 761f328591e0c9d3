"""One folder per figure, named by its stem; beside them what all figures share."""
