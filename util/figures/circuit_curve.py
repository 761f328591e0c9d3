"""The curve of faithfulness over the size of circuits, with its CPR or CMD: one drawing for all figures."""

from collections.abc import Collection, Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from util.figures.style import BLUE, GREY, WIDTH, new_figure, style
from util.scores.evaluation import Curve

COLOURS = (BLUE, "#3690c0", "#2c7d59", "#d99a2b", "#7b5aa6")  # of methods, in the order in which they are given
MARKERS = "osv^DPX"  # not as many as colours, so that more methods than either differ
HEIGHT, LINE = 2.4, 0.16  # inches: of the panels with their titles; of a line of the legend


def circuit_curve(ax: Axes, curves: Mapping[str, Curve], controls: Collection[str] = ()) -> None:
    """Draw the faithfulness of circuits over their nominal size, by method; the legend has CPR or CMD of each.

    Bands are 95 % intervals that hold together for a curve. controls: names of curves that are drawn grey. Lines mark
    the whole model (1) and the model with all edges corrupted (0). What is not defined is named, and not drawn. Raises
    ValueError for curves of different rankings: CPR and CMD have an axes each.
    """
    measures = {curve.measure for curve in curves.values()}
    if len(measures) != 1:
        raise ValueError(f"curves of one ranking belong together, not those of {sorted(measures)}")
    for level in (0, 1):
        ax.axhline(level, color="0.8", lw=0.7, zorder=0)
    number = 0
    for name, curve in curves.items():
        if name in controls:
            colour, marker, order = GREY, ".", 2.5  # what is asked of methods is not hidden by controls
        else:
            colour, marker, order = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)], 3
            number += 1
        f = curve.faithfulness
        label = f"{name}: {curve.area}" if curve.defined else f"{name}: not defined"
        ax.plot(curve.shares, f.value, marker=marker, ms=3, lw=1.2, color=colour, label=label, zorder=order)
        ax.fill_between(curve.shares, f.low, f.high, color=colour, alpha=0.18, lw=0, zorder=2)
    ax.set_xscale("log")
    ax.set_xticks([0.001, 0.01, 0.1, 1], ["0.1 %", "1 %", "10 %", "100 %"])
    ax.set_xlim(min(curve.shares[0] for curve in curves.values()) / 1.15, 1.15)
    ax.margins(y=0.08)
    ax.set(xlabel="edges kept, nominally", ylabel="faithfulness")


def circuit_curves(
    signed: Mapping[str, Curve], absolute: Mapping[str, Curve], title: str, controls: Collection[str] = ()
) -> Figure:
    """The curves of signed rankings, with CPR, beside those of absolute ones, with CMD, by method.

    A method has the same colour in both if both are in the same order. controls: see `circuit_curve`. Raises ValueError
    for curves of the other ranking.
    """
    panels = (
        ("CPR", signed, "A) ranked by signed scores", "CPR, higher is better"),
        ("CMD", absolute, "B) ranked by absolute scores", "CMD, lower is better"),
    )
    for measure, curves, _, _ in panels:
        wrong = [name for name, curve in curves.items() if curve.measure != measure]
        if wrong:
            raise ValueError(f"{wrong} are not ranked as {measure} asks")
    lines = 0.1 + LINE * (1 + max(len(signed), len(absolute)))
    with style():
        figure = new_figure(WIDTH, HEIGHT + lines)
        axes = figure.subplots(2, 2, height_ratios=(HEIGHT, lines))
        for ax, below, (_, curves, name, legend) in zip(*axes, panels, strict=True):
            circuit_curve(ax, curves, controls)
            ax.set_title(name)
            below.set_axis_off()
            below.legend(*ax.get_legend_handles_labels(), title=legend, title_fontsize=7, loc="upper center")
        axes[0, 1].set_ylabel("")
        figure.suptitle(title)
    return figure
