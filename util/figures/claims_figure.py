"""Claims of a paper beside our verdicts on them: one drawing for all figures.

A row is a comparison: its value with the 95 % interval, and shaded what the claim says of it. The line above it says
what the paper reports of its model, and what is found here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.transforms import blended_transform_factory

from util.prompts.word_pairs import is_trained
from util.show import conclusions, files
from util.show.style import MARGIN, ORANGE, WIDTH, broken, headline, headline_height, legend_below, new_figure, style
from util.stats.verdicts import (
    CANNOT_BE_TOLD,
    DOES_NOT_HOLD,
    HOLDS,
    NO_PREMISE,
    NOT_ASKED,
    NOT_DONE,
    Claim,
    Part,
    Verdicts,
    verdicts_of,
)

SHOWN = ""  # what stands beside a claim has no verdict
LOOKS: Mapping[str, dict[str, Any]] = {
    HOLDS: {"marker": "o", "mfc": "black"},
    DOES_NOT_HOLD: {"marker": "X", "mfc": "black"},
    CANNOT_BE_TOLD: {"marker": "o", "mfc": "white"},
    SHOWN: {"marker": ".", "mfc": "0.6"},
}
COUNTED = {  # of one claim, of several
    HOLDS: ("holds", "hold"),
    DOES_NOT_HOLD: ("does not hold in this model", "do not hold in this model"),
    CANNOT_BE_TOLD: ("cannot be told", "cannot be told"),
    NO_PREMISE: ("lacks its premise", "lack their premise"),
    NOT_DONE: ("has no task that is done", "have no task that is done"),
    NOT_ASKED: ("is not asked", "are not asked"),
}
ROW = 0.135  # inches: of a line of text or a comparison
TEXT, SMALL = 7.0, 6.0  # points: of claims, and of what is said of them


@dataclass(frozen=True)
class Published:
    """What a paper says of a claim. value: the effect by its own numbers, where they are known, and its verdict."""

    said: str
    value: float | None = None
    verdict: str = ""


@dataclass(frozen=True)
class ClaimsBeside:
    """Verdicts on a paper's claims beside what the paper says.

    published: by the number of a claim; whose: the paper's model; numbers: what the published numbers are of; model:
    that was measured here, as it is shown; about: what was measured, without the number of queries.
    """

    verdicts: Verdicts
    published: Mapping[int, Published]
    whose: str
    numbers: str
    model: str
    about: str

    @classmethod
    def of(cls, stem: str, model: str) -> ClaimsBeside:
        """The verdicts on a figure's claims that `make claims` has stored of a model, no claims where it has none.

        What the paper says stands in data/published/<stem>.json.
        """
        published = files.published(stem)["claims"]
        latest, committed = (conclusions.stored_claims(stem, model, latest=latest) for latest in (True, False))
        found = latest or committed or {"claims": [], "model": model}
        own = {int(number): entry for number, entry in found.get("published", {}).items()}
        told = {row["number"]: Published(row["said"], **own.get(row["number"], {})) for row in published["rows"]}
        title = str(found["model"])
        about = f"{title}, {found.get('setting', 'make claims judges them')}"
        if is_trained(model):
            about += "; a positive control, trained to show these circuits"
        return cls(verdicts_of(found), told, published["model"], published["numbers"], title, about)

    @property
    def setting(self) -> str:
        """What was measured, and how many queries were asked; those of a short list are fewer."""
        queries = self.verdicts.queries
        return f"{self.about}; up to {queries} queries of each task" if queries else self.about

    @property
    def finding(self) -> str | None:
        """How many claims have each verdict, with their numbers; None where none of them is decided."""
        numbers = {
            verdict: [claim.number for claim in self.verdicts.claims if claim.verdict == verdict] for verdict in COUNTED
        }
        if not numbers[HOLDS] and not numbers[DOES_NOT_HOLD]:
            return None
        parts = [
            f"{len(numbers[verdict])} {one if len(numbers[verdict]) == 1 else several} "
            f"({', '.join(map(str, numbers[verdict]))})"
            for verdict, (one, several) in COUNTED.items()
            if numbers[verdict]
        ]
        return f"Of {len(self.verdicts.claims)} published claims {', '.join(parts)}"

    def figure(self, *, width: float = WIDTH) -> Figure | None:
        """Every claim: what is published, what is found, every comparison against its bound.

        None where nothing is compared.
        """
        if not self.verdicts.queries:
            return None
        blocks = [self._block(claim, width) for claim in self.verdicts.claims]
        tall = ROW * sum(block.rows for block in blocks)
        with style():
            figure = new_figure(
                width, headline_height(self.finding, self.setting, width) + tall + 0.75 + 0.15 * (width < WIDTH)
            )
            ax = figure.subplots()
            _axes(ax, blocks)
            top = 0.0
            for block in blocks:
                _draw(ax, block, top)
                top += block.rows
            ax.set_ylim(top, 0)
            legend_below(figure, self._key(blocks))
            headline(figure, self.finding, self.setting)
        return figure

    def _block(self, claim: Claim, width: float) -> _Block:
        """A claim with what is said of it, broken into lines of the figure's width."""
        room = 72 * width - 4 * MARGIN
        published = self.published.get(claim.number)
        wanted = ", ".join(dict.fromkeys(f"{'>' if part.above else '<'} {part.bound:g}" for part in claim.parts))
        notes = [note for note in (wanted and f"bound {wanted}", claim.note) if note]
        here = f"here, {self.model}: {claim.verdict}" + (f" ({'; '.join(notes)})" if notes else "")
        there = [] if published is None else [f"published, {self.whose}: {published.said}{_by_rule(published)}"]
        said = "\n".join(broken(line, SMALL, room) for line in there)
        text = broken(f"{claim.number}. {claim.text}", TEXT, room)
        return _Block(text, said, broken(here, SMALL, room), (*claim.parts, *claim.beside), published)

    def _key(self, blocks: list[_Block]) -> list[Line2D | Patch]:
        verdicts = {part.verdict for block in blocks for part in block.parts}
        handles: list[Line2D | Patch] = [
            Line2D([], [], ls="", color=_colour(verdict), ms=4, label=verdict, **look)
            for verdict, look in LOOKS.items()
            if verdict in verdicts - {SHOWN}
        ]
        if any(block.of_paper(0) is not None for block in blocks):
            handles.append(Line2D([], [], ls="", marker="D", ms=3.5, color=ORANGE, label=f"published, {self.numbers}"))
        return [*handles, Patch(fc="0.88", label="what the claim says")]


