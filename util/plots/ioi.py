"""The figures of head patching in indirect object identification (Cohen, project 41; Wang et al. 2022)."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from util.measures.ioi import Effect, colour_limit
from util.plots import WIDTH, new_figure, style

Floats = NDArray[np.floating]
COLOURS = ("#2c7d59", "#c02d45")  # the answer of the source, that of the base


def predictions(log_softmax: Floats, answers: Sequence[int], names: Sequence[str], titles: Sequence[str]) -> Figure:
    """P1: the log-probabilities [2, V] after both prompts, the two names marked, and one against the other."""
    with style():
        figure = new_figure(WIDTH, 1.65)
        axes = figure.subplots(1, 3, width_ratios=(2, 2, 1.4))
        for ax, values, title in zip(axes, log_softmax, titles, strict=False):
            ax.plot(values, ".", color="0.3", alpha=0.2, ms=2, rasterized=True)
            ax.set(xlabel="token of the vocabulary", title=f"...{title[-21:]}")
            for token, name, colour, marker in zip(answers, names, COLOURS, "os", strict=True):
                ax.plot(token, values[token], marker, color=colour, ms=5, label=name)
        axes[0].set_ylabel("log-probability")
        axes[0].legend(loc="lower right", frameon=True)
        axes[2].plot(log_softmax[1], log_softmax[0], ".", color="0.3", alpha=0.2, ms=2, rasterized=True)
        for token, colour, marker in zip(answers, COLOURS, "os", strict=True):
            axes[2].plot(log_softmax[1, token], log_softmax[0, token], marker, color=colour, ms=5)
        axes[2].set(xlabel="after the source", ylabel="after the base", title="both")
    return figure


def _effects(ax: Axes, effects: Floats, limit: float) -> None:
    image = ax.imshow(effects.T, cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto", origin="lower")
    _head_ticks(ax, effects)
    figure = ax.get_figure(root=True)
    assert figure is not None
    figure.colorbar(image, ax=ax, shrink=0.9, pad=0.02, extend="both")


def _ticks(count: int) -> NDArray[np.int64]:
    return np.arange(0, count, max(1, round(count / 8)))


def _head_ticks(ax: Axes, effects: Floats) -> None:
    ax.set(xlabel="layer (from 0)", ylabel="head (from 0)")
    for axis, count in ((ax.xaxis, effects.shape[0]), (ax.yaxis, effects.shape[1])):
        axis.set_ticks(_ticks(count))
    ax.spines[:].set_visible(True)


def _layers(ax: Axes, effects: Floats) -> None:
    mean, spread, x = effects.mean(axis=1), effects.std(axis=1), np.arange(len(effects))
    ax.xaxis.set_ticks(_ticks(len(effects)))
    ax.errorbar(x, mean, spread, color="0.55", fmt="none", capsize=2, lw=0.9)
    ax.plot(x, mean, "o-", color="#023858", ms=3)
    ax.axhline(0, color="0.7", lw=0.7, zorder=0)
    ax.set(xlabel="layer (from 0)", ylabel="mean and SD of heads")


def permutation(effects: Floats, norms: Floats, title: str) -> Figure:
    """P2: the change of the logit difference [L, H] when one head is shuffled; its mean by layer; against its norm."""
    with style():
        figure = new_figure(WIDTH, 2.1)
        axes, limit = figure.subplots(1, 3), colour_limit(effects)
        _effects(axes[0], effects, limit)
        axes[0].set_title("A) shuffled - base")
        _layers(axes[1], effects)
        axes[1].set_title("B) by layer")
        colours = {"cmap": "RdBu_r", "vmin": -limit, "vmax": limit, "edgecolor": "black"}
        axes[2].scatter(norms.ravel(), effects.ravel(), 14, c=effects.ravel(), linewidth=0.4, alpha=0.7, **colours)
        axes[2].set(xlabel="norm of the outputs", ylabel="change, logits", title="C) by norm")
        figure.suptitle(title)
    return figure


def activations(z: Floats, tokens: Sequence[str], title: str, bounds: tuple[float, float] = (2.5, 97.5)) -> Figure:
    """P3a: the head outputs of one layer, [T, H, dv], a panel for each token, colours between two percentiles of it."""
    with style():
        figure = new_figure(WIDTH, 1.25)
        axes = figure.subplots(1, len(tokens), squeeze=False)[0]
        for ax, values, token in zip(axes, z, tokens, strict=True):
            low, high = np.percentile(values, bounds)
            ax.imshow(
                values.T, origin="lower", aspect="auto", interpolation="nearest", cmap="plasma", vmin=low, vmax=high
            )
            ax.set(xticks=[], yticks=[])
            ax.spines[:].set_visible(True)
            ax.set_title(_shown(token), fontsize=6, rotation=90)
        axes[0].set(xlabel="head", ylabel="dimension")
        figure.suptitle(title)
    return figure


def _shown(token: str) -> str:
    return f'"{token}"'.replace("\n", "\\n").replace("$", r"\$")


def norms(lengths: Floats, tokens: Sequence[str], title: str, bounds: tuple[float, float] = (2.5, 97.5)) -> Figure:
    """P3b: the mean norm of a layer's head outputs at every token, [L, T]."""
    with style():
        figure = new_figure(WIDTH, 2.3)
        ax = figure.subplots()
        low, high = np.percentile(lengths, bounds)
        image = ax.imshow(lengths, aspect="auto", vmin=low, vmax=high)
        ax.set_xticks(np.arange(len(tokens)), [_shown(token) for token in tokens], rotation=45, ha="right")
        ax.yaxis.set_ticks(_ticks(len(lengths)))
        ax.set(ylabel="layer (from 0)", title=title)
        ax.spines[:].set_visible(True)
        figure.colorbar(image, ax=ax, pad=0.01, extend="both")
    return figure


