"""Figure 00: a toy induction head (after Elhage et al. 2021, Olsson et al. 2022)."""

__all__ = ["by_hand", "conclusions", "plots", "results", "study"]
