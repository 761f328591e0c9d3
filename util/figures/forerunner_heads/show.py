"""The figure of forerunner token heads: settings, sentences, tables and pictures, made of its numbers.

The maps and curves of Fig. 5 and 22-25 count layers and heads from 1, as the paper does, all else from 0.
"""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from pydantic import Field

from util.figures.forerunner_heads import numbers
from util.figures.forerunner_heads.numbers import EVERYWHERE, FORERUNNER, NEITHER, PREVIOUS_TOKEN, SHARE, TITLES
from util.show import panels
from util.show.draw import BLUE, GREEN, GREY, LIGHT_BLUE, ORANGE, PAPER_ORANGE, PURPLE, RED, ROLES, Grid, name_beside
from util.show.part import Figure, Part, Values, say, title, written
from util.stats.answers import DATASETS, KS, TERMS
from util.stats.heads import head_name
from util.stats.intervals import Interval, signed
from util.study.checked import (
    Counts,
    Dataset,
    Datasets,
    Natural,
    Number,
    Prompts,
    TwoHalves,
    check_disjoint,
    checked,
)

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
SPAN = 0.5  # nats on either side that a scale has, so that small changes look small
FLOOR = 1e-4  # attention that is smaller is drawn as this much
CONTRASTS = (BLUE, ORANGE, GREEN)
SCORES = {"which label": RED, "label mass": BLUE}
READERS = {"best head": BLUE, "mean of heads": LIGHT_BLUE, "similarity of states": PURPLE}
PAPER = {"correct": ("Blues", BLUE), "wrong": ("Purples", PAPER_ORANGE)}  # of maps, and of curves
BEFORE = {"wrong": "a wrong one", "other word": "another word"}


@checked
class Settings:
    """What is measured, see notebook 01.

    dataset, k, prompts, seed: of StaICC, the first of its 512 queries; with another seed than 0 other queries and
    demonstrations than its own. threshold: the c in c / n_t. causal_datasets, causal_k: where a task is looked for, all
    data sets with one k before the next, on the last choice_prompts queries; ablated: prompts of the cuts.
    grid_datasets: data sets that are compared; grid_prompts: of each of them, of the reads of labels, and of the
    untrained twin. untrained_control: whether this is measured too, a second model in memory.
    """

    dataset: Dataset = "financial_phrasebank"
    k: Natural = 4
    prompts: TwoHalves = 256
    seed: Natural = 0
    threshold: Annotated[Number, Field(gt=0)] = numbers.THRESHOLD
    causal_datasets: Datasets = DATASETS
    causal_k: Counts = KS
    choice_prompts: Prompts = 128
    ablated: Prompts = 24
    grid_datasets: Datasets = ("glue_sst2", "rotten_tomatoes", "financial_phrasebank", "sst5", "trec", "agnews")
    grid_prompts: Prompts = 64
    untrained_control: bool = True

    def __post_init__(self) -> None:
        check_disjoint(max(self.ablated, self.grid_prompts), self.choice_prompts)


def about(values: Values, prompts: int | None = None, place: str = "") -> str:
    """What was measured: the model, the data set and k, and the number of prompts; by default those of the counts."""
    request = values["request"]
    place = place or f"{request['dataset']}, k = {request['k']}"
    return f"{title(values)}, {place}, {prompts or request['prompts']} prompts"


def of_task(values: Values, prompts: int) -> str:
    """What was measured of the task that was chosen."""
    task = values["chosen"]["ablation"]
    undone = "" if task["done"] else "; TASK NOT DONE"
    return about(values, prompts, f"{task['dataset']}, k = {task['k']}") + undone


# ------------------------------------------------------------------------------------------------ counts