def token_differences(difference: Floats, title: str, skip: int = 3) -> Figure:
    """P4a: the difference [L, H, dv] of two tokens' head outputs in every `skip`-th layer, each to its own 99 %."""
    with style():
        shown = range(0, len(difference), skip)
        figure = new_figure(WIDTH, 1.65)
        axes = figure.subplots(1, len(shown), squeeze=False)[0]
        for ax, layer in zip(axes, shown, strict=True):
            limit = float(np.percentile(np.abs(difference[layer]), 99)) or 1.0
            ax.imshow(
                difference[layer].T, aspect="auto", interpolation="nearest", cmap="RdBu_r", vmin=-limit, vmax=limit
            )
            ax.set(title=f"L{layer}", xticks=[], yticks=[])
            ax.spines[:].set_visible(True)
        axes[0].set(xlabel="head", ylabel="dimension")
        figure.suptitle(title)
    return figure


def head_selectivity(ratio: Floats, title: str) -> Figure:
    """P4b: by layer, the two heads that differ most between two tokens over the two that differ least, [L]."""
    with style():
        figure = new_figure(WIDTH * 0.62, 1.9)
        ax = figure.subplots()
        ax.plot(np.arange(len(ratio)), ratio, "h", color="black", markerfacecolor=(0.7, 0.9, 0.9), ms=8)
        ax.xaxis.set_ticks(_ticks(len(ratio)))
        ax.set(xlabel="layer (from 0)", ylabel="head selectivity ratio", title=title)
        ax.set_ylim(bottom=0)
    return figure


def patching(effects: Floats, title: str) -> Figure:
    """P5: the change of the logit difference [L, H] when one head comes from the source; mean and spread by layer."""
    with style():
        figure = new_figure(WIDTH, 2.1)
        axes = figure.subplots(1, 3)
        _effects(axes[0], effects, colour_limit(effects))
        axes[0].set_title("A) patched - base")
        _layers(axes[1], effects)
        axes[1].set_title("B) by layer")
        axes[2].plot(np.arange(len(effects)), effects.std(axis=1), "o-", color="#023858", ms=3)
        axes[2].set(xlabel="layer (from 0)", ylabel="SD of heads", title="C) variability")
        axes[2].xaxis.set_ticks(_ticks(len(effects)))
        figure.suptitle(title)
    return figure


def circuit(scores: Mapping[str, tuple[float, float, float]], title: str) -> Figure:
    """The mean logit difference, (value, low, high), where only some heads work, from top to bottom."""
    with style():
        figure = new_figure(WIDTH * 0.75, 0.6 + 0.17 * len(scores))
        ax, places = figure.subplots(), np.arange(len(scores))
        value, low, high = np.array(list(scores.values())).T
        ax.errorbar(value, places, xerr=[value - low, high - value], fmt="o", ms=3, lw=0.9, color="#023858")
        ax.axvline(0, color="0.7", lw=0.7, zorder=0)
        ax.set_yticks(places, list(scores))
        ax.set(ylim=(len(scores) - 0.5, -0.5), xlabel="logit difference, mean of the prompts", title=title)
    return figure


def population(
    noised: Effect,
    denoised: Effect,
    exact: Floats,
    estimate: Floats,
    direct: Floats,
    title: str,
    names: Mapping[tuple[int, int], str],
) -> Figure:
    """Many pairs: the normalised map [L, H] of noising; against it, leave-one-in; the estimate; the direct part.

    Dots in the map: the 95 % interval, for all heads together, excludes 0. direct: NaN where there is none. names: what
    is written beside which (layer, head).
    """
    with style():
        figure = new_figure(WIDTH, 3.9)
        axes = figure.subplots(2, 2).ravel()
        _effects(axes[0], noised.value, float(np.abs(noised.value).max()) or 1.0)
        axes[0].plot(*((noised.low > 0) | (noised.high < 0)).nonzero(), ".", color="black", ms=2)
        axes[0].set_title("A) share of the whole effect")
        points = (
            (axes[1], denoised.value, noised.value, ("restored by it alone", "lost without it", "B) both directions")),
            (axes[2], exact, estimate, ("exact patch, logits", "first-order estimate", "C) attribution")),
            (axes[3], exact, direct, ("exact patch, logits", "to the output directly", "D) direct effect")),
        )
        for ax, x, y, (across, up, name) in points:
            if np.isnan(y).any():
                ax.set(xticks=[], yticks=[], xlabel="none: this class changes what heads write", title=name)
                continue
            low, high = min(x.min(), y.min()), max(x.max(), y.max())
            ax.plot([low, high], [low, high], color="0.8", lw=0.8, zorder=0)
            ax.plot(x.ravel(), y.ravel(), "o", color="#023858", ms=3, alpha=0.7)
            for number, (place, text) in enumerate(names.items()):  # in turn above and below, for equals do occur
                side = -4 if x[place] > (low + high) / 2 else 4
                at, aligned, up_or_down = (x[place], y[place]), "right" if side < 0 else "left", (4, -8)[number % 2]
                ax.annotate(text, at, (side, up_or_down), textcoords="offset points", fontsize=6, ha=aligned)
            ax.set(xlabel=across, ylabel=up, title=name)
        figure.suptitle(title)
    return figure
