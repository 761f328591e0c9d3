"""A card as files: card.json, card.html in one file, and card.pdf where there is a browser to print it."""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from util.card import plots
from util.card.results import Card
from util.card.sentences import Sentence, Told, advice, sentences
from util.figures.edge_ablation.show import FIGURE as EDGES
from util.figures.edge_ablation.show import circuits_about
from util.figures.ioi_patching.show import FIGURE as IOI
from util.figures.ioi_patching.show import diagram_of
from util.figures.role_atlas.show import FIGURE as ROLE_ATLAS
from util.figures.role_atlas.show import by_head, place_of
from util.roles.rules import Role
from util.show.files import plain, write_whole
from util.show.part import drawn
from util.show.style import headline_of

TEMPLATES = Path(__file__).parent / "templates"
JSON, HTML, PDF = "card.json", "card.html", "card.pdf"
PAGE, HALF = 7.2, 3.5  # inches: the width of the page, and of a half of it
DIAGRAM = 6.0  # inches: it is shown as wide as the page, so that its smallest letters are of 6 points on paper
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
PRINTING = 120  # seconds that a browser may take


@dataclass(frozen=True)
class Picture:
    """A figure on the page: its finding as text, and its drawing."""

    finding: str
    svg: str  # a data: address

    @classmethod
    def of(cls, figure: Figure) -> Picture:
        """The picture of a figure; fonts become outlines, so that it looks the same everywhere."""
        finding, _ = headline_of(figure)
        drawn = io.BytesIO()
        with mpl.rc_context({"svg.hashsalt": "card", "svg.fonttype": "path"}):
            figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None})
        data = base64.b64encode(drawn.getvalue()).decode()
        return cls(finding, f"data:image/svg+xml;base64,{data}")


@dataclass(frozen=True)
class Written:
    """The files of a card, and the values in card.json; pdf is None where no browser could print it: `lacking` why."""

    values: Mapping[str, Any]
    json: Path
    html: Path
    pdf: Path | None
    lacking: str = ""


def values_of(card: Card) -> dict[str, Any]:
    """What card.json has: the values, and the sentences that are made of them."""
    values = plain(card.values(), decimals=6)
    values["sentences"] = [{"topic": one.topic, "told": str(one.told), "text": one.text} for one in sentences(values)]
    return values


def pictures(card: Card) -> dict[str, Picture]:
    """The figures of the parts that were measured."""
    found: dict[str, Figure | None] = {}
    if card.roles is not None:
        found["roles"] = drawn(ROLE_ATLAS.parts["atlas"], card.roles, PAGE)
    if card.ioi is not None:
        roles = None
        if card.roles is not None:
            roles = {place_of(name): list(map(Role, listed)) for name, listed in by_head(card.roles).items()}
        found["paths"] = diagram_of(card.ioi, roles, DIAGRAM)
        found["heads"] = drawn(IOI.parts["circuit"], card.ioi, HALF)
    if card.word_pairs is not None:
        pairs = card.word_pairs
        chance, setting = {task: one["chance"] for task, one in pairs.circuits.items()}, circuits_about(pairs.single)
        found["circuits"] = plots.word_pairs(
            pairs.accuracy(), chance, finding=pairs.finding, setting=setting, width=HALF
        )
        found["edges"] = drawn(EDGES.parts["map"], pairs.single, PAGE)
    if card.losses is not None and card.losses.each:
        finding, setting = card.losses.finding, f"{card.model}; {card.losses.setting}"
        found["losses"] = plots.losses(card.losses, finding=finding, setting=setting, width=PAGE)
    return {name: Picture.of(figure) for name, figure in found.items() if figure is not None}


def html_of(values: Mapping[str, Any], shown: Mapping[str, Picture], command: str) -> str:
    """The page. values: see `values_of`; shown: see `pictures`; command: what made it."""
    told = [Sentence(one["topic"], Told(one["told"]), one["text"]) for one in values["sentences"]]
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=StrictUndefined,
    )  # fmt: skip
    environment.globals["css"] = Markup((TEMPLATES / "card.css").read_text(encoding="utf-8"))
    return environment.get_template("card.html").render(
        card=values, sentences=told, pictures=shown, command=command, advice=advice(values, command)
    )


def write(card: Card, folder: Path, command: str) -> Written:
    """Write the files of a card into a folder, which is made. command: what made it."""
    folder.mkdir(parents=True, exist_ok=True)
    values = values_of(card)
    files = {JSON: json.dumps(values, indent=1, allow_nan=False) + "\n", HTML: html_of(values, pictures(card), command)}
    for name, text in files.items():
        write_whole(folder / name, text)
    (folder / PDF).unlink(missing_ok=True)  # of an older card
    lacking = printed(folder / HTML, folder / PDF)
    return Written(values, folder / JSON, folder / HTML, None if lacking else folder / PDF, lacking)


def browser() -> str | None:
    """The browser that prints pages: that of ICL_CHROMIUM, or one that is installed under its usual name."""
    return os.environ.get("ICL_CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)


def printed(page: Path, file: Path) -> str:
    """Print a page to a PDF file. Returns why that was not possible, "" if it was."""
    program = browser()
    cure = f"print {page} from any browser"
    if program is None:
        return f"No Chromium is installed (ICL_CHROMIUM names one): {cure}."
    with tempfile.TemporaryDirectory() as profile:
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-pdf-header-footer", f"--user-data-dir={profile}"]
        command = [program, *flags, f"--print-to-pdf={file.resolve()}", page.resolve().as_uri()]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PRINTING, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{program} could not print it ({error}): {cure}."
    if done.returncode or not file.exists():
        return f"{program} could not print it (status {done.returncode}): {cure}."
    return ""
