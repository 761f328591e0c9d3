"""Confidence intervals, tests and control sets. Arrays in, numbers out."""
