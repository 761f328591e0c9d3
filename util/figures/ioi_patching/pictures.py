"""The pictures of head patching in indirect object identification: panels of its numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure as Picture
from matplotlib.patches import Rectangle

from util.figures.ioi_patching.numbers import CARRIES, EAP, EAP_IG, SHOWN, carriers, drawn_layers, intervals
from util.scores.graph import SHARES
from util.show.draw import BLUE, GREY, LIGHT_BLUE, ORANGE, RED, Floats, Grid, Panel, name_beside
from util.show.panels import (
    colour_bar,
    colour_limit,
    count_ticks,
    curve,
    heads,
    name_columns,
    print_in_cells,
    short_number,
    triples,
    visible,
)
from util.show.panels import intervals as points_of
from util.show.part import Values
from util.stats.heads import Head, head_name, heads_where, top

NAMED, PRINTED, RANKED = 5, 12, 12  # heads named in panels of dots; printed in maps; shown with intervals
COLUMNS = 9  # panels of head outputs side by side, as the project has them
CURVES = {EAP: {"color": BLUE, "marker": "o"}, EAP_IG: {"color": LIGHT_BLUE, "marker": "s"}}  # of scores of edges
RANDOM: dict[str, Any] = {"color": GREY, "marker": "", "ls": "--", "lw": 0.8, "zorder": 3}  # seen on other curves
UPRIGHT: dict[str, Any] = {"aspect": "auto", "interpolation": "nearest", "origin": "lower"}


def _array(entry: Any) -> Floats:
    return np.asarray(entry, dtype=np.float64)


def strongest(effects: Floats, count: int) -> list[Head]:
    """The strongest heads of a map [L, H], at most so many: none below a twentieth of the largest effect."""
    sizes = np.abs(effects)
    return [head for head in top(sizes, min(count, sizes.size)) if sizes[head] >= 0.05 * colour_limit(sizes)]


# ------------------------------------------------------------------------------------------------ kinds of panel


def _map(effects: Floats, title: str, unit: str, framed: Iterable[Head], limit: float | None, ax: Axes) -> None:
    """A map of effects [L, H], the strongest printed, or named where cells are too small for numbers.

    framed: heads with a frame; limit: of the colours of changes of the logit difference, None for shares of the effect.

    Red is what works for the answer in all maps: a share of the effect above 0, a logit difference that falls without.
    """
    texts = {head: short_number(effects[head]) for head in strongest(effects, PRINTED)}
    colours, beyond = ("RdBu", "both") if limit else ("RdBu_r", "neither")
    end = limit or colour_limit(effects)
    heads(ax, effects, (-end, end), title, texts=texts, bar=unit, colours=colours, location="right", extend=beyond)
    if not ax.texts:
        name_beside(ax, {head_name(head): head for head in strongest(effects, NAMED)})
    for layer, head in framed:
        ax.add_patch(Rectangle((layer - 0.5, head - 0.5), 1, 1, fill=False, ec="black", lw=0.6, clip_on=False))


def _over_layers(y: Floats, bars: Floats | None, title: str, ylabel: str, ax: Axes) -> None:
    """A value for each layer [L], with bars."""
    ax.errorbar(range(len(y)), y, bars, fmt="h-", color=BLUE, mfc=(0.7, 0.9, 0.9), ms=4, lw=0.9)
    ax.margins(y=0.12)
    ax.set(xlabel="layer", ylabel=ylabel, title=title, xticks=count_ticks(len(y), 8))


def _outputs(z: Floats, title: str, colours: str, limits: Sequence[float] | Floats, ax: Axes) -> None:
    """Outputs [H, dv] of the heads of a layer: heads across, dimensions up."""
    ax.imshow(z.T, cmap=colours, vmin=limits[0], vmax=limits[1], **UPRIGHT)
    ax.set(xticks=[], yticks=[])
    ax.set_title(title, fontsize=7, pad=2)


def _of_outputs(panels: Sequence[Panel], row: float, last: Panel, below: float) -> Grid:
    """Panels of head outputs, of which the first has labels, and a last one below; heights in inches."""

    def label_first(figure: Picture, axes: Sequence[Axes]) -> None:
        axes[0].set_ylabel("dimension", fontsize=7)
        axes[0].set_xlabel(f"{axes[0].images[0].get_size()[1]} heads", fontsize=7)

    heights, wide = [*[row] * len(panels), below], (len(panels),)
    return Grid([*panels, last], least=0.6, height=heights, columns=COLUMNS, wide=wide, finish=label_first)


# ------------------------------------------------------------------------------------------------ one pair


def predictions(values: Values) -> Grid:
    """P1: the log-probabilities of all tokens after both prompts, and one against the other."""
    base, source = _array(values["example"]["log_softmax"])
    first, second = (f"...{text[-21:].strip()}" for text in values["request"]["texts"])
    answers, tokens = values["example"]["answers"], np.arange(len(base), dtype=float)
    named = dict(zip(values["request"]["names"], answers, strict=True))
    panels = [
        partial(_tokens, named, tokens, base, f"A) {first}", "token's number", "log-probability"),
        partial(_tokens, named, tokens, source, f"B) {second}", "token's number", ""),
        partial(_tokens, named, source, base, "C) both, log-probabilities", "after the source", "after the base"),
    ]
    return Grid(panels, least=1.5, height=1.75)


def _tokens(named: Mapping[str, int], x: Floats, y: Floats, title: str, xlabel: str, ylabel: str, ax: Axes) -> None:
    ax.plot(x, y, ".", color="0.45", alpha=0.2, ms=2, rasterized=True)
    for (name, token), colour, marker in zip(named.items(), (BLUE, ORANGE), "os", strict=True):
        ax.plot(x[token], y[token], marker, color=colour, ms=5, mec="white", mew=0.7, label=name)
    ax.set(xlabel=xlabel, ylabel=ylabel)
    ax.set_title(title, fontsize=6.5)


def _effects(effects: Floats, title: str, last: Panel) -> Grid:
    """Effects of all heads on one pair: a map whose colours end at twice the mean size, by layer, and a last panel."""
    limit = float(2 * np.abs(effects).mean()) or 1.0
    by_layer = partial(
        _over_layers, effects.mean(axis=1), effects.std(axis=1), "B) layer means; bars: SD", "mean change, logits"
    )
    panels: list[Panel] = [partial(_map, effects, title, "change, logits", (), limit), by_layer, last]
    return Grid(panels, least=1.8, height=1.9, wide=(0,) * (len(effects) > SHOWN))


def permutation(values: Values) -> Grid:
    """P2: the change of the logit difference by shuffling one head; by layer; and by its norm."""
    norms, effects = _array(values["example"]["norms"]), _array(values["permuted"])
    return _effects(effects, "A) change by shuffling", partial(_by_norm, norms, effects))


def _by_norm(norms: Floats, effects: Floats, ax: Axes) -> None:
    """A dot for every head of two maps [L, H], the strongest with their names."""
    ax.plot(norms.ravel(), effects.ravel(), "o", color=BLUE, ms=2.5, alpha=0.5, mew=0)
    ax.margins(x=0.15, y=0.12)
    ax.axhline(0, color="0.8", lw=0.7, zorder=0)
    ax.set(title="C) heads by norm", xlabel="norm of its output z", ylabel="change, logits")
    named = strongest(effects, NAMED)
    name_beside(ax, {head_name(head): (float(norms[head]), float(effects[head])) for head in named})


def patching(values: Values) -> Grid:
    """P5: the change of the logit difference when one head comes from the source; by layer; and its SD by layer."""
    effects = _array(values["patched"])
    deviations = partial(_over_layers, effects.std(axis=1), None, "C) SD alone", "SD of heads, logits")
    return _effects(effects, "A) change by patching", deviations)


def activations(values: Values) -> Grid:
    """P3: the outputs of one layer's heads, a panel for each token of the source; mean norms of all layers."""
    shown = values["example"]
    tokens = _seen(shown["tokens"])
    panels = [
        partial(_outputs, z, token, "plasma", np.percentile(z, (2, 98)))
        for z, token in zip(_array(shown["z"]), tokens, strict=True)
    ]
    return _of_outputs(panels, 0.9, partial(_lengths, _array(shown["lengths"]), tokens), 1.9)


