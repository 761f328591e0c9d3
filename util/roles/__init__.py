"""What heads do, measured: attention scores on repeated random sequences, for every figure that asks."""
