"""Figure 04: ablation of edges between token types (Bakalova et al., COLM 2025)."""
