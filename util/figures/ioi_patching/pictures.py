"""The pictures of head patching in indirect object identification: panels of its numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from util.figures.ioi_patching.numbers import CARRIES, CHANNELS, KINDS, LEVELS, METHODS, SHOWN, carriers, intervals
from util.show import files
from util.show.draw import Grid, Panel, name_beside, room
from util.show.head_map import colour_limit, count_ticks, short_number
from util.show.panels import SMALL, colour_bar, heads, name_columns, name_rows
from util.show.panels import intervals as points_of
from util.show.part import Values
from util.show.style import BLUE, BROWN, GREEN, GREY, LIGHT_BLUE, ORANGE, PURPLE, RED, points
from util.stats.heads import Head, head_name, heads_where, top
from util.stats.intervals import Interval, Intervals, mean_interval

Floats = NDArray[np.float64]
NAMED, PRINTED, RANKED = 5, 12, 12  # heads named in panels of dots; printed in maps; shown with intervals
EDGES = 3  # with their name
COLUMNS = 9  # panels of head outputs side by side, as the project has them
ALL_FROZEN = "direct (all frozen)"  # not what a path to the output is: MLPs take part in that
COLOURS = (GREEN, ORANGE, PURPLE)  # query, key, value
KIND_LOOKS = [*zip((*CHANNELS, *KINDS[3:]), (*COLOURS, BROWN, BLUE), "osv^D", strict=True)]  # of what reads
CURVES = ((BLUE, "o"), (LIGHT_BLUE, "s"), (GREEN, "v"))  # of scores of edges
TICKS = (-1, -0.1, 0, 0.1, 1)
UPRIGHT: dict[str, Any] = {"aspect": "auto", "interpolation": "nearest", "origin": "lower"}


def _array(entry: Any) -> Floats:
    return np.asarray(entry, dtype=np.float64)


def strongest(effects: Floats, count: int) -> list[Head]:
    """The strongest heads of a map [L, H], at most so many: none below a twentieth of the largest effect."""
    sizes = np.abs(effects)
    return [head for head in top(sizes, min(count, sizes.size)) if sizes[head] >= 0.05 * colour_limit(sizes)]


# ------------------------------------------------------------------------------------------------ kinds of panel


def _map(effects: Floats, title: str, unit: str, framed: Iterable[Head], limit: float | None, ax: Axes) -> None:
    """A map of effects [L, H], the strongest printed; some heads are framed. limit: of colours, if not the largest."""
    texts = {head: short_number(effects[head]) for head in strongest(effects, PRINTED)}
    limits = None if limit is None else (-limit, limit)
    beyond = "both" if limit else "neither"
    heads(ax, effects, limits, title, texts=texts, bar=unit, colours="RdBu_r", location="right", extend=beyond)
    for layer, head in framed:
        ax.add_patch(Rectangle((layer - 0.5, head - 0.5), 1, 1, fill=False, ec="black", lw=0.6, clip_on=False))


def _dots(
    x: Floats, y: Floats, named: Sequence[Head], title: str, xlabel: str, ylabel: str, diagonal: bool, ax: Axes
) -> None:
    """A dot for every head of two maps [L, H], some with their names; with a diagonal on equal scales."""
    ax.plot(x.ravel(), y.ravel(), "o", color=BLUE, ms=2.5, alpha=0.5, mew=0)
    ax.margins(x=0.07, y=0.12)
    if diagonal:
        ends = [min(x.min(), y.min(), 0), max(x.max(), y.max(), 0)]
        ax.plot(ends, ends, color="0.8", lw=0.8, zorder=0)
        ax.locator_params(nbins=4)
    else:
        ax.axhline(0, color="0.8", lw=0.7, zorder=0)
    ax.set(title=title, xlabel=xlabel, ylabel=ylabel)
    name_beside(ax, {head_name(head): (float(x[head]), float(y[head])) for head in named})


def _over_layers(y: Floats, bars: Floats | None, title: str, ylabel: str, ax: Axes) -> None:
    """A value for each layer [L], with bars."""
    ax.errorbar(range(len(y)), y, bars, fmt="h-", color=BLUE, mfc=(0.7, 0.9, 0.9), ms=4, lw=0.9)
    ax.set_xticks(count_ticks(len(y), 8))
    ax.margins(y=0.12)
    ax.set(xlabel="layer", ylabel=ylabel, title=title)


def _outputs(z: Floats, title: str, colours: str, limits: Sequence[float] | Floats, ax: Axes) -> None:
    """Outputs [H, dv] of the heads of a layer: heads across, dimensions up."""
    ax.imshow(z.T, cmap=colours, vmin=limits[0], vmax=limits[1], **UPRIGHT)
    ax.set(xticks=[], yticks=[])
    ax.set_title(title, fontsize=SMALL, pad=2)


def _label_first(figure: Picture, axes: Sequence[Axes]) -> None:
    axes[0].set_ylabel("dimension", fontsize=SMALL)
    axes[0].set_xlabel("head", fontsize=SMALL)


def _quoted(token: str) -> str:
    """A token as text that matplotlib writes as it is."""
    return f'"{token}"'.replace("\n", "\\n").replace("$", r"\$")


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
    low, high = float(y.min()), float(y.max())
    ax.set_ylim(low - 0.08 * (high - low), high + 0.2 * (high - low))  # names stand above the points
    for (name, token), colour, marker in zip(named.items(), (BLUE, ORANGE), "os", strict=True):
        ax.plot(x[token], y[token], marker, color=colour, ms=4)
        name_beside(ax, {name: (float(x[token]), float(y[token]))}, colour)
    if x.max() <= 0:  # log-probabilities, too
        ax.plot([low, high], [low, high], color="0.8", lw=0.8, zorder=0)
    ax.set(xlabel=xlabel, ylabel=ylabel)
    ax.set_title(title, fontsize=6.5)


def _effects(effects: Floats, title: str, last: Panel) -> Grid:
    """Effects of all heads on one pair: a map whose colours end at twice the mean size, by layer, and a last panel."""
    limit = float(2 * np.abs(effects).mean()) or 1.0
    by_layer = partial(
        _over_layers, effects.mean(axis=1), effects.std(axis=1), "B) mean of heads; bar: SD", "mean change, logits"
    )
    panels: list[Panel] = [partial(_map, effects, title, "logits", (), limit), by_layer, last]
    return Grid(panels, least=1.8, height=1.9, wide=(0,) * (len(effects) > SHOWN))


def permutation(values: Values) -> Grid:
    """P2: the change of the logit difference by shuffling one head; by layer; and by its norm."""
    norms, effects = _array(values["example"]["norms"]), _array(values["permuted"])
    named = strongest(effects, NAMED)
    by_norm = partial(_dots, norms, effects, named, "C) by norm", "norm of z", "change, logits", False)
    return _effects(effects, "A) shuffled - base", by_norm)


def patching(values: Values) -> Grid:
    """P5: the change of the logit difference when one head comes from the source; by layer; and its SD by layer."""
    effects = _array(values["patched"])
    deviations = partial(_over_layers, effects.std(axis=1), None, "C) SD of heads", "SD, logits")
    return _effects(effects, "A) patched - base", deviations)


def activations(values: Values) -> Grid:
    """P3: the outputs of one layer's heads, a panel for each token of the source; mean norms of all layers."""
    shown = values["example"]
    tokens = [_quoted(token) for token in shown["tokens"]]
    panels: list[Panel] = [
        partial(_outputs, z, token, "plasma", np.percentile(z, (2, 98)))
        for z, token in zip(_array(shown["z"]), tokens, strict=True)
    ]
    panels.append(partial(_lengths, _array(shown["lengths"]), tokens))
    heights = [*[0.9] * len(tokens), 1.9]
    return Grid(panels, least=0.6, height=heights, columns=COLUMNS, wide=(len(tokens),), finish=_label_first)


