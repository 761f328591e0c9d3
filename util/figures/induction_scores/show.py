"""The figure of induction heads: settings, sentences and tables, made of its numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
from pydantic import AfterValidator, Field

from util.figures.induction_scores import numbers, pictures
from util.figures.induction_scores.edits import CONTROL_SETS, Group, Mode
from util.figures.induction_scores.plan import PRESETS, TASKS, Preset
from util.figures.induction_scores.vector_sets import KINDS, ROOM
from util.prompts import classification, text_tasks
from util.prompts.text_tasks import TEXT_TASKS
from util.roles.attention_scores import INDUCTION_HEAD
from util.show.claims import CLAIMS
from util.show.claims import says as claims_say
from util.show.part import Figure, Part, Values, title
from util.show.words import in_words, interval_at, listed, none_or, say, sign, written
from util.stats.heads import head_name, top
from util.stats.intervals import Interval, detectable
from util.stats.tests import rank_p
from util.study.checked import AsList, Count, Distinct, Int, Natural, Text, checked, distinct

WHOLE, KNOCKED_OUT = Group.WHOLE.value, Group.KNOCKED_OUT.value
FEW = 16  # queries, or sequences: that so few show no difference is not said


# ------------------------------------------------------------------------------------------------ settings


def _known_task(name: str) -> str:
    if name not in (*classification.NAMES, *TEXT_TASKS):
        raise ValueError(f"there are {', '.join((*classification.NAMES, *TEXT_TASKS))}")
    return name


TaskName = Annotated[str, AfterValidator(_known_task)]
Tasks = Annotated[tuple[TaskName, ...], AsList, Distinct]
TextTaskName = Annotated[str, AfterValidator(lambda name: text_tasks.find(name).name)]
NoneTwice = AfterValidator(lambda names: distinct(names) if names else names)
AtLeastTwo = Annotated[Int, Field(ge=2)]


@checked
class Settings:
    """What is measured of a model's induction heads. What is None follows from `settings`, or from the model.

    tasks, primary_task: classification tasks, and the one with all controls. k: demonstrations; prompts: as many
    queries of each task; seed: of control sets, random keys and sequences. settings: "default" or "paper".
    demonstration_seeds: a run for each, by default those of the settings plus `seed`; reference: see `TaskStudy`.
    primary: how many of the best heads are ablated; mode: of ablations; control_sets, other_sets: of either kind, on
    the primary task and on others; all_tasks: see `plan.Setup`. text_tasks: tasks with texts that people wrote;
    text_data: where they are, None (those of StaICC, then the hub), "hub", or a folder with a folder for each task, see
    `load_model_and_data.load_text_task`, and with a folder mnli where that is the reference; shots: numbers of
    demonstrations. sequences, length, copies, bos: see `SequenceStudy`. untrained_control: whether the untrained twin
    is scored too, a second model in memory. More prompts than the smallest task has are as many as it has.
    """

    tasks: Tasks = TASKS
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
        preset = self.preset
        follows = {
            "demonstration_seeds": tuple(self.seed + seed for seed in preset.seeds),
            "reference": preset.reference,
            "mode": preset.mode,
            "all_tasks": preset.all_tasks,
            "text_tasks": tuple(task for task in preset.text_tasks if task not in self.tasks),
        }
        for name, value in follows.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        if self.primary_task not in self.tasks:
            raise ValueError(f"primary_task = {self.primary_task!r} is none of tasks = {list(self.tasks)}")
        if twice := {*self.tasks} & {*(self.text_tasks or ())}:
            raise ValueError(f"tasks and text_tasks both have {sorted(twice)}: name a task in one of them")

    @property
    def preset(self) -> Preset:
        """What `settings` stands for."""
        return PRESETS[self.settings]

    @property
    def reference_data(self) -> str | None:
        """The folder of MNLI's premises, where means are taken over these and they are not the hub's."""
        if self.reference != "mnli" or self.text_data in (None, "hub"):
            return None
        return str(Path(str(self.text_data)) / "mnli")

    def data_of(self, task: str) -> str | None:
        """Where the texts of a task are, see `load_model_and_data.load_text_task`."""
        if task not in TEXT_TASKS:
            return None
        if self.text_data is None:
            return "hub" if self.preset.all_texts else None  # StaICC's texts are not all of the paper's
        return self.text_data if self.text_data == "hub" else str(Path(self.text_data) / task)


# ------------------------------------------------------------------------------------------------ heads


def the_best(count: int) -> str:
    """So many best induction heads, in words."""
    return "the best induction head" if count == 1 else f"the {count} best induction heads"


def scores_say(values: Values) -> Iterator[str]:
    found = values["scores"]
    mean = np.array(found["mean"], dtype=float)
    heads, (best,) = np.argwhere(mean >= INDUCTION_HEAD), top(mean, 1)
    yield say(
        "{n:none} of {of} heads {n:attends|attend} to what followed the same token before (score {bound} or more); "
        "most {best}: {score}", n=len(heads), of=mean.size, bound=INDUCTION_HEAD, best=head_name(best),
        score=interval_at(found, *best, value="mean"),
    )  # fmt: skip
    where = ""
    if len(heads):
        first, last = heads[:, 0].min(), heads[:, 0].max()
        where = f", in layer {first}" if first == last else f", in layers {first} to {last}"
    untrained = f"; untrained, at most {np.max(found['untrained']):.2f}" if found["untrained"] is not None else ""
    yield (
        f"{none_or(len(heads)).capitalize()} of {mean.size} heads {'has' if len(heads) < 2 else 'have'} a "
        f"prefix-matching score of {INDUCTION_HEAD} or more{where} ({values['request']['sequences']} sequences). The "
        f"best is {head_name(best)}: {interval_at(found, *best, value='mean')}{untrained}."
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
    said = (
        f"{head_name(best)} raises the next token most directly, by {interval_at(found, *best)} logits; "
        f"{the_best(len(chosen))} by {min(chosen):.2f} to {max(chosen):.2f}"
    )
    yield from (said, f"{said}.")


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
    said = (
        f"Without {listed(makers)} prefix matching of {the_best(len(values['chosen']))} goes from {whole[0]:.2f} to "
        f"{written(without)}"
    )
    if others:
        least, most = (end(other[0] for other in others) for end in (min, max))
        said += f"; without as many others it is {least:.2f} to {most:.2f}"
    yield said if without[2] < min(other[1] for other in (whole, *others)) else ""
    yield f"{said}."


# ------------------------------------------------------------------------------------------------ tasks


def primary_say(values: Values) -> Iterator[str]:
    """The endpoint that was fixed beforehand, met or not."""
    task, p = values["primary"]["task"], values["primary"]["p"]
    number = len(values["chosen"])
    yield (
        f"Primary endpoint, {'met' if p <= 0.05 else 'not met'}: accuracy on `{task}` is "
        f"{written(values['accuracy'][task][pictures.ablated_of(values)])} without the best {in_words(number)} heads. "
        f"Among sets of as many other heads p = {p:.3f}."
    )


def _as_low(rows: Values, ablated: str) -> tuple[int, int]:
    """How many control sets cost as much as the ablation of the chosen heads, and of how many."""
    kinds = tuple(group.value for group in CONTROL_SETS)
    controls = [row[0] for name, row in rows.items() if name.startswith(kinds)]
    return sum(value <= rows[ablated][0] for value in controls), len(controls)


def ablation_say(values: Values) -> Iterator[str]:
    task, number, ablated = values["primary"]["task"], len(values["chosen"]), pictures.ablated_of(values)
    lost, rows = values["primary"].get("lost"), values["accuracy"][task]
    finding = ""
    if lost and lost[1] > 0:
        as_low, controls = _as_low(rows, ablated)
        finding = (
            f"Without {the_best(number)} accuracy on {task} falls by {written(lost)}, to {rows[ablated][0]:.2f}; "
            f"{as_low or 'none'} of {controls} control sets {'costs' if as_low < 2 else 'cost'} as much"
        )
    yield finding
    for done in values["tasks_done"]:
        rows = values["accuracy"][done]
        as_low, controls = _as_low(rows, ablated)
        yield (
            f"`{done}`, {values['queries'][done]} queries: accuracy {written(rows[WHOLE])} whole; "
            f"{written(rows[ablated])} without the best {in_words(number)} heads ({as_low} of {controls} control sets "
            f"are as low); {written(rows[KNOCKED_OUT])} with their pattern forbidden."
        )


def plain_text_says(values: Values) -> Iterator[str]:
    losses, found, number = values["losses"], values["plain text"], len(values["chosen"])
    whole, *others = (loss[0] for row, loss in losses.items() if row not in ("uniform", pictures.ablated_of(values)))
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
    found, ablated = values["benefits"], pictures.ablated_of(values)
    most = found["worth most"]
    yield say(
        "{shots} demonstrations of {task} are worth {whole} of accuracy, without induction heads {without}",
        shots=most["shots"], task=most["task"], whole=most["whole"], without=most["without induction heads"],
    ) if most else ""  # fmt: skip
    for task, rows in found["accuracy by shots"].items():
        few, many = rows.get("0", {"accuracy": {}}), rows[max(rows, key=int)]
        if not {ablated} <= few["accuracy"].keys() & many["accuracy"].keys():
            continue
        worth, without = (many["accuracy"][row][0] - few["accuracy"][row][0] for row in (WHOLE, ablated))
        others = np.mean(many["controls"]) - np.mean(few["controls"])
        yield (
            f"`{task}`, {found['tasks'][task]['queries']} queries: examples are worth {worth:.2f} of accuracy, "
            f"{without:.2f} without the induction heads, {others:.2f} without others."
        )
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
    the most of the control sets, which have no interval: it is they that vary; p of the ablation among them, and the
    least that it can be, see `rank_p`. "-" where nothing was measured.
    """
    found, ablated = values["benefits"], pictures.ablated_of(values)
    names = {"whole": WHOLE, "ablated": ablated, "knocked out": KNOCKED_OUT}
    lines: dict[tuple[str, int], dict[str, Any]] = {}
    for task, by_shots in found["accuracy by shots"].items():
        for shots, row in by_shots.items():
            told = {column: written(row["accuracy"][name]) for column, name in names.items() if name in row["accuracy"]}
            if drawn := row["controls"]:
                p, least = rank_p(row["accuracy"][ablated][0], drawn, tail="low")
                told |= {
                    "controls": f"{min(drawn):.2f} to {max(drawn):.2f}",
                    "p": f"{p:.2f}",
                    "least p": f"{least:.2f}",
                }
            lines[task, int(shots)] = {"queries": str(found["tasks"][task]["queries"]), **told}
    lines |= {(task, shots): {"queries": why} for task, shots, why in found["left out"]}
    columns = ["queries", *names, "controls", "p", "least p"]
    index = pd.MultiIndex.from_tuples(lines, names=["task", "shots"])
    return pd.DataFrame(list(lines.values()), index, columns, dtype=object).fillna("-")


