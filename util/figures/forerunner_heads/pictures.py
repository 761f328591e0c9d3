"""The pictures of forerunner token heads, made of values.

Maps have layers across and heads up, both from 0, as the data count; those of the paper count layers from 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.ticker import PercentFormatter

from util.figures.forerunner_heads.cuts import TITLES
from util.figures.forerunner_heads.numbers import EVERYWHERE, FORERUNNER, NEITHER, PREVIOUS_TOKEN, SHARE
from util.show import panels
from util.show.draw import Grid, room
from util.show.head_map import count_ticks
from util.show.panels import SMALL, colour_bar
from util.show.part import Values
from util.show.style import BLUE, GREEN, GREY, LIGHT_BLUE, ORANGE, PAPER_ORANGE, PURPLE, RED, ROLES, broken
from util.stats.heads import head_name, heads_where

LABELS = {
    "correct": "correct label",
    "wrong": "wrong label",
    "other word": "another word",
    "untrained": "untrained weights",
}
LINES = {"correct": (BLUE, "-"), "wrong": (ORANGE, "--"), "other word": (GREEN, ":"), "untrained": (GREY, "-")}
MARKS = {
    FORERUNNER: (ROLES["forerunner"].colour, "o"),
    PREVIOUS_TOKEN: (ROLES["previous-token"].colour, "s"),
    NEITHER: (GREY, "."),
}
SHARES = (0.25, 1.0)  # of prompts, which colours are for, as in the paper
FLOOR = 1e-4  # attention that is smaller is drawn as this much
SCORES = {"which label": RED, "label mass": BLUE}
READERS = {"best head": BLUE, "mean of heads": LIGHT_BLUE, "similarity of states": PURPLE}
PAPER = {"correct": ("Blues", BLUE), "wrong": ("Purples", PAPER_ORANGE)}
OUTLINE = [withStroke(linewidth=1.5, foreground="white")]


def drawable(found: Callable[[Values], Grid]) -> Callable[[Values], Grid | None]:
    """Panels of values that have all that is drawn: those of earlier versions lack numbers of prompts."""
    return lambda values: found(values) if "figure" in values["request"] else None


def in_few(triple: Any) -> str:
    """An interval in few characters: 116 [115, 118], and 4.8 [4.7, 4.9] below ten."""
    value, low, high = (f"{number:.{0 if triple[2] >= 10 else 1}f}" for number in triple)
    return f"{value} [{low}, {high}]"


# ------------------------------------------------------------------------------------------------ counts


@drawable
def counts(values: Values) -> Grid:
    """Heat maps (Fig. 22-25) from a quarter of the prompts to all of them, as in the paper."""
    shown = []
    for name, found in values["counts"].items():
        found = np.array(found)
        title = "{}\n{} [{}, {}] heads".format(LABELS[name], *values["frequent_heads"][name])
        texts = {(layer, head): str(count) for (layer, head), count in np.ndenumerate(found) if count}
        share = found / values["prompts"][name]
        shown.append(partial(panels.heads, values=share, limits=SHARES, title=title, texts=texts))
    layers, heads = np.shape(values["counts"]["correct"])
    ticks: dict[str, Any] = {"ticks": [0.25, 0.5, 0.75, 1], "format": PercentFormatter(1, symbol=" %")}
    bar = partial(colour_bar, label="prompts above threshold", extend="min", **ticks)
    least = min(2.3, max(1.2, 0.075 * layers))

    def height(width: float) -> float:
        most = 1.7 if width < 3 else 1.05  # wider ones stand alone in a column
        return 0.75 + min(most, max(0.95, 0.105 * heads))

    return Grid(shown, least, height, share="xy", finish=bar)


@drawable
def layers(values: Values) -> Grid:
    return Grid([partial(_heads, values=values), partial(_largest, values=values)], height=1.45, columns=1, share="x")


def _heads(ax: Axes, values: Values) -> None:
    for name, found in values["mean_head_count"].items():
        (colour, line), heads = LINES[name], in_few(values["heads_on_a_prompt"][name])
        panels.curve(ax, found, color=colour, ls=line, label=f"{LABELS[name]}: {heads} heads")
    top = max(0.2, *(np.max(found["high"]) for found in values["mean_head_count"].values()))
    ax.set(ylabel="heads\non a prompt", ylim=(0, 1.1 * top))


def _largest(ax: Axes, values: Values) -> None:
    """Magnitudes are logarithmic; dotted: the mean threshold c / n_t, and uniform attention 1 / n_t."""
    for name, found in values["mean_max_magnitude"].items():
        panels.curve(ax, found, FLOOR, color=LINES[name][0], ls=LINES[name][1])
    uniform = values["uniform"]
    least = min(uniform, *(np.maximum(found["low"], FLOOR).min() for found in values["mean_max_magnitude"].values()))
    ax.set(yscale="log", ylim=(least / 1.6, 1.4), xlabel="layer", ylabel="largest\ncopy magnitude")
    for name, level in (("threshold", values["request"]["threshold"] * uniform), ("uniform", uniform)):
        panels.level(ax, level, f"{name} {level:.3f}")


@drawable
def paper_counts(values: Values) -> Grid:
    """Fig. 22-25: layers down, counted from 1, behind either label."""
    return Grid([partial(_paper_map, name=name, values=values) for name in PAPER], height=2.3)


def _paper_map(ax: Axes, name: str, values: Values) -> None:
    found, n = np.array(values["counts"][name]), values["prompts"][name]
    low, high = (share * n for share in SHARES)
    ax.imshow(found, cmap=PAPER[name][0], vmin=low, vmax=high, aspect="auto", interpolation="nearest")
    for axis, count in ((ax.xaxis, found.shape[1]), (ax.yaxis, found.shape[0])):
        ticks = count_ticks(count, 8)
        axis.set_ticks(ticks, [str(tick + 1) for tick in ticks])
    ax.set(xlabel="head", ylabel="transformer block", title=LABELS[name])
    ax.spines[:].set_visible(True)
    colour_bar(ax.figure, [ax], "prompts", shrink=0.7)  # type: ignore[arg-type]


@drawable
def paper_layers(values: Values) -> Grid:
    return Grid([partial(_paper_curves, values=values)], height=2.3)


def _paper_curves(ax: Axes, values: Values) -> None:
    """Fig. 5 middle: heads (lines, left) and largest copy magnitude (areas, right) of each layer, counted from 1.

    Bands, which the paper does not have, are 95 % intervals.
    """
    right = ax.twinx()
    for name, (_, colour) in PAPER.items():
        found, largest = values["mean_head_count"][name], values["mean_max_magnitude"][name]["mean"]
        panels.curve(ax, found, first=1, color=colour, label=f"{LABELS[name]}: heads")
        x = range(1, len(largest) + 1)
        right.fill_between(x, largest, color=colour, alpha=0.2, lw=0, label=f"{LABELS[name]}: magnitude")
    ax.set(xlabel="transformer block", ylabel="forerunner token heads", ylim=(0, None))
    right.set(ylabel="maximum copy magnitude", ylim=(0, 1.1))
    right.spines["right"].set_visible(True)


# ------------------------------------------------------------------------------------------------ specificity


@drawable
def specificity(values: Values) -> Grid:
    """Left, at the label against at other tokens; right, the ringed heads by name, with what they are compared with."""
    return Grid([partial(_scatter, values=values), partial(_differences, values=values)], 2.5, [2.6, 1.9])


def _scatter(ax: Axes, values: Values) -> None:
    """On the diagonal a head attends to the previous token wherever it is; above it, more so before a label.

    What is smaller than FLOOR stands at it. Large, named: planted heads, coloured by the verdict on them.
    """
    found, planted = values["specificity"]["held out"]["than at other tokens"], values["planted"]
    x, y = (np.maximum(found[name], FLOOR) for name in ("second", "first"))
    verdicts, known = np.array(values["specificity"]["verdicts"]), np.array(values["planted_verdicts"])
    ax.plot([FLOOR, 1], [FLOOR, 1], color="0.7", lw=0.8, zorder=0)
    for verdict, (colour, marker) in MARKS.items():
        size, at = 3 if verdict == NEITHER else 3.5, verdicts == verdict
        ax.plot(x[at], y[at], marker, color=colour, ms=size, mew=0, alpha=0.8, label=verdict)
    for layer, head, role in planted["roles"]:
        place = [max(planted[name][layer][head], FLOOR) for name in ("second", "first")]
        colour, marker = MARKS[str(known[layer, head])]
        look: dict[str, Any] = {"color": colour, "ms": 7, "mec": "black", "mew": 0.7, "zorder": 4, "clip_on": False}
        ax.plot(*place, marker.replace(".", "o"), **look)
        side: dict[str, Any] = (
            {"xytext": (4, 5), "ha": "right"} if place[0] > 0.01 else {"xytext": (-4, 5), "ha": "left"}
        )
        ax.annotate(
            f"planted: {role}", tuple(place), textcoords="offset points", fontsize=SMALL, path_effects=OUTLINE, **side
        )
    strongest = tuple(np.array(values["specificity"]["judged"]["strongest"], int).reshape(-1, 2).T)
    ax.plot(x[strongest], y[strongest], "o", ms=6.5, mfc="none", mec="black", mew=0.7)
    level = values["request"]["threshold"] * values["uniform"]
    ax.axhline(level, color="0.35", lw=0.7, ls=":")
    words: dict[str, Any] = {"fontsize": SMALL, "color": "0.35", "va": "bottom", "path_effects": OUTLINE}
    ax.text(0.01, level, "threshold", transform=ax.get_yaxis_transform(), **words)
    ax.set(xscale="log", yscale="log", xlim=(0.6 * FLOOR, 1.9), ylim=(0.6 * FLOOR, 4))
    ax.set(xlabel=r"at other tokens: mean $A[t,\,t-1]$", ylabel=r"at the label: mean $A[y_q,\,s_q]$")
    ax.set_title("attention to the previous token")


def _differences(ax: Axes, values: Values) -> None:
    strongest = values["specificity"]["judged"]["strongest"]
    for place, (name, found) in enumerate(values["specificity"]["held out"].items()):
        shown, colour = panels.triples(found, strongest, "difference"), (BLUE, ORANGE, GREEN)[place]
        panels.intervals(ax, shown, 0.2 * (place - 1), colour, size=3, label=name, hollow=False)
    panels.name_rows(ax, [head_name(tuple(head)) for head in strongest])
    ax.set_title("ringed heads: how much more" if strongest else "no head is confirmed")
    ax.set_xlabel("difference of attention at the label")


# ------------------------------------------------------------------------------------------------ cuts and heads


@drawable
def ablation(values: Values) -> Grid:
    """A panel for each part of the layers, a row for each cut: rows and columns are those of the paper's Table 1."""
    together = values["ablation"]["together"]
    parts, cuts = together["which label"]["cut"], together["which label"]["cut"][EVERYWHERE]
    ends = [
        end
        for pair in together.values()
        for table in pair.values()
        for part in table.values()
        for triple in part.values()
        for end in triple
    ]
    low, high = min(*ends, 0), max(*ends, 0)
    margin = 0.2 * ((high - low) or 1.0)
    shown = [partial(_cuts, part=part, together=together, limits=(low - margin, high + margin)) for part in parts]
    dots = [
        Line2D([], [], color=colour, marker="o", ls="", ms=3.5, label=f"{score} (full: interval excludes 0)")
        for score, colour in SCORES.items()
    ]
    dots.append(Line2D([], [], color=GREY, marker="o", ls="", ms=2, label="small: random cells"))
    return Grid(shown, least=1.1, height=0.55 + 0.33 * len(cuts), share="xy", legend=dots)


