"""The command lines: `python -m util COMMAND`, a module for each, on shared flags and one way of writing results."""
