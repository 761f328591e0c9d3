"""Interventions inside lm-evaluation-harness, which stays as it is. `evaluate` is the way in.

It needs `pip install -e ".[harness]"` in the clone.
"""
