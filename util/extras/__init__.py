"""The suite inside other programs, each with an extra of its own to install: lm-evaluation-harness."""
