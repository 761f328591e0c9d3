"""The figures of induction scores, head ablation and attention knockout (Crosbie & Shutova 2024)."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from util.figures.head_map import colour_limit, head_map
from util.figures.style import BLUE, GREY, ORANGE, RED, WIDTH, name_point, new_figure, points, style
from util.stats.heads import head_name, heads_where, top
from util.stats.intervals import Interval, Intervals

Floats = NDArray[np.floating]


def scores(intervals: Intervals, uniform: float, bound: float, title: str, untrained: float | None = None) -> Figure:
    """Prefix-matching scores [L, H] with their intervals: a map, and the best 12 to 16 heads in their order.

    Dotted: what uniform attention has; dashed: the bound from which a head counts as an induction head. untrained: the
    best score of the untrained twin.
    """
    mean = intervals.value
    with style():
        figure = new_figure(WIDTH, 2.3)
        left, right = figure.subplots(1, 2, width_ratios=(1, 1.3))
        head_map(left, mean, (0, 1), label="")
        left.set_title("A) prefix-matching score")
        shown = int(np.clip((mean >= bound).sum() + 3, 12, 16))
        strongest = top(mean, min(shown, mean.size))
        best, x = [intervals[head] for head in strongest], np.arange(len(strongest))
        colours = [BLUE if score.value >= bound else "0.7" for score in best]
        right.bar(x, [score.value for score in best], color=colours, width=0.7)
        points(right, x, best, fmt="none", color="black", capsize=2)
        right.axhline(bound, color=RED, lw=0.8, ls="--", label=f"{bound}: an induction head")
        if untrained is not None:
            right.axhline(untrained, color=GREY, lw=0.8, label="best untrained head")
        right.axhline(uniform, color="black", lw=0.8, ls=":", label="uniform attention")
        right.set_xticks(x, list(map(head_name, strongest)), rotation=60)
        right.set(ylim=(0, 1.02), title="B) best heads, mean of the sequences")
        figure.legend(loc="outside lower right", ncols=3)
        figure.suptitle(title)
    return figure


def companions(maps: Mapping[str, Floats], title: str) -> Figure:
    """Scores [L, H] by name: from 0 to 1, or to a largest below a half, or symmetric about 0 if some are negative."""
    with style():
        columns = 3
        rows = -(-len(maps) // columns)
        figure = new_figure(WIDTH, 0.35 + 1.35 * rows)
        axes = figure.subplots(rows, columns, squeeze=False).ravel()
        for ax, (name, values) in zip(axes, maps.items(), strict=False):
            if np.isnan(values).all():
                ax.set(xticks=[], yticks=[], xlabel="none for this class", title=name)
                continue
            largest = colour_limit(values)
            signed = bool((values < -0.05 * largest).any())
            head_map(
                ax, values, None if signed else (0, 1 if largest > 0.5 else max(largest, 0.25)), label="", width=1.2
            )
            ax.set_title(name)
            ax.label_outer()
        for ax in axes[len(maps) :]:
            ax.set_axis_off()
        figure.suptitle(title)
    return figure


def pattern(attention: Floats, tokens: Sequence[str], kinds: Sequence[str], title: str) -> Figure:
    """What one head attends to: the whole matrix [T, T], and from the last token to the labels, all tokens of each."""
    with style():
        figure = new_figure(WIDTH, 2.4)
        left, right = figure.subplots(1, 2, width_ratios=(1, 1.15))
        left.imshow(attention, cmap="Greys", vmin=0, vmax=1, interpolation="nearest")
        left.set(xlabel="key", ylabel="query", title="A) every token")
        left.spines[:].set_visible(True)
        row = attention[-1]
        labels = [list(part) for kind, part in groupby(range(len(kinds)), lambda t: kinds[t]) if kind == "label"]
        read = [float(row[part].sum()) for part in labels]
        shown = labels[-12:]
        y = np.arange(len(shown))
        right.barh(y, read[-12:], color=BLUE, height=0.7)
        right.margins(x=0.1)  # or the last tick's number is cut off
        right.set_yticks(y, ["".join(tokens[t] for t in part).strip() for part in shown])
        rest = 1 - sum(read)
        right.set(
            xlabel="attention from the last colon",
            title=f"B) the labels, first to last; all else {rest:.2f}",
            ylim=(len(shown) - 0.5, -0.5),
        )
        figure.suptitle(title)
    return figure


def mechanism(
    whole: Floats, without: Mapping[str, Floats], attribution: Floats, chosen: Sequence[tuple[int, int]], title: str
) -> Figure:
    """Where induction heads come from and what they do.

    A: the scores of the chosen heads in the whole model, and by name with other heads ablated, [heads] each. B: direct
    attribution [L, H] of the chosen heads, of all others beside them, the largest with their names.
    """
    with style():
        figure = new_figure(WIDTH, 2.4)
        left, right = figure.subplots(1, 2, width_ratios=(1.4, 1))
        x = np.arange(len(chosen))
        groups = {"whole model": whole, **without}
        width = 0.8 / len(groups)
        shades = [BLUE, RED, *np.linspace(0.55, 0.8, max(1, len(groups) - 2)).astype(str)]
        for number, ((name, values), colour) in enumerate(zip(groups.items(), shades, strict=False)):
            left.bar(x + (number - (len(groups) - 1) / 2) * width, values, width, color=colour, label=name)
        left.set_xticks(x, [head_name(head) for head in chosen], rotation=60 if len(chosen) > 6 else 0)
        left.set(ylim=(0, 1.02), title="A) prefix-matching score")
        figure.legend(loc="outside lower left", ncols=3)
        others = np.ones(attribution.shape, bool)
        for place in chosen:
            others[place] = False
        rng = np.random.default_rng(0)
        for column, (shown, colour) in enumerate(((~others, BLUE), (others, GREY))):
            values, x = attribution[shown], column + rng.uniform(-0.15, 0.15, shown.sum())
            right.plot(x, values, "o", color=colour, ms=3, alpha=0.8)
            largest, last = np.nanmax(np.abs(attribution), initial=0), np.inf
            for place in np.argsort(-np.nan_to_num(values))[: 3 * column]:  # the chosen ones are named in A
                if 0.25 * largest < values[place] < last - 0.08 * largest:  # or their names lie on each other
                    name_point(right, head_name(heads_where(shown)[place]), x[place], values[place])
                    last = values[place]
        right.axhline(0, color="0.7", lw=0.7, zorder=0)
        right.set_xticks([0, 1], ["chosen", "others"])
        right.set(xlim=(-0.6, 1.6), ylabel="logits", title="B) direct, to the next token")
        figure.suptitle(title)
    return figure


def accuracies(
    tasks: Mapping[str, Mapping[str, Interval]],
    controls: Mapping[str, Mapping[str, Sequence[float]]],
    chance: Mapping[str, float],
    title: str,
    label: str = "accuracy (dotted: chance; grey: control sets)",
    grey: Collection[str] = (),
    notes: Mapping[str, str] | None = None,
) -> Figure:
    """Accuracy by task: what was measured of each name with its interval, and in grey of its control sets.

    grey: names that are controls themselves. notes: words on a task, in its place where little was measured.
    """
    with style():
        names = list(dict.fromkeys(name for row in tasks.values() for name in row))
        figure = new_figure(WIDTH, 0.75 + 0.2 * len(names))
        axes = figure.subplots(1, len(tasks), sharey=True, squeeze=False)[0]
        for ax, (task, row) in zip(axes, tasks.items(), strict=True):
            ax.axvline(chance[task], color="0.6", lw=0.8, ls=":")
            for y, name in enumerate(names):
                drawn = controls.get(task, {}).get(name, ())
                ax.plot(drawn, np.full(len(drawn), y), "|", color=GREY, ms=7, mew=0.8)
                if name in row:
                    _dot(ax, row[name], y, BLUE if name == names[0] else GREY if name in grey else RED)
            ax.set(xlim=(-0.03, 1.05), ylim=(len(names) - 0.5, -0.5), title=task.replace("_", "\n"))
            if task in (notes or {}) and np.isfinite([value for value, *_ in row.values()]).sum() > 1:
                ax.set_title(f"{ax.get_title()}\n({' '.join((notes or {})[task].split())})")
            elif task in (notes or {}):  # there is room
                place = {"transform": ax.transAxes, "ha": "center", "va": "center"}
                ax.text(0.5, 0.5, (notes or {})[task], color=GREY, backgroundcolor="white", **place)
            ax.set_xticks([0, 0.5, 1], ["0", ".5", "1"])
        axes[0].set_yticks(range(len(names)), names)
        figure.supxlabel(label)
        figure.suptitle(title)
    return figure


def _dot(ax: Axes, interval: Interval, y: float, colour: str) -> None:
    """A value with its interval from left to right."""
    value, low, high = interval
    ax.errorbar(value, y, xerr=[[value - low], [high - value]], fmt="o", ms=3, lw=0.9, color=colour)


def doses(
    accuracy: Mapping[str, Sequence[Interval]],
    sizes: Sequence[int],
    zero_shot: Mapping[str, Interval],
    losses: Mapping[str, Interval],
    title: str,
    chance: float,
    uniform: float,
) -> Figure:
    """How much is lost with how many heads: accuracy by task at each of `sizes`; without demonstrations; plain text.

    chance: of the task without demonstrations; uniform: the loss of equal probabilities for all tokens, in nats.
    """
    with style():
        figure = new_figure(WIDTH, 2.5)
        axes = figure.subplots(1, 3, width_ratios=(1.3, 1, 1))
        shades = ("#023858", "#3690c0", "#c02d45", "#2c7d59", "#d99a2b", "0.5", "0.2")
        width = 0.06 * (len(sizes) - 1)
        for i, ((task, by_size), colour, marker) in enumerate(zip(accuracy.items(), shades, "os^Dvx+", strict=False)):
            x = np.arange(len(sizes)) + width * (i - (len(accuracy) - 1) / 2)  # or their intervals hide each other
            points(axes[0], x, by_size, fmt=f"{marker}-", color=colour, label=task.replace("_", " "))
        axes[0].set_xticks(range(len(sizes)), [str(size) for size in sizes])
        axes[0].set(xlabel="heads ablated", ylabel="accuracy", ylim=(-0.05, 1.05), title="A) with demonstrations")
        figure.legend(loc="outside lower left", ncols=len(accuracy))
        for ax, rows, label, name, level, of in (
            (axes[1], zero_shot, "accuracy", "B) 0 shots", chance, "chance"),
            (axes[2], losses, "nats per token", "C) plain text", uniform, "uniform"),
        ):
            ax.axvline(level, color="0.6", lw=0.8, ls=":")
            ax.annotate(
                of, (level, 0), (2, 2), textcoords="offset points", xycoords=("data", "axes fraction"), fontsize=6
            )
            colours = [BLUE, RED, *[GREY] * (len(rows) - 2)]
            for y, (interval, colour) in enumerate(zip(rows.values(), colours, strict=False)):
                _dot(ax, interval, y, colour)
            ax.set_yticks(range(len(rows)), list(rows) if ax is axes[1] else [""] * len(rows))
            ax.set(xlabel=label, title=name, ylim=(len(rows) - 0.3, -0.5))
        axes[1].set_xlim(-0.05, 1.05)
        figure.suptitle(title)
    return figure


@dataclass(frozen=True)
class ShotsPanel:
    """A task by its numbers of demonstrations, shots.

    lines: accuracies by name, then by number of demonstrations; controls: those of each control set. chance: the
    accuracy of guessing; note: words on the task.
    """

    name: str
    shots: Sequence[int]
    lines: Mapping[str, Mapping[int, Interval]]
    controls: Mapping[int, Sequence[float]]
    chance: float
    note: str = ""


def shots(panels: Sequence[ShotsPanel], title: str, columns: int = 5) -> Figure:
    """Accuracies by the number of demonstrations, a panel for each task; grey: from the least to the most of the
    control sets; dotted: chance."""
    colours = {"whole model": BLUE, "without induction heads": RED, "pattern knocked out": ORANGE}
    looks = dict(zip(colours, ("o-", "s-", "^--"), strict=True))
    with style():
        rows = -(-len(panels) // columns)
        figure = new_figure(WIDTH, 0.85 + 1.25 * rows)
        axes = figure.subplots(rows, columns, sharey=True, squeeze=False).ravel()
        for ax, panel in zip(axes, panels, strict=False):
            place = {k: x for x, k in enumerate(panel.shots)}
            ax.axhline(panel.chance, color="0.6", lw=0.8, ls=":")
            for k, drawn in panel.controls.items():
                low, high = min(drawn), max(drawn)
                ax.bar(place[k], max(high - low, 0.015), 0.7, low, color="0.8", zorder=0, label="control sets")
            for name, by_shots in panel.lines.items():
                aside = 0.12 * (list(panel.lines).index(name) - 1)  # or intervals hide each other
                x = [place[k] + aside for k in by_shots]
                if x:
                    points(ax, x, by_shots.values(), fmt=looks[name], color=colours[name], label=name)
            ax.set_xticks(range(len(panel.shots)), list(map(str, panel.shots)))
            ax.set(xlim=(-0.6, len(panel.shots) - 0.4), ylim=(-0.03, 1.05), yticks=(0, 0.5, 1))
            ax.set_title(panel.name.replace("_", " "))
            if panel.note:
                ax.text(0.5, 0.04, panel.note, transform=ax.transAxes, ha="center", color=GREY, fontsize=7)
        for ax in axes[len(panels) :]:
            ax.set_axis_off()
        names = {label: handle for ax in axes for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
        figure.legend(names.values(), names.keys(), loc="outside lower center", ncols=len(names))
        for ax in axes[max(0, len(panels) - columns) : len(panels)]:
            ax.set_xlabel("demonstrations")
        for ax in axes[::columns]:
            ax.set_ylabel("accuracy")
        figure.suptitle(title)
    return figure