def _lengths(lengths: Floats, tokens: Sequence[str], ax: Axes) -> None:
    low, high = np.percentile(lengths, (5, 95))
    ax.imshow(lengths, aspect="auto", vmin=low, vmax=high, interpolation="nearest")
    ax.set_xticks(range(len(tokens)), tokens, rotation=90)
    ax.set_yticks(count_ticks(len(lengths), 8))
    ax.set(ylabel="layer", title="all layers: norm of z, mean of the layer's heads")
    figure = ax.get_figure(root=True)
    assert figure is not None
    colour_bar(figure, [ax], "norm", location="right", pad=0.01, extend="both", aspect=20)


def differences(values: Values) -> Grid:
    """P4: how head outputs at the two places of the answer's name differ, to the 99th percentile; selectivity ratio."""
    shown, every = _array(values["example"]["differences"]), values["example"]["every"]
    panels: list[Panel] = []
    for place, z in enumerate(shown):
        limit = float(np.percentile(np.abs(z), 99)) or 1.0
        panels.append(partial(_outputs, z, f"layer {place * every}", "RdBu_r", (-limit, limit)))
    panels.append(partial(_over_layers, _array(values["selectivity"]), None, "", "selectivity ratio"))
    heights = [*[1.05] * len(shown), 1.7]
    return Grid(panels, least=0.6, height=heights, columns=COLUMNS, wide=(len(shown),), finish=_label_first)