def counts_say(values: Values) -> Iterator[str]:
    frequent, heads = values["frequent_heads"], np.size(values["counts"]["correct"])
    correct = frequent["correct"]
    if "untrained" in frequent and correct[1] <= frequent["untrained"][2]:
        both = f"{written(correct)} and {written(frequent['untrained'])}"
        yield f"No more heads are shown to be frequent than with untrained weights: {both} of {heads}"
    else:
        others = ", ".join(f"{frequent[name][0]} before {words}" for name, words in BEFORE.items())
        yield (
            f"{written(correct)} of {heads} heads are frequent: they read the token before the "
            f"correct label on three of four prompts; {others}"
        )
    fewest, most = values["tokens"]
    several = values["several_tokens"]
    yield f"Prompts have {fewest} to {most} tokens; labels of several tokens, read at the first: {several:.0%}."


def counts_about(values: Values) -> str:
    few = values["prompts"].get("untrained")
    untrained = "" if few is None else f" ({few} with untrained weights)"
    return f"frequent: {_reads(values)} on three of four prompts; {about(values)}{untrained}"


def _reads(values: Values) -> str:
    """What counts as a read."""
    return f"above {values['request']['threshold']:g} times uniform attention"


def layers_say(values: Values) -> Iterator[str]:
    heads, others = values["heads_on_a_prompt"], values["more_heads"]
    start = f"On average {heads['correct'][0]:.1f} of {np.size(values['counts']['correct'])} heads"
    more = [f"{signed(others[name], 2)} compared with {BEFORE[name]}" for name in others]
    some = heads["correct"][1] > heads.get("untrained", (0, 0, -1))[2]
    yield ", ".join([f"{start} read the correct label's forerunner", *more]) if some else ""


def counts_panels(values: Values) -> Grid:
    """Heat maps (Fig. 22-25) from a quarter of the prompts to all of them, arranged as in the paper."""
    return Grid([partial(_count_map, name=name, values=values) for name in values["counts"]], height=2.3)


def _count_map(ax: Axes, name: str, values: Values) -> None:
    """Layers down and heads across, counted from 1."""
    share = np.array(values["counts"][name]) / values["prompts"][name]
    title = f"{LABELS[name]}\n{written(values['frequent_heads'][name])} heads"
    colours, _ = PAPER.get(name, ("Greys", ""))
    panels.heads(ax, share.T, (0.25, 1), title, bar="share of prompts", colours=colours, ticks=(0.25, 0.5, SHARE, 1))
    heads = share.shape[1]
    ax.set_xticks(panels.count_ticks(heads, 4 if heads < 10 else 3))  # two digits need more room
    ax.invert_yaxis()
    ax.set(xlabel="head", ylabel="transformer block")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(lambda place, _: str(int(place) + 1))


def paper_layers_panels(values: Values) -> Grid:
    """Fig. 5 middle."""
    return Grid([partial(_paper_curves, values=values)], height=2.3)


def _paper_curves(ax: Axes, values: Values) -> None:
    """Heads (lines, left) and largest copy magnitude (areas, right) of each layer, counted from 1.

    Bands, which the paper does not have, are 95 % intervals.
    """
    right = ax.twinx()
    for name, (_, colour) in PAPER.items():
        count, largest = values["mean_head_count"][name], values["mean_max_magnitude"][name]["mean"]
        panels.curve(ax, count, first=1, color=colour, label=f"{LABELS[name]}: heads")
        x = range(1, len(largest) + 1)
        right.fill_between(x, largest, color=colour, alpha=0.2, lw=0, label=f"{LABELS[name]}: magnitude")
    ax.set(xlabel="transformer block", ylabel="heads above the threshold", ylim=(0, None))
    right.set(ylabel="maximum copy magnitude", ylim=(0, 1.1))
    right.spines["right"].set_visible(True)


# ------------------------------------------------------------------------------------------------ specificity


