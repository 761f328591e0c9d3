"""Figure 02: induction scores, head ablation, attention knockout (Crosbie & Shutova 2024)."""
