"""Figure 01: forerunner token heads (Cho et al., ICLR 2025)."""

__all__ = ["ablation", "conclusions", "cuts", "magnitudes", "measures", "plots", "results", "study"]
