"""Figure 02: induction scores, head ablation, attention knockout (Crosbie & Shutova 2024)."""

__all__ = ["edits", "measures", "outputs", "plan", "plots", "results", "saved_means", "study", "task_study"]