def specificity_say(values: Values) -> Iterator[str]:
    judged, frequent = values["specificity"]["judged"], values["frequent_heads"]["correct"][0]
    if not frequent:
        yield "No head is frequent: none reads the token before the label on three of four prompts"
    elif not judged["confirmed"]:
        yield f"None of {frequent} frequent heads is shown to be a forerunner head"
    else:
        yield say(
            "{n} of {frequent} frequent heads {n:is a forerunner head: it reads|are forerunner heads: they read} the "
            "token before the label more than other previous tokens; {wrong} {wrong:does|do} so more than before a "
            "wrong label",
            n=judged["confirmed"], frequent=frequent, wrong=judged["than_wrong"] or "none",
        )  # fmt: skip
    yield (
        f"Primary endpoint, forerunner heads: {judged['chosen']} chosen, {judged['confirmed']} confirmed on the "
        f"held-out half; of these {judged['than_wrong']} read more with the correct label than with a wrong one, "
        f"{judged['than_other']} more than with another word."
    )
    verdicts = values["planted_verdicts"]
    roles = [f"{role} -> {verdicts[layer][head]}" for layer, head, role in values["planted"]["roles"]]
    yield f"Planted heads: {'; '.join(roles)}."


def specificity_panels(values: Values) -> Grid:
    """Left, at the label against at other tokens; right, the ringed heads by name, with what they are compared with."""
    return Grid([partial(_scatter, values=values), partial(_differences, values=values)], 2.5, [2.6, 1.9])


def _scatter(ax: Axes, values: Values) -> None:
    """Above the line a head attends to the previous token at least twice as much where it stands before a label.

    What is smaller than FLOOR stands at it. Large, named: planted heads, coloured by the verdict on them.
    """
    specificity, planted = values["specificity"], values["planted"]
    places, known = map(_places, (specificity["held out"]["than at other tokens"], planted))
    ax.plot([FLOOR, 0.5], [2 * FLOOR, 1], color="0.7", lw=0.8, zorder=0, label="twice as much")
    for verdict, (colour, marker) in MARKS.items():
        at = np.array(specificity["verdicts"]) == verdict
        ax.plot(*places[:, at], marker, color=colour, ms=2.5, mew=0, alpha=0.8, label=verdict)
    for layer, head, role in planted["roles"]:
        (x, y), (colour, marker) = known[:, layer, head], MARKS[values["planted_verdicts"][layer][head]]
        ax.plot(x, y, marker, color=colour, ms=7, mec="black", mew=0.7, zorder=4, clip_on=False)
        name_beside(ax, {role: (x, y)})
    layers, heads = np.array(specificity["judged"]["strongest"], int).reshape(-1, 2).T
    ax.plot(*places[:, layers, heads], "o", ms=6.5, mfc="none", mec="black", mew=0.7)
    ax.set(xscale="log", yscale="log", xlim=(0.6 * FLOOR, 1.9), ylim=(0.6 * FLOOR, 4))
    ax.set(xlabel=r"at other tokens: mean $A[t,\,t-1]$", ylabel=r"at the label: mean $A[y_q,\,s_q]$")
    ax.set_title("attention to the previous token")


def _places(attention: Values) -> np.ndarray:
    """Attention at other tokens and at the label, [2, L, H]."""
    return np.maximum([attention[name] for name in ("second", "first")], FLOOR)


def _differences(ax: Axes, values: Values) -> None:
    strongest = values["specificity"]["judged"]["strongest"]
    for place, (name, held_out) in enumerate(values["specificity"]["held out"].items()):
        shown, colour = panels.triples(held_out, strongest, "difference"), CONTRASTS[place]
        panels.intervals(ax, shown, 0.2 * (place - 1), colour, label=name, hollow=False)
    panels.name_rows(ax, [head_name(tuple(head)) for head in strongest])
    ax.set_title("ringed heads: how much more" if strongest else "no head is confirmed")
    ax.set_xlabel("difference of attention at the label")


# ------------------------------------------------------------------------------------------------ a task, and its cuts


def task_say(values: Values) -> Iterator[str]:
    yield values["task_check"]
    yield from (f"{place}: {why}" for place, why in values["task_left_out"].items())


def task_table(values: Values) -> pd.DataFrame:
    """The data sets that were tried, in order."""
    shown = pd.DataFrame(values["task"]).set_index(["name", "k"]).round(3)
    for gain in ("over_none", "over_permuted"):
        shown[gain] = [signed(interval, 2) for interval in shown[gain]]
    return shown