# ------------------------------------------------------------------------------------------------ function vectors


def vectors_say(values: Values) -> Iterator[str]:
    found = values["function vectors"]
    n, both = len(found["sets"]["FV"]), found["both"]
    finding = ""
    if found["room"] >= ROOM:
        by_chance = n**2 / np.size(found["AIE"]["mean"])
        finding = (
            f"{len(both)} of the {n} best induction heads are among the {n} best FV heads ({by_chance:.1f} by chance); "
            f"rank correlation {written(found['rank_correlation'])}"
        )
    yield finding
    (best,) = top(np.array(found["AIE"]["mean"]), 1)
    value, low, high = interval_at(found["AIE"], *best, value="mean")
    yield (
        f"The function-vector (FV) head with the largest average indirect effect is {head_name(best)}: {value:.3f} "
        f"({low:.3f} to {high:.3f}). Of the best {in_words(n)} of either kind {none_or(len(both))} "
        f"{'is' if len(both) == 1 else 'are'} the same. AIE on two halves of the prompts correlate by "
        f"{found['reliability']:.2f}."
    )
    if found["room"] < ROOM:
        yield "Intact demonstrations hardly raise the answer, so that indirect effects say nothing here."
    yield from (f"Left out, {why}." for why in found["left out"])
    for kind, difference in found["contrast"].items():
        asked, queries = found["asked"][kind], int(found["asked"][kind].split()[0])
        name = kind.capitalize() if " " in kind else f"The queries of `{kind}`"
        if more := sign(difference):
            yield (
                f"{name} rest more on {'FV' if more > 0 else 'induction'} heads ({asked}): without FV heads that are "
                f"no induction heads {written(difference)} more is lost than without induction heads that are no FV "
                "heads."
            )
        elif queries > FEW:
            seen = f"differences from {detectable(Interval(*difference), queries):.2f} on would be seen"
            yield f"{name}: no difference between the two kinds was detected ({asked}; {seen})."


