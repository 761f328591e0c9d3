"""One folder per figure, named by its stem; beside them what all figures share."""

FIGURES = ("toy_induction_head", "forerunner_heads", "induction_scores", "ioi_patching", "edge_ablation", "role_atlas")
