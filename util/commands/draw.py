"""Stored figures again, from their values alone; no model is needed."""

from __future__ import annotations

from util import paths
from util.commands.arguments import Folder, Words
from util.figures import FIGURES
from util.show import files
from util.show.part import drawn, figure_of, stored
from util.show.style import WIDTH
from util.study.exports import check_folder


def run(model: str, *, figure: Words = FIGURES, width: float = WIDTH, out: Folder | None = None) -> None:
    """Draw every picture of the figures, and print their files. Raises ValueError where no values are stored.

    Args:
        model: embedded, smollm2, or another model whose values were stored
        figure: one or more; default: all
        width: inches
        out: default: figures/ in what ICL_OUTPUT names
    """
    if wrong := sorted({*figure} - {*FIGURES}):
        raise ValueError(f"figure = {', '.join(wrong)}: there are {', '.join(FIGURES)}")
    folder = out or paths.output("figures", model)
    check_folder(folder, "out")
    folder.mkdir(parents=True, exist_ok=True)
    for stem in figure:
        shown, values = figure_of(stem), stored(stem, model, latest=True)
        if values is None:
            raise ValueError(f"no values of {stem} of {model} are stored; `make figures` measures them")
        for name, part in shown.parts.items():
            if picture := drawn(part, values, width):
                print(*files.write_figure(picture, folder / f"{stem}_{name}"))