def _cuts(ax: Axes, part: str, together: Values, limits: tuple[float, float]) -> None:
    """What cuts change, and below it, small, what random cells do."""
    cuts = [*together["which label"]["cut"][part]]
    for (score, found), row in zip(together.items(), (-0.18, 0.24), strict=True):
        random = found["random"].get(part, {})
        panels.intervals(ax, [random.get(cut) for cut in cuts], row + 0.16, SCORES[score], size=2.0)
        panels.intervals(ax, [found["cut"][part][cut] for cut in cuts], row, SCORES[score], digits="+.2f")
    names = [TITLES[cut].replace("->", r"\to").replace(", ", r",\; ") for cut in cuts]
    panels.name_rows(ax, [f"${name}$" for name in names])
    low, high = (float(end) for end in part.strip("()").split(", "))
    ax.set_title("all layers" if part == EVERYWHERE else f"{low:.0%} to {high:.0%}", fontsize=7)
    ax.set(xlabel="nats", xlim=limits)


@drawable
def induction(values: Values) -> Grid:
    found = values["induction"]
    return Grid([partial(_inducing, found=found), partial(_shares, found=found)], 1, [1.4, 1.8], 1, share="x")


def _inducing(ax: Axes, found: Values) -> None:
    names = {
        "induction heads": (BLUE, "induction heads"),
        "of the query's label": (LIGHT_BLUE, "those for the query's label"),
    }
    for name, (colour, label) in names.items():
        panels.curve(ax, found["heads"][name], color=colour, label=f"above: {label}")
    top = max(0.1, *(np.max(one["high"]) for one in found["heads"].values()))
    ax.set(ylabel="heads\non a prompt", ylim=(0, 1.05 * top))


