"""Stored figures again, from their values alone; no model is needed."""

import argparse
from pathlib import Path

from util import paths
from util.figures import FIGURES
from util.show import files
from util.show.conclusions import figure_of, stored
from util.show.part import drawn
from util.show.style import WIDTH
from util.study.exports import check_folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command to a parser."""
    parser.add_argument("model", help="embedded, smollm2, or another model whose values were stored")
    parser.add_argument("--figure", nargs="+", choices=FIGURES, default=FIGURES, help="default: all")
    parser.add_argument("--width", type=float, default=WIDTH, help=f"inches; default {WIDTH}")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="default: figures/ in what ICL_OUTPUT names")


def run(arguments: argparse.Namespace) -> None:
    """Draw every picture of the figures, and print their files. Raises ValueError where no values are stored."""
    if arguments.out is not None:
        check_folder(arguments.out, "out")
        arguments.out.mkdir(parents=True, exist_ok=True)
    folder = arguments.out or paths.output("figures", arguments.model)
    for stem in arguments.figure:
        figure, values = figure_of(stem), stored(stem, arguments.model, latest=True)
        if values is None:
            raise ValueError(f"no values of {stem} of {arguments.model} are stored; `make figures` measures them")
        for name, part in figure.parts.items() if figure else ():
            if picture := drawn(part, values, arguments.width):
                print(*files.write_figure(picture, folder / f"{stem}_{name}"))
