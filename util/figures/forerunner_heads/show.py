"""The figure of forerunner token heads: settings, sentences, tables and pictures, made of its numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
from pydantic import Field

from util.figures.forerunner_heads import numbers, pictures
from util.figures.forerunner_heads.conclude import beyond_chance, conclude
from util.figures.forerunner_heads.cuts import TITLES
from util.figures.forerunner_heads.numbers import EVERYWHERE, SINGLE
from util.figures.forerunner_heads.pictures import LABELS, by_ending, endpoint, frequent_on
from util.show.conclusions import title
from util.show.part import Figure, Part, Values
from util.show.words import say
from util.stats.heads import head_name
from util.stats.intervals import Interval, signed
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
    data sets with one k before the next, on the last choice_prompts queries; ablated: prompts of the cuts; cell_lists:
    "reference" for those of the authors' code. grid_datasets; grid_k: numbers of demonstrations; grid_prompts: of each
    entry of both, of the reads of labels, and of the untrained twin. untrained_control: whether this is measured too, a
    second model in memory.
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
    cell_lists: Literal["corrected", "reference"] = "corrected"
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


def about(values: Values, prompts: int | None = None, dataset: str = "", k: int | None = None) -> str:
    """What was measured: the model, the data set, k and the number of prompts; by default those of the counts."""
    request = values["request"]
    k = request["k"] if k is None else k
    return f"{title(values)}, {dataset or request['dataset']}, k = {k}, {prompts or request['prompts']} prompts"


def of_task(values: Values, prompts: int) -> str:
    """What was measured of the task that was chosen."""
    task = values["chosen"]["ablation"]
    return about(values, prompts, task["dataset"], task["k"]) + ("" if task["done"] else "; TASK NOT DONE")


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
    if "tokens" in values:
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
    if "heads_on_a_prompt" not in values:
        return
    on_a_prompt = values["heads_on_a_prompt"]
    if "untrained" in on_a_prompt and on_a_prompt["correct"][1] <= on_a_prompt["untrained"][2]:
        yield ""
    else:
        start = f"On a prompt {on_a_prompt['correct'][0]:.1f} of {np.size(values['counts']['correct'])} heads"
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


def specificity_table(values: Values) -> pd.DataFrame:
    """The most specific heads: the magnitude on the held-out half, and how much more that is, with intervals."""
    found, rows = values["specificity"]["held out"], dict[str, dict[str, str]]()
    for layer, head in values["specificity"]["judged"]["strongest"]:
        row = rows[head_name((layer, head))] = {
            "magnitude": f"{found['than at other tokens']['first'][layer][head]:.2f}"
        }
        for name, contrast in found.items():
            row[name] = signed(Interval(*(contrast[end][layer][head] for end in ("difference", "low", "high"))), 2)
    return pd.DataFrame.from_dict(rows, orient="index", columns=["magnitude", *found])


def planted_say(values: Values) -> Iterator[str]:
    if "planted" in values:
        found = values["planted_verdicts"]
        roles = [f"{role} -> {found[layer][head]}" for layer, head, role in values["planted"]["roles"]]
        yield f"Planted heads: {'; '.join(roles)}."


def planted_table(values: Values) -> pd.DataFrame:
    """How many of the planted heads are misjudged, by kind of error and noise."""
    rows = {
        noise: {kind: f"{times} of {number}" for kind, (times, number) in errors.items()}
        for noise, errors in values["planted_errors"].items()
    }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("noise on the weights")


# ------------------------------------------------------------------------------------------------ a task, and its cuts


def task_say(values: Values) -> Iterator[str]:
    yield values.get("task_check", "")
    for check in values["task"]:
        if values.get("task_check", "").partition(":")[0] != f"{check['name']}, k = {check['k']}":
            yield (
                f"{check['name']}, k = {check['k']}: accuracy {check['accuracy']:.3f}; which label, in nats: "
                f"{signed(Interval(*check['over_none']), 2)} over no demonstrations, "
                f"{signed(Interval(*check['over_permuted']), 2)} over permuted ones (p {check['p']:.2g})"
            )
    yield from (f"{place}: {why}" for place, why in values.get("task_left_out", {}).items())


def ablation_say(values: Values) -> Iterator[str]:
    found = values["ablation"]
    yield ". ".join(found["findings"])
    if "accuracies" in values:
        shown, bare = ("{:.3f} [{:.3f}, {:.3f}]".format(*one) for one in values["accuracies"])
        gained = {score: signed(Interval(*interval)) for score, interval in found["gained"].items()}
        yield (
            f"Accuracy with demonstrations {shown}, without {bare}, of {values['request']['ablated']} prompts: they "
            f"change it by {gained['accuracy']}, log P(right label | labels) by {gained['which label']} nats, label "
            f"mass by {gained['label mass']} nats."
        )


def ablation_table(values: Values) -> pd.DataFrame:
    """What cuts in all layers change, with 95 % intervals of one number each."""
    found, random = values["ablation"], values["random_cells"]
    columns = {
        "accuracy": found["accuracy"][EVERYWHERE],
        "which label, nats": found["which label"][EVERYWHERE],
        "random cells": random["which label"][EVERYWHERE],
        "label mass, nats": found["label mass"][EVERYWHERE],
        "random cells, mass": random["label mass"][EVERYWHERE],
        "text loss, nats": found["text loss"][EVERYWHERE],
    }
    rows = {
        TITLES[cut]: [signed(Interval(*column[cut]), 2) for column in columns.values()] for cut in columns["accuracy"]
    }
    return pd.DataFrame.from_dict(rows, orient="index", columns=list(columns)).rename_axis("cut in all layers")


# ------------------------------------------------------------------------------------------------ induction heads


def induction_say(values: Values) -> Iterator[str]:
    beyond, layers = beyond_chance(values), len(values["induction"]["null"]["mean"])
    if beyond:
        yield f"In {len(beyond)} of {layers} layers the best head prefers the query's label beyond chance"
        yield f"These layers are {beyond}."
    else:
        yield f"In none of {layers} layers does the best head prefer the query's label beyond chance"


# ------------------------------------------------------------------------------------------------ single heads


def effects_say(values: Values) -> Iterator[str]:
    low = np.array(values["head effects"][endpoint(values)]["low"], dtype=float)
    costly, what = int((low > 0).sum()), "the right label" if endpoint(values) == "which label" else "label mass"
    yield (
        f"Cut alone, {costly or 'none'} of the {np.isfinite(low).sum()} heads that move most "
        f"{'costs' if costly < 2 else 'cost'} {what} more than other cells do, on {SINGLE} prompts"
    )


def effects_about(values: Values) -> str:
    task = values["chosen"]["ablation"]
    undone = "" if task["done"] else "; TASK NOT DONE"
    return f"{about(values)}; cut on {SINGLE} prompts of {task['dataset']}, k = {task['k']}{undone}"


# ------------------------------------------------------------------------------------------------ data sets and k


def grid_say(values: Values) -> Iterator[str]:
    sets = len(values["grid_counts"])
    if sets < 2 or "grid_prompts" not in values["request"]:
        yield ""
        return
    shared = frequent_on(values)
    everywhere, anywhere = int((shared == sets).sum()), int((shared > 0).sum())
    if anywhere:
        yield (
            f"{everywhere or 'No'} {'heads are' if everywhere > 1 else 'head is'} frequent on each of {sets} data "
            f"sets, {anywhere - everywhere} on some of them only"
        )
    else:
        yield f"No head is frequent on any of {sets} data sets"


def grid_about(values: Values) -> str:
    model, _, rest = about(values, values["request"]["grid_prompts"]).partition(f", {values['request']['dataset']}")
    left_out = "".join(f"; {dataset}: {why}" for dataset, why in values["grid_left_out"].items())
    return f"frequent: above the threshold on three of four prompts; {model}{rest} per data set{left_out}"


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
    model = about(values).partition(f", {values['request']['dataset']}")[0]
    return f"{model}, trec, {values['request']['grid_prompts']} prompts for each k"


def k_table(values: Values) -> pd.DataFrame:
    """A row for each k, that of prompts that do not fit the model says so."""
    texts = {
        name: {k: str(Interval(*found)) for k, found in column.items()} | dict(values["k_left_out"])
        for name, column in by_ending(values).items()
    }
    return pd.DataFrame(texts).rename_axis("k")


# ------------------------------------------------------------------------------------------------ published values

PUBLISHED_INDUCTION = {"dataset": "glue_sst2", "k": 16, "quantized": True}  # the setting of the published share


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
    task = values["chosen"]["induction"] | {"quantized": values["request"]["quantized"]}
    if task | PUBLISHED_INDUCTION == task:
        here["best_correct_induction_share"] = tuple(values["most_frequent"])
    return here


def layers_about(values: Values) -> str:
    return f"above the threshold, mean over prompts; {about(values)}"


def ablation_about(values: Values) -> str:
    place = of_task(values, values["request"]["ablated"])
    return f"changes in nats; {place}; intervals of all cells hold together"


FIGURE = Figure(
    "forerunner_heads",
    Settings,
    {
        "counts": Part(numbers.counts, "counts", counts_say, counts_about, pictures.counts, counts_table),
        "layers": Part(numbers.layers, "counts", layers_say, layers_about, pictures.layers, needs=("counts",)),
        "specificity": Part(
            numbers.specificity, "specificity", specificity_say,
            lambda values: f"{about(values)}; heads chosen on one half, measured on the other",
            pictures.specificity, specificity_table, ("counts", "layers"),
        ),
        "planted": Part(
            numbers.planted_errors, "planted_errors", planted_say, table=planted_table, needs=("specificity",)
        ),
        "task": Part(numbers.task, "task", task_say),
        "ablation": Part(
            numbers.ablation, "ablation", ablation_say, ablation_about, pictures.ablation, ablation_table, ("task",)
        ),
        "induction": Part(
            numbers.induction, "induction", induction_say,
            lambda values: of_task(values, values["request"]["grid_prompts"]), pictures.induction, needs=("task",),
        ),
        "effects": Part(
            numbers.effects, "effects", effects_say, effects_about, pictures.effects, needs=("counts", "task")
        ),
        "grid": Part(numbers.grid, "grid", grid_say, grid_about, pictures.grid),
        "k": Part(numbers.by_k, "by_k", k_say, k_about, pictures.by_k, k_table),
        "paper_counts": Part(
            lambda arrays, settings: {}, "counts", counts_say, counts_about, pictures.paper_counts, needs=("counts",)
        ),
        "paper_layers": Part(
            lambda arrays, settings: {}, "counts", layers_say, layers_about, pictures.paper_layers,
            needs=("counts", "layers"),
        ),
    },
    conclude,
)  # fmt: skip
