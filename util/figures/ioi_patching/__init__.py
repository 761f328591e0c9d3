"""Figure 03: head patching in indirect object identification (Cohen's project 41; Wang et al. 2022)."""

__all__ = [
    "conclusions",
    "edge_plots",
    "edge_results",
    "edges",
    "example",
    "measures",
    "pairs",
    "patching",
    "plots",
    "project_plots",
    "results",
    "study",
]
