"""Figure 02: induction scores, head ablation, attention knockout (Crosbie & Shutova 2024)."""

__all__ = [
    "benefits",
    "conclusions",
    "edits",
    "function_vector_plots",
    "function_vector_study",
    "function_vectors",
    "measures",
    "outputs",
    "plan",
    "plots",
    "premises",
    "published",
    "results",
    "study",
    "task_plots",
    "task_study",
]
