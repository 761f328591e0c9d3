"""The notebooks of published models, notebooks/<model>/, from their stored values: part of `make gallery`.

What a notebook says, shows and checks of a model follows from the model's values, so no model is needed here. Cells
that compute from arrays have no output: arrays are not stored in the repository.
"""

import base64
import re
from pathlib import Path
from typing import Any

import nbformat
from nbformat.v4 import new_output
from PIL import Image

from util import paths
from util.figures import beside
from util.show.part import ANY, STORED, Conclusions, Values, checks, figure_of, sentences, stored, title
from util.show.part import beside as part_beside

NOTE = """

*Here: {title}, from its [stored values](../../data/README.md). Cells that compute from arrays have no output;
`make figures MODEL={model}` executes all.*"""


def page(notebook: Path, model: str) -> nbformat.NotebookNode | None:
    """A notebook with what the stored values of a model say and show; None where it has none."""
    stem = notebook.stem.partition("_")[2]
    values = stored(stem, model)
    if values is None:
        return None
    made = nbformat.read(notebook, as_version=4)
    for cell in made.cells:
        if cell.cell_type == "markdown":  # a folder below
            cell.source = re.sub(r'(\]\(|src=")(?=\.\./|README)', r"\1../", cell.source)
            continue
        cell.source = cell.source.replace('model_name = "embedded"', f'model_name = "{model}"', 1)
        cell.execution_count = None
        cell.outputs = outputs(cell.source, stem, model, values)
    made.cells[0].source += NOTE.format(title=title(values), model=model)
    return made


def outputs(source: str, stem: str, model: str, values: Values) -> list[nbformat.NotebookNode]:
    """What a cell shows, from values."""
    figure, found = figure_of(stem), list[nbformat.NotebookNode]()
    if source == "study.save()":
        told = {name: sentences(figure, values, measured=of) for name, of in ((ANY, False), (title(values), True))}
        found.append(
            result({"text/markdown": str(Conclusions({name: lines for name, lines in told.items() if lines}))})
        )
    if source.startswith("Markdown(beside("):
        found.append(result({"text/markdown": beside(*STORED[1:])}))
    if "study.check()" in source:
        found.append(printed(checks(figure, values)))
    for name in re.findall(r'^study\.show\("(\w+)"', source, flags=re.MULTILINE):
        part = figure.parts[name]
        folder = paths.root() / "figures" / paths.model_folder(model if part.measure else "embedded")
        picture = folder / f"{stem}_{name}.png"
        lines, table = part_beside(part, values, pictured=picture.exists())
        found.append(printed(lines))
        if table is not None:
            found.append(new_output("display_data", {"text/html": table.to_html(), "text/plain": str(table)}))
        if picture.exists():
            png = base64.b64encode(picture.read_bytes()).decode()
            width = Image.open(picture).width // 2
            found.append(result({"image/png": png}, {"image/png": {"width": width}}))
    return [output for output in found if output.get("text") != ""]


def printed(sentences: list[str]) -> nbformat.NotebookNode:
    return new_output("stream", name="stdout", text="".join(f"{sentence}\n" for sentence in sentences))


def result(data: dict[str, Any], metadata: dict[str, Any] | None = None) -> nbformat.NotebookNode:
    return new_output("display_data", data, metadata=metadata or {})


def write() -> list[Path]:
    """Write all pages, and return their places."""
    written = []
    for model in STORED[1:]:
        for notebook in sorted((paths.root() / "notebooks").glob("*.ipynb")):
            if made := page(notebook, model):
                place = notebook.parent / paths.model_folder(model) / notebook.name
                place.parent.mkdir(exist_ok=True)
                nbformat.write(made, place)
                written.append(place)
    return written
