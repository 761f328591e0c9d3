"""One folder per figure, named by its stem; beside them what all figures share."""

FIGURES = ("toy_induction_head", "forerunner_heads", "induction_scores", "ioi_patching", "edge_ablation")

__all__ = [
    "FIGURES",
    "circuit_curve",
    "conclusions",
    "claims_figure",
    "head_map",
    "planted_controls",
    "replication",
    "report",
    "style",
    "tokens",
    *FIGURES,
]
    "FIGURES", "circuit_curve", "circuit_diagram", "head_map", "planted_controls", "replication", "report", "style",
]  # fmt: skip
