"""One folder per figure, named by its stem; beside them what all figures share."""

from util.show.part import figure_of, headline, stored

FIGURES = ("toy_induction_head", "forerunner_heads", "induction_scores", "ioi_patching", "edge_ablation", "role_atlas")


def beside(*models: str) -> str:
    """A table in Markdown of what stored values say: a column for each model, the title of each part in a row."""
    lines = [["part", *models], ["---"] * (1 + len(models))]
    for stem in FIGURES:
        values_of = [stored(stem, model) for model in models]
        for name, part in figure_of(stem).parts.items():
            titles = [headline(part, values) if values and part.measure else "" for values in values_of]
            if any(titles):
                lines.append([f"{stem}, {name}", *titles])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
