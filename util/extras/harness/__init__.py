"""Interventions inside lm-evaluation-harness, which stays as it is. `model.evaluate` is the way in.

It needs `pip install -e ".[harness]"` in the clone.
"""

try:
    import lm_eval
except ImportError as error:
    cure = 'pip install -e ".[harness]" in the clone'
    raise ImportError(f"lm-evaluation-harness is not installed ({error}): {cure}") from None
