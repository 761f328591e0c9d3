"""The command lines: `python -m util COMMAND`, a module for each, on shared flags and one way of writing results."""

__all__ = [
    "ablate",
    "answers",
    "arguments",
    "atlas",
    "card",
    "claims",
    "edges",
    "evaluate",
    "forerunner",
    "frame",
    "ioi",
    "knockout",
    "means",
    "replication",
    "results",
    "scores",
]