def vectors_about(values: Values) -> str:
    found = values["function vectors"]
    asked = f"AIE on {found['prompts']} prompts of {len(found['by_task'])} tasks"
    corrupted = f"corruption: {found['corruption'].replace('_', ' ')}"
    count = len(found["sets"]["FV"])
    return f"{title(values)}, {count} heads of either kind; {asked} ({corrupted}); C: without these heads"


def vectors_table(values: Values) -> pd.DataFrame:
    """Accuracies by what is measured and ablated: their interval, the range of control sets, and p."""
    found, lines = values["function vectors"], {}
    for measure, rows in found["accuracy"].items():
        named = f"{measure}, {found['asked'][measure]}"
        lines[named, WHOLE] = {"accuracy": written(rows[WHOLE]), "controls": "", "p": ""}
        for kind in KINDS:
            drawn = [row[0] for name, row in rows.items() if name.startswith(f"{kind}, control")]
            p = rank_p(rows[kind][0], drawn, tail="low").p
            controls = f"{min(drawn):.2f}-{max(drawn):.2f}"
            lines[named, kind] = {"accuracy": written(rows[kind]), "controls": controls, "p": f"{p:.2f}"}
    table = pd.DataFrame.from_dict(lines, orient="index")
    return table.set_axis(pd.MultiIndex.from_tuples(lines, names=["measured", "ablated"]))


def planted_say(values: Values) -> Iterator[str]:
    yield f"Planted induction heads found exactly: {values['planted']['exact']}"


def concludes(values: Values) -> Iterator[str]:
    """The primary endpoint, which heads score, what they write, what a model loses without them, which are FV heads."""
    yield from primary_say(values)
    parts: Sequence[Any] = (
        scores_say, mechanism_say, companions_say, ablation_say, shots_say, vectors_say, claims_say,
    )  # fmt: skip
    for says in parts:
        yield from list(says(values))[1:]
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
            numbers.function_vectors, "function_vectors", vectors_say, vectors_about, pictures.function_vectors,
            vectors_table, ("scores",),
        ),
        "planted": Part(numbers.planted, "planted", planted_say),
        "claims": CLAIMS,
    },
    concludes,
)  # fmt: skip
