"""What is done to a model: one attention function, instruments, exact replays, batches. Knows no task and no figure."""
