"""The docstrings of the package as pages, made by pdoc."""

from pathlib import Path

import pdoc

from util.report.pages import TEMPLATES

LEFT_OUT = ("util.__main__", "util.extras")  # the first runs; the second needs packages that few have installed


def write(out: Path) -> Path:
    """Write a page for each module of the package into a folder, and return the first of them."""
    pdoc.render.configure(docformat="restructuredtext", template_directory=TEMPLATES / "api", show_source=True)
    pdoc.pdoc("util", *(f"!{name}" for name in LEFT_OUT), output_directory=out)
    return out / "util.html"
