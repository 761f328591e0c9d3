"""Edges between token types: what they are, which circuits they form, and prompts run with some of them ablated."""
