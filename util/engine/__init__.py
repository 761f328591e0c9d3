"""The engine runs models, captures and edits their attention, and replays layers. It knows no task and no figure."""

__all__ = [
    "adapters",
    "attention",
    "base_runs",
    "batches",
    "caches",
    "call",
    "components",
    "direct_effects",
    "finite",
    "handshake",
    "instruments",
    "label_scores",
    "layer_calls",
    "means",
    "memory",
    "replay",
    "switches",
]
