"""The docstrings of the package as pages, made by pdoc."""

import warnings
from pathlib import Path

import pdoc

from util.report.pages import TEMPLATES

LEFT_OUT = ("util.__main__", "util.extras")  # the first runs; the second wants packages that few have installed


def write(out: Path) -> Path:
    """Write a page for each module of the package into a folder, and return that of the package."""
    pdoc.render.configure(template_directory=TEMPLATES / "api", show_source=False)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(Error parsing|Failed to run TYPE_CHECKING).*annotation", UserWarning)
        pdoc.pdoc("util", *(f"!{name}" for name in LEFT_OUT), output_directory=out)
    return out / "util.html"
