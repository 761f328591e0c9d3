"""Confidence intervals, tests and control sets. They turn arrays into numbers."""
