"""The figure of the roles of heads: settings, sentences, table and picture, made of its numbers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from util.figures import by_head
from util.figures.edits import WHOLE
from util.figures.role_atlas import numbers
from util.figures.role_atlas.numbers import FUNCTION_VECTOR, INDUCTION, PAIRS
from util.roles.rules import ROOM
from util.show.draw import BLUE, NO_ROLE, ROLES, Grid, Panel, RoleLook, broken, name_beside, room
from util.show.panels import CHANCE, CONTROLS, HERE, TICK, count_ticks, ink, points, row_names, row_panel, triples
from util.show.panels import ROW as SHARE_ROW
from util.show.part import Figure, Part, Values, in_words, interval_at, listed, say, sign, title, written
from util.stats.answers import DATASETS, KS
from util.stats.heads import head_name, place_of, top
from util.stats.intervals import POWERED, Interval, detectable
from util.study.checked import AtLeastFour, Count, Counts, Datasets, Natural, TwoHalves, checked

UNITS = {  # of effects; all others are in nats
    "function vector": "as a probability that is gained",
    **dict.fromkeys(("duplicate-token", "inhibition", "mover", "negative mover"), "in nats of the logit difference"),
}
CONFIRMING = {  # what confirms heads of a role, if not IOI prompts, which count once for each frame and names
    **dict.fromkeys(("previous-token", "induction"), "sequences"),
    **dict.fromkeys(("forerunner", "label reader"), "prompts"),
    "function vector": "prompts of each task",
}
NAMED = 3  # heads of a role that are named with their effects
SHOWN = 5  # heads of a role that are lines of the table
LETTER = 6  # points of letters
LETTERS = (10, 5.5)  # points: the width and height that two of them need
ASIDE, LEAST = 1.2, 1.0  # points: the room around the bar of a tile, which else seems its edge; its least length
THICK = 0.16  # of the tile's height
RINGS = {  # around the best heads of a kind: its name, marker, colour, size
    INDUCTION: ("induction", "o", ROLES["induction"].colour, 4),
    FUNCTION_VECTOR: ("FV", "s", ROLES["function vector"].colour, 7),
}
FEW = 16  # queries: that so few show no difference is not said
ROW, HEIGHTS = 0.3, (1.2, 3.4)  # inches: the height of a head, where there are few; the least and largest of all heads


@checked
class Settings:
    """What is measured, see notebook 05.

    datasets, ks, prompts: of the roles about labels, see `roles.label_roles`. sequences: random ones, for
    previous-token and induction heads; pairs: of IOI prompts; word_prompts: of each word-pair task, and intact: those
    that mean outputs are taken over. untrained_control: whether the untrained twin is measured too.
    """

    datasets: Datasets = DATASETS
    ks: Counts = KS
    prompts: TwoHalves = 64
    seed: Natural = 0
    sequences: AtLeastFour = 32
    pairs: AtLeastFour = 128
    word_prompts: AtLeastFour = 24
    intact: Count = 32
    untrained_control: bool = True


# ------------------------------------------------------------------------------------------------ sentences


def atlas_about(values: Values) -> str:
    request, task = values["request"], values["label task"]
    of_labels = f"{request['prompts']} of {task['dataset']} (k={task['k']}), " if task else ""
    return (
        f"{title(values)}; {request['sequences']} random sequences, {request['pairs']} IOI prompts, {of_labels}"
        f"{request['word_prompts']} of each word-pair task"
    )


def beside(role: str, role_values: Values) -> str:
    """What stands beside the count of a role: tested heads, the units that confirm them, which effects are seen."""
    last = f"; {POWERED} from {role_values['detectable']:.2f} on" if role_values["detectable"] else ""
    return f"{role_values['tested']} tested, {role_values['n']} {CONFIRMING.get(role, 'pairs of names')}{last}"


def atlas_say(values: Values) -> Iterator[str]:
    """How many heads have a role, which have each, which have several, and what the untrained twin has."""
    yield f"{values['finding']}."
    roles, twin = values["roles"], values["untrained"]
    for role, tested in roles.items():
        if named := [f"{name} {written(head['effect'])}" for name, head in tested["heads"].items()]:
            more = f", and {in_words(len(named) - NAMED)} more" if len(named) > NAMED else ""
            count = say("{n:words} {role} {n:head|heads}", n=len(named), role=role)
            yield f"{count} ({beside(role, tested)}): {listed(named[:NAMED])}{more}, {UNITS.get(role, 'in nats')}."
    without = [f"{role} ({beside(role, tested)})" for role, tested in roles.items() if not tested["heads"]]
    if without:
        yield f"Not detected: {listed(without)}."
    yield from (f"{line[0].upper()}{line[1:]}." for line in values["left out"])
    several = sorted(item for item in by_head(roles).items() if len(item[1]) > 1)
    if several:
        yield f"Heads with several roles: {listed([f'{name} ({listed(roles)})' for name, roles in several])}."
    if twin and not (n := sum(tested["tested"] for name, tested in twin.items() if name != "heads")):
        yield "In the untrained twin no score passes, so that no head is tested."
    elif twin:
        passing = "in the untrained twin {n:words} {n:score passes|scores pass}"
        yield say(f"{passing}; {{heads:none}} of its heads {{heads:has|have}} a role.", n=n, heads=twin["heads"])


def planted_say(values: Values) -> Iterator[str]:
    right = {True: "just the planted roles", False: "NOT RIGHT"}
    yield "; ".join(f"planted {name}: {right[one]}" for name, one in values["planted"].items())


def untrained_say(values: Values) -> Iterator[str]:
    twin = values["untrained"]
    yield say("untrained twin: {n} {n:head|heads} with a role", n=twin["heads"]) if twin else ""


# ------------------------------------------------------------------------------------------------ table


def atlas_table(values: Values) -> pd.DataFrame:
    """The heads of each role with the largest effects, SHOWN at most.

    Scores and effects are those on the held-out half. The effect is what is lost beyond the control, in nats, or for
    function vectors what is gained, as a probability. Intervals of a role's heads hold together.
    """
    rows = {
        (role, f"{len(tested['heads'])} of {tested['tested']} tested", name): {
            "score": written(head["score"]),
            "null": f"{head['null']:.2f}",
            "effect": written(head["effect"]),
            "p": f"{head['p']:.1g}",
        }
        for role, tested in values["roles"].items()
        for name, head in list(tested["heads"].items())[:SHOWN]
    }
    return pd.DataFrame.from_dict(rows, orient="index")


# ------------------------------------------------------------------------------------------------ picture


def atlas(values: Values) -> Grid:
    """All heads by layer, in the colours of their roles; a bar is the effect beside the largest of the role.

    A head with several roles has a tile of each, below each other. The legend has the number of heads of every role
    that was tested, and the effect from which on a head of it is seen with the usual power.
    """
    entries = [
        Patch(
            color=ROLES[role].colour,
            label=f"{ROLES[role].letters} {role}: {len(one['heads'])}"
            + (f" ({one['detectable']:.2f})" if one["detectable"] else ""),
        )
        for role, one in values["roles"].items()
    ]
    key = (
        "bar: effect, as a share of the role's largest; below: heads (smallest effect that would have been seen, "
        f"{POWERED}, in nats; FV: a probability)"
    )
    height = float(np.clip(ROW * values["shape"][1], *HEIGHTS)) + 0.85
    return Grid([partial(_atlas, values=values, key=key)], height=height, legend=entries)


def _atlas(ax: Axes, values: Values, key: str) -> None:
    (layers, heads), tested = values["shape"], values["roles"]
    width, height = room(ax)
    ticks = {"xticks": count_ticks(layers, max(2, int((width - 0.6) / TICK))), "yticks": count_ticks(heads, 9)}
    ax.set(facecolor=NO_ROLE, xlim=(-0.5, layers - 0.5), ylim=(-0.5, heads - 0.5), ylabel="head", **ticks)
    ax.set_xticks(np.arange(0.5, layers - 1), minor=True)
    ax.set_yticks(np.arange(0.5, heads - 1), minor=True)
    ax.grid(which="minor", color="white", lw=0.6)
    ax.tick_params(which="minor", length=0)
    ax.set_xlabel(f"layer\n{broken(key, 7, 72 * width - 30)}", fontsize=7)
    ax.spines[:].set_visible(False)
    cell = 72 * (width - 0.6) / layers, 72 * (height - 0.85) / heads
    largest = {role: max((h["effect"][0] for h in one["heads"].values()), default=1) for role, one in tested.items()}
    for name, roles in by_head(tested).items():
        layer, head = place_of(name)
        high = 1 / len(roles)
        for number, role in enumerate(roles):
            corner = layer - 0.5, head + 0.5 - (number + 1) * high
            _tile(ax, ROLES[role], corner, high, tested[role]["heads"][name]["effect"][0] / largest[role], cell)


def _tile(
    ax: Axes, look: RoleLook, corner: tuple[float, float], high: float, strength: float, cell: tuple[float, float]
) -> None:
    """A role of a head, with its letters where there is room, and a bar at the bottom as long as the role is strong.

    high: the tile's height, where a cell is 1 x 1. cell: width and height in points.
    """
    (left, bottom), colour = corner, ink(look.colour)
    wide, tall = cell
    thick = THICK * tall * high
    aside = min(ASIDE, thick)
    long = max(LEAST, strength * (wide - 2 * aside))
    ax.add_patch(Rectangle(corner, 1, high, fc=look.colour, ec="white", lw=0.6, zorder=3))
    inside = left + aside / wide, bottom + aside / tall
    ax.add_patch(Rectangle(inside, long / wide, thick / tall, fc=colour, lw=0, zorder=4))
    if wide >= LETTERS[0] and tall * high - aside - thick >= LETTERS[1]:
        middle = left + 0.5, bottom + (high + (aside + thick) / tall) / 2
        ax.text(*middle, look.letters, fontsize=LETTER, ha="center", va="center_baseline", color=colour, zorder=5)


# ------------------------------------------------------------------------------------------------ function vectors


def vectors_say(values: Values) -> Iterator[str]:
    """Which kind each measure rests on more; how many heads are of both kinds; and the best FV head."""
    entries = values["function vectors"]
    n, room, mean = len(entries["sets"][FUNCTION_VECTOR]), entries["room"] >= ROOM, np.array(entries["AIE"]["mean"])
    if not room:
        yield ""
        yield "Intact demonstrations hardly raise the answer, so that indirect effects say nothing here."
    task, chance = (entries["classification"][name] for name in ("task", "chance"))
    for kind, difference in entries["contrast"].items():
        count = entries["asked"][kind]
        whole, guessed = entries["accuracy"][kind][WHOLE], chance if kind == task else 0.0
        if whole[1] <= guessed:
            yield f"`{kind}` is not done: {written(whole)}, chance {guessed} ({count})."
            continue
        name = kind.capitalize() if " " in kind else f"The queries of `{kind}`"
        if more := sign(difference):
            yield (
                f"{name} rest more on {'FV' if more > 0 else 'induction'} heads ({count}): without FV heads that are "
                f"no induction heads {written(difference)} more is lost than without induction heads that are no FV "
                "heads."
            )
        elif (queries := int(count.split()[0])) > FEW:
            seen = f"{POWERED} from {detectable(Interval(*difference), queries):.2f} on"
            yield f"{name}: no difference between heads of just one kind was detected ({count}; {seen})."
    both = "{both} of the {n} best induction heads {both:is|are} among the {n} best FV heads ({chance:.1f} by chance)."
    yield say(both, both=len(entries["both"]), n=n, chance=n**2 / mean.size) if room else ""
    (best,) = top(mean, 1)
    value, low, high = interval_at(entries["AIE"], *best, value="mean")
    largest = f"{value:.3f} ({low:.3f} to {high:.3f})"
    yield f"The largest average indirect effect (AIE) is that of {head_name(best)}: {largest}."
    yield from (f"Left out, {why}." for why in entries["left out"])


def vectors_about(values: Values) -> str:
    entries = values["function vectors"]
    corruption = entries["corruption"].replace("_", " ")
    heads = f"{len(entries['sets'][FUNCTION_VECTOR])} heads of either kind"
    return f"{title(values)}, {heads}; AIE on {entries['prompts']} prompts of each task (corruption: {corruption})"


def vectors(values: Values) -> Grid:
    """A: prefix matching against AIE. B, C: what is answered right, by what is ablated, where that is above chance."""
    entries = values["function vectors"]
    shown: list[Panel] = [partial(_scatter, values=values)]
    for measure, accuracy in entries["accuracy"].items():
        chance = None if measure == PAIRS else entries["classification"]["chance"]
        if chance is not None and accuracy[WHOLE][1] <= chance:
            continue
        heading = f"{'ABC'[len(shown)]}) {measure}\n{entries['asked'][measure]}"
        rows = {"none" if name == WHOLE else name: share for name, share in accuracy.items()}
        look = partial(row_panel, label="share of right answers", chance=chance, colours={"none": BLUE})
        shown.append(partial(look, rows=rows, heading=heading))
    heights = [2.3, *[0.7 + SHARE_ROW * len(row_names(rows))] * (len(shown) - 1)]
    legend = [CONTROLS, HERE, *[CHANCE] * (len(shown) > 2)]  # word pairs have no level of chance
    return Grid(
        shown, least=2.4, columns=2, wide=(0,), height=heights, legend=legend,
        finish=lambda _, axes: axes[1].set_ylabel("ablated heads"),
    )  # fmt: skip


def _scatter(ax: Axes, values: Values) -> None:
    """All heads by both scores; the best of either kind are marked, those by AIE with intervals and names."""
    entries = values["function vectors"]
    matching, effect = np.array(entries["prefix matching"]), np.array(entries["AIE"]["mean"], dtype=float)
    ax.plot(matching.ravel(), effect.ravel(), ".", color="0.7", ms=4, label="each head")
    for kind, (label, marker, colour, size) in RINGS.items():
        places = tuple(np.array(entries["sets"][kind]).T)
        name = f"best {label} heads"
        ax.plot(matching[places], effect[places], marker, label=name, mfc="none", mec=colour, ms=size, mew=0.9)
    best = list(map(tuple, entries["sets"][FUNCTION_VECTOR]))
    spread = triples(entries["AIE"], best, "mean")
    points(ax, [matching[head] for head in best], spread, fmt="none", color=colour, lw=0.7)
    name_beside(ax, {head_name(head): (float(matching[head]), float(effect[head])) for head in best[:3]})
    ax.axhline(0, color="0.7", lw=0.7, zorder=0)
    ax.set(xlim=(-0.06, 1.06), xlabel="induction score (prefix matching)", ylabel="FV score (AIE)")
    ax.set_title("A) two scores of each head")


FIGURE = Figure(
    "role_atlas",
    Settings,
    {
        "atlas": Part(numbers.atlas, "atlas", atlas_say, atlas_about, atlas, atlas_table, ("untrained",)),
        "function_vectors": Part(numbers.function_vectors, "function_vectors", vectors_say, vectors_about, vectors),
        "untrained": Part(numbers.untrained, "untrained", untrained_say),
        "planted": Part(numbers.planted, "planted", planted_say),
    },
    ("atlas", "function_vectors"),
)
