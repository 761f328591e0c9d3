"""Importance scores of the parts of a model, circuits that are chosen by them, and how faithful and right these are.

The parts are nodes and edges of the component graph (`graph`), and units by token type (`units`).
"""