def _seen(tokens: Iterable[str]) -> list[str]:
    """Tokens without blanks around them, unless they have nothing else."""
    return [visible(token.strip() or token).replace("$", r"\$") for token in tokens]


def _lengths(lengths: Floats, tokens: Sequence[str], ax: Axes) -> None:
    low, high = np.percentile(lengths, (5, 95))
    ax.imshow(lengths, aspect="auto", norm=PowerNorm(0.5, low, high), interpolation="nearest")
    ax.set_xticks(range(len(tokens)), tokens, rotation=90)
    ax.set(ylabel="layer", title="all layers: mean norm of the heads' outputs", yticks=count_ticks(len(lengths), 8))
    look: dict[str, Any] = {"location": "right", "pad": 0.01, "extend": "both", "aspect": 20, "format": "%.2g"}
    colour_bar(ax.figure, [ax], "mean norm", ticks=np.linspace(low**0.5, high**0.5, 4) ** 2, **look)


def differences(values: Values) -> Grid:
    """P4: how head outputs at the two places of the answer's name differ, to the 99th percentile; selectivity ratio."""
    shown, ratio, panels = values["example"], _array(values["selectivity"]), list[Panel]()
    for layer, z in zip(drawn_layers(ratio, shown["every"]), _array(shown["differences"]), strict=True):
        limit = float(np.percentile(np.abs(z), 99)) or 1.0
        panels.append(partial(_outputs, z, f"layer {layer}", "RdBu_r", (-limit, limit)))
    title = "difference: top two heads / last two"
    return _of_outputs(panels, 1.05, partial(_over_layers, ratio, None, title, "selectivity ratio"), 1.7)


