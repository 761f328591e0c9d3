"""What heads do, measured: attention scores, indirect effects, and roles by a rule, for every figure that asks."""
