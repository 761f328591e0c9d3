"""Verdicts on a paper's claims, as `make claims` stores them among a figure's values: sentences, table and picture."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
from util.show.conclusions import stored, title
from util.show.draw import Grid, Panel, room
from util.show.part import Part, Values
from util.show.style import ORANGE, broken
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
ROW, SMALL = 0.14, 6.0  # inches of a comparison or a line; points


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
    """A panel for each claim that was compared with its bound: the paper's number, each comparison, what it claims."""
    compared = [claim for claim in judged(values).claims if claim.parts]
    if not compared:
        return None
    published = files.published(values["request"]["figure"])["claims"]
    said = {row["number"]: f"published, {published['model']}: {row['said']}" for row in published["rows"]}
    own = {int(number): entry for number, entry in values["claims"]["published"].items()}
    ends = [0.0, *(entry["value"] for entry in own.values())]
    for part in (part for claim in compared for part in claim.rows):
        ends += [end for end in (part.value, part.low, part.high, part.bound) if np.isfinite(end)]
    limits = np.array([min(ends), max(ends)]) + 0.04 * np.ptp(ends) * np.array([-1, 1])
    headings = {claim.number: partial(_heading, claim, said[claim.number], own.get(claim.number)) for claim in compared}
    drawn: list[Panel] = [
        partial(_claim, claim=claim, heading=headings[claim.number], own=own.get(claim.number), limits=limits)
        for claim in compared
    ]

    def heights(width: float) -> list[float]:
        lines = [headings[claim.number](width).count("\n") + 1 for claim in compared]
        return [ROW * (n + 1.4 + len(c.rows)) for n, c in zip(lines, compared, strict=True)]

    reached = dict.fromkeys(part.verdict for claim in compared for part in claim.parts)
    legend = [
        Line2D([], [], ls="", color="black", marker=LOOKS[name][0], mfc=LOOKS[name][1], ms=4, label=name)
        for name in reached
    ]
    if own:
        legend.append(
            Line2D([], [], ls="", marker="D", ms=3.5, color=ORANGE, label=f"published, {published['numbers']}")
        )
    shaded = Patch(fc="0.88", label="what the claim says")
    return Grid(drawn, height=heights, columns=1, share="x", legend=[*legend, shaded])


def _heading(claim: Claim, said: str, own: Mapping[str, Any] | None, width: float) -> str:
    """A claim with its verdict, and what the paper says of it, in lines of so many inches."""
    here = f"{claim.number}. {claim.text}: {claim.verdict}" + (f" ({claim.note})" if claim.note else "")
    by_rule = f"; by its own numbers {own['value']:.2f}: {own['verdict']}" if own else ""
    return "\n".join(broken(line, SMALL, 72 * width - 12) for line in (here, said + by_rule))


def _claim(
    ax: Axes,
    claim: Claim,
    heading: Callable[[float], str],
    own: Mapping[str, Any] | None,
    limits: Sequence[float],
) -> None:
    parts, text = claim.rows, heading(room(ax)[0])
    above = text.count("\n") + 1.4  # rows of the heading
    ax.annotate(
        text, (0, -0.5 - above), (4, 0), xycoords=("figure fraction", "data"), textcoords="offset points",
        fontsize=SMALL, va="top",
    )  # fmt: skip
    for row, part in enumerate(parts):
        if part.verdict:
            start, end = (part.bound, limits[1]) if part.above else (limits[0], part.bound)
            ax.barh(row, end - start, 0.84, start, color="0.88", zorder=0)
            ax.plot([part.bound] * 2, [row - 0.42, row + 0.42], color="0.5", lw=0.8)
        marker, inside = LOOKS[part.verdict]
        colour = "black" if part.verdict else "0.6"
        ax.plot([part.low, part.high], [row, row], color=colour, lw=0.9)
        ax.plot(part.value, row, marker, ms=4, color=colour, mfc=inside, zorder=4)
        ax.text(1.02, row, part.number, transform=ax.get_yaxis_transform(), va="center", fontsize=SMALL)
    if own:
        ax.plot(own["value"], 0, "D", ms=3.5, color=ORANGE, zorder=3)
    ax.set_yticks(range(len(parts)), [part.name for part in parts], fontsize=SMALL)
    ax.tick_params(axis="y", length=0)
    ax.set(xlim=tuple(limits), ylim=(len(parts) - 0.4, -0.6 - above), xlabel="effect: a share, or nats (95 %)")
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