def _shares(ax: Axes, found: Values) -> None:
    null = found["null"]
    x = range(len(null["mean"]))
    ax.fill_between(x, null["low"], null["high"], color=GREY, alpha=0.45, lw=0)
    for reader, colour in READERS.items():
        panels.curve(ax, found["likelihood"][reader], color=colour, label=f"below: {reader}")
    ax.plot(x, null["mean"], color="black", lw=0.9, ls="--", label="below: best head, labels shuffled")
    ax.set(ylim=(0, 1), xlabel="layer", ylabel="share of the query's label\nin what is read")
    for name, value in found["levels"].items():
        panels.level(ax, value, name)


def endpoint(values: Values) -> str:
    """What a single head may cost: which label, on a task that is done; else label mass."""
    return "which label" if values["chosen"]["ablation"]["done"] else "label mass"


@drawable
def effects(values: Values) -> Grid:
    """What heads read and what they move (Kobayashi et al. 2020); below, what those are worth that were cut."""
    moved = np.array(values["moved"], dtype=float)
    share = np.array(values["counts"]["correct"]) / values["prompts"]["correct"]
    top = float(np.nanmax(moved)) if np.isfinite(moved).any() else 1.0
    shown = [
        partial(panels.heads, values=share, limits=SHARES, title="share of prompts above threshold", bar=""),
        partial(panels.heads, values=moved, limits=(0, top), title="length of what is moved", bar="", colours="Greens"),
        partial(_losses, moved=moved, values=values),
    ]
    maps = 0.5 + min(1.4, max(0.8, 0.09 * moved.shape[1]))
    return Grid(shown, 2.5, [maps, maps, 1.75], columns=2, wide=[2])