# ------------------------------------------------------------------------------------------------ drawing


@dataclass(frozen=True)
class _Block:
    """A claim as it is drawn: its text, what the paper says and what is found here, in lines; and its comparisons."""

    text: str
    said: str
    here: str
    parts: tuple[Part, ...]
    published: Published | None

    @property
    def lines(self) -> list[tuple[str, float, str]]:
        """The texts above the comparisons: what is written, in points, and in which colour."""
        return [(self.text, TEXT, "black"), (self.said, SMALL, "0.4"), (self.here, SMALL, "black")]

    @property
    def above(self) -> float:
        """Rows above the comparisons."""
        return sum(map(_rows, self.lines)) + 0.1

    @property
    def rows(self) -> float:
        """Rows of all of it, and below it."""
        return self.above + len(self.parts) + 0.7

    def of_paper(self, number: int) -> float | None:
        """The effect by the paper's own numbers, which stands at the first comparison."""
        return self.published.value if self.published and self.parts and not number else None


def _axes(ax: Axes, blocks: list[_Block]) -> None:
    """The x axis has room for all intervals, bounds and published values."""
    at = [0.0]
    for block in blocks:
        for number, part in enumerate(block.parts):
            at += [part.value, part.low, part.high, part.bound if part.verdict else 0.0, block.of_paper(number) or 0.0]
    low, high = np.nanmin(at), np.nanmax(at)
    pad = 0.04 * (high - low or 1.0)
    ax.set_xlim(low - pad, high + pad)
    ax.set(xlabel="effect: a share, or nats (95 %)", yticks=[])
    ax.spines["left"].set_visible(False)


def _draw(ax: Axes, block: _Block, top: float) -> None:
    figure = ax.get_figure(root=True)
    assert figure is not None
    edge = blended_transform_factory(figure.transFigure, ax.transData)
    left = MARGIN / 72 / figure.get_figwidth()
    at = top
    for line in block.lines:
        text, size, colour = line
        ax.text(left, at, text, transform=edge, fontsize=size, color=colour, va="top").set_in_layout(False)
        at += _rows(line)
    for number, part in enumerate(block.parts):
        _comparison(ax, part, block.of_paper(number), top + block.above + number + 0.5)


def _rows(line: tuple[str, float, str]) -> float:
    """How many rows a text takes that is written in lines of so many points."""
    text, size, _ = line
    return (text.count("\n") + 1) * 1.42 * size / (72 * ROW) if text else 0.0


def _comparison(ax: Axes, part: Part, published: float | None, y: float) -> None:
    low, high = ax.get_xlim()
    if part.verdict:
        start, end = (part.bound, high) if part.above else (low, part.bound)
        ax.add_patch(Rectangle((start, y - 0.42), end - start, 0.84, fc="0.88", lw=0, zorder=0))
        ax.plot([part.bound] * 2, [y - 0.42, y + 0.42], color="0.5", lw=0.8)
    sides = ax.get_yaxis_transform()
    ax.text(-0.02, y, part.name, transform=sides, ha="right", va="center", fontsize=SMALL)
    if published is not None:
        ax.plot(published, y, "D", ms=3.5, color=ORANGE, zorder=3)
    ax.text(1.02, y, part.number, transform=sides, va="center", fontsize=SMALL)
    colour = _colour(part.verdict)
    ax.plot([part.low, part.high], [y, y], color=colour, lw=0.9)
    ax.plot(part.value, y, ms=4, color=colour, zorder=4, **LOOKS[part.verdict])


def _colour(verdict: str) -> str:
    return "0.6" if verdict == SHOWN else "black"


def _by_rule(published: Published) -> str:
    """What the rule says of the paper's own numbers."""
    return "" if published.value is None else f"; by its own numbers {published.value:.2f}: {published.verdict}"
