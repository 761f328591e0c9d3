"""The pictures of forerunner token heads, made of values.

Maps have layers across and heads up, both from 0, as the data count; those of the paper count layers from 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from util.figures.forerunner_heads.cuts import TITLES
from util.figures.forerunner_heads.numbers import EVERYWHERE, FORERUNNER, NEITHER, PREVIOUS_TOKEN, SHARE
from util.show import panels
from util.show.draw import Grid, name_beside
from util.show.panels import colour_bar, points
from util.show.part import Values
from util.show.style import BLUE, GREEN, GREY, LIGHT_BLUE, ORANGE, PAPER_ORANGE, PURPLE, RED, ROLES
from util.stats.heads import head_name
from util.stats.intervals import Interval

LABELS = {
    "correct": "correct label",
    "wrong": "wrong label",
    "other word": "another word",
    "untrained": "untrained weights",
}
MARKS = {
    FORERUNNER: (ROLES["forerunner"].colour, "o"),
    PREVIOUS_TOKEN: (ROLES["previous-token"].colour, "s"),
    NEITHER: (GREY, "o"),
}
FLOOR = 1e-4  # attention that is smaller is drawn as this much
CONTRASTS = (BLUE, ORANGE, GREEN)
SCORES = {"which label": RED, "label mass": BLUE}
READERS = {"best head": BLUE, "mean of heads": LIGHT_BLUE, "similarity of states": PURPLE}
PAPER = {"correct": ("Blues", BLUE), "wrong": ("Purples", PAPER_ORANGE)}  # of maps, and of curves
LINES = ((BLUE, "o-"), (ORANGE, "o--"), (GREEN, "o:"), (LIGHT_BLUE, "s-."))  # of the columns of `by_ending`


# ------------------------------------------------------------------------------------------------ counts


def counts(values: Values) -> Grid:
    """Heat maps (Fig. 22-25) from a quarter of the prompts to all of them, as in the paper."""
    layers = len(values["counts"]["correct"])
    ticks: dict[str, Any] = {"ticks": [0.25, 0.5, 0.75, 1], "format": PercentFormatter(1, symbol=" %")}
    return Grid(
        [partial(_count_map, name=name, values=values) for name in values["counts"]],
        least=min(2.3, max(1.2, 0.075 * layers)),
        height=1.75,
        share="xy",
        finish=partial(colour_bar, label="prompts above threshold", extend="min", **ticks),
    )


def paper_counts(values: Values) -> Grid:
    """Fig. 22-25: layers down, counted from 1, behind either label."""
    maps = [partial(_count_map, name=name, values=values, paper=colours) for name, (colours, _) in PAPER.items()]
    return Grid(maps, height=2.3)


def _count_map(ax: Axes, name: str, values: Values, paper: str = "") -> None:
    """paper: the colours in the paper's arrangement."""
    share = np.array(values["counts"][name]) / values["prompts"][name]
    title = "{}\n{} [{}, {}] heads".format(LABELS[name], *values["frequent_heads"][name])
    if paper:
        panels.heads(ax, share.T, (0.25, 1), title, bar="share of prompts", colours=paper)
        ax.invert_yaxis()
        ax.set(xlabel="head", ylabel="transformer block")
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_formatter(lambda place, _: str(int(place) + 1))
    else:
        panels.heads(ax, share, (0.25, 1), title)


def paper_layers(values: Values) -> Grid:
    """Fig. 5 middle."""
    return Grid([partial(_paper_curves, values=values)], height=2.3)


def _paper_curves(ax: Axes, values: Values) -> None:
    """Heads (lines, left) and largest copy magnitude (areas, right) of each layer, counted from 1.

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


def specificity(values: Values) -> Grid:
    """Left, at the label against at other tokens; right, the ringed heads by name, with what they are compared with."""
    return Grid([partial(_scatter, values=values), partial(_differences, values=values)], 2.5, [2.6, 1.9])


def _scatter(ax: Axes, values: Values) -> None:
    """On the diagonal a head attends to the previous token wherever it is; above it, more so before a label.

    What is smaller than FLOOR stands at it. Large, named: planted heads, coloured by the verdict on them.
    """
    found, planted = values["specificity"], values["planted"]
    places, known = map(_places, (found["held out"]["than at other tokens"], planted))
    ax.plot([FLOOR, 1], [FLOOR, 1], color="0.7", lw=0.8, zorder=0)
    for verdict, (colour, marker) in MARKS.items():
        at = np.array(found["verdicts"]) == verdict
        ax.plot(*places[:, at], marker, color=colour, ms=2.5, mew=0, alpha=0.8, label=verdict)
    for layer, head, role in planted["roles"]:
        (x, y), (colour, marker) = known[:, layer, head], MARKS[values["planted_verdicts"][layer][head]]
        ax.plot(x, y, marker, color=colour, ms=7, mec="black", mew=0.7, zorder=4, clip_on=False)
        name_beside(ax, {role: (x, y)})
    layers, heads = np.array(found["judged"]["strongest"], int).reshape(-1, 2).T
    ax.plot(*places[:, layers, heads], "o", ms=6.5, mfc="none", mec="black", mew=0.7)
    ax.set(xscale="log", yscale="log", xlim=(0.6 * FLOOR, 1.9), ylim=(0.6 * FLOOR, 4))
    ax.set(xlabel=r"at other tokens: mean $A[t,\,t-1]$", ylabel=r"at the label: mean $A[y_q,\,s_q]$")
    ax.set_title("attention to the previous token")


def _places(found: Values) -> np.ndarray:
    """Attention at other tokens and at the label, [2, L, H]."""
    return np.maximum([found[name] for name in ("second", "first")], FLOOR)


def _differences(ax: Axes, values: Values) -> None:
    strongest = values["specificity"]["judged"]["strongest"]
    for place, (name, found) in enumerate(values["specificity"]["held out"].items()):
        shown, colour = panels.triples(found, strongest, "difference"), CONTRASTS[place]
        panels.intervals(ax, shown, 0.2 * (place - 1), colour, label=name, hollow=False)
    panels.name_rows(ax, [head_name(tuple(head)) for head in strongest])
    ax.set_title("ringed heads: how much more" if strongest else "no head is confirmed")
    ax.set_xlabel("difference of attention at the label")


# ------------------------------------------------------------------------------------------------ a task, and its cuts


def ablation(values: Values) -> Grid:
    """A panel for each part of the layers, a row for each cut: rows and columns are those of the paper's Table 1."""
    together = values["ablation"]["together"]
    dots = [Line2D([], [], color=SCORES[name], marker="o", ls="", ms=3.5, label=name) for name in SCORES]
    dots.append(Line2D([], [], color=GREY, marker="o", ls="", ms=2, label="random cells"))
    shown = [partial(_cuts, part=part, together=together) for part in together["which label"]["cut"]]
    return Grid(shown, least=1.1, height=2.2, share="xy", legend=dots)


