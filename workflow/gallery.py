"""What stored values say, as pages, without a model: `make gallery`.

The gallery, figures/README.md: what each paper claims, and each model's picture and finding. The notebooks of published
models, notebooks/<model>/: what a notebook says, shows and checks of a model follows from the model's values. Cells
that compute from arrays have no output: arrays are not stored in the repository.
"""

import base64
import re
from pathlib import Path

import nbformat
from nbformat.v4 import new_output
from PIL import Image

from util import paths
from util.figures import beside
from util.show.draw import WIDTH
from util.show.part import STORED, Values, figure_of, stored, title
from util.show.part import beside as part_beside
from util.study.study import conclusions, points, published

PAGE = "figures/README.md"
HEAD = """# Gallery

What each notebook finds on two published models, with 95 % intervals, and on the embedded model, which was trained here
to have induction heads: it shows how things are measured, and is no evidence. Made by `make gallery` from
[the stored values](../data/README.md). Each picture is there as a PDF too; the folders have all others.
"""
SECTIONS = {  # by notebook: the part that is shown, the paper, and what it claims
    "00_toy_induction_head": (
        "in_context",
        "[Olsson et al. 2022](https://arxiv.org/abs/2209.11895)",
        "heads that read what followed earlier occurrences of the present token, induction heads, form in training and "
        "are behind much of in-context learning.",
    ),
    "01_forerunner_heads": (
        "ablation",
        "[Cho et al. 2025](https://arxiv.org/abs/2410.04468)",
        "each text is summed up at the token before its label, its forerunner; labels copy from it, and the query's "
        "forerunner finds the labels of similar texts.",
    ),
    "02_induction_scores": (
        "shots",
        "[Crosbie & Shutova 2024](https://arxiv.org/abs/2407.07011)",
        "without a few induction heads models lose most of what demonstrations of a pattern are worth to them.",
    ),
    "03_ioi_patching": (
        "population",
        "[Wang et al. 2022](https://arxiv.org/abs/2211.00593)",
        "a circuit of a few heads, in classes that feed each other, finds the name that completes a sentence.",
    ),
    "04_edge_ablation": (
        "circuit",
        "[Bakalova et al. 2025](https://arxiv.org/abs/2504.00132)",
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
        columns = []
        for model in (*STORED[1:], STORED[0]):  # the control last
            values = stored(stem, model)
            place = f"{paths.model_folder(model)}/{stem}_{part}.png".lstrip("/")
            if values is None or not (paths.root() / "figures" / place).exists():
                continue
            name, executed = title(values), f"../notebooks/{paths.model_folder(model)}/{notebook}.ipynb"
            picture = f'<img src="{place}" width="{round(70 * WIDTH)}" alt="{part}, {name}">'
            found = figure_of(stem).parts[part].first(values).rstrip(".")
            columns.append((f"[{name}]({executed})".replace("//", "/"), "---", picture, f"{found}." if found else ""))
        lines += [*(f"| {' | '.join(row)} |" for row in zip(*columns, strict=True)), ""]
        lines.append(f"`make figures NOTEBOOKS=notebooks/{notebook}.ipynb MODEL=smollm2`\n")
    return "\n".join(lines)


# ------------------------------------------------------------------------------------------------ notebooks

NOTE = """

*Here: {title}, from its [stored values](../../data/README.md). Cells that compute from arrays have no output;
`make figures MODEL={model}` executes all.*"""


def with_outputs(notebook: Path, model: str) -> nbformat.NotebookNode | None:
    """A notebook with what the stored values of a model say and show; None where it has none."""
    stem = notebook.stem.partition("_")[2]
    values = stored(stem, model)
    if values is None:
        return None
    made = nbformat.read(notebook, as_version=4)
    for cell in made.cells:
        if cell.cell_type == "markdown":  # a folder below
            cell.source = re.sub(r'(\]\(|src=")(?=\.\./|README|smollm2/|gemma3/)', r"\1../", cell.source)
            continue
        cell.source = cell.source.replace('model_name = "embedded"', f'model_name = "{model}"', 1)
        cell.execution_count = None
        cell.outputs = outputs(cell.source, stem, model, values)
    made.cells[0].source += NOTE.format(title=title(values), model=model)
    return made


def outputs(source: str, stem: str, model: str, values: Values) -> list[nbformat.NotebookNode]:
    """What a cell shows, from values."""
    figure, texts, found = figure_of(stem), list[str](), list[nbformat.NotebookNode]()
    if f'published("{stem}")' in source:
        texts.append(published(stem).data)
    if "study.save()" in source:
        texts.append(conclusions(figure, values).data)
    if source.startswith("Text(beside("):
        texts.append(beside(*STORED[1:]))
    found += [new_output("display_data", {"text/markdown": text}) for text in texts]
    for name in re.findall(r'^study\.show\("(\w+)"', source, flags=re.MULTILINE):
        part = figure.parts[name]
        folder = paths.root() / "figures" / paths.model_folder(model if part.measure else "embedded")
        picture = folder / f"{stem}_{name}.png"
        lines, table = part_beside(part, values, pictured=picture.exists())
        if lines:
            found.append(new_output("display_data", {"text/markdown": points(lines)}))
        if table is not None:
            found.append(new_output("display_data", {"text/html": table.to_html(), "text/plain": str(table)}))
        if picture.exists():
            png = base64.b64encode(picture.read_bytes()).decode()
            shown = {"image/png": {"width": Image.open(picture).width // 2}}
            found.append(new_output("display_data", {"image/png": png}, metadata=shown))
    return found


if __name__ == "__main__":
    (paths.root() / PAGE).write_text(page(), encoding="utf-8")
    print(PAGE)
    for model in STORED[1:]:
        for notebook in sorted((paths.root() / "notebooks").glob("*.ipynb")):
            if made := with_outputs(notebook, model):
                place = notebook.parent / paths.model_folder(model) / notebook.name
                place.parent.mkdir(exist_ok=True)
                nbformat.write(made, place)
                print(place)
