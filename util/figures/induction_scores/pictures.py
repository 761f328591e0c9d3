"""The pictures of induction heads and of function-vector heads, and the numbers of the latter.

What tasks lose stands beside what Crosbie & Shutova (2024) report. Function vectors: Todd et al. 2024, "Function
Vectors in Large Language Models", for the scores; Yin & Steinhardt 2025, "Which Attention Heads Matter for In-Context
Learning?", sections 4 and 5, for the comparison. They exclude the best 2 % of the heads of one kind from the other;
here the best n of either kind are excluded from the other, n being the size of all sets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray

from util.figures.induction_scores.numbers import published
from util.figures.induction_scores.plan import KNOCKED_OUT, LAYER_MATCHED, OTHER_PATTERNS, WHOLE, ablated_row
from util.prompts.text_tasks import label_space
from util.roles.attention_scores import INDUCTION_HEAD
from util.show.draw import Grid, Panel, name_beside
from util.show.panels import heads, intervals, name_at_right, points, token_grid, triples, without_zero
from util.show.part import Arrays, Values, interval_at, sign, title, written
from util.show.style import BLUE, GREY, PALE_RED, RED, ROLES
from util.stats.heads import Head, head_name, layer_matched, norm_matched, shortage, top
from util.stats.intervals import Interval, accuracy, detectable, paired_interval

Rows = Mapping[str, Sequence[float]]  # by name: value, low, high
ROW = 0.2  # inches: the height of a row
DRAW = re.compile(r"(, control)? \d+$")  # what the names of draws of a control end with
COLOURS = {WHOLE: BLUE, KNOCKED_OUT: PALE_RED, **dict.fromkeys((LAYER_MATCHED, *OTHER_PATTERNS), GREY)}  # else red
DIAMOND: dict[str, Any] = {"marker": "D", "mfc": "none", "ms": 3.2, "mew": 0.8}
HERE = Line2D([], [], color="black", marker="o", ms=3, lw=0.9, label="here (95 %)")
CONTROLS = Line2D([], [], color=GREY, marker="|", ms=7, ls="", label="control sets, here")
CHANCE = Line2D([], [], color="0.6", ls=":", lw=0.8, label="chance")
PUBLISHED = Line2D([], [], color="black", ls="", **DIAMOND, label="published, Llama-3-8B, 1 % of heads")


# ------------------------------------------------------------------------------------------------ heads


def scores(values: Values) -> Grid:
    """A: the scores of all heads. B: the best."""
    found = values["scores"]

    def all_heads(ax: Axes) -> None:
        heads(ax, found["mean"], (0, 1), "A) all heads", bar="prefix-matching score")

    return Grid([all_heads, partial(_best, found=found)], least=2.4, height=2.1)


def _best(ax: Axes, found: Values) -> None:
    """The best 16 heads, lines at the bound of induction heads, uniform attention and the best untrained head."""
    strongest = top(np.array(found["mean"], dtype=float), min(16, np.size(found["mean"])))
    intervals(ax, triples(found, strongest, "mean"), colour=BLUE, upright=True)
    levels = {f"{INDUCTION_HEAD}: counts": (INDUCTION_HEAD, "black"), "uniform": (float(found["uniform"]), "black")}
    if found["untrained"] is not None:
        levels["untrained"] = (float(np.max(found["untrained"])), "0.4")
    for (level, colour), dashes in zip(levels.values(), ("--", ":", "-"), strict=False):
        ax.axhline(level, color=colour, lw=0.8, ls=dashes)
    ax.set_xticks(range(len(strongest)), list(map(head_name, strongest)), rotation=90, fontsize=6.5)
    ax.set(ylim=(-0.03, 1.03), yticks=(0, 0.5, 1), ylabel="prefix-matching score", title="B) the best heads")
    name_at_right(ax, levels, 0.085)


def pattern(values: Values) -> Grid:
    """The tokens of a prompt, shaded by the attention that the best head gives them."""
    found = values["pattern"]
    name = f"{head_name(tuple(found['head']))} from the last token"
    return token_grid(found["tokens"], np.array(found["rows"]), [name], found["queries"])


# ------------------------------------------------------------------------------------------------ rows of shares


def row_panel(
    ax: Axes, rows: Rows, heading: str, label: str, chance: float | None, reported: Mapping[str, float] = {}
) -> None:
    """Shares by name, each with its interval and its value beside it, and all draws of a control in one row.

    chance: of guessing, where it is known; reported: what a paper reports of another model. Only the panels at the left
    have the names.
    """
    if chance is not None:
        ax.axvline(chance, color="0.6", lw=0.8, ls=":")
    names = row_names(rows)
    for y, name in enumerate(names):
        colour = COLOURS.get(name, RED)
        drawn = [triple[0] for draw, triple in rows.items() if draw != name and DRAW.sub("", draw) == name]
        ax.plot(drawn, np.full(len(drawn), y), "|", color=GREY, ms=7, mew=0.8)
        if name in reported:
            ax.plot(reported[name], y + 0.28, color=colour, **DIAMOND)
        if name in rows:
            intervals(ax, [rows[name]], y, colour, size=3, hollow=False)
            ax.annotate(without_zero(rows[name][0], 2), (1.09, y), fontsize=6, va="center", annotation_clip=False)
    ax.set(xlim=(-0.03, 1.05), ylim=(len(names) - 0.5, -0.5), xlabel=label)
    ax.set_title(heading, fontsize=7)
    ax.set_xticks([0, 0.5, 1], ["0", ".5", "1"])
    place = ax.get_subplotspec()
    ax.set_yticks(range(len(names)), names)
    ax.tick_params(labelleft=place is None or place.is_first_col())


def row_names(rows: Rows) -> list[str]:
    """The names of the rows that draws stand in, too."""
    return list(dict.fromkeys(DRAW.sub("", name) for name in rows))


# ------------------------------------------------------------------------------------------------ tasks


def ablation(values: Values) -> Grid:
    """The primary task under every edit, and what the paper reports in the same place."""
    task, ablated, k = values["primary"]["task"], ablated_row(len(values["chosen"])), values["request"]["k"]
    reported, rows = published(task, k, ablated), values["accuracy"][task]
    legend = [CONTROLS, HERE, *[PUBLISHED] * bool(reported), CHANCE]
    asked = values["tasks_done"] or values["request"]["all_tasks"]
    options: dict[str, Any] = {
        "heading": task if asked else f"{task}\n(not done)",
        "label": "accuracy",
        "chance": values["primary"].get("chance") or 1 / len(label_space(task)),  # older values have none
        "reported": reported,
    }
    return Grid([partial(row_panel, rows=rows, **options)], height=0.6 + ROW * len(row_names(rows)), legend=legend)


def shots(values: Values) -> Grid | None:
    """A panel for each task with ablations, by the number of demonstrations."""
    benefits, ablated = values["benefits"], ablated_row(len(values["chosen"]))
    panels = [
        partial(_by_shots, name=name, by_shots=by_shots, ablated=ablated, chance=benefits["tasks"][name]["chance"])
        for name, by_shots in benefits["accuracy by shots"].items()
        if ablated in by_shots[max(by_shots, key=int)]["accuracy"]
    ]
    return Grid(panels, height=1.7, share="y", legend=[HERE, CHANCE], least=1.3) if panels else None


def _by_shots(ax: Axes, name: str, by_shots: Mapping[str, Any], ablated: str, chance: float) -> None:
    ax.axhline(chance, color="0.6", lw=0.8, ls=":")
    for x, row in enumerate(by_shots.values()):
        at = np.full(len(row["controls"]), x + 0.3)
        ax.plot(at, row["controls"], "_", color=GREY, ms=6, mew=0.8, label="control sets, here")
    for number, edit in enumerate((WHOLE, ablated, KNOCKED_OUT)):
        known = {x: row["accuracy"][edit] for x, row in enumerate(by_shots.values()) if edit in row["accuracy"]}
        if known:  # prompts without demonstrations have no pattern to knock out
            shifted = [x + 0.1 * number for x in known]
            spread = [Interval(*triple) for triple in known.values()]
            points(ax, shifted, spread, fmt="o-", color=COLOURS.get(edit, RED), label=edit)
    ax.set_xticks(range(len(by_shots)), list(by_shots))
    ax.set(xlim=(-0.6, len(by_shots) - 0.4), ylim=(-0.03, 1.05), yticks=(0, 0.5, 1))
    ax.set(xlabel="demonstrations", ylabel="accuracy")
    ax.set_title(name.replace("_", " "), fontsize=7)


Floats = NDArray[np.floating]
Sets = Mapping[str, Any]  # "sets", "controls" and "matched", each by kind, see `head_sets`

INDUCTION_ALONE, FUNCTION_VECTOR_ALONE = "induction, not FV", "FV, not induction"
PAIRS = "word pairs"  # what is answered, beside the classification task
INDUCTION, FUNCTION_VECTOR = "induction", "FV"  # kinds of heads
RINGS = {  # around the best heads of a kind: the score that chose them, marker, colour, size
    INDUCTION: ("prefix matching", "o", ROLES["induction"].colour, 4.5),
    FUNCTION_VECTOR: ("AIE", "s", ROLES["function vector"].colour, 7.5),
}
ROOM = 0.05  # how much more probable intact demonstrations must make the answer, for indirect effects to be measured
FEW = 16  # queries: that so few show no difference is not said


# ------------------------------------------------------------------------------------------------ sets


def head_sets(matching: Floats, effect: Floats, norms: Floats, n: int, draws: int, seed: int = 0) -> Sets:
    """Sets of n heads by prefix matching [L, H] and AIE [L, H], and control sets of each.

    sets: the best heads by either, and the best that are not among the best n of the other. controls: other heads, as
    many, that are in neither list of the best n; every layer has as many of them as of the set, or, where there are too
    few such sets, they write as much as the set, by norms [L, H]. Raises ValueError where there are too few others.
    """
    best = {INDUCTION: top(matching, n), FUNCTION_VECTOR: top(effect, n)}

    def alone(score: Floats, others: list[Head]) -> list[Head]:
        return [head for head in top(score, 2 * n) if head not in others][:n]

    sets = best | {
        INDUCTION_ALONE: alone(matching, best[FUNCTION_VECTOR]),
        FUNCTION_VECTOR_ALONE: alone(effect, best[INDUCTION]),
    }
    eligible = np.ones(matching.shape, bool)
    eligible[tuple(np.array(best[INDUCTION] + best[FUNCTION_VECTOR]).T)] = False
    controls = {}
    for kind, chosen in sets.items():
        drawn = [] if shortage(chosen, eligible) else layer_matched(chosen, eligible, draws, seed)
        controls[kind] = drawn if len(drawn) == draws else norm_matched(chosen, eligible, norms, draws, seed)
    return {"sets": sets, "controls": controls}


def ablations(sets: Sets) -> dict[str, list[Head]]:
    """The heads that are ablated by name: none of the whole model, those of each kind, and their control sets."""
    controls = sets["controls"].items()
    draws = {f"{kind}, control {i}": heads for kind, drawn in controls for i, heads in enumerate(drawn, 1)}
    return {WHOLE: [], **sets["sets"], **draws}


# ------------------------------------------------------------------------------------------------ numbers


def numbers(arrays: Arrays, settings: Any) -> dict[str, Any]:
    """Function-vector heads beside induction heads: their scores, which are both, and what is lost without either.

    contrast: how much more is lost without the FV heads alone than without the induction heads alone, paired.
    """
    heads, sets, task = arrays["effects"], arrays["sets"], arrays["task"]
    effects, best = heads.intervals(), sets["sets"]
    pairs = {ablated: np.concatenate([*tasks.values()]) for ablated, tasks in arrays["pairs"].items()}
    measured = {PAIRS: pairs, task: arrays["classified"]}
    lost = {
        name: paired_interval(rows[INDUCTION_ALONE].astype(np.float64) - rows[FUNCTION_VECTOR_ALONE])
        for name, rows in measured.items()
    }
    found = {
        "corruption": heads.corruption,
        "AIE": {"mean": effects.value, "low": effects.low, "high": effects.high},
        **sets,
        "both": [head for head in best[INDUCTION] if head in best[FUNCTION_VECTOR]],
        "asked": {name: f"{len(rows[WHOLE])} queries" for name, rows in measured.items()},
        "accuracy": {name: {row: accuracy(right) for row, right in rows.items()} for name, rows in measured.items()},
        "contrast": lost,
        "room": heads.room,
        "prompts": len(heads.units),
        "left out": list(heads.left_out.values()),
        "classification": {"task": task, "chance": arrays["chance"]},
    }
    return {"function vectors": found}


# ------------------------------------------------------------------------------------------------ sentences


def says(values: Values) -> Iterator[str]:
    """How many heads are of both kinds; the best FV head; and of each measure, which kind it rests on more."""
    found = values["function vectors"]
    n, room, mean = len(found["sets"][FUNCTION_VECTOR]), found["room"] >= ROOM, np.array(found["AIE"]["mean"])
    both = f"{len(found['both'])} of the {n} best induction heads are among the {n} best FV heads"
    yield f"{both} ({n**2 / mean.size:.1f} by chance)" if room else ""
    (best,) = top(mean, 1)
    value, low, high = interval_at(found["AIE"], *best, value="mean")
    yield (
        f"The function-vector (FV) head with the largest average indirect effect is {head_name(best)}: {value:.3f} "
        f"({low:.3f} to {high:.3f})."
    )
    if not room:
        yield "Intact demonstrations hardly raise the answer, so that indirect effects say nothing here."
    yield from (f"Left out, {why}." for why in found["left out"])
    for kind, difference in found["contrast"].items():
        count = found["asked"][kind]
        name = kind.capitalize() if " " in kind else f"The queries of `{kind}`"
        if more := sign(difference):
            yield (
                f"{name} rest more on {'FV' if more > 0 else 'induction'} heads ({count}): without FV heads that are "
                f"no induction heads {written(difference)} more is lost than without induction heads that are no FV "
                "heads."
            )
        elif (queries := int(count.split()[0])) > FEW:
            seen = f"differences from {detectable(Interval(*difference), queries):.2f} on would be seen"
            yield f"{name}: no difference between the two kinds was detected ({count}; {seen})."


def about(values: Values) -> str:
    found = values["function vectors"]
    corruption = found["corruption"].replace("_", " ")
    heads = f"{len(found['sets'][FUNCTION_VECTOR])} heads of either kind"
    return (
        f"{title(values)}, {heads}; AIE on {found['prompts']} prompts of each task (corruption: {corruption}); B: "
        "without these heads"
    )


# ------------------------------------------------------------------------------------------------ picture


def panels(values: Values) -> Grid:
    """A: prefix matching against AIE. B: what is answered right, by what is ablated."""
    found = values["function vectors"]
    shown: list[Panel] = [partial(_scatter, values=values)]
    for measure, rows in found["accuracy"].items():
        heading = f"{'B) ' * (len(shown) == 1)}{measure}\n{found['asked'][measure]}"
        chance = None if measure == PAIRS else found["classification"]["chance"]
        shown.append(partial(row_panel, rows=rows, heading=heading, label="share right", chance=chance))
    rows_high = 0.7 + ROW * len(row_names(rows))
    heights = [2.3, *[rows_high] * (len(shown) - 1)]
    return Grid(shown, least=2.4, columns=2, wide=(0,), height=heights, legend=[CONTROLS, HERE, CHANCE])


def _scatter(ax: Axes, values: Values) -> None:
    """All heads by both scores; the best of either kind are marked, those by AIE with intervals and names."""
    matching, found = np.array(values["scores"]["mean"], dtype=float), values["function vectors"]
    effect = np.array(found["AIE"]["mean"], dtype=float)
    ax.plot(matching.ravel(), effect.ravel(), ".", color="0.7", ms=4)
    halo = [withStroke(linewidth=2.2, foreground="white")]
    for kind, (label, marker, colour, size) in RINGS.items():
        places = tuple(np.array(found["sets"][kind]).T)
        look: dict[str, Any] = {"mfc": "none", "mec": colour, "ms": size, "mew": 0.9, "path_effects": halo}
        ax.plot(matching[places], effect[places], marker, label=f"best by {label}", **look)
    best = list(map(tuple, found["sets"][FUNCTION_VECTOR]))
    spread = [Interval(*triple) for triple in triples(found["AIE"], best, "mean")]
    points(ax, [matching[head] for head in best], spread, fmt="none", color=colour, lw=0.7)
    name_beside(ax, {head_name(head): (float(matching[head]), float(effect[head])) for head in best[:3]})
    ax.axhline(0, color="0.7", lw=0.7, zorder=0)
    ax.set(xlim=(-0.06, 1.06), xlabel="prefix matching", ylabel="AIE", title="A) two scores of each head")
