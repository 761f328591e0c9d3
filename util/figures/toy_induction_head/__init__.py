"""Figure 00: a toy induction head (after Elhage et al. 2021, Olsson et al. 2022)."""
