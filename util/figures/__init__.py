"""One folder per figure, named by its stem; beside them what all figures share."""

__all__ = [
    "edge_ablation",
    "forerunner_heads",
    "head_map",
    "induction_scores",
    "ioi_patching",
    "planted_controls",
    "report",
    "style",
    "toy_induction_head",
]
