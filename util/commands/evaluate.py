"""lm-evaluation-harness on a model with heads edited, see `extras.harness.evaluate`."""

from util.extras.harness.evaluate import add_arguments, run  # noqa: F401
