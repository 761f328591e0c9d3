"""Figure 01: forerunner token heads (Cho et al., ICLR 2025)."""

__all__ = [
    "ablation",
    "causal_plots",
    "conclusions",
    "cuts",
    "magnitudes",
    "measures",
    "paper_plots",
    "plan",
    "plots",
    "results",
    "study",
]