def _losses(ax: Axes, moved: Any, values: Values) -> None:
    """What each head that was cut costs, the one that moves most first."""
    found = values["head effects"][endpoint(values)]
    tested = heads_where(np.isfinite(np.array(found["difference"], dtype=float)))
    tested.sort(key=lambda head: -moved[head])
    panels.intervals(
        ax, panels.triples(found, tested, "difference"), upright=True, digits=".2f" if len(tested) < 20 else None
    )
    panels.name_columns(ax, [head_name(head) for head in tested])
    ax.margins(y=0.4)  # room for the values
    title = f"{endpoint(values)}, lost when one head is cut, beyond other cells"
    ax.set_title(broken(title, 7, 72 * (room(ax)[0] - 0.8)), fontsize=7)
    ax.set_ylabel("nats lost")


# ------------------------------------------------------------------------------------------------ data sets and k


def frequent_on(values: Values) -> np.ndarray:
    """On how many data sets each head exceeds the threshold on three of four prompts, [L, H]; correct label."""
    least = SHARE * values["request"]["grid_prompts"]
    return np.sum([np.array(maps["correct"]) >= least for maps in values["grid_counts"].values()], axis=0)


@drawable
def grid(values: Values) -> Grid:
    """Above, on how many data sets each head is frequent; below, how many heads of each layer read on a prompt."""
    shared, n, sets = frequent_on(values), values["request"]["grid_prompts"], len(values["grid_counts"])
    ticks = np.arange(0, sets + 1, max(1, sets // 3))
    title = "correct label: on how many data sets a head is frequent"
    shown = [
        partial(panels.heads, values=shared, limits=(0, sets), title=title, bar="data sets", ticks=ticks, aspect=12)
    ]
    rows = {
        name: {
            dataset.replace("_", " "): np.array(maps[name]).sum(1) / n
            for dataset, maps in values["grid_counts"].items()
        }
        for name in ("correct", "wrong")
    }
    most = max(float(one.max()) for found in rows.values() for one in found.values()) or 1.0
    for name, found in rows.items():
        totals = {one.replace("_", " "): in_few(all_) for one, all_ in values["grid_heads_on_a_prompt"][name].items()}
        title = f"{LABELS[name]}: heads on a prompt"
        shown.append(partial(panels.layer_rows, rows=found, most=most, title=title, totals=totals))
    heights = [0.5 + min(1.5, max(0.8, 0.09 * shared.shape[1])), *[0.6 + 0.16 * sets] * 2]
    return Grid(
        shown, height=heights, columns=1, finish=lambda figure, axes: colour_bar(figure, axes[1:3], "heads of a layer")
    )


def by_ending(values: Values) -> dict[str, Mapping[str, Any]]:
    columns = {f"{LABELS[name]}, c / n_t": found for name, found in values["by_k"]["counts"].items()}
    return columns | {"correct label, one threshold": values["by_k"]["fixed"]}


@drawable
def by_k(values: Values) -> Grid:
    """Above, heads on a prompt by k; below, in which layers."""
    n, maps = values["request"]["grid_prompts"], values["by_k"]["maps"]
    rows = {f"k = {k}": np.array(found).sum(axis=1) / n for k, found in maps.items()}
    most = max(float(found.max()) for found in rows.values()) or 1.0
    title = "correct label, c / n_t: heads of each layer on a prompt"
    shown = [partial(_growth, values=values), partial(panels.layer_rows, rows=rows, most=most, title=title)]
    heights = [2.0, 0.6 + 0.17 * len(rows)]
    return Grid(
        shown, height=heights, columns=1, finish=lambda figure, axes: colour_bar(figure, axes[1:2], "heads", aspect=12)
    )


def _growth(ax: Axes, values: Values) -> None:
    looks = [(*LINES[name], "o") for name in values["by_k"]["counts"]] + [(LIGHT_BLUE, "-.", "s")]
    columns = by_ending(values)
    for place, ((label, found), (colour, line, marker)) in enumerate(zip(columns.items(), looks, strict=True)):
        value, low, high = np.array(list(found.values())).T
        look: dict[str, Any] = {"ms": 3, "lw": 0.9, "capsize": 1.5, "color": colour, "ls": line, "marker": marker}
        ax.errorbar(
            np.array([*map(int, found)]) + 0.08 * place, value, [value - low, high - value], label=label, **look
        )
    top = 1.1 * max(triple[2] for found in columns.values() for triple in found.values())
    ax.set(xlabel="demonstrations k", ylabel="heads above\nthreshold on a prompt", ylim=(0, top or 1))
    ax.set_xticks([int(k) for k in values["by_k"]["maps"]])
