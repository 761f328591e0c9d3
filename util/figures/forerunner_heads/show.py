"""The figure of forerunner token heads: settings, sentences, tables and pictures, made of its numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import numpy as np
import pandas as pd
from pydantic import Field

from util.figures.forerunner_heads import numbers, pictures
from util.figures.forerunner_heads.conclude import beyond_chance, conclude
from util.figures.forerunner_heads.cuts import TITLES
from util.figures.forerunner_heads.numbers import EVERYWHERE
from util.figures.forerunner_heads.pictures import LABELS, frequent_on
from util.show.part import Figure, Part, Values, title
from util.show.words import say
from util.stats.answers import TERMS
from util.stats.intervals import Interval, signed
from util.stats.task_check import TaskCheck
from util.study.checked import (
    QUERIES,
    AsList,
    Counts,
    Dataset,
    Datasets,
    Distinct,
    Natural,
    Number,
    Prompts,
    TwoHalves,
    checked,
)

BEFORE = {"wrong": "a wrong one", "other word": "another word"}


@checked
class Settings:
    """What is measured, see notebook 01.

    dataset, k, prompts, seed: of StaICC, the first of its 512 queries; with another seed than 0 other queries and
    demonstrations than its own. threshold: the c in c / n_t. causal_datasets, causal_k: where a task is looked for, all
    data sets with one k before the next, on the last choice_prompts queries; ablated: prompts of the cuts.
    grid_datasets; grid_k: numbers of demonstrations; grid_prompts: of each entry of both, of the reads of labels, and
    of the untrained twin. untrained_control: whether this is measured too, a second model in memory.
    """

    dataset: Dataset = "financial_phrasebank"
    k: Natural = 4
    prompts: TwoHalves = 256
    seed: Natural = 0
    threshold: Annotated[Number, Field(gt=0)] = numbers.THRESHOLD
    causal_datasets: Datasets = ("trec", "subjective", "agnews")
    causal_k: Counts = (16, 4)
    choice_prompts: Prompts = 128
    ablated: Prompts = 24
    grid_datasets: Datasets = ("glue_sst2", "rotten_tomatoes", "financial_phrasebank", "sst5", "trec", "agnews")
    grid_k: Annotated[tuple[Natural, ...], AsList, Distinct] = (0, 1, 2, 4, 8, 12)
    grid_prompts: Prompts = 64
    untrained_control: bool = True

    def __post_init__(self) -> None:
        if (measured := max(self.ablated, self.grid_prompts)) + self.choice_prompts > QUERIES:
            raise ValueError(
                f"{measured} prompts to be measured and {self.choice_prompts} to choose the task on share some: there "
                f"are {QUERIES} queries; take fewer of either"
            )


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


def left_out(whys: Mapping[str, str], name: str = "") -> str:
    """What does not fit the model, and why. name: what stands before a place."""
    return "".join(f"; {name}{place}: {why}" for place, why in whys.items())


# ------------------------------------------------------------------------------------------------ counts


def counts_say(values: Values) -> Iterator[str]:
    frequent, heads = values["frequent_heads"], np.size(values["counts"]["correct"])
    (value, low, high), untrained = frequent["correct"], frequent.get("untrained", (0, 0, 0))
    if low <= untrained[2]:
        yield (
            f"No more heads are shown to be frequent than with untrained weights: {value} [{low}, {high}] and "
            "{} [{}, {}] of ".format(*untrained)
            + f"{heads}"
        )
    else:
        others = [f"{frequent[name][0]} before {words}" for name, words in BEFORE.items()]
        yield (
            f"{value} [{low}, {high}] of {heads} heads are frequent: they read the token before the correct label on "
            f"three of four prompts; {', '.join(others)}"
        )
    fewest, most = values["tokens"]
    several = values["several_tokens"]
    yield f"Prompts have {fewest} to {most} tokens; labels of several tokens, read at the first: {several:.0%}."


def counts_about(values: Values) -> str:
    few = values["prompts"].get("untrained")
    untrained = "" if few is None else f" ({few} with untrained weights)"
    return f"reads: above the threshold; {about(values)}{untrained}"


def counts_table(values: Values) -> pd.DataFrame:
    rows = {
        LABELS[name]: {
            "prompts": values["prompts"][name],
            "frequent heads": "{} [{}, {}]".format(*frequent),
            "heads on any prompt": int((np.array(values["counts"][name]) > 0).sum()),
        }
        for name, frequent in values["frequent_heads"].items()
    }
    return pd.DataFrame.from_dict(rows, orient="index")


def layers_say(values: Values) -> Iterator[str]:
    heads = values["heads_on_a_prompt"]
    if heads["correct"][1] <= heads.get("untrained", (0, 0, -1))[2]:
        yield ""
    else:
        start = f"On a prompt {heads['correct'][0]:.1f} of {np.size(values['counts']['correct'])} heads"
        more = [_more(found, BEFORE[name]) for name, found in values["more_heads"].items()]
        yield ", ".join([f"{start} read the token before the correct label", *more])


def _more(more: Any, what: str) -> str:
    """How many more heads there are than before something else; neither more nor fewer where the interval holds 0."""
    value, low, high = more
    if low > 0:
        return f"{value:.1f} [{low:.1f}, {high:.1f}] more than before {what}"
    if high < 0:
        return f"{-value:.1f} [{-high:.1f}, {-low:.1f}] fewer than before {what}"
    return f"not clearly more or fewer before {what} ({value:+.1f} [{low:+.1f}, {high:+.1f}])"


# ------------------------------------------------------------------------------------------------ specificity


def specificity_say(values: Values) -> Iterator[str]:
    judged, frequent = values["specificity"]["judged"], values["frequent_heads"]["correct"][0]
    if not frequent:
        yield "No head is frequent: none reads the token before the label on three of four prompts"
    elif not judged["confirmed"]:
        yield f"None of {frequent} frequent heads reads the token before the label more than elsewhere"
    else:
        yield say(
            "{n} of {frequent} frequent heads {n:is a forerunner head: it reads|are forerunner heads: they read} the "
            "token before the label more than other previous tokens; {wrong} more than before a wrong label",
            n=judged["confirmed"], frequent=frequent, wrong=judged["than_wrong"] or "none",
        )  # fmt: skip
    yield (
        f"Forerunner heads: {judged['chosen']} chosen, {judged['confirmed']} confirmed on the held-out half; of these "
        f"{judged['than_wrong']} read more with the correct label than with a wrong one, {judged['than_other']} more "
        "than with another word."
    )
    found = values["planted_verdicts"]
    roles = [f"{role} -> {found[layer][head]}" for layer, head, role in values["planted"]["roles"]]
    yield f"Planted heads: {'; '.join(roles)}."


# ------------------------------------------------------------------------------------------------ a task, and its cuts


def task_say(values: Values) -> Iterator[str]:
    yield values["task_check"]
    for check in values["task"]:
        fields = {name: check[name] for name in check if name != "done"}
        gains = {name: Interval(*check[name]) for name in ("over_none", "over_permuted")}
        if (said := str(TaskCheck(**fields | gains))) != values["task_check"]:
            yield said
    yield from (f"{place}: {why}" for place, why in values["task_left_out"].items())


def ablation_say(values: Values) -> Iterator[str]:
    found = values["ablation"]
    yield ". ".join(found["findings"])
    shown, bare = ("{:.3f} [{:.3f}, {:.3f}]".format(*one) for one in values["accuracies"])
    gained = {score: signed(Interval(*interval)) for score, interval in found["gained"].items()}
    yield (
        f"Accuracy with demonstrations {shown}, without {bare}, of {values['request']['ablated']} prompts: they "
        f"change it by {gained['accuracy']}, log P(right label | labels) by {gained['which label']} nats, label "
        f"mass by {gained['label mass']} nats."
    )


def ablation_about(values: Values) -> str:
    place = of_task(values, values["request"]["ablated"])
    return f"{place}; full points: beyond 0 with intervals that hold for all together"


def ablation_table(values: Values) -> pd.DataFrame:
    """What cuts in all layers change, with 95 % intervals of one number each."""
    columns = {
        score: {
            TITLES[cut]: signed(Interval(*change), 2) for cut, change in values["ablation"][score][EVERYWHERE].items()
        }
        for score in ("accuracy", *TERMS, "text loss")
    }
    return pd.DataFrame(columns).rename_axis("cut in all layers")


def induction_say(values: Values) -> Iterator[str]:
    beyond, layers = beyond_chance(values), len(values["induction"]["null"]["mean"])
    if beyond:
        yield f"In {len(beyond)} of {layers} layers the best head prefers the query's label beyond chance"
        yield f"These layers are {beyond}."
    else:
        yield f"In none of {layers} layers does the best head prefer the query's label beyond chance"


# ------------------------------------------------------------------------------------------------ data sets and k


def grid_say(values: Values) -> Iterator[str]:
    sets, shared = len(values["grid_counts"]), frequent_on(values)
    everywhere, anywhere = int((shared == sets).sum()), int((shared > 0).sum())
    if sets < 2:
        yield ""
    elif anywhere:
        yield (
            f"{everywhere or 'No'} {'heads are' if everywhere > 1 else 'head is'} frequent on each of {sets} data "
            f"sets, {anywhere - everywhere} on some of them only"
        )
    else:
        yield f"No head is frequent on any of {sets} data sets"


def grid_about(values: Values) -> str:
    request = values["request"]
    place = about(values, request["grid_prompts"], f"k = {request['k']}")
    frequent = "frequent: above the threshold on three of four prompts"
    return f"{frequent}; {place} per data set{left_out(values['grid_left_out'])}"


def k_say(values: Values) -> Iterator[str]:
    found = values["by_k"]
    first, last = min(found["fixed"], key=int), max(found["fixed"], key=int)
    ends = [(one[first], one[last]) for one in (found["counts"]["correct"], found["fixed"])]
    same = "not clearly more or fewer"
    words = ["more" if end[1] > start[2] else "fewer" if end[2] < start[1] else same for start, end in ends]
    counts, fixed = (f"({start[0]:.1f} to {end[0]:.1f})" for start, end in ends)
    yield (
        ""
        if words == [same, same]
        else (
            f"From k = {first} to {last} {words[0]} heads exceed c / n_t on a prompt {counts}, {words[1]} one fixed "
            f"threshold {fixed}"
        )
    )


def k_about(values: Values) -> str:
    prompts = values["request"]["grid_prompts"]
    return f"{title(values)}, trec, {prompts} prompts for each k" + left_out(values["k_left_out"], "k = ")


# ------------------------------------------------------------------------------------------------ published values

PUBLISHED_INDUCTION = {"dataset": "glue_sst2", "k": 16}  # the setting of the published share, with quantised weights


def published(values: Values) -> dict[str, tuple[float, float]]:
    """What data/published/forerunner_heads.json has a row for: our value and its standard error by the row's id.

    The row on induction heads is filled where the setting is that of the published value alone.
    """
    rows = {"head_count_per_layer": values["mean_head_count"], "max_magnitude_per_layer": values["mean_max_magnitude"]}
    found = {"count_maps": Interval(*values["frequent_heads"]["correct"])}
    for row, curves in rows.items():
        best = int(np.argmax(curves["correct"]["mean"]))
        found[row] = Interval(*(float(curves["correct"][end][best]) for end in ("mean", "low", "high")))
    here = {row: (float(interval.value), interval.error) for row, interval in found.items()}
    if values["request"]["quantized"] and values["chosen"]["ablation"].items() >= PUBLISHED_INDUCTION.items():
        here["best_correct_induction_share"] = tuple(values["most_frequent"])
    return here


FIGURE = Figure(
    "forerunner_heads",
    Settings,
    {
        "counts": Part(numbers.counts, "counts", counts_say, counts_about, pictures.counts, counts_table),
        "paper_counts": Part(numbers.counts, "counts", counts_say, counts_about, pictures.paper_counts),
        "paper_layers": Part(
            numbers.layers, "counts", layers_say,
            lambda values: f"above the threshold, mean over prompts; {about(values)}",
            pictures.paper_layers, needs=("counts",),
        ),
        "specificity": Part(
            numbers.specificity, "specificity", specificity_say,
            lambda values: f"{about(values)}; heads chosen on one half, measured on the other; large: planted heads",
            pictures.specificity, needs=("counts",),
        ),
        "task": Part(numbers.task, "task", task_say),
        "ablation": Part(
            numbers.ablation, "ablation", ablation_say, ablation_about, pictures.ablation, ablation_table, ("task",)
        ),
        "induction": Part(
            numbers.induction, "induction", induction_say,
            lambda values: of_task(values, values["request"]["grid_prompts"]), pictures.induction, needs=("task",),
        ),
        "grid": Part(numbers.grid, "grid", grid_say, grid_about, pictures.grid),
        "k": Part(numbers.by_k, "by_k", k_say, k_about, pictures.by_k),
    },
    conclude,
)  # fmt: skip