# ------------------------------------------------------------------------------------------------ many pairs


def published_roles(model: str) -> dict[Head, str]:
    """The published role of heads of this model, such as "name mover"; none for others."""
    circuit = files.published("ioi_patching")["circuit"]
    named = [(head.split("."), role) for role, several in circuit["heads"].items() for head in several]
    return {(int(layer), int(head)): role for (layer, head), role in named if circuit["model"] == model}


def population(values: Values) -> Grid:
    """The map of many pairs, its strongest heads, and what of each effect is direct."""
    found, roles = values["population"], published_roles(values["request"]["model"])
    noised, measured, direct = intervals(found["noised"]), intervals(found["measured"]), _array(found["direct"])
    ranked, exact = top(np.abs(_array(found["chosen"])), min(RANKED, direct.size)), noised.value
    rows = [[measured[head] for head in ranked]]
    if values["untrained"]:
        own, whole = intervals(values["untrained"]["heads"]), found["corrupted"][0] - found["intact"][0]
        rows.append([own[head] for head in top(np.abs(own.value), len(ranked))])
        rows[1] = [Interval(*(bound / whole for bound in bounds)) for bounds in rows[1]]
    names = [f"{head_name(head)} {roles.get(head, '')}".strip() for head in ranked]
    panels: list[Panel] = [
        partial(_map, exact, "A) patched from the source", "share", heads_where(carriers(noised)), None),
        partial(_ranked, rows, names),
    ]
    if np.isfinite(direct).all():  # else layers of this class cannot be taken apart
        panels.append(
            partial(_dots, exact, direct, strongest(exact, NAMED), "C) direct part", "exact", ALL_FROZEN, True)
        )
    return Grid(panels, least=2.4, height=[1.75, 2.6 if roles else 1.75, 1.75], wide=(0,))


def _ranked(rows: Sequence[Sequence[Interval]], names: Sequence[str], ax: Axes) -> None:
    """The strongest heads of one half with their intervals on the other, and those of the untrained twin."""
    looks = (BLUE, 0, "trained"), (GREY, 0.25, "untrained twin")
    for some, (colour, shift, label) in zip(rows, looks, strict=False):
        points_of(ax, some, shift, colour, upright=True, label=label, hollow=False)
    name_columns(ax, names)
    ax.set(ylabel="share", title="B) strongest heads, other half")
    ax.margins(y=0.1)


def circuit(values: Values) -> Grid:
    """Faithfulness: the share of the logit difference that some heads keep alone, by how many."""
    return Grid([partial(_circuit, values["circuit"])], height=2.15)


def _circuit(found: Values, ax: Axes) -> None:
    """Of random sets the mean with its interval over sets, where there are two or more, behind a dot for each."""
    whole, sizes = found["whole"][0], np.array([int(size) for size in found["faithfulness"]])
    random = {int(size): np.array(some) / whole for size, some in found["random"].items()}
    means = [mean_interval(some if len(some) > 1 else np.repeat(some, 2)) for some in random.values()]
    alone = [Interval(*share) for share in found["faithfulness"].values()]
    rest = [Interval(*(bound / whole for bound in some)) for some in found["without"].values()]
    points(ax, sizes, alone, fmt="o-", color=BLUE, label="strongest alone")
    points(ax, sizes / 1.06, rest, fmt="s-", color=RED, label="all but these")
    if random:
        points(ax, np.array([*random]) * 1.06, means, fmt="^-", color=GREY, zorder=2, label="random, same layers")
    for size, shares in random.items():
        ax.plot([size] * len(shares), shares, ".", color=GREY, ms=3, alpha=0.5)
    ax.axhspan(found["whole"][1] / whole, found["whole"][2] / whole, color="0.93", zorder=0)
    for level in (0, 1, *LEVELS):
        ax.axhline(level, color="0.75", lw=0.7, ls="-" if level in (0, 1) else ":", zorder=0)
    ax.set_xscale("log", base=2)
    ax.set_xticks(sizes, map(str, sizes), minor=False)
    ax.set(xlabel="heads in the set", ylabel=f"faithfulness (1: {whole:.2f} logits)")


# ------------------------------------------------------------------------------------------------ paths and edges


