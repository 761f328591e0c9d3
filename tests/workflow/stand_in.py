"""Takes the place of Python in a sweep: jobs that take no time, and that can be told to fail.

A job writes what Snakemake wants of it, and its words into ran.txt in the folder of the sweep. Where its cell has a
file `fails`, a job that measures records prints what stands there and fails; the file goes, so that the next succeeds.
"""

import json
import sys
from pathlib import Path


def cell_of(words: list[str]) -> Path:
    """The folder of the cell that a job is of."""
    file = next(Path(word) for word in words if word.startswith("cells/"))
    return Path(*file.parts[:4])


def main(words: list[str]) -> None:
    """Be one job."""
    cell = cell_of(words)
    with Path("ran.txt").open("a", encoding="utf-8") as ran:
        ran.write(" ".join(words) + "\n")
    if "collect" in words and (cell / "fails").exists():
        print((cell / "fails").read_text(encoding="utf-8"))
        (cell / "fails").unlink()
        sys.exit(1)
    if "papermill" in words:
        empty = {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
        Path(words[-1]).write_text(json.dumps(empty), encoding="utf-8")
    if "workflow.pages" in words:
        Path(words[-1]).with_suffix(".html").write_text("a notebook", encoding="utf-8")
    if "card" in words:
        folder = Path(words[-1])
        folder.mkdir(exist_ok=True)
        (folder / "card.json").write_text('{"sentences": []}', encoding="utf-8")
        (folder / "card.html").write_text("a card", encoding="utf-8")


def executable(folder: Path) -> str:
    """A program in a folder that runs this file, to be given as the Python of a sweep."""
    file = folder / "stand-in"
    file.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{Path(__file__).resolve()}" "$@"\n', encoding="utf-8")
    file.chmod(0o755)
    return str(file)


if __name__ == "__main__":
    main(sys.argv[1:])