def change_by_cut(ablation: Values, score: str) -> Sequence[float]:
    """What cutting the labels' reads of forerunners in all layers changes of a score: its mean, low and high."""
    change: Sequence[float] = ablation[score][str(EVERYWHERE)]["si_to_yi"]
    return change


def changed_by_cut(ablation: Values, score: str) -> int:
    """-1 where that cut lowers a score, 1 where it raises it, else 0, see `_changed`."""
    return _changed(change_by_cut(ablation, score), ablation["random"][score])


def _changed(change: Sequence[float], control: Sequence[float]) -> int:
    """The sign of a change whose interval lies beyond 0 and beyond the interval of random cells, else 0."""
    return int(change[1] > max(0.0, control[2])) - int(change[2] < min(0.0, control[1]))


def cut_says(ablation: Values, score: str, what: str) -> str:
    """What that cut costs, beside random cells. what: that may lose."""
    change, control = change_by_cut(ablation, score), ablation["random"][score]
    changed, cut = changed_by_cut(ablation, score), "cutting the labels' reads of forerunners"
    if changed > 0:
        return f"{cut} gains {what} {written(change)} nats, random cells {written(control)}"
    cost, controls = (str(Interval(-one[0], -one[2], -one[1])) for one in (change, control))
    if changed < 0:
        return f"{cut} costs {what} {cost} nats, random cells {controls}"
    return f"{cut} is not shown to cost {what} more than random cells: {cost} nats, {controls}"


def _costly_parts(ablation: Values) -> Iterator[tuple[str, str]]:
    """The parts of the layers in which that cut alone costs which label, by intervals that hold for all cuts."""
    together = ablation["together"]["which label"]
    control = together["random"][str(EVERYWHERE)]["si_to_yi"]
    for part, cuts in together["cut"].items():
        value, low, high = change = cuts["si_to_yi"]
        if part != str(EVERYWHERE) and _changed(change, control) < 0:
            yield _layers(part), str(Interval(-value, -high, -low))


def _layers(part: str) -> str:
    """A part of the layers in words."""
    begin, end = literal_eval(part)
    return "all layers" if part == str(EVERYWHERE) else f"{begin:.0%} to {end:.0%}"


def ablation_say(values: Values) -> Iterator[str]:
    ablation, which = values["ablation"], "Which label: not shown to be learned from demonstrations"
    lost = {score: changed_by_cut(ablation, score) < 0 for score in ablation["random"]}
    cost = {score: -change_by_cut(ablation, score)[0] for score in lost}
    if lost.get("label mass"):
        right = f"{cost['which label']:.2f}" if lost.get("which label") else "none shown"
        right = right if "which label" in lost else "not judged"
        yield f"Cutting s → y costs label mass {cost['label mass']:.2f} nats, which label: {right}"
    elif lost.get("which label"):
        yield f"Cutting s → y costs the right label {cost['which label']:.2f} nats"
    elif lost:
        yield "Cutting s → y is not shown to cost labels anything"
    mass = [f"Label mass: {cut_says(ablation, 'label mass', 'labels')}"] if "label mass" in lost else []
    if "which label" in lost:
        which = f"Which label: {cut_says(ablation, 'which label', 'the right label')}"
    yield f"{'. '.join([*mass, which])}."
    for part, nats in _costly_parts(ablation) if "which label" in lost else ():
        yield f"Cut in {part} of the layers alone it costs the right label {nats} nats, corrected for all cuts."
    loss = signed(change_by_cut(ablation, "text loss"))
    yield f"That cut changes the loss on the rest of the text by {loss} nats per token."
    shown, bare = map(written, values["accuracies"])
    gained = {score: signed(interval) for score, interval in ablation["gained"].items()}
    yield (
        f"Accuracy with demonstrations {shown}, without {bare}, of {values['request']['ablated']} prompts: they "
        f"change it by {gained['accuracy']}, log P(right label | labels) by {gained['which label']} nats, label "
        f"mass by {gained['label mass']} nats."
    )