def path_parts(found: Values) -> dict[str, Intervals]:
    """The paths [K, K] of stored values: through all three together, "edges", and through each of CHANNELS."""
    return {name: intervals(found[name]) for name in ("edges", *CHANNELS)}


def channel(parts: Mapping[str, Intervals], edge: tuple[int, int]) -> str:
    """The one of query, key and value that carries most of an edge, "" if that is no hundredth for certain."""
    name = max(CHANNELS, key=lambda one: abs(parts[one].value[edge]))
    return name if carriers(parts[name])[edge] else ""


def paths(values: Values) -> Grid | None:
    """What senders tell receivers, mostly through which channel, and the output, in shares of the whole effect."""
    found = values["paths"]
    if "refused" in found:
        return None
    parts, heads = path_parts(found), [(int(layer), int(head)) for layer, head in found["heads"]]
    names = [head_name(head) for head in heads]
    output, measured = intervals(found["direct"]), intervals(values["population"]["measured"])
    told = {
        "path through MLPs": [output[place] for place in range(len(heads))],
        "whole effect of the head": [measured[head] for head in heads],
    }
    panels: list[Panel] = [
        partial(_path_map, names, parts),
        partial(_rows, names, told),
    ]
    height = 0.8 + 0.15 * max(len(names), 5)
    return Grid(panels, height=[height + 0.5, height], columns=1)