def streams(values: Values) -> Grid | None:
    """What the residual stream, attention's outputs and MLPs' outputs carry, by layer and token."""
    if "refused" in values["streams"]:
        return None
    tokens, shares = values["streams"]["tokens"], _array(values["streams"]["shares"])
    limit = colour_limit(shares)

    def panel(title: str, share: Floats, ax: Axes) -> None:
        image = ax.imshow(share, cmap="RdBu_r", vmin=-limit, vmax=limit, **UPRIGHT)
        texts = {place: short_number(share.T[place]) for place in heads_where(np.abs(share.T) >= limit / 10)}
        if len(share) <= SHOWN:
            print_in_cells(image, texts)
        ax.set_xticks(range(len(tokens)), _seen(tokens), rotation=90)
        ax.set_yticks(count_ticks(len(share), 8))
        ax.set_title(title, fontsize=7)

    def bar(figure: Picture, axes: Sequence[Axes]) -> None:
        axes[0].set_ylabel("layer")
        colour_bar(figure, axes, "share of the effect")

    titles = ("A) residual stream", "B) attention's output", "C) MLP's output")
    panels = [partial(panel, title, share) for title, share in zip(titles, shares, strict=True)]
    return Grid(panels, least=1.2, height=2.4, share="y", finish=bar)


# ------------------------------------------------------------------------------------------------ many pairs


def population(values: Values) -> Grid:
    """The map of many pairs, and its strongest heads."""
    noised = intervals(values["population"]["noised"])
    certain = heads_where(carriers(noised))
    framed = f"A) patched from the source; framed: significantly beyond {CARRIES}"
    panels: list[Panel] = [
        partial(_map, noised.value, framed, "share of the effect", certain, None),
        partial(_ranked, values),
    ]
    return Grid(panels, height=1.75, columns=1)


def _ranked(values: Values, ax: Axes) -> None:
    """The strongest heads of one half with their intervals on the other, and those of the untrained twin."""
    population, chosen = values["population"], np.abs(_array(values["population"]["chosen"]))
    ranked = top(chosen, min(RANKED, chosen.size))
    points_of(ax, triples(population["measured"], ranked), 0, BLUE, upright=True, label="trained", hollow=False)
    if values["untrained"]:
        twin = values["untrained"]["heads"]
        shares = np.array(triples(twin, top(np.abs(_array(twin["value"])), len(ranked))))
        shares /= population["corrupted"][0] - population["intact"][0]
        points_of(ax, shares.tolist(), 0.25, GREY, upright=True, label="untrained twin", hollow=False)
    name_columns(ax, list(map(head_name, ranked)))
    ax.set(ylabel="share of the effect", title="B) strongest heads, on the other half of the pairs")
    ax.margins(y=0.1)


def circuit(values: Values) -> Grid | None:
    """Faithfulness: the share of the logit difference that some heads keep alone, by how many."""
    if values["circuit"]["whole"][1] <= 0:
        return None
    return Grid([partial(_circuit, values["circuit"])], height=2.15)


def _circuit(curves: Values, ax: Axes) -> None:
    """Bands are intervals, for all sizes together of the strongest heads; of random sets there is a dot for each."""
    whole, sizes = curves["whole"][0], [*curves["faithfulness"]]
    _curve(ax, np.transpose([*curves["faithfulness"].values()]), "strongest alone", color=BLUE, marker="o")
    _curve(ax, np.transpose([*curves["without"].values()]) / whole, "all but the strongest", color=RED, marker="s")
    random = [(sizes.index(size) + 0.1, one / whole) for size, some in curves["random"].items() for one in some]
    ax.plot(*np.reshape(random, (-1, 2)).T, ".", color=GREY, ms=5, mew=0, alpha=0.7, label="random alone, same layers")
    ax.set_xticks(range(len(sizes)), sizes)
    ax.set(xlabel="number of strongest or random heads", ylabel="share of the logit difference")


def _curve(ax: Axes, ends: Any, label: str, **look: Any) -> None:
    """Faithfulness [K] with its lower and upper ends as a line with a band; grey lines at 0 and 1, the whole model."""
    for level in (0, 1):
        ax.axhline(level, color="0.8", lw=0.7, zorder=0)
    curve(ax, dict(zip(("mean", "low", "high"), ends, strict=True)), label=label, **look)


# ------------------------------------------------------------------------------------------------ edges


def edges(values: Values) -> Grid | None:
    """The faithfulness of circuits against their size."""
    curves = values["component graph"].get("curves")
    if not curves or pd.isna(next(iter(curves.values()))["CMD"]["CMD"][0]):
        return None
    rankings = ("CMD", "A) by absolute scores"), ("CPR", "B) by signed scores")
    return Grid([partial(_curves, curves, *ranking) for ranking in rankings], least=2.4, height=2.2)


def _curves(curves: Mapping[str, Any], measure: str, title: str, ax: Axes) -> None:
    """Bands are 95 % intervals that hold together for a curve."""
    for name, by_measure in [*curves.items()][::-1]:
        kept = by_measure[measure]["faithfulness"]
        ends = [kept[end] for end in ("value", "low", "high")]
        _curve(ax, ends, name if name in CURVES else "random", **CURVES.get(name, RANDOM))
    ax.set_xticks(range(len(SHARES)), [f"{100 * share:g}" for share in SHARES])
    ax.set(xlabel="edges kept, %", ylabel="share of the effect kept", title=title)
