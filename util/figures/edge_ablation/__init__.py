"""Figure 04: ablation of edges between token types (Bakalova et al., COLM 2025)."""

__all__ = [
    "claims",
    "conclusions",
    "configs",
    "measures",
    "more_queries",
    "plan",
    "plots",
    "pruning_plots",
    "pruning_results",
    "pruning_study",
    "results",
    "study",
    "summary",
    "type_circuit",
]