def _path_map(names: Sequence[str], parts: Mapping[str, Intervals], ax: Axes) -> None:
    """The map of edges; only receivers that somebody can tell anything have a column.

    Printed are edges whose interval, for all together, lies beyond a hundredth, with the channel's initial.
    """
    effect = parts["edges"]
    listening = np.flatnonzero(np.isfinite(effect.value).any(axis=0)).tolist()
    shown = effect.value[:, listening]
    limit = colour_limit(shown)
    ax.set_facecolor("0.9")
    ax.imshow(shown, cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto")
    for row, column in np.argwhere(carriers(effect)[:, listening]).tolist():
        edge = row, listening[column]
        text, colour = short_number(effect.value[edge]), "white" if abs(effect.value[edge]) > 0.6 * limit else "black"
        if room(ax)[0] / len(listening) > 0.3:  # else numbers lie on each other
            text = f"{text} {channel(parts, edge)[:1]}"
            ax.text(column, row, text, fontsize=5, ha="center", va="center", color=colour)
    ax.set_xticks(range(len(listening)), [names[column] for column in listening], rotation=90, fontsize=SMALL)
    ax.set_yticks(range(len(names)), names, fontsize=SMALL)
    ax.set(xlabel="receiver", ylabel="sender", title="A) to heads, mostly by query, key or value")
    figure = ax.get_figure(root=True)
    assert figure is not None
    colour_bar(figure, [ax], "share of the whole effect", location="right")


def _rows(names: Sequence[str], rows: Mapping[str, Sequence[Interval]], ax: Axes) -> None:
    """Shares with their intervals in the rows of names, several beside each other."""
    for place, (label, some) in enumerate(rows.items()):
        points_of(ax, some, 0.18 * (place - 0.5), (BLUE, GREY)[place], size=2.5, label=label, hollow=False)
    name_rows(ax, names)
    ax.tick_params(axis="y", labelsize=SMALL)
    ax.set(title="B) to the output", xlabel="share of the effect")


def edges(values: Values) -> Grid | None:
    """Exact effects of edges against estimates, a panel for each method, coloured by what reads the edge.

    Intervals are those of edges that carry more than a hundredth of the whole effect for certain; of them the strongest
    are named. Both axes are linear up to a hundredth and logarithmic beyond.
    """
    graph = values["component graph"]
    if "points" not in graph:
        return None
    shown = _array(graph["points"])
    sizes = np.abs(shown[[0, 3, 4]])
    widest = 1.3 * max(float(sizes[np.isfinite(sizes)].max(initial=0)), CARRIES)
    sure = [(name, edge) for name, edge in graph["strongest"].items() if carriers(Intervals(*_array(edge["exact"])))]
    named = sorted(sure, key=lambda one: -abs(one[1]["exact"][0]))[:EDGES]
    panels = []
    for method, score in zip(METHODS, shown[3:5], strict=True):
        places = {_heads_named(name): (edge[method], edge["exact"][0]) for name, edge in named}
        panels.append(partial(_estimates, method, score, Intervals(*shown[:3]), shown[5], widest, places))
    legend = [Line2D([], [], ls="", marker=m, color=colour, ms=4, label=kind) for kind, colour, m in KIND_LOOKS]
    label = "exact share of the effect"
    return Grid(panels, least=2.2, height=2.75, share="xy", y=label, legend=legend)


def _heads_named(name: str) -> str:
    """An edge with heads as figures name them: a0.h6->a2.h5<v> as L0H6->L2H5<v>."""
    return "->".join("L" + end[1:].replace(".h", "H") if end[0] == "a" else end for end in name.split("->"))


def _estimates(
    method: str, score: Floats, exact: Intervals, kinds: Floats, widest: float, named: Mapping[str, Any], ax: Axes
) -> None:
    sure, diagonal = carriers(exact), np.linspace(-widest, widest, 401)
    ax.plot(diagonal, diagonal, color="0.8", lw=0.7, zorder=0)
    ax.axhline(0, color="0.9", lw=0.7, zorder=0)
    ax.axvline(0, color="0.9", lw=0.7, zorder=0)
    reach = np.abs([exact.low - exact.value, exact.high - exact.value])[:, sure]
    ax.errorbar(score[sure], exact.value[sure], reach, fmt="none", ecolor=GREY, elinewidth=0.5, zorder=1)
    for kind, (_, colour, marker) in enumerate(KIND_LOOKS):
        x, y = score[kinds == kind], exact.value[kinds == kind]
        ax.plot(x, y, marker, color=colour, ms=2.2, mew=0, alpha=0.6, rasterized=True)
    ax.set_xscale("symlog", linthresh=CARRIES, linscale=0.5)
    ax.set_yscale("symlog", linthresh=CARRIES, linscale=0.5)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_ticks(TICKS, [f"{tick:g}".replace("-", "\N{MINUS SIGN}") for tick in TICKS])
        axis.set_ticks([], minor=True)
    limits = -widest, widest
    ax.set(title=method, xlabel="estimated share of the effect", aspect="equal", xlim=limits, ylim=limits)
    name_beside(ax, named)


def edge_circuits(values: Values) -> Grid | None:
    """The faithfulness of circuits against their size, and CPR or CMD below."""
    curves = values["component graph"].get("curves")
    if not curves:
        return None
    panels: list[Panel] = [
        partial(_curves, curves, "CPR", "A) by signed scores"),
        partial(_curves, curves, "CMD", "B) by absolute scores"),
        partial(_areas, curves, "CPR", "CPR; above 1 is overshoot"),
        partial(_areas, curves, "CMD", "CMD; 0 is the whole model"),
    ]
    below = 0.55 + 0.17 * len(curves)
    return Grid(panels, least=2.4, height=[2.2, 2.2, below, below])


def _curves(curves: Mapping[str, Any], measure: str, title: str, ax: Axes) -> None:
    """Bands are 95 % intervals that hold together for a curve. Lines mark the whole model (1) and no edge (0)."""
    for level in (0, 1):
        ax.axhline(level, color="0.8", lw=0.7, zorder=0)
    for place, (name, found) in enumerate(curves.items()):
        share, kept = found[measure]["shares"], intervals(found[measure]["faithfulness"])
        colour, marker = (GREY, ".") if "random" in name else CURVES[place]
        ax.plot(share, kept.value, marker=marker, ms=3, lw=1.2, color=colour, zorder=3 - ("random" in name) / 2)
        ax.fill_between(share, kept.low, kept.high, color=colour, alpha=0.18, lw=0, zorder=2)
    ax.set_xscale("log")
    ax.set_xticks([0.001, 0.01, 0.1, 1], ["0.1 %", "1 %", "10 %", "100 %"])
    ax.set_xlim(min(found[measure]["shares"][0] for found in curves.values()) / 1.15, 1.15)  # also without a curve
    ax.set(xlabel="edges kept, nominally", ylabel="faithfulness", title=title)


def _areas(curves: Mapping[str, Any], measure: str, label: str, ax: Axes) -> None:
    """CPR or CMD of every score with its interval, in the colours of the curves."""
    for place, (name, found) in enumerate(curves.items()):
        area = _array(found[measure][measure])
        if np.isfinite(area).all():
            points_of(ax, [area.tolist()], place, GREY if "random" in name else CURVES[place][0], hollow=False)
        text = f"{area[0]:.2f}" if np.isfinite(area[0]) else "not defined"
        ax.text(1.02, place, text, va="center", fontsize=6.5, transform=ax.get_yaxis_transform())
    name_rows(ax, [*curves], zero=False)
    ax.set_xlabel(label)
