"""One folder per figure, named by its stem; beside them what all figures share."""

FIGURES = ("toy_induction_head", "forerunner_heads", "induction_scores", "ioi_patching", "edge_ablation", "role_atlas")

__all__ = [
    "FIGURES",
    "circuit_curve",
    "circuit_diagram",
    "claims_figure",
    "conclusions",
    "head_map",
    "planted_controls",
    "replication",
    "report",
    "stored_roles",
    "style",
    "tokens",
    *FIGURES,
]
