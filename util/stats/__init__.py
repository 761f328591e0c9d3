"""Confidence intervals, tests, splits and control sets, which turn arrays into numbers; why a number may be NaN."""
