"""Executed notebooks of a model as HTML, with an index of findings: `python -m workflow.report MODEL EXECUTED OUT`."""

import html
import os
import re
import sys
from pathlib import Path

import nbformat
from nbconvert import HTMLExporter
from nbconvert.filters import markdown2html

from util import paths
from util.show.part import figure_of, findings, stored

HEAD = (
    '<!DOCTYPE html><meta charset="utf-8"><style>body {max-width: 50em; margin: auto; font-family: sans-serif}</style>'
)


def write(model: str, executed: Path, out: Path) -> Path:
    """Write a page of each executed notebook of a model and an index of them into a folder of `out`; returns the index.

    Raises FileNotFoundError where none was executed.
    """
    files = sorted((executed / paths.model_folder(model)).glob("*.ipynb"))
    if not files:
        command = "make figures" + ("" if model == "embedded" else f" MODEL={model}")
        raise FileNotFoundError(f"no executed notebook of {model} is there; `{command}` makes them")
    folder = out / (paths.model_folder(model) or "embedded")
    folder.mkdir(parents=True, exist_ok=True)
    name = html.escape(Path(model).name if Path(model).exists() else model)
    lines = [f"# {name}\n"]
    for file in files:
        notebook = nbformat.read(file, as_version=4)
        title = notebook.cells[0].source.splitlines()[0].lstrip("# ")
        for cell in notebook.cells:
            if cell.cell_type == "markdown":  # pictures that texts show are below the root
                cell.source = cell.source.replace('src="../', 'src="')
        root = {"metadata": {"path": str(paths.root())}}
        body, _ = HTMLExporter(embed_images=True).from_notebook_node(notebook, resources=root)
        body = re.sub(r'href="(\d\d_\w+)\.ipynb', r'href="\1.html', body)
        body = body.replace('href="../', f'href="{os.path.relpath(paths.root(), folder)}/')
        (folder / f"{file.stem}.html").write_text(body, encoding="utf-8")
        title += " (it failed)" if notebook.metadata.get("papermill", {}).get("exception") else ""
        values = stored(file.stem[3:], model)
        said = findings(figure_of(file.stem[3:]), values) if values else ["No values are stored."]
        lines += [f"## [{title}]({file.stem}.html)", *(f"- {sentence}" for sentence in said)]
    index, body = folder / "index.html", markdown2html("\n".join(lines))
    index.write_text(f"{HEAD}<title>{name}</title>{body}", encoding="utf-8")
    return index


if __name__ == "__main__":
    try:
        print(write(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])))
    except FileNotFoundError as error:
        sys.exit(str(error))
