"""The pictures of induction heads and of what tasks lose without them, beside what Crosbie & Shutova (2024) report."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke

from util.figures.induction_scores import measures, published
from util.figures.induction_scores.edits import CONTROL_SETS, Group
from util.figures.induction_scores.vector_sets import COPIES, FUNCTION_VECTOR, INDUCTION, KINDS
from util.prompts.text_tasks import label_space
from util.roles.attention_scores import INDUCTION_HEAD
from util.show.conclusions import title
from util.show.draw import Grid, Panel, room
from util.show.head_map import colour_limit, short_number, without_zero
from util.show.panels import colour_bar, heads, triples
from util.show.part import Values
from util.show.style import (
    BLUE,
    GREY,
    PALE_RED,
    RED,
    ROLES,
    SERIES,
    broken,
    name_at_right,
    name_point,
    points,
)
from util.show.tokens import token_grid
from util.stats.heads import Head, head_name, heads_where, top
from util.stats.intervals import Interval

Rows = Mapping[str, Sequence[float]]  # by name: value, low, high
HALO = [withStroke(linewidth=2, foreground="white")]  # or a ring cannot be seen on a dark cell
MOST_HEADS = 8  # of the chosen ones, that the picture of the mechanism has bars for
ROW = 0.2  # inches: the height of a row
LINES = {"whole model": BLUE, "without induction heads": RED, "pattern knocked out": PALE_RED}
REPORTED = (published.FULL, published.ABLATED, published.KNOCKED_OUT)  # in the order of LINES
BAND = "0.85"  # of control sets, from the least to the most
PAPER = "published, Llama-3-8B, 1 % of heads"
IN_OTHERS = Group.KNOCKED_OUT_IN_OTHERS
CONTROLS = (*CONTROL_SETS, IN_OTHERS, Group.RANDOM_KEYS, Group.PREVIOUS_PART)
COLOURS = {Group.WHOLE.value: BLUE, Group.KNOCKED_OUT.value: PALE_RED, **{group.value: GREY for group in CONTROLS}}
RINGS = {  # of function vectors: marker, colour and size
    INDUCTION: ("o", ROLES["induction"].colour, 4.5),
    FUNCTION_VECTOR: ("s", ROLES["function vector"].colour, 7.5),
}


def chosen_of(values: Values) -> list[Head]:
    """The chosen heads of stored values."""
    return [(layer, head) for layer, head in values["chosen"]]


# ------------------------------------------------------------------------------------------------ heads


def scores(values: Values) -> Grid | None:
    if "setup" not in values:
        return None  # as values were stored before
    found = values["scores"]
    return Grid([partial(_map, found=found), partial(_best, found=found)], least=2.4, height=2.1)


def _map(ax: Axes, found: Values) -> None:
    heads(ax, found["mean"], (0, 1), "A) all heads", bar="prefix-matching score")


def _best(ax: Axes, found: Values) -> None:
    """The best 12 to 16 heads, lines at the bound of induction heads, uniform attention and the best untrained head."""
    mean = np.array(found["mean"], dtype=float)
    shown = int(np.clip((mean >= INDUCTION_HEAD).sum() + 3, 12, 16))
    strongest = top(mean, min(shown, mean.size))
    best, x = [Interval(*triple) for triple in triples(found, strongest, "mean")], np.arange(len(strongest))
    colours = [BLUE if score.value >= INDUCTION_HEAD else "0.7" for score in best]
    ax.bar(x, [score.value for score in best], color=colours, width=0.7)
    points(ax, x, best, fmt="none", color="black", capsize=2)
    levels = {f"{INDUCTION_HEAD}: counts": (INDUCTION_HEAD, "black"), "uniform": (float(found["uniform"]), "black")}
    if found.get("untrained") is not None:
        levels["untrained"] = (float(np.max(found["untrained"])), "0.4")
    for (level, colour), dashes in zip(levels.values(), ("--", ":", "-"), strict=False):
        ax.axhline(level, color=GREY if dashes == "-" else colour, lw=0.8, ls=dashes)
    ax.set_xticks(x, list(map(head_name, strongest)), rotation=90, fontsize=6.5)
    ax.set(ylim=(0, 1.25), yticks=(0, 0.5, 1), ylabel="prefix-matching score", title="B) the best heads")
    for place, score in zip(x, best, strict=True):
        if score.value >= INDUCTION_HEAD:
            text: dict[str, Any] = {"fontsize": 6, "ha": "center", "va": "bottom", "rotation": 90}
            ax.annotate(short_number(score.value), (place, score.high), (0, 2), textcoords="offset points", **text)
    name_at_right(ax, levels, 0.085)


def companions(values: Values) -> Grid | None:
    """Attention on one scale for all; what is written each on its own, symmetric about 0 if some are negative."""
    if "highest" not in values:
        return None
    maps = {name: np.array(score, dtype=float) for name, score in values["companions"].items()}
    attention = list(maps)[:3]
    limit = max(colour_limit(maps[name]) for name in attention)
    panels: list[Panel] = []
    for name, score in maps.items():
        own = colour_limit(score)
        limits = (0, limit) if name in attention else None if (score < -0.05 * own).any() else (0, own)
        bar = None if name in attention else ""
        panels.append(partial(_companion, values=values, name=name, score=score, limits=limits, bar=bar))
    note = "rings: the best induction heads; below a name: the highest head"
    return Grid(panels, least=1.5, height=1.55, columns=3, x=note, finish=_attention_bar)


def _companion(
    ax: Axes, values: Values, name: str, score: Any, limits: tuple[float, float] | None, bar: str | None
) -> None:
    if name not in values["highest"]:
        ax.set(xticks=[], yticks=[], xlabel="none for this class")
        ax.set_title(name, fontsize=7)
        return
    (layer, head), *triple = values["highest"][name]
    value, low, high = (short_number(np.nan if number is None else number) for number in triple)
    shown = value if low == "nan" else f"{value} [{low}, {high}]"
    heads(ax, score, limits, f"{name}\n{head_name((layer, head))} {shown}", bar=bar)
    ring: dict[str, Any] = {"mfc": "none", "mec": ROLES["induction"].colour, "ms": 3.2, "mew": 0.9}
    ax.plot(*np.array(chosen_of(values)).T, "o", path_effects=HALO, **ring)


def _attention_bar(figure: Figure, axes: Sequence[Axes]) -> None:
    colour_bar(figure, axes[:3], "attention")


def pattern(values: Values) -> Grid | None:
    found = values.get("pattern")
    if found is None:
        return None
    head = head_name(tuple(found["head"]))
    names = [f"{head} from {place}" for place in found["from"]]
    return token_grid(found["tokens"], np.array(found["rows"]), names, found["queries"])


def mechanism(values: Values) -> Grid | None:
    """A: the scores of the chosen heads, of the best eight if there are more, by what is removed. B: what heads add."""
    if "left" not in values["mechanism"]:
        return None
    panels = [partial(_needs, values=values), partial(_adds, values=values)]
    return Grid(panels, least=2.4, height=2.3)


def _needs(ax: Axes, values: Values) -> None:
    found, chosen, figure = values["mechanism"], chosen_of(values), ax.get_figure(root=True)
    assert figure is not None
    shown = min(len(chosen), MOST_HEADS)
    x, bar = np.arange(shown), 0.8 / len(found["left"])
    shades = [BLUE, RED, *np.linspace(0.55, 0.8, max(1, len(found["left"]) - 2)).astype(str)]
    for number, ((name, left), colour) in enumerate(zip(found["left"].items(), shades, strict=True)):
        removed = ", ".join(head_name(tuple(head)) for head, _ in found["removed"].get(name, []))
        kind = "previous-token heads" if number == 1 else "others"
        at = x + (number - (len(found["left"]) - 1) / 2) * bar
        label = f"without {removed}: {kind}" if number else name
        label = broken(label, 7, 72 * figure.get_figwidth() - 50)
        ax.bar(at, [triple[0] for triple in left[:shown]], bar, color=colour, label=label)
        points(ax, at, [Interval(*triple) for triple in left[:shown]], fmt="none", color="black", lw=0.7)
    ax.set_xticks(x, [head_name(head) for head in chosen[:shown]], rotation=60 if shown > 4 else 0)
    less = f", the best {shown} of {len(chosen)}" if shown < len(chosen) else ""
    ax.set(ylim=(0, 1.05), yticks=(0, 0.5, 1), ylabel="prefix-matching score", xlabel=f"induction heads{less}")
    ax.set_title("A) what prefix matching needs")


def _adds(ax: Axes, values: Values) -> None:
    """Direct attribution of the chosen heads and of all others; those with names have intervals."""
    found = values["attribution"]
    value = np.array(found["value"], dtype=float)
    others = np.ones(value.shape, bool)
    others[tuple(np.array(values["chosen"]).T)] = False
    largest = np.nanmax(np.abs(value), initial=0)
    strongest = top(np.nan_to_num(value), 6)  # their intervals decide how high the axes are
    ends = np.concatenate([*triples(found, strongest), value.ravel(), [0]])
    apart = 0.1 * (np.nanmax(ends) - np.nanmin(ends))  # or names lie on each other
    rng = np.random.default_rng(0)
    for column, (shown, colour) in enumerate(((~others, BLUE), (others, GREY))):
        places, values_shown = heads_where(shown), value[shown]
        x, last = column + rng.uniform(-0.15, 0.15, len(places)), np.inf
        ax.plot(x, values_shown, "o", color=colour, ms=3, alpha=0.8)
        for place in np.argsort(-np.nan_to_num(values_shown))[:3]:
            if not 0.25 * largest < values_shown[place] < last - apart:
                continue
            at, last = column + 0.3, values_shown[place]
            ax.plot([x[place], at], [last] * 2, color=colour, lw=0.5)
            points(ax, [at], [Interval(*triples(found, [places[place]])[0])], fmt="o", color=colour)
            beside: dict[str, Any] = {"xytext": (4, 0), "textcoords": "offset points", "va": "center"}
            ax.annotate(head_name(places[place]), (at, last), fontsize=6, **beside)
    ax.axhline(0, color="0.7", lw=0.7, zorder=0)
    ax.set_xticks([0, 1], ["best induction\nheads", "all others"])
    ax.set(xlim=(-0.4, 2), ylabel="logits of the next token", title="B) what each head adds directly")


# ------------------------------------------------------------------------------------------------ rows of shares


def row_panel(
    ax: Axes,
    names: Sequence[str],
    rows: Rows,
    heading: str,
    label: str,
    *,
    colours: Mapping[str, str] = COLOURS,
    controls: Mapping[str, Sequence[float]] | None = None,
    chance: float | None = None,
    reported: Mapping[str, float] | None = None,
) -> None:
    """Shares by the names of rows, each with its interval and its value beside it.

    controls: those of the control sets of a row; chance: of guessing, where it is known; reported: what a paper reports
    of another model; colours: of rows by name, others are red. Only the panels at the left have the names.
    """
    if chance is not None:
        ax.axvline(chance, color="0.6", lw=0.8, ls=":")
    for y, name in enumerate(names):
        colour, drawn = colours.get(name, RED), (controls or {}).get(name, ())
        ax.plot(drawn, np.full(len(drawn), y), "|", color=GREY, ms=7, mew=0.8)
        if reported and name in reported:
            ax.plot(reported[name], y + 0.28, "D", mfc="none", mec=colour, ms=3.2, mew=0.8)
        if name in rows:
            _dot(ax, rows[name], y, colour)
            _value(ax, rows[name][0], y)
    ax.set(xlim=(-0.03, 1.05), ylim=(len(names) - 0.5, -0.5), xlabel=label)
    ax.set_title(heading, fontsize=7)
    ax.set_xticks([0, 0.5, 1], ["0", ".5", "1"])
    ax.set_yticks(range(len(names)), names if _at_left(ax) else [""] * len(names))


def _at_left(ax: Axes) -> bool:
    place = ax.get_subplotspec()
    return place is not None and place.is_first_col()


def _dot(ax: Axes, triple: Sequence[float], y: float, colour: str) -> None:
    """A value with its interval from left to right."""
    value, low, high = triple
    ax.errorbar(value, y, xerr=[[value - low], [high - value]], fmt="o", ms=3, lw=0.9, color=colour)


def _value(ax: Axes, value: float, y: float) -> None:
    """A value in digits, at the right of its row."""
    ax.annotate(without_zero(value, 2), (1.09, y), fontsize=6, va="center", annotation_clip=False)


def _not_done(ax: Axes, tasks: Mapping[str, Values]) -> None:
    """The whole model alone in tasks that it does not do, a row for each; more demonstrations are below, and darker.

    Of each task: "shots", accuracies by number of demonstrations; "chance"; "reported", of another model, or None.
    """
    for y, task in enumerate(tasks.values()):
        ax.plot([task["chance"]] * 2, [y - 0.45, y + 0.45], color="0.6", lw=0.8, ls=":")
        places = y + 0.24 * (np.arange(len(task["shots"])) - (len(task["shots"]) - 1) / 2)
        shades = np.linspace(1, 0.35, len(task["shots"]))[::-1]
        for place, (value, low, high), shade in zip(places, task["shots"].values(), shades, strict=True):
            ax.plot([low, high], [place, place], color=BLUE, lw=0.9, alpha=shade)
            ax.plot(value, place, "o", color=BLUE, ms=2.5, alpha=shade)
        _value(ax, list(task["shots"].values())[-1][0], y)
        if task["reported"] is not None:
            ax.plot(task["reported"], y, "D", mfc="none", mec=BLUE, ms=4, mew=0.8)
    ax.set(xlim=(-0.03, 1.05), ylim=(len(tasks) - 0.5, -0.5), xlabel="accuracy")
    ax.set_xticks([0, 0.5, 1], ["0", ".5", "1"])
    ax.set_yticks(range(len(tasks)), [name.replace("_", " ") for name in tasks])
    shots = sorted({int(number) for task in tasks.values() for number in task["shots"]})
    several = f", {', '.join(map(str, shots))} demonstrations (fewer: paler)" if len(shots) > 1 else ""
    heading = f"not done: the whole model alone{several}"
    ax.set_title(broken(heading, 7, 72 * room(ax)[0] - 90), fontsize=7)


def _key(values: Values, controls: Line2D | Patch, *, reported: bool, more: Sequence[Line2D] = ()) -> list[Any]:
    """The legend of what has no name beside it. controls: what control sets look like."""
    here = f"here, {title(values)} (95 %)"
    diamond = Line2D([], [], color="black", marker="D", mfc="none", ms=4, ls="", label=PAPER)
    return [
        *more,
        Line2D([], [], color="black", marker="o", ms=3, lw=0.9, label=here),
        *([diamond] if reported else []),
        controls,
        Line2D([], [], color="0.6", ls=":", lw=0.8, label="chance"),
    ]


# ------------------------------------------------------------------------------------------------ tasks


def _row_of(name: str) -> str:
    """The row that a draw of control heads stands in; "" of ablations of another size, which stand elsewhere."""
    groups = "|".join(group.value for group in (*CONTROL_SETS, IN_OTHERS))
    return "" if name.startswith("n = ") else re.sub(rf"^({groups}) \d+$", r"\1", name)


def _reported(values: Values, task: str) -> dict[str, float]:
    """What the paper reports in the same place, by the names of the rows here."""
    names = {published.ABLATED: f"top {values['setup']['primary']} ablated"}
    reported = published.accuracies(measures.place_in_tables(task, values["request"]["k"]))
    return {names.get(name, published.GROUPS[name].value): value / 100 for name, value in reported.items()}


def ablation(values: Values) -> Grid | None:
    """A panel for each task with ablations, and the whole model alone in the others."""
    if "setup" not in values:
        return None
    accuracy, ablated = values["accuracy"], f"top {values['setup']['primary']} ablated"
    measured = {task: rows for task, rows in accuracy.items() if ablated in rows}
    names = list(dict.fromkeys(row for rows in measured.values() for name in rows if (row := _row_of(name))))
    panels: list[Panel] = []
    for task, rows in measured.items():
        drawn: dict[str, list[float]] = {}
        for name, triple in rows.items():
            if (row := _row_of(name)) not in ("", name):
                drawn.setdefault(row, []).append(triple[0])
        heading = task.replace("_", "\n") + ("" if task in values["done"] else "\n(not done)")
        single = {name: triple for name, triple in rows.items() if _row_of(name) == name}
        more: dict[str, Any] = {
            "controls": drawn,
            "chance": 1 / len(label_space(task)),
            "reported": _reported(values, task),
        }
        panels.append(partial(row_panel, names=names, rows=single, heading=heading, label="accuracy", **more))
    undone = {
        task: {
            "shots": {values["request"]["k"]: rows["whole model"]},
            "chance": 1 / len(label_space(task)),
            "reported": _reported(values, task).get("whole model"),
        }
        for task, rows in accuracy.items()
        if task not in measured
    }
    heights = [0.6 + ROW * len(names)] * len(panels)
    ticks = Line2D([], [], color=GREY, marker="|", ms=7, ls="", label="control sets, here")
    known = any(_reported(values, task) for task in measured)
    known |= any(task["reported"] is not None for task in undone.values())
    return _with_undone(panels, heights, undone, _key(values, ticks, reported=known), least=1.25)


def _with_undone(
    panels: list[Panel], heights: list[float], undone: Mapping[str, Values], legend: list[Any], **layout: Any
) -> Grid:
    """Panels, and below them, in a row of their own, the tasks that are not done."""
    wide = [len(panels)] if undone and panels else []
    if undone:
        panels, heights = [*panels, partial(_not_done, tasks=undone)], [*heights, 0.7 + 0.24 * len(undone)]
    return Grid(panels, height=heights, wide=wide, legend=legend, **layout)


def doses(values: Values) -> Grid | None:
    """A: accuracy by the number of ablated heads. B, C: without demonstrations, and the loss of plain text."""
    if "setup" not in values:
        return None
    setup, task = values["setup"], values["setup"]["primary_task"]
    chance, zero_shot, losses = 1 / len(label_space(task)), values["zero_shot"][task], dict(values["losses"])
    uniform = losses.pop("uniform")
    names = {name: re.sub(r"^norm-matched (\d+)$", r"control set \1", name) for name in zero_shot}
    colours = dict(zip(names.values(), (BLUE, RED, *[GREY] * (len(names) - 2)), strict=True))
    ablated = f"top {setup['primary']} ablated"
    by_size = {
        name: [rows["whole model"], *(rows[f"n = {n}"] for n in setup["sizes"])]
        for name, rows in values["accuracy"].items()
        if ablated in rows
    }
    shown = partial(_levels, names=list(names.values()), colours=colours)
    panels: list[Panel] = [partial(_by_size, accuracy=by_size, sizes=[0, *setup["sizes"]], chance=chance)]
    parts = (
        (zero_shot, f"B) {task.replace('_', ' ')},\nno demonstrations", "accuracy", "chance", chance),
        (losses, "C) loss of plain text", "nats per token", "uniform", uniform),
    )
    for rows, heading, label, of, level in parts:
        renamed = {names[name]: triple for name, triple in rows.items()}
        heading = f"{heading}\n(dotted: {of})"
        panels.append(partial(shown, rows=renamed, heading=heading, label=label, level=level))
    return Grid(panels, least=1.7, height=max(1.9, 0.75 + ROW * len(names)))


def _levels(
    ax: Axes, names: Sequence[str], rows: Rows, heading: str, label: str, level: float, colours: Mapping[str, str]
) -> None:
    """Values by the names of rows, beside a dotted level."""
    ax.axvline(level, color="0.6", lw=0.8, ls=":")
    for y, name in enumerate(names):
        _dot(ax, rows[name], y, colours[name])
    ax.set(xlabel=label, ylim=(len(names) - 0.5, -0.5))
    ax.set_title(heading, fontsize=7)
    ax.set_yticks(range(len(names)), names)
    if label == "accuracy":
        ax.set_xlim(-0.05, 1.05)
        ax.set_xticks([0, 0.5, 1], ["0", ".5", "1"])
    else:
        ax.margins(x=0.08)
        ax.tick_params(labelleft=_at_left(ax))


def _by_size(ax: Axes, accuracy: Mapping[str, Sequence[Sequence[float]]], sizes: Sequence[int], chance: float) -> None:
    """Accuracies by the number of ablated heads, the tasks with their names."""
    aside = 0.06 * (len(sizes) - 1)
    ax.axhline(chance, color="0.6", lw=0.8, ls=":")
    ends = {}
    for number, ((task, by_size), colour, marker) in enumerate(zip(accuracy.items(), SERIES, "os^Dvx+", strict=False)):
        x = np.arange(len(sizes)) + aside * (number - (len(accuracy) - 1) / 2)  # or their intervals hide each other
        points(ax, x, [Interval(*triple) for triple in by_size], fmt=f"{marker}-", color=colour)
        ends[task.replace("_", " ")] = (by_size[-1][0], colour)
    ax.set_xticks(range(len(sizes)), [str(size) for size in sizes])
    ax.set(xlabel="best heads ablated", ylabel="accuracy", ylim=(-0.05, 1.05), yticks=(0, 0.5, 1))
    ax.set_title("A) with demonstrations\n(dotted: chance)", fontsize=7)
    name_at_right(ax, ends, 7.5 / (72 * room(ax)[1] - 70))


def shots(values: Values) -> Grid | None:
    """A panel for each task that is done, by the number of demonstrations, the others in rows below.

    Grey: from the least to the most of the control sets.
    """
    if "setup" not in values:
        return None
    found, ablated = values["benefits"], f"top {values['setup']['primary']} ablated"
    panels: list[Panel] = []
    undone, used, any_known = dict[str, Any](), set[str](), False
    for name, rows in found["accuracy by shots"].items():
        task, _, unrelated = name.partition(", ")
        theirs = {k: published.accuracies(measures.place_in_tables(task, int(k), bool(unrelated))) for k in rows}
        reported = {
            line: {k: known[quantity] / 100 for k, known in theirs.items() if quantity in known}
            for line, quantity in zip(LINES, REPORTED, strict=True)
        }
        chance, last = found["tasks"][name]["chance"], list(rows)[-1]
        most = max(rows, key=int)
        if found["tasks"][name]["does"] or ablated in rows[most]["accuracy"]:
            lines = {
                line: {k: row["accuracy"][of] for k, row in rows.items() if of in row["accuracy"]}
                for line, of in zip(LINES, ("whole model", ablated, "pattern knocked out"), strict=True)
            }
            used |= {line for line, by_shots in lines.items() if by_shots}
            any_known |= any(reported.values())
            panels.append(partial(_by_shots, heading=name, rows=rows, lines=lines, chance=chance, reported=reported))
        else:
            alone = reported["whole model"].get(last)
            by_shots = {k: row["accuracy"]["whole model"] for k, row in rows.items()}
            undone[name] = {"shots": by_shots, "chance": chance, "reported": alone}
            any_known |= alone is not None
    more = [Line2D([], [], color=colour, label=line) for line, colour in LINES.items() if line in used]
    band = Patch(color=BAND, label="control sets, here: least to most")
    return _with_undone(
        panels, [1.7] * len(panels), undone, _key(values, band, reported=any_known, more=more), least=1.3
    )


def _by_shots(
    ax: Axes, heading: str, rows: Values, lines: Mapping[str, Rows], chance: float, reported: Mapping[str, Any]
) -> None:
    place = {k: x for x, k in enumerate(rows)}
    ax.axhline(chance, color="0.6", lw=0.8, ls=":")
    for k, row in rows.items():
        if drawn := row["controls"]:
            low, high = min(drawn), max(drawn)
            ax.bar(place[k], max(high - low, 0.015), 0.7, low, color=BAND, zorder=0)
    for number, (name, colour) in enumerate(LINES.items()):
        aside = 0.14 * (number - 1)  # or intervals hide each other
        if by_shots := lines[name]:
            triples_of = [Interval(*triple) for triple in by_shots.values()]
            points(ax, [place[k] + aside for k in by_shots], triples_of, fmt="o-", color=colour)
        look: dict[str, Any] = {"marker": "D", "mfc": "white", "ms": 3.5, "mew": 0.8, "lw": 0.6, "ls": ":"}
        if theirs := reported[name]:
            x = [place[k] + aside for k in theirs]
            ax.plot(x, list(theirs.values()), color=colour, zorder=1.5, **look)
    ax.set_xticks(range(len(rows)), list(rows))
    ax.set(xlim=(-0.6, len(rows) - 0.4), ylim=(-0.03, 1.05), yticks=(0, 0.5, 1), xlabel="demonstrations")
    ax.set_ylabel("accuracy" if _at_left(ax) else "")
    ax.set_title(heading.replace("_", " "), fontsize=7)


# ------------------------------------------------------------------------------------------------ function vectors


def function_vectors(values: Values) -> Grid | None:
    """A: prefix matching against AIE. B: the map of AIE. C: what is answered right, by what is ablated."""
    found = values["function vectors"]
    if "room" not in found:
        return None
    names = ["whole model", *KINDS]
    panels: list[Panel] = [partial(_scatter, values=values), partial(_effects, found=found)]
    for number, (measure, rows) in enumerate(found["accuracy"].items()):
        heading = f"{'C) ' * (not number)}{measure.replace('_', ' ')}\n{found['asked'][measure]}"
        drawn = {kind: [row[0] for name, row in rows.items() if name.startswith(f"{kind}, control")] for kind in KINDS}
        chance = found["classification"]["chance"] if measure not in ("word pairs", COPIES) else None
        single = {name: rows[name] for name in names}
        more: dict[str, Any] = {"controls": drawn, "chance": chance, "colours": {names[0]: BLUE}}
        panels.append(partial(row_panel, names=names, rows=single, heading=heading, label="share right", **more))
    heights = [2.3, 2.3, *[0.7 + ROW * len(names)] * len(found["accuracy"])]
    return Grid(panels, least=2.4, columns=2, height=heights)


def _effects(ax: Axes, found: Values) -> None:
    heads(ax, found["AIE"]["mean"], title="B) AIE by layer and head", bar="AIE")
    for kind, (marker, colour, size) in RINGS.items():
        edge = [withStroke(linewidth=2.2, foreground="white")]  # or it cannot be seen on a dark cell
        ring: dict[str, Any] = {"mfc": "none", "mec": colour, "ms": size, "mew": 0.9, "path_effects": edge}
        ax.plot(*np.array(found["sets"][kind]).T, marker, **ring)


def _scatter(ax: Axes, values: Values) -> None:
    """All heads by both scores; the best of either kind are marked, with intervals, and named where there is room."""
    matching, found = np.array(values["scores"]["mean"], dtype=float), values["function vectors"]
    effect = np.array(found["AIE"]["mean"], dtype=float)
    sets = {kind: [(layer, head) for layer, head in found["sets"][kind]] for kind in RINGS}
    marked = {head for of_kind in sets.values() for head in of_kind}
    others = np.array([head for head in np.ndindex(matching.shape) if head not in marked]).T
    ax.plot(matching[tuple(others)], effect[tuple(others)], ".", color="0.7", ms=4)
    for (kind, (marker, colour, size)), by in zip(RINGS.items(), ("prefix matching", "AIE"), strict=True):
        places = tuple(np.array(sets[kind]).T)
        ring: dict[str, Any] = {"mfc": "none", "mec": colour, "ms": size, "mew": 0.9, "label": f"best by {by}"}
        ax.plot(matching[places], effect[places], marker, **ring)
    reach = float(np.ptp(effect))
    named: list[tuple[float, float, float]] = []  # from where to where names are written, and how high
    for head in sets[FUNCTION_VECTOR]:
        x, y = float(matching[head]), float(effect[head])
        (triple,) = triples(found["AIE"], [head], "mean")
        points(ax, [x], [Interval(*triple)], fmt="none", color=RINGS[FUNCTION_VECTOR][1], lw=0.7)
        side = -1 if x > 0.5 else 1  # where `name_point` writes
        rest = [other for other in marked if other != head]
        beside = [(float(matching[o]), *t[1:]) for o, t in zip(rest, triples(found["AIE"], rest, "mean"), strict=True)]
        near = [(low, high) for at, low, high in beside if -0.03 < side * (at - x) < 0.4]
        left, right = sorted((x, x + 0.4 * side))
        near += [(at, at) for start, end, at in named if start < right and left < end]
        if all(high < y - 0.07 * reach or low > y + 0.07 * reach for low, high in near):
            name_point(ax, head_name(head), x, y)  # elsewhere the name would lie on a mark, or on another
            named.append((left, right, y))
    ax.axhline(0, color="0.7", lw=0.7, zorder=0)
    ax.margins(y=0.1)
    ax.set(xlim=(-0.06, 1.06), xlabel="prefix matching", ylabel="AIE", title="A) two scores of each head")
