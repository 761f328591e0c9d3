"""Verdicts on a paper's claims, as `make claims` stores them among a figure's values: sentences, table and picture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from util.models.table import PACKAGED
from util.prompts.word_pairs import is_trained
from util.show import files
from util.show.draw import Grid, broken, room
from util.show.part import Part, Values, stored, title
from util.show.style import ORANGE
from util.stats import verdicts
from util.stats.verdicts import CANNOT_BE_TOLD, DOES_NOT_HOLD, HOLDS, Claim, Verdicts, verdicts_of

PAPERS = {"induction_scores": "Crosbie & Shutova 2024", "edge_ablation": "Bakalova et al. 2025"}
COUNTED = {  # of one claim, of several
    HOLDS: ("holds", "hold"),
    DOES_NOT_HOLD: ("does not hold in this model", "do not hold in this model"),
    CANNOT_BE_TOLD: ("cannot be told", "cannot be told"),
    verdicts.NO_PREMISE: ("lacks its premise", "lack their premise"),
    verdicts.NOT_DONE: ("has no task that is done", "have no task that is done"),
    verdicts.NOT_ASKED: ("is not asked", "are not asked"),
}
LOOKS = {HOLDS: ("o", "black"), DOES_NOT_HOLD: ("X", "black"), CANNOT_BE_TOLD: ("o", "white"), "": (".", "0.6")}
ROW = 0.14  # inches of a comparison, or a line of a title


def judged(values: Values) -> Verdicts:
    """The verdicts among the values of a figure; none where nothing was judged."""
    return verdicts_of(values["claims"]) if values.get("claims") else Verdicts(())


def says(values: Values) -> Iterator[str]:
    """How many claims have each verdict, if any is decided; then a sentence for each verdict."""
    found = judged(values)
    numbers = {name: [str(claim.number) for claim in found.claims if claim.verdict == name] for name in COUNTED}
    parts = [
        f"{len(those)} {COUNTED[name][len(those) > 1]} ({', '.join(those)})" for name, those in numbers.items() if those
    ]
    decided = numbers[HOLDS] or numbers[DOES_NOT_HOLD]
    yield f"Of {len(found.claims)} published claims {', '.join(parts)}" if decided else ""
    for name in dict.fromkeys(claim.verdict for claim in found.claims):
        texts = [f"{one.number}, {one.text}{made_of(one)}" for one in found.claims if one.verdict == name]
        yield f"The paper's claims, up to {found.queries} queries of a task: **{name}**: {'; '.join(texts)}."


def made_of(claim: Claim) -> str:
    """What a verdict is made of, in brackets; "" where the verdict says all."""
    notes = [claim.note]
    for part in claim.parts:
        notes.append(f"{part.name}: {part.number}, wanted {'>' if part.above else '<'} {part.bound:g}")
        if part.verdict == CANNOT_BE_TOLD:
            there = f"; there are {part.available:,}" if part.available is not None else ""
            notes.append(f"{part.needed:,} queries would do{there}" if part.needed else "no number of queries would do")
    said = "; ".join(filter(None, notes))
    return f" ({said})" if said else ""


def about(values: Values) -> str:
    """What was measured, and how many queries were asked; those of a short list are fewer."""
    found, queries = values.get("claims") or {}, judged(values).queries
    trained = "; a positive control, trained to show these circuits" if is_trained(values["request"]["model"]) else ""
    asked = f"; up to {queries} queries of each task" if queries else ""
    return f"{title(values)}, {found.get('setting', '`make claims` judges them')}{trained}{asked}"


def panels(values: Values) -> Grid | None:
    """A panel for each claim that was compared with its bound: each comparison, what the claim says, the paper's own.

    Comparisons that stand beside a claim and are not judged are grey.
    """
    compared = [claim for claim in judged(values).claims if claim.parts]
    if not compared:
        return None
    own = {int(number): entry["value"] for number, entry in values["claims"]["published"].items()}
    rows = [row for claim in compared for row in claim.rows]
    ends = [0.0, *own.values(), *(end for row in rows for end in (row.low, row.high, row.bound) if np.isfinite(end))]
    limits = min(ends) - 0.04 * np.ptp(ends), max(ends) + 0.04 * np.ptp(ends)
    drawn = [partial(_claim, claim=claim, own=own.get(claim.number), limits=limits) for claim in compared]
    key: list[Line2D | Patch] = [Patch(fc="0.88", label="what the claim says")]
    if own:
        numbers = files.published(values["request"]["figure"])["claims"]["numbers"]
        key.append(Line2D([], [], ls="", marker="D", ms=3.5, color=ORANGE, label=f"published, {numbers}"))

    def heights(width: float) -> list[float]:
        return [ROW * (_title(claim, width).count("\n") + 2.8 + len(claim.rows)) for claim in compared]

    return Grid(drawn, height=heights, columns=1, share="x", legend=key)


def _title(claim: Claim, width: float) -> str:
    """A claim with its verdict, in lines of so many inches."""
    note = f" ({claim.note})" if claim.note else ""
    return broken(f"{claim.number}. {claim.text}: {claim.verdict}{note}", 7, 72 * width - 12)


def _claim(ax: Axes, claim: Claim, own: float | None, limits: tuple[float, float]) -> None:
    title = _title(claim, room(ax)[0])
    above = title.count("\n") + 1.6  # rows of the title
    at: dict[str, Any] = {"xycoords": ("figure fraction", "data"), "textcoords": "offset points"}
    ax.annotate(title, (0, -0.5 - above), (4, 0), fontsize=7, va="top", **at)
    for row, part in enumerate(claim.rows):
        marker, inside = LOOKS[part.verdict]
        if part.verdict:
            start, end = (part.bound, limits[1]) if part.above else (limits[0], part.bound)
            ax.barh(row, end - start, 0.84, start, color="0.88", zorder=0)
        look: dict[str, Any] = {"color": "black" if part.verdict else "0.6", "mfc": inside, "ms": 4, "lw": 0.9}
        ax.plot([part.low, part.high], [row, row], color=look["color"], lw=0.9)
        ax.plot(part.value, row, marker, ls="", label=part.verdict or "beside the claim", **look)
    if own is not None:
        ax.plot(own, 0, "D", ms=3.5, color=ORANGE)
    ax.set_yticks(range(len(claim.rows)), [part.name for part in claim.rows], fontsize=6.5)
    ax.tick_params(axis="y", length=0)
    ax.set(xlim=limits, ylim=(len(claim.rows) - 0.4, -0.6 - above), xlabel="share or nats (95 %)")
    ax.spines["left"].set_visible(False)


def table(values: Values) -> pd.DataFrame:
    """A row for each comparison."""
    return judged(values).table()


def numbers(arrays: Mapping[str, Any], settings: Any) -> dict[str, Any]:
    """What `make claims` has stored, as it stands; nothing where it has stored nothing."""
    return {"claims": arrays["claims"]} if arrays["claims"] else {}


def judged_of(stem: str, model: str) -> dict[str, Any]:
    """What `make claims` has stored of a model, by this run or in the clone; arrays of the part "claims"."""
    return {"claims": (stored(stem, model, latest=True) or {}).get("claims")}


CLAIMS = Part(numbers, "claims", says, about, panels, table)


def claims_table() -> str:
    """The claims of the papers as a Markdown table: by a paper's own numbers, and of each published model.

    The embedded model was trained to show these circuits: it is the positive control, and no row of evidence.
    """
    titles = {model: title(values) for model in PACKAGED if (values := stored("forerunner_heads", model))}
    lines = [["paper", "claim", "its own numbers", *(name.split(",")[0] for name in titles.values())]]
    lines.append(["---"] * len(lines[0]))
    for stem, paper in PAPERS.items():
        by_model = {model: stored(stem, model) or {} for model in (*titles, "embedded")}
        known = next(values for values in by_model.values() if values.get("claims"))
        for number, claim in enumerate(judged(known).claims):
            own = known["claims"]["published"].get(str(claim.number))
            cells = [
                f"{own['value']:.2f}: {own['verdict'].removesuffix(' in this model')}" if own else "none published"
            ]
            for found in (judged(by_model[model]) for model in titles):
                same = found.claims[number] if found.claims else None
                cells.append(f"{same.verdict}{made_of(same)}" if same else "not yet judged by these rules")
            lines.append([paper, f"{claim.number}. {claim.text}", *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
