"""Figure 03: head patching in indirect object identification (Cohen's project 41; Wang et al. 2022)."""

__all__ = [
    "conclusions",
    "costs",
    "edge_plots",
    "edge_results",
    "edges",
    "example",
    "measures",
    "pairs",
    "patching",
    "planted_edges",
    "plots",
    "project_plots",
    "results",
    "study",
]