def ablation_about(values: Values) -> str:
    place = of_task(values, values["request"]["ablated"])
    return f"{place}; costs in headline: all layers; full points: beyond 0 with intervals that hold for all together"


def ablation_table(values: Values) -> pd.DataFrame:
    """What cuts in all layers change, with 95 % intervals of one number each."""
    columns = {
        score: {TITLES[cut]: signed(change, 2) for cut, change in values["ablation"][score][str(EVERYWHERE)].items()}
        for score in ("accuracy", *TERMS, "text loss")
    }
    return pd.DataFrame(columns).rename_axis("cut in all layers")


def induction_say(values: Values) -> Iterator[str]:
    shares, null = values["induction"]["likelihood"], values["induction"]["null"]
    best, uniform = shares["best head"], values["induction"]["levels"]["uniform"]
    beyond, layers = int(np.greater(best["low"], null["high"]).sum()), len(null["mean"])
    yield f"In {beyond or 'none'} of {layers} layers best heads prefer the query's label (each by its own interval)"
    similar = max(shares["similarity of states"]["mean"])
    yield f"By the similarity of states it would have {similar:.2f} at most, by equal shares {uniform:.2f}."


def ablation_panels(values: Values) -> Grid:
    """A row of panels for each score, a panel for each part of the layers, a row in it for each cut (Table 1)."""
    together = values["ablation"]["together"]
    random = [Line2D([], [], color=GREY, marker="o", mfc="white", mew=0.8, ls="", ms=2, label="random entries")]
    shown = [
        partial(_cuts, score=score, part=part, effects=effects)
        for score, effects in together.items()
        for part in effects["cut"]
    ]
    columns = len(together["which label"]["cut"])
    return Grid(shown, least=1.0, height=1.6, columns=columns, share="y", legend=random)


def _cuts(ax: Axes, score: str, part: str, effects: Values) -> None:
    """What cuts change, and below it, small, what random entries do; all parts of a score have the same scale."""
    cut, random = effects["cut"], effects["random"].get(part, {})
    panels.intervals(ax, [*random.values()], 0.3, GREY, size=2.0)
    panels.intervals(ax, [*cut[part].values()], 0.0, SCORES[score], digits="+.2f")
    names = [title.replace("->", r"\to").replace(", ", r",\; ") for title in TITLES.values()]
    panels.name_rows(ax, [f"${name}$" for name in names])
    ax.set_title(_layers(part), fontsize=7)
    ends = [change for changes in cut.values() for change in changes.values()]
    low, high = min(-SPAN, np.min(ends)), max(SPAN, np.max(ends))
    room = 0.25 * (high - low)  # for the values
    ax.set(xlabel="change, nats", ylabel=score, xlim=(low - room, high + room))
    ax.locator_params(axis="x", nbins=2)


def induction_panels(values: Values) -> Grid:
    return Grid([partial(_shares, induction=values["induction"])], height=1.9)


def _shares(ax: Axes, induction: Values) -> None:
    null = induction["null"]
    x = range(len(null["mean"]))
    ax.fill_between(x, null["low"], null["high"], color=GREY, alpha=0.45, lw=0)
    for reader, colour in READERS.items():
        panels.curve(ax, induction["likelihood"][reader], color=colour, label=reader)
    ax.plot(x, null["mean"], color="black", lw=0.9, ls="--", label="best head, shuffled labels")
    beyond = np.flatnonzero(np.greater(induction["likelihood"]["best head"]["low"], null["high"]))
    if beyond.size:
        ax.plot(beyond, np.full(beyond.size, 0.95), "*", color=BLUE, ms=5, label="beyond shuffled labels")
    ax.set(ylim=(0, 1), xlabel="layer", ylabel="share of the query's label\nin what is read")
    for name, value in induction["levels"].items():
        panels.level(ax, value, name)


