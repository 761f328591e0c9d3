"""Prompts, the roles of their parts, and the tokens of these parts."""
