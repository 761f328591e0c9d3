"""The figures of what induction heads are: their scores, what else they do, and what they are made of.

Source: Crosbie & Shutova 2024. Of tasks: `task_plots`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray

from util.roles.rules import Role
from util.show.head_map import colour_limit, head_map, short_number
from util.show.style import (
    BLUE,
    GREY,
    RED,
    ROLES,
    WIDTH,
    broken,
    columns_of,
    headline,
    name_at_right,
    new_figure,
    points,
    style,
)
from util.stats.heads import Head, head_name, heads_where, top
from util.stats.intervals import Interval, Intervals

Floats = NDArray[np.floating]
HALO = [withStroke(linewidth=2, foreground="white")]  # or a ring cannot be seen on a dark cell
MOST_HEADS = 8  # of the chosen ones, that the figure of the mechanism has bars for


def scores(
    intervals: Intervals,
    uniform: float,
    bound: float,
    finding: str | None,
    setting: str,
    untrained: float | None = None,
    *,
    width: float = WIDTH,
) -> Figure:
    """Prefix-matching scores [L, H] with their intervals: a map, and the best 12 to 16 heads in their order.

    Lines: the bound from which a head counts as an induction head, what uniform attention has, and the best score of
    the untrained twin.
    """
    mean = intervals.value
    with style():
        columns = columns_of(2, width, 2.4)
        figure = new_figure(width, 2.6 if columns == 2 else 4.1)
        shape: dict[str, Any] = {"width_ratios": [1, 1.45]} if columns == 2 else {"height_ratios": [1, 1.15]}
        left, right = (part.subplots() for part in figure.subfigures(2 // columns, columns, **shape).ravel())
        head_map(left, mean, (0, 1), label="prefix-matching score", width=0.3 * width if columns == 2 else 0.7 * width)
        left.set_title("A) all heads")
        shown = int(np.clip((mean >= bound).sum() + 3, 12, 16))
        strongest = top(mean, min(shown, mean.size))
        best, x = [intervals[head] for head in strongest], np.arange(len(strongest))
        colours = [BLUE if score.value >= bound else "0.7" for score in best]
        right.bar(x, [score.value for score in best], color=colours, width=0.7)
        points(right, x, best, fmt="none", color="black", capsize=2)
        right.axhline(bound, color="black", lw=0.8, ls="--")
        right.axhline(uniform, color="black", lw=0.8, ls=":")
        levels = {f"{bound}: counts": (bound, "black"), "uniform": (uniform, "black")}
        if untrained is not None:
            right.axhline(untrained, color=GREY, lw=0.8)
            levels["untrained"] = (untrained, "0.4")
        right.set_xticks(x, list(map(head_name, strongest)), rotation=90, fontsize=6.5)
        right.set(ylim=(0, 1.25), yticks=(0, 0.5, 1), ylabel="prefix-matching score", title="B) the best heads")
        for place, score in zip(x, best, strict=True):
            if score.value >= bound:
                at = (place, score.high)
                options: dict[str, Any] = {"fontsize": 6, "ha": "center", "va": "bottom", "rotation": 90}
                right.annotate(short_number(score.value), at, (0, 2), textcoords="offset points", **options)
        name_at_right(right, levels, 0.085)
        headline(figure, finding, setting)
    return figure


def companions(
    attention: Mapping[str, Intervals],
    written: Mapping[str, Intervals],
    chosen: Sequence[Head],
    finding: str | None,
    setting: str,
    *,
    width: float = WIDTH,
) -> Figure:
    """Scores [L, H] by name, a map of each, with its highest head; rings: the chosen heads.

    attention: shares of attention, on one scale for all. written: each on its own scale, from 0, or symmetric about 0
    if some are negative; NaN where the class of the model has none.
    """
    least = 1.5
    rows = [-(-len(group) // columns_of(len(group), width, least)) for group in (attention, written)]
    with style():
        figure = new_figure(width, 1.05 + 1.5 * sum(rows))
        parts = figure.subfigures(2, 1, height_ratios=rows, squeeze=False)[:, 0]
        titles = ("A) attention, as shares", "B) writes: copying as shares, attribution in logits of the next token")
        for part, title, group, shared in zip(parts, titles, (attention, written), (True, False), strict=True):
            part.suptitle(broken(title, 8, 72 * width - 10), fontsize=8)
            columns = columns_of(len(group), width, least)
            axes = part.subplots(-(-len(group) // columns), columns, squeeze=False).ravel()
            limit = max(colour_limit(intervals.value) for intervals in group.values())
            image = None
            for place, (ax, (name, intervals)) in enumerate(zip(axes, group.items(), strict=False)):
                if np.isnan(intervals.value).all():
                    ax.set(xticks=[], yticks=[], xlabel="none for this class")
                    ax.set_title(name, fontsize=7)
                    continue
                own = colour_limit(intervals.value)
                signed = bool((intervals.value < -0.05 * own).any())
                limits = (0, limit) if shared else None if signed else (0, own)
                bar = None if shared else ""
                image = head_map(ax, intervals.value, limits, label=bar, width=width / columns - 0.7)
                ax.plot(
                    *np.array(chosen).T,
                    "o",
                    mfc="none",
                    mec=ROLES[Role.INDUCTION].colour,
                    ms=3.2,
                    mew=0.9,
                    path_effects=HALO,
                )
                ax.set_ylabel("head" if place % columns == 0 else "")
                [best] = top(intervals.value, 1)
                ax.set_title(f"{name}\n{head_name(best)} {_written(intervals[best])}", fontsize=7)
            for ax in axes[len(group) :]:
                ax.set_axis_off()
            if shared and image is not None:
                part.colorbar(image, ax=list(axes), pad=0.02, aspect=30).outline.set_visible(False)
        figure.supxlabel("rings: the best induction heads; below a name: the highest head", fontsize=7)
        headline(figure, finding, setting)
    return figure


def _written(interval: Interval) -> str:
    """A value in a few characters, with its interval where it has one."""
    value, low, high = (short_number(number) for number in interval)
    return value if np.isnan(interval.low) else f"{value} [{low}, {high}]"


def mechanism(
    left: Mapping[str, Intervals],
    attribution: Intervals,
    chosen: Sequence[Head],
    finding: str | None,
    setting: str,
    *,
    width: float = WIDTH,
) -> Figure:
    """Where induction heads come from and what they do.

    A: the scores [heads] of the chosen heads, of the best eight if there are more: in the whole model first, without
    the heads they need next, without others. B: direct attribution [L, H] of the chosen heads, of all others beside
    them, the largest with their names.
    """
    with style():
        labels = [broken(name, 7, 72 * width - 50) for name in left]
        legend = columns_of(len(left), width, 0.3 + 0.057 * max(map(len, left)))
        entries = -(-sum(label.count("\n") + 1 for label in labels) // legend)
        columns = columns_of(2, width, 2.4)
        figure = new_figure(width, (2.55 if columns == 2 else 4.6) + 0.14 * entries)
        shape: dict[str, Any] = {"width_ratios": [1.4, 1]} if columns == 2 else {"height_ratios": [1, 1]}
        above, below = figure.subplots(2 // columns, columns, **shape).ravel()
        shown = min(len(chosen), MOST_HEADS)
        x, bar = np.arange(shown), 0.8 / len(left)
        shades = [BLUE, RED, *np.linspace(0.55, 0.8, max(1, len(left) - 2)).astype(str)]
        for number, (label, intervals, colour) in enumerate(zip(labels, left.values(), shades, strict=False)):
            at = x + (number - (len(left) - 1) / 2) * bar
            above.bar(at, intervals.value[:shown], bar, color=colour, label=label)
            points(above, at, [intervals[head] for head in range(shown)], fmt="none", color="black", lw=0.7)
        above.set_xticks(x, [head_name(head) for head in chosen[:shown]], rotation=60 if shown > 4 else 0)
        less = f", the best {shown} of {len(chosen)}" if shown < len(chosen) else ""
        above.set(ylim=(0, 1.05), yticks=(0, 0.5, 1), ylabel="prefix-matching score", xlabel=f"induction heads{less}")
        above.set_title("A) what prefix matching needs")
        _attributions(below, attribution, chosen)
        figure.legend(loc="outside lower left", ncols=legend)
        headline(figure, finding, setting)
    return figure


def _attributions(ax: Axes, attribution: Intervals, chosen: Sequence[Head]) -> None:
    """Direct attribution [L, H] of the chosen heads and of all others; those with names have intervals."""
    others = np.ones(attribution.value.shape, bool)
    others[tuple(np.array(chosen).T)] = False
    largest = np.nanmax(np.abs(attribution.value), initial=0)
    strongest = top(np.nan_to_num(attribution.value), 6)  # their intervals decide how high the axes are
    ends = [*(end for head in strongest for end in attribution[head]), *attribution.value.ravel(), 0]
    apart = 0.1 * (np.nanmax(ends) - np.nanmin(ends))  # or names lie on each other
    rng = np.random.default_rng(0)
    for column, (shown, colour) in enumerate(((~others, BLUE), (others, GREY))):
        heads, values = heads_where(shown), attribution.value[shown]
        x, last = column + rng.uniform(-0.15, 0.15, len(heads)), np.inf
        ax.plot(x, values, "o", color=colour, ms=3, alpha=0.8)
        for place in np.argsort(-np.nan_to_num(values))[:3]:
            if not 0.25 * largest < values[place] < last - apart:
                continue
            at = column + 0.3
            ax.plot([x[place], at], [values[place]] * 2, color=colour, lw=0.5)
            points(ax, [at], [attribution[heads[place]]], fmt="o", color=colour)
            beside: dict[str, Any] = {"xytext": (4, 0), "textcoords": "offset points", "va": "center"}
            ax.annotate(head_name(heads[place]), (at, values[place]), fontsize=6, **beside)
            last = values[place]
    ax.axhline(0, color="0.7", lw=0.7, zorder=0)
    ax.set_xticks([0, 1], ["best induction\nheads", "all others"])
    ax.set(xlim=(-0.4, 2), ylabel="logits of the next token", title="B) what each head adds directly")