def _cuts(ax: Axes, part: str, together: Values) -> None:
    """What cuts change, and below it, small, what random cells do."""
    for score, row in (("which label", -0.18), ("label mass", 0.24)):
        cut, random = together[score]["cut"][part], together[score]["random"].get(part, {})
        panels.intervals(ax, [*random.values()], row + 0.16, SCORES[score], size=2.0)
        panels.intervals(ax, [*cut.values()], row, SCORES[score], digits="+.2f")
    names = [TITLES[name].replace("->", r"\to").replace(", ", r",\; ") for name in TITLES]
    panels.name_rows(ax, [f"${name}$" for name in names])
    low, high = (float(end) for end in part.strip("()").split(", "))
    ax.set_title("all layers" if part == EVERYWHERE else f"{low:.0%} to {high:.0%}", fontsize=7)
    ax.set_xlabel("nats")
    ax.margins(x=0.2)  # room for the values


def induction(values: Values) -> Grid:
    return Grid([partial(_shares, found=values["induction"])], height=1.9)


def _shares(ax: Axes, found: Values) -> None:
    null = found["null"]
    x = range(len(null["mean"]))
    ax.fill_between(x, null["low"], null["high"], color=GREY, alpha=0.45, lw=0)
    for reader, colour in READERS.items():
        panels.curve(ax, found["likelihood"][reader], color=colour, label=reader)
    ax.plot(x, null["mean"], color="black", lw=0.9, ls="--", label="best head, labels shuffled")
    ax.set(ylim=(0, 1), xlabel="layer", ylabel="share of the query's label\nin what is read")
    for name, value in found["levels"].items():
        panels.level(ax, value, name)


# ------------------------------------------------------------------------------------------------ data sets and k


def frequent_on(values: Values) -> np.ndarray:
    """On how many data sets each head exceeds the threshold on three of four prompts, [L, H]; correct label."""
    least = SHARE * values["request"]["grid_prompts"]
    return np.sum([np.array(maps["correct"]) >= least for maps in values["grid_counts"].values()], axis=0)


def grid(values: Values) -> Grid:
    """Above, on how many data sets each head is frequent; below, how many heads read on a prompt."""
    shared, sets = frequent_on(values), len(values["grid_counts"])
    title, ticks = "on how many data sets a head is frequent", np.arange(0, sets + 1, max(1, sets // 3))
    shown = [
        partial(panels.heads, values=shared, limits=(0, sets), title=title, bar="data sets", ticks=ticks),
        partial(_by_set, found=values["grid_heads_on_a_prompt"]["correct"]),
    ]
    return Grid(shown, height=[0.5 + min(1.5, max(0.8, 0.09 * shared.shape[1])), 0.6 + 0.16 * sets], columns=1)


def _by_set(ax: Axes, found: Values) -> None:
    panels.intervals(ax, [*found.values()], colour=BLUE, hollow=False)
    panels.name_rows(ax, [name.replace("_", " ") for name in found], zero=False)
    ax.set_xlabel("heads above the threshold on a prompt")


def by_ending(values: Values) -> dict[str, Mapping[str, Any]]:
    """Heads on a prompt by k, by what is appended and which threshold they exceed."""
    columns = {f"{LABELS[name]}, c / n_t": found for name, found in values["by_k"]["counts"].items()}
    return columns | {"correct label, one threshold": values["by_k"]["fixed"]}


def by_k(values: Values) -> Grid:
    return Grid([partial(_growth, values=values)], height=2.0)


def _growth(ax: Axes, values: Values) -> None:
    for place, ((label, found), (colour, form)) in enumerate(zip(by_ending(values).items(), LINES, strict=True)):
        x, intervals = [int(k) + 0.08 * place for k in found], [Interval(*triple) for triple in found.values()]
        points(ax, x, intervals, fmt=form, color=colour, capsize=1.5, label=label)
    ax.set(xlabel="demonstrations k", ylabel="heads above\nthreshold on a prompt", ylim=(0, None))
    ax.set_xticks([int(k) for k in values["by_k"]["fixed"]])
