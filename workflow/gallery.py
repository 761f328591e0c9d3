"""The gallery, figures/README.md: what each paper claims, and each model's picture and finding: `make gallery`.

It writes the pages of `workflow.pages` too.
"""

from util import paths
from util.show.draw import WIDTH
from util.show.part import STORED, figure_of, stored, title
from workflow import pages

PAGE = "figures/README.md"
HEAD = """# Gallery

What each notebook finds on two published models, with 95 % intervals, and on the embedded model, which was trained here
to have induction heads: it shows how things are measured, and is no evidence. Made by `make gallery` from
[the stored values](../data/README.md). Each picture is there as a PDF too; the folders have all others.
"""
ARXIV = "https://arxiv.org/abs/"
SECTIONS = {  # by notebook: the part that is shown, the paper, and what it claims
    "00_toy_induction_head": (
        "patterns",
        f"[Olsson et al. 2022]({ARXIV}2209.11895)",
        "heads that read what followed earlier occurrences of the present token, induction heads, form in training and "
        "are behind much of in-context learning.",
    ),
    "01_forerunner_heads": (
        "ablation",
        f"[Cho et al. 2025]({ARXIV}2410.04468)",
        "each text is summed up at the token before its label, its forerunner; labels copy from it, and the query's "
        "forerunner finds the labels of similar texts.",
    ),
    "02_induction_scores": (
        "shots",
        f"[Crosbie & Shutova 2024]({ARXIV}2407.07011)",
        "without a few induction heads models lose most of what demonstrations of a pattern are worth to them.",
    ),
    "03_ioi_patching": (
        "population",
        f"[Wang et al. 2022]({ARXIV}2211.00593)",
        "a circuit of a few heads, in classes that feed each other, finds the name that completes a sentence.",
    ),
    "04_edge_ablation": (
        "circuit",
        f"[Bakalova et al. 2025]({ARXIV}2504.00132)",
        "demonstrations are first contextualised by each other, then aggregated at the last token.",
    ),
    "05_role_atlas": (
        "atlas",
        "Of our own",
        "which of the roles that these papers name a model's heads have, by score and by effect.",
    ),
}


def page() -> str:
    """The gallery, from the stored values."""
    lines = [HEAD]
    for notebook, (part, paper, claim) in SECTIONS.items():
        stem = notebook.partition("_")[2]
        lines += [f"## [{notebook}](../notebooks/{notebook}.ipynb)\n", f"{paper}: {claim}\n"]
        titles, pictures, found = list[str](), list[str](), list[str]()
        for model in (*STORED[1:], STORED[0]):  # the control last
            values = stored(stem, model)
            place = f"{paths.model_folder(model)}/{stem}_{part}.png".lstrip("/")
            if values is None or not (paths.root() / "figures" / place).exists():
                continue
            name, figure = title(values), figure_of(stem)
            titles.append(f"[{name}](../notebooks/{paths.model_folder(model)}/{notebook}.ipynb)".replace("//", "/"))
            pictures.append(f'<img src="{place}" width="{round(70 * WIDTH)}" alt="{part}, {name}">')
            found.append(f"{next(iter(figure.parts[part].says(values))).rstrip('.')}.")
        rows = [titles, ["---"] * len(titles), pictures, found]
        lines += [*(f"| {' | '.join(row)} |" for row in rows), ""]
        lines.append(f"`make figures NOTEBOOKS=notebooks/{notebook}.ipynb MODEL=smollm2`\n")
    return "\n".join(lines)


if __name__ == "__main__":
    (paths.root() / PAGE).write_text(page(), encoding="utf-8")
    print(PAGE, *pages.write(), sep="\n")