# ------------------------------------------------------------------------------------------------ data sets


def grid_say(values: Values) -> Iterator[str]:
    sets, shared = len(values["grid_counts"]), frequent_on(values)
    everywhere, anywhere = int((shared == sets).sum()), int((shared > 0).sum())
    text = "{all} {n:head is|heads are} frequent on each of {sets} data sets, {some} on some of them only"
    if sets < 2:
        yield ""
    elif anywhere:
        yield say(text, all=everywhere or "No", n=max(1, everywhere), sets=sets, some=anywhere - everywhere)
    else:
        yield f"No head is frequent on any of {sets} data sets"


def grid_about(values: Values) -> str:
    request = values["request"]
    place = about(values, request["grid_prompts"], f"k = {request['k']}")
    left_out = "".join(f"; {dataset}: {why}" for dataset, why in values["grid_left_out"].items())
    return f"frequent: {_reads(values)} on three of four prompts; {place} per data set{left_out}"


def frequent_on(values: Values) -> np.ndarray:
    """On how many data sets each head exceeds the threshold on three of four prompts, [L, H]; correct label."""
    least = SHARE * values["request"]["grid_prompts"]
    return np.sum([np.array(maps["correct"]) >= least for maps in values["grid_counts"].values()], axis=0)


def grid_panels(values: Values) -> Grid:
    """Above, on how many data sets each head is frequent; below, how many heads read on a prompt."""
    shared, sets = frequent_on(values), len(values["grid_counts"])
    title, ticks = "on how many data sets a head is frequent", np.arange(0, sets + 1, max(1, sets // 3))
    shown = [
        partial(panels.heads, values=shared, limits=(0, sets), title=title, bar="data sets", ticks=ticks),
        partial(_by_set, counts=values["grid_heads_on_a_prompt"]["correct"]),
    ]
    return Grid(shown, height=[0.5 + min(1.5, max(0.8, 0.09 * shared.shape[1])), 0.6 + 0.16 * sets], columns=1)


def _by_set(ax: Axes, counts: Values) -> None:
    panels.intervals(ax, [*counts.values()], colour=BLUE, hollow=False)
    panels.name_rows(ax, [name.replace("_", " ") for name in counts])
    ax.set_xlabel("heads above the threshold on a prompt")


# ------------------------------------------------------------------------------------------------ published values

PUBLISHED = {"dataset": "glue_sst2", "k": 16}  # the setting of the published share, with quantised weights


def published(values: Values) -> dict[str, tuple[float, float]]:
    """Our value, and its standard error, of what the paper has a number for, if the setting is that number's."""
    here = values["request"]["quantized"] and values["chosen"]["ablation"].items() >= PUBLISHED.items()
    return {"best_correct_induction_share": tuple(values["most_frequent"])} if here else {}


FIGURE = Figure(
    "forerunner_heads",
    Settings,
    {
        "counts": Part(numbers.counts, "counts", counts_say, counts_about, counts_panels),
        "paper_layers": Part(
            numbers.layers, "counts", layers_say,
            lambda values: f"{_reads(values)}, mean over prompts; {about(values)}",
            paper_layers_panels, needs=("counts",),
        ),
        "specificity": Part(
            numbers.specificity, "specificity", specificity_say,
            lambda values: f"{about(values)}, one half to choose heads; large: planted; ringed: strongest",
            specificity_panels, needs=("counts",),
        ),
        "task": Part(numbers.task, "task", task_say, table=task_table),
        "ablation": Part(
            numbers.ablation, "ablation", ablation_say, ablation_about, ablation_panels, ablation_table, ("task",)
        ),
        "induction": Part(
            numbers.induction, "induction", induction_say,
            lambda values: of_task(values, values["request"]["grid_prompts"]), induction_panels, needs=("task",),
        ),
        "grid": Part(numbers.grid, "grid", grid_say, grid_about, grid_panels),
    },
    ("counts", "specificity", "task", "ablation", "induction"),
)  # fmt: skip
