"""The figure of induction heads: settings, sentences and tables, made of its numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
from pydantic import AfterValidator, Field

from util.figures.induction_scores import numbers, pictures, vectors
from util.figures.induction_scores.edits import Mode
from util.figures.induction_scores.plan import KNOCKED_OUT, PRESETS, WHOLE, TaskName, ablated_row, is_control_set
from util.prompts import text_tasks
from util.roles.attention_scores import INDUCTION_HEAD
from util.show.claims import CLAIMS
from util.show.part import Figure, Part, Values, in_words, interval_at, listed, none_or, say, title, written
from util.stats.heads import head_name, top
from util.stats.intervals import Interval, detectable
from util.study.checked import AsList, Count, Distinct, Int, Natural, Text, checked, distinct

# ------------------------------------------------------------------------------------------------ settings


Tasks = Annotated[tuple[TaskName, ...], AsList, Distinct]
TextTaskName = Annotated[str, AfterValidator(lambda name: text_tasks.find(name).name)]
NoneTwice = AfterValidator(lambda names: distinct(names) if names else names)
AtLeastTwo = Annotated[Int, Field(ge=2)]


@checked
class Settings:
    """What is measured of a model's induction heads. What is None follows from `settings`, or from the model.

    tasks, primary_task: classification tasks, and the one with all controls. k: demonstrations; prompts: as many
    queries of each task; seed: of control sets, random keys and sequences. settings: "default" or "paper", see
    `plan.PRESETS`. demonstration_seeds: a run for each, by default those of the settings plus `seed`; reference: see
    `TaskStudy`. primary, mode, control_sets, other_sets: see `measure.setup_for`. all_tasks:
    whether ablations are measured on tasks, too, that the whole model does not do. text_tasks: tasks with texts that
    people wrote; text_data: where they are, None (those of StaICC, then the hub), "hub", or a folder with a folder for
    each task, see `load_model_and_data.load_text_task`, and with a folder mnli where that is the reference; shots:
    numbers of demonstrations. sequences, length, copies, bos: see `SequenceStudy`. untrained_control: whether the
    untrained twin is scored too, a second model in memory. More prompts than the smallest task has are as many as it
    has.
    """

    tasks: Tasks | None = None
    primary_task: TaskName = "wordseq1"
    k: Natural = 10
    prompts: Count | None = None
    seed: Natural = 0
    _: KW_ONLY
    settings: Literal["default", "paper"] = "default"
    demonstration_seeds: Annotated[tuple[Natural, ...], AsList, Distinct] | None = None
    reference: Literal["task", "staicc", "mnli"] | None = None
    primary: Count | None = None
    mode: Mode | None = None
    control_sets: Count | None = None
    other_sets: Count | None = None
    all_tasks: bool | None = None
    text_tasks: Annotated[tuple[TextTaskName, ...], AsList, NoneTwice] | None = None
    text_data: Text | None = None
    shots: Annotated[tuple[Natural, ...], AsList, Distinct] = (0, 5, 10)
    sequences: Count = 5
    length: AtLeastTwo = 50
    copies: AtLeastTwo = 4
    bos: bool = True
    untrained_control: bool = True

    def __post_init__(self) -> None:
        preset = dict(PRESETS[self.settings])
        preset["demonstration_seeds"] = tuple(self.seed + seed for seed in preset["demonstration_seeds"])
        tasks = self.tasks or preset["tasks"]
        preset["text_tasks"] = tuple(task for task in preset["text_tasks"] if task not in tasks)
        for name, value in preset.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        if self.primary_task not in tasks:
            raise ValueError(f"primary_task = {self.primary_task!r} is none of tasks = {list(tasks)}")
        if twice := {*tasks} & {*(self.text_tasks or ())}:
            raise ValueError(f"tasks and text_tasks both have {sorted(twice)}: name a task in one of them")


# ------------------------------------------------------------------------------------------------ heads


def the_best(count: int) -> str:
    """So many best induction heads, in words."""
    return "the best induction head" if count == 1 else f"the {count} best induction heads"


def scores_say(values: Values) -> Iterator[str]:
    found = values["scores"]
    mean = np.array(found["mean"], dtype=float)
    heads, (best,) = np.argwhere(mean >= INDUCTION_HEAD), top(mean, 1)
    layers = [str(layer) for layer in sorted({heads[:, 0].min(), heads[:, 0].max()})] if len(heads) else []
    where = f", in {'layer' if len(layers) == 1 else 'layers'} {' to '.join(layers)}" if layers else ""
    having = (
        f"{none_or(len(heads)).capitalize()} of {mean.size} heads {'has' if len(heads) < 2 else 'have'} a "
        f"prefix-matching score of {INDUCTION_HEAD} or more{where}"
    )
    yield having
    untrained = f"; untrained, at most {np.max(found['untrained']):.2f}" if found["untrained"] is not None else ""
    yield (
        f"{having} ({values['request']['sequences']} sequences). The best is {head_name(best)}: "
        f"{interval_at(found, *best, value='mean')}{untrained}."
    )


def sequences_about(values: Values) -> str:
    asked = values["request"]
    tokens = f"{asked['sequences']} sequences of {asked['length']} random tokens, {asked['copies']} times each"
    return f"{title(values)}, {tokens}"


def companions_say(values: Values) -> Iterator[str]:
    found = values["attribution"]
    value = np.array(found["value"], dtype=float)
    if np.isnan(value).any():
        return
    (best,) = top(value, 1)
    chosen = [value[head] for head in pictures.chosen_of(values)]
    yield (
        f"{head_name(best)} raises the next token most directly, by {interval_at(found, *best)} logits; "
        f"{the_best(len(chosen))} by {min(chosen):.2f} to {max(chosen):.2f}"
    )


def pattern_say(values: Values) -> Iterator[str]:
    found = values["pattern"]
    if not found["labels"]:
        return
    read = sum(share for _, share in found["labels"])
    right = sum(share for text, share in found["labels"] if text == found["answer"])
    first = (
        f"From the last token {head_name(tuple(found['head']))} gives {read:.2f} of its attention to labels, "
        f"{right:.2f} to {found['answer']}, the right answer"
    )
    if len(found["rows"]) > 1:
        row = np.array(found["rows"][1], dtype=float)
        most = int(row.argmax())
        token = "the first token" if most == 0 else f"“{found['tokens'][most].strip()}”"
        first += f"; from the query's first word most, {row[most]:.2f}, to {token}"
    yield first


def pattern_about(values: Values) -> str:
    found = values["pattern"]
    return f"{title(values)}, one prompt of {found['task']}, {len(found['labels'])} demonstrations"


def mechanism_say(values: Values) -> Iterator[str]:
    found = values["mechanism"]
    makers = [head_name((layer, head)) for layer, head in found["previous_token_heads"]]
    whole, (without, *others) = found["whole"], found["mean scores"].values()
    lost = (
        f"Without {listed(makers)} prefix matching of {the_best(len(values['chosen']))} goes from {whole[0]:.2f} to "
        f"{written(without)}"
    )
    if others:
        least, most = (end(other[0] for other in others) for end in (min, max))
        lost += f"; without as many others it is {least:.2f} to {most:.2f}"
    yield lost if without[2] < min(other[1] for other in (whole, *others)) else ""
    yield f"{lost}."


# ------------------------------------------------------------------------------------------------ tasks


def primary_say(values: Values) -> Iterator[str]:
    """The endpoint that was fixed beforehand, met or not."""
    task, p, number = values["primary"]["task"], values["primary"]["p"], len(values["chosen"])
    yield (
        f"Primary endpoint, {'met' if p <= 0.05 else 'not met'}: accuracy on `{task}` is "
        f"{written(values['accuracy'][task][ablated_row(number)])} without the best {in_words(number)} heads. "
        f"Among sets of as many other heads p = {p:.3f}."
    )


def ablation_say(values: Values) -> Iterator[str]:
    task, number, lost = values["primary"]["task"], len(values["chosen"]), values["primary"].get("lost")
    ablated = ablated_row(number)
    falls = f"falls by {written(lost)}, to {values['accuracy'][task][ablated][0]:.2f}" if lost and lost[1] > 0 else ""
    yield f"Without {the_best(number)} accuracy on {task} {falls}" if falls else ""
    for done in values["tasks_done"]:
        rows = values["accuracy"][done]
        controls = [row[0] for name, row in rows.items() if is_control_set(name)]
        as_low = sum(value <= rows[ablated][0] for value in controls)
        yield (
            f"`{done}`, {values['queries'][done]} queries: accuracy {written(rows[WHOLE])} whole; "
            f"{written(rows[ablated])} without the best {in_words(number)} heads ({as_low} of {len(controls)} control "
            f"sets are as low); {written(rows[KNOCKED_OUT])} with their pattern forbidden."
        )


def plain_text_says(values: Values) -> Iterator[str]:
    losses, found, number = values["losses"], values["plain text"], len(values["chosen"])
    whole, *others = (loss[0] for row, loss in losses.items() if row not in ("uniform", ablated_row(number)))
    if whole >= losses["uniform"]:
        yield "On plain text the model is no better than equal odds, so its loss there says nothing."
        return
    yield (
        f"Without {the_best(number)} plain text costs {written(found['lost'])} nats per token more than {whole:.2f} "
        f"({found['texts']} texts), without as many others {min(others) - whole:.2f} to {max(others) - whole:.2f}."
    )


def tasks_about(values: Values) -> str:
    setup = values["setup"]
    ablated = f"{setup['mode']} ablation of {the_best(setup['primary'])}"
    return f"{title(values)}, {setup['prompts']} queries of each task, {ablated}"


def ablation_about(values: Values) -> str:
    return f"{tasks_about(values)}, {values['request']['k']} demonstrations"


def shots_say(values: Values) -> Iterator[str]:
    found = values["benefits"]
    most = found["worth most"]
    worth = "{shots} demonstrations of {task} are worth {whole} of accuracy, without induction heads {without}"
    yield say(worth, **most, without=most["without induction heads"]) if most else ""
    undone = {task: row["check"] for task, row in found["tasks"].items() if not row["does"]}
    if undone:
        names = [f"`{task}` ({check['accuracy']:.2f})" for task, check in undone.items()]
        comparisons = len(found["tasks"]) / 2  # tests are one-sided
        seen = [
            check["baseline"] + detectable(Interval(check["accuracy"], check["bound"], 1.0), check["n"], comparisons)
            for check in undone.values()
        ]
        yield (
            f"On up to {max(check['n'] for check in undone.values())} other queries the model is not shown to do "
            f"{listed(names)} (accuracies from {max(seen):.2f} on would be seen to lie above chance)."
        )


def shots_table(values: Values) -> pd.DataFrame:
    """Accuracies with intervals, a line for each task and number of demonstrations, and what is left out.

    Columns: how many queries, the whole model, without the chosen heads, with the pattern forbidden, from the least to
    the most of the control sets, which have no interval: it is they that vary. "-" where nothing was measured.
    """
    found = values["benefits"]
    names = {WHOLE: "whole", ablated_row(len(values["chosen"])): "ablated", KNOCKED_OUT: "knocked out"}
    lines: dict[tuple[str, int], dict[str, Any]] = {}
    for task, by_shots in found["accuracy by shots"].items():
        for shots, row in by_shots.items():
            line = {names[name]: written(triple) for name, triple in row["accuracy"].items()}
            if drawn := row["controls"]:
                line["controls"] = f"{min(drawn):.2f} to {max(drawn):.2f}"
            lines[task, int(shots)] = {"queries": str(found["tasks"][task]["queries"]), **line}
    lines |= {(task, shots): {"queries": why} for task, shots, why in found["left out"]}
    index = pd.MultiIndex.from_tuples(lines, names=["task", "shots"])
    columns = ["queries", *names.values(), "controls"]
    return pd.DataFrame(list(lines.values()), index, columns, dtype=object).fillna("-")


# ------------------------------------------------------------------------------------------------ figure


def planted_say(values: Values) -> Iterator[str]:
    yield f"Planted induction heads found exactly: {values['planted']['exact']}"


def concludes(values: Values) -> Iterator[str]:
    """The primary endpoint, which heads score, what they write, what a model loses without them, which are FV heads.

    Of what a part says the first sentence is a title, unless it is the only one.
    """
    yield from primary_say(values)
    for name, part in FIGURE.parts.items():
        if name not in ("pattern", "plain_text", "planted"):
            sentences = list(part.says(values))
            yield from (f"{sentence.rstrip('.')}." for sentence in sentences[len(sentences) > 1 :] if sentence)
    yield from plain_text_says(values)


FIGURE = Figure(
    "induction_scores",
    Settings,
    {
        "scores": Part(numbers.scores, "scores", scores_say, sequences_about, pictures.scores),
        "companions": Part(
            numbers.companions, "companions", companions_say, sequences_about, pictures.companions, needs=("scores",)
        ),
        "pattern": Part(numbers.pattern, "pattern", pattern_say, pattern_about, pictures.pattern),
        "mechanism": Part(
            numbers.mechanism, "mechanism", mechanism_say, sequences_about, pictures.mechanism, needs=("scores",)
        ),
        "ablation": Part(
            numbers.ablation, "answers", ablation_say, ablation_about, pictures.ablation, needs=("scores",)
        ),
        "plain_text": Part(numbers.plain_text, "plain_text", plain_text_says, needs=("scores",)),
        "shots": Part(numbers.shots, "shots", shots_say, tasks_about, pictures.shots, shots_table, ("scores",)),
        "function_vectors": Part(
            vectors.numbers, "function_vectors", vectors.says, vectors.about, vectors.panels, needs=("scores",)
        ),
        "planted": Part(numbers.planted, "planted", planted_say),
        "claims": CLAIMS,
    },
    concludes,
)  # fmt: skip
