"""Induction heads: their scores, what they are made of, and what a model cannot do without them.

Source: Crosbie & Shutova 2024, on prefix-matching scores after Olsson et al. 2022 and Bansal et al. 2023. A head is
(layer, head), the layer counted among those that have attention.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import AfterValidator
from scipy.stats import spearmanr
from tqdm import tqdm

from util.engine.batches import too_long
from util.engine.call import UnsupportedModel
from util.figures.induction_scores import measures
from util.figures.induction_scores.benefits import Benefits, Labelled, TaskShots
from util.figures.induction_scores.edits import WHOLE, Edit, Group, Mode, Row
from util.figures.induction_scores.function_vector_study import CopiesStudy, WordPairsStudy
from util.figures.induction_scores.function_vectors import ROOM, FunctionVectors, check_size, head_sets
from util.figures.induction_scores.outputs import head_attribution, head_copying, head_weights_copying
from util.figures.induction_scores.plan import FOUR_WAY_SHOTS, PAPER_SHARES, PRESETS, TASKS, Plan, Setup, plan
from util.figures.induction_scores.results import (
    Accuracies,
    Companions,
    Doses,
    Mechanism,
    PlantedControl,
    PromptPattern,
    Results,
    Scores,
)
from util.figures.induction_scores.task_study import (
    Answers,
    Labels,
    Reference,
    TaskStudy,
    answered_right,
    check_task,
    does_bare,
    tasks_done,
)
from util.figures.planted_controls import errors_by_noise, planted_control
from util.load_model_and_data import load_text_task, reference_texts
from util.models import planted
from util.models.planted import Planted
from util.prompts import classification, text_tasks
from util.prompts.classification import LABELS
from util.prompts.sequences import repeated_sequences
from util.prompts.text_tasks import TEXT_TASKS
from util.records.checked import AsList, Count, Counts, Distinct, Natural, Text, capped, checked, distinct
from util.records.study import Study as AnyStudy
from util.roles.attention_scores import INDUCTION_HEAD
from util.roles.function_vectors import TASKS as PAIR_TASKS
from util.roles.function_vectors import (
    Corruption,
    FunctionVectorStudy,
    function_vector_heads,
)
from util.roles.results import FunctionVectorHeads, HeadScores
from util.roles.sequences_study import AtLeastTwo, SequenceStudy
from util.stats.heads import top
from util.stats.intervals import mean_intervals

OV_TOKENS = 256  # that copying by weights alone is measured on
TEXT_REFERENCE_PROMPTS = 32  # that means are taken over, of tasks with texts, whose prompts are long; not of premises


def _known_task(name: str) -> str:
    if name not in (*classification.NAMES, *TEXT_TASKS):
        raise ValueError(f"there are {', '.join((*classification.NAMES, *TEXT_TASKS))}")
    return name


def _none_twice(names: tuple[str, ...]) -> tuple[str, ...]:
    return distinct(names) if names else names


TaskName = Annotated[str, AfterValidator(_known_task)]
Tasks = Annotated[tuple[TaskName, ...], AsList, Distinct]
TextTaskName = Annotated[str, AfterValidator(lambda name: text_tasks.find(name).name)]
TextTasks = Annotated[tuple[TextTaskName, ...], AsList, AfterValidator(_none_twice)]
Shots = Annotated[tuple[Natural, ...], AsList, Distinct]
Seeds = Annotated[tuple[Natural, ...], AsList, Distinct]


@checked
class Study(AnyStudy):
    """What is measured of a model's induction heads. What is None follows from the settings and the model, see
    `setup_for`.

    tasks, primary_task: classification tasks, and the one with all controls. k: demonstrations; prompts: as many
    queries of each task; seed: of control sets, random keys and sequences. settings: "default" or "paper".
    demonstration_seeds: a run for each, by default those of the settings plus `seed`; hard_negatives, labels,
    reference: see `TaskStudy`. sizes: how many of the best heads are ablated; primary: the size with controls; mode: of
    ablations; control_sets, other_sets: of either kind, on the primary task and on others; all_tasks, all_sizes,
    full_grid: see `plan.Setup`. text_tasks: tasks with texts that people wrote; text_data: where they are, None (those
    of StaICC, then the hub), "hub", or a folder with a folder for each task, see `load_model_and_data.load_text_task`,
    and with a folder mnli where that is the reference; shots: numbers of demonstrations, see `benefits`. sequences,
    length, copies, bos: see `SequenceStudy`. untrained_control: whether the untrained twin is scored too, a second
    model in memory. More prompts than the smallest task has are as many as it has.
    """

    tasks: Tasks | None = None
    primary_task: TaskName = "wordseq1"
    k: Natural = 10
    prompts: Count | None = None
    seed: Natural = 0
    _: KW_ONLY
    settings: Literal["default", "paper"] = "default"
    demonstration_seeds: Seeds | None = None
    hard_negatives: bool = False
    labels: Labels | None = None
    reference: Reference | None = None
    sizes: Counts | None = None
    primary: Count | None = None
    mode: Mode | None = None
    control_sets: Count | None = None
    other_sets: Count | None = None
    all_tasks: bool | None = None
    all_sizes: bool | None = None
    full_grid: bool = False
    text_tasks: TextTasks | None = None
    text_data: Text | None = None
    shots: Shots | None = None
    sequences: Count = 5
    length: AtLeastTwo = 50
    copies: AtLeastTwo = 4
    bos: bool = True
    untrained_control: bool = True

    stem = "induction_scores"

    def __post_init__(self) -> None:
        if self.primary_task not in self._tasks:
            raise ValueError(f"primary_task = {self.primary_task!r} is none of tasks = {list(self._tasks)}")
        if self.sizes is not None and self.primary is not None and self.primary not in self.sizes:
            raise ValueError(f"sizes = {list(self.sizes)}, primary = {self.primary}: primary is none of the sizes")
        if self.untrained_control:
            self.model.expect_twin()
        # texts are read now: where they are missing is known before work
        if self._reference == "mnli":
            try:
                reference_texts("mnli", self._reference_data)
            except ValueError as error:
                raise ValueError(
                    f"text_data = {self.text_data!r}: reference 'mnli' cannot be read: {error}, called mnli, in "
                    "text_data; or take reference 'task' or 'staicc'"
                ) from error
        twice = {*self._tasks} & {*self._text_tasks}
        if twice:
            raise ValueError(f"tasks and text_tasks both have {sorted(twice)}: name a task in one of them")
        preset = PRESETS[self.settings]
        tasks = (*self._tasks, *preset.four_way, *self._text_tasks)
        if self.prompts is not None:  # as many other queries say whether the model does a task
            rows = min(len(self._task_studies(task, 1)[0].classes.rows) for task in tasks)
            most, source = (rows, "the smallest task") if self._all_tasks else (rows // 2, "half of the smallest task")
            object.__setattr__(self, "prompts", capped(self.prompts, most, source))
        for task in tasks:
            most = max(self.k, *(FOUR_WAY_SHOTS if task in preset.four_way else self._shots))
            for study in self._task_studies(task, self._prompts_of(task, 1)):  # small models are asked the most
                study.replace(k=most)
                if not self._all_tasks:
                    study.other_queries  # noqa: B018  # raises ValueError where there are too few

    # -------------------------------------------------------------------------------------------- what follows

    @property
    def _tasks(self) -> tuple[str, ...]:
        return self.tasks or TASKS

    @property
    def _text_tasks(self) -> tuple[str, ...]:
        if self.text_tasks is None:
            return tuple(task for task in PRESETS[self.settings].text_tasks if task not in self._tasks)
        return self.text_tasks

    @property
    def _shots(self) -> tuple[int, ...]:
        return self.shots or PRESETS[self.settings].shots

    @property
    def _all_tasks(self) -> bool:
        return PRESETS[self.settings].all_tasks if self.all_tasks is None else self.all_tasks

    @property
    def _demonstration_seeds(self) -> tuple[int, ...]:
        return self.demonstration_seeds or tuple(self.seed + seed for seed in PRESETS[self.settings].seeds)

    @property
    def _reference(self) -> str:
        return self.reference or PRESETS[self.settings].reference

    @property
    def _reference_data(self) -> str | None:
        if self._reference != "mnli" or self.text_data in (None, "hub"):
            return None
        return str(Path(self.text_data) / "mnli")

    def _prompts(self, heads: int) -> int:
        return self.prompts or PRESETS[self.settings].prompts or (60 if heads < 100 else 40)

    def _prompts_of(self, task: str, heads: int) -> int:
        if task in TEXT_TASKS and PRESETS[self.settings].all_texts and self.prompts is None:
            return len(load_text_task(task, self._data_of(task)).rows)
        return self._prompts(heads)

    def setup_for(self, heads: int) -> Setup:
        """Returns what is measured of a model with so many heads.

        Below 100 heads: 60 queries, the best 1, 2, 4, 8 heads, four of them with 20 control sets of either kind. From
        100 on: 40 queries, the best 1 % and 3 %, the former with 10 control sets of either kind, 5 on other tasks; with
        19 in all, the least p is 0.05. Raises ValueError where a size is more than the heads, and where the primary
        size is none of the sizes.
        """
        preset, small = PRESETS[self.settings], heads < 100
        sizes = self.sizes
        if sizes is None:
            sizes = (1, 2, 4, 8) if small else tuple(measures.how_many(share, heads) for share in PAPER_SHARES)
        primary = self.primary or (4 if small and 4 in sizes else sizes[0])
        if primary not in sizes or max(sizes) > heads:
            raise ValueError(f"sizes = {list(sizes)}, primary = {primary}: sizes of 1 to {heads} heads, one is primary")
        control_sets = self.control_sets or preset.control_sets or (20 if small else 10)
        return Setup(
            tasks=self._tasks,
            primary_task=self.primary_task,
            prompts=self._prompts(heads),
            seeds=self._demonstration_seeds,
            mode=self.mode or preset.mode,
            sizes=sizes,
            primary=primary,
            control_sets=control_sets,
            other_sets=self.other_sets or (control_sets if small else min(5, control_sets)),
            all_tasks=self._all_tasks,
            all_sizes=preset.all_sizes if self.all_sizes is None else self.all_sizes,
            full_grid=self.full_grid,
            four_way=preset.four_way,
            text_tasks=self._text_tasks,
            shots=self._shots,
        )

    @property
    def setup(self) -> Setup:
        """What is measured of this model."""
        return self.setup_for(self.scores().mean.size)

    @property
    def own_request(self) -> Mapping[str, Any]:
        return self.on_sequences.own_request

    @property
    def texts(self) -> list[str]:
        return self.on_sequences.texts

    @cached_property
    def on_sequences(self) -> SequenceStudy:
        """The study of the same model on repeated random sequences."""
        return SequenceStudy(
            self.model, self.length, self.copies, self.sequences, self.seed,
            bos=self.bos, folder=self.folder, redo=self.redo,
        )  # fmt: skip

    @cached_property
    def on_tasks(self) -> dict[str, list[TaskStudy]]:
        """The studies of the same model on each task, one for each seed of demonstrations."""
        prompts = self._prompts(self.scores().mean.size)
        return {task: self._task_studies(task, prompts) for task in self._tasks}

    def _task_studies(self, task: str, prompts: int) -> list[TaskStudy]:
        return [
            TaskStudy(
                self.model,
                task,
                self.k,
                prompts,
                seed,
                hard_negatives=self.hard_negatives and task in classification.PATTERNS,
                labels=self.labels,
                data=self._data_of(task),
                reference=self._reference,  # type: ignore[arg-type]  # checked when it is built
                reference_data=self._reference_data,
                reference_prompts=PRESETS[self.settings].reference_prompts,
                folder=self.folder,
                redo=self.redo,
            )
            for seed in self._demonstration_seeds
        ]

    def _data_of(self, task: str) -> str | None:
        if task not in TEXT_TASKS:
            return None
        if self.text_data is None:
            return "hub" if PRESETS[self.settings].all_texts else None  # StaICC's texts are not all of the paper's
        return self.text_data if self.text_data == "hub" else str(Path(self.text_data) / task)

    # -------------------------------------------------------------------------------------------- heads

    def scores(self) -> Scores:
        """Returns the prefix-matching scores of all heads, and the primary set of the best.

        Raises ValueError, before anything is measured, where `sizes` are more than the heads of the model.
        """
        return self._scores

    @cached_property
    def _scores(self) -> Scores:
        heads = self.on_sequences.scores(check=lambda layers, in_layer: self.setup_for(layers * in_layer))
        untrained = self.on_sequences.twin().scores() if self.untrained_control else None
        mean = heads.mean()
        return Scores(heads, top(mean, self.setup_for(mean.size).primary), untrained)

    def stability(self) -> pd.DataFrame:
        """Returns how the scores agree with those of other settings, a line for each.

        The rank correlation over all heads, and how many of the primary set are among the best both times. Of single
        sequences: the least of any. The line of sequences that are longer than the model's context says so.
        """
        scores, sequences = self.scores(), self.on_sequences
        n = len(scores.chosen)
        others = {
            "without BOS": sequences.replace(bos=False),
            "length 25": sequences.replace(length=25),
            "length 100": sequences.replace(length=100),
        }

        def measured(study: SequenceStudy) -> NDArray[np.floating] | str:
            try:
                return study.scores().mean()
            except UnsupportedModel as error:
                return too_long(error)

        found = {name: measured(other) for name, other in others.items()}
        maps = {name: [mean] for name, mean in found.items() if not isinstance(mean, str)}
        maps["single sequences"] = [*scores.heads.scores["prefix_matching"]]
        lines = {
            name: {
                "rank correlation": min(float(spearmanr(scores.mean.ravel(), score.ravel())[0]) for score in several),
                f"of the best {n}": min(len({*scores.chosen} & {*top(score, n)}) for score in several),
            }
            for name, several in maps.items()
        }
        left_out: dict[str, dict[str, float]] = {
            f"{name}: {why}": {} for name, why in found.items() if name not in maps
        }
        return pd.DataFrame.from_dict({**lines, **left_out}, orient="index")

    def companions(self) -> Companions:
        """Returns what else heads do, each [L, H].

        copying: the OV score on sequences that are not repeated, see `measures.copying`; attribution: what a head's
        write adds directly to the logit of the token that comes next in the last copy, beyond what it adds to the
        sequence's other tokens, the mean of all places; weights_copying: the share of 256 tokens that a head copies by
        its weights alone. NaN where `engine.direct_effects` has none.
        """
        return self._companions

    @cached_property
    def _companions(self) -> Companions:
        study = self.on_sequences

        def compute() -> dict[str, Any]:
            model, tokenizer = study.pair
            ids = repeated_sequences(tokenizer, OV_TOKENS, 1, [0], bos=False).ids[0]
            return {
                "copying": head_copying(model, study.drawn_in_copies(1)),
                "attribution": head_attribution(model, study.drawn),
                "weights_copying": head_weights_copying(model, ids),
            }

        data = study.record({"part": "outputs"}, compute).data
        copying, attribution = mean_intervals(data["copying"], within=(0, 1)), mean_intervals(data["attribution"])
        return Companions(self.scores(), copying, data["weights_copying"], attribution)

    def pattern(self) -> PromptPattern:
        """Returns what the best head attends to in the first prompt of the primary task."""
        return self.on_tasks[self.primary_task][0].pattern(self.scores().chosen[0])

    def mechanism(self) -> Mechanism:
        """Returns prefix matching without the best previous-token heads of earlier layers, and without others there."""
        return self._mechanism

    @cached_property
    def _mechanism(self) -> Mechanism:
        scores, study = self.scores(), self.on_sequences
        earlier = np.arange(len(scores.mean))[:, None] < min(scores.chosen)[0]
        previous = np.where(earlier, scores.heads.mean("previous_token"), 0)
        makers, alike = measures.previous_token_heads(previous, scores.mean, seed=self.seed)
        removed = {"previous-token heads out": makers} | {f"others out, {i}": heads for i, heads in enumerate(alike, 1)}
        without = {name: study.scores(one) for name, one in removed.items()}
        return Mechanism(self.companions(), makers, removed, without, previous)

    # -------------------------------------------------------------------------------------------- tasks

    def plan(self) -> Plan:
        """Returns the sets of heads, and what is done to the model. Raises what `plan.plan` raises."""
        norms = self.on_tasks[self.primary_task][0].means().norms
        return plan(self.scores().mean, norms, self.setup, self.seed)

    def accuracies(self) -> Accuracies:
        """Returns right answers with demonstrations, under all edits of the plan."""
        return self._accuracies

    @cached_property
    def _accuracies(self) -> Accuracies:
        setup, edits = self.setup, self.plan()
        if self.model.loaded is not None:
            self._check_lengths()
        passed = {} if setup.all_tasks else tasks_done([self.on_tasks[task][0] for task in setup.tasks])
        done = setup.tasks if setup.all_tasks else tuple(passed)
        right = [answered_right(self.on_tasks[task], edits.of_task(task, done)) for task in setup.tasks]
        by_task = dict(zip(setup.tasks, right, strict=True))
        return Accuracies(edits, self.k, self.model.title, by_task, passed, done)

    def doses(self) -> Doses:
        """Returns right answers without demonstrations, and losses of plain text, under some edits of the plan."""
        return self._doses

    @cached_property
    def _doses(self) -> Doses:
        accuracies = self.accuracies()

        def bare_of(task: str) -> dict[Row, NDArray[np.bool_]]:
            few = accuracies.plan.few(task in accuracies.measured)
            return answered_right([study.replace(k=0) for study in self.on_tasks[task]], few)

        bare = {task: bare_of(task) for task in self.on_tasks}
        study = self.on_tasks[self.primary_task][0]
        return Doses(accuracies, bare, study.losses(accuracies.plan.few()), study.uniform_loss())

    def benefits(self) -> Benefits:
        """Returns right answers with several numbers of demonstrations, on the tasks and on those with texts.

        Text tasks are measured with Foo and Bar as labels, too, with the most demonstrations. Whether a task is done is
        asked on other queries, with the most demonstrations (on the same queries, where there are too few others);
        where it is not done the model is measured alone, unless `all_tasks`, or without demonstrations where it is
        above chance without any. Demonstrations that make a prompt longer
        than the model's context are left out.
        """
        return self._benefits

    @cached_property
    def _benefits(self) -> Benefits:
        setup, edits = self.setup, self.plan()
        bar = self.progress(_labelled(setup), "tasks by shots", unit="task")
        found = [self._fitting_shots(labelled, edits) for labelled in bar]
        left_out = {place: why for _, of_task in found for place, why in of_task.items()}
        return Benefits(edits, self.model.title, [task for task, _ in found if task is not None], left_out)

    def _fitting_shots(self, labelled: Labelled, edits: Plan) -> tuple[TaskShots | None, dict[tuple[str, int], str]]:
        """A task with the numbers of demonstrations that fit the model, and why the others are left out."""
        shots, left_out = edits.setup.shots_of(labelled.task), dict[tuple[str, int], str]()
        while shots:
            try:
                return self._by_shots(labelled, edits, shots), left_out
            except UnsupportedModel as error:
                most = max(shots)
                left_out[labelled.name, most] = too_long(error)
                shots = tuple(k for k in shots if k < most)
        return None, left_out

    def _by_shots(self, labelled: Labelled, edits: Plan, shots: Sequence[int]) -> TaskShots:
        setup, name = edits.setup, labelled.task
        first = self._studies(labelled, max(shots))[0]
        queries = len(first.classes.rows)
        others = first.start + 2 * first.prompts <= queries  # else the queries themselves say whether it does the task
        check = check_task(first.other_queries if others else first, len(_labelled(setup)))
        ks = (max(shots),) if labelled.unrelated else shots
        bare = 0 in ks and does_bare(first.other_queries if others else first)

        def answered(k: int) -> dict[Row, list[Answers]]:
            asked = check.done or setup.all_tasks or (bare and not k)
            rows = edits.benefit_rows() if asked else {Row(Group.WHOLE): WHOLE}
            wanted = rows if k else edits.without_pattern(rows)
            runs = [study.answers(wanted) for study in self._studies(labelled, k)]
            return {row: [run[row] for run in runs] for row in wanted}

        answers = {k: answered(k) for k in ks}

        def stacked(name: str) -> dict[int, dict[Row, NDArray[Any]]]:
            """An attribute of the answers, [R, N, ...]."""
            return {
                k: {row: np.stack([getattr(run, name) for run in runs]) for row, runs in rows.items()}
                for k, rows in answers.items()
            }

        controls = tuple(row for row in edits.benefit_rows() if row.is_control_set)
        return TaskShots(
            labelled, stacked("right"), edits.ablated, controls, first.chance, name in TEXT_TASKS, check, queries, bare,
            name not in TEXT_TASKS or first.data is not None, stacked("terms"),
        )  # fmt: skip

    def _check_lengths(self) -> None:
        """Raises ValueError where prompts with k demonstrations are too long for the model, any for the reference."""
        setup = self.setup
        labelled = [Labelled(task) for task in (*setup.tasks, *setup.four_way, *setup.text_tasks)]
        for one in tqdm(labelled, desc="lengths of prompts", leave=False):
            for k in {self.k, *setup.shots_of(one.task)} if one.task in setup.tasks else setup.shots_of(one.task):
                for study in self._studies(one, k):
                    try:
                        study.check_lengths(setup.mode)
                    except UnsupportedModel:
                        if one.task in setup.tasks and k == self.k:  # other numbers are left out, see `benefits`
                            raise

    def _studies(self, labelled: Labelled, k: int) -> list[TaskStudy]:
        """The studies of one task with k demonstrations, one for each seed."""
        prompts = self._prompts_of(labelled.task, self.scores().mean.size)
        if labelled.task not in TEXT_TASKS:
            return [study.replace(k=k) for study in self._task_studies(labelled.task, prompts)]
        changes: dict[str, Any] = {"k": k, "labels": LABELS[:2] if labelled.unrelated else None}
        if self._reference != "mnli":
            changes["reference_prompts"] = TEXT_REFERENCE_PROMPTS
        return [study.replace(**changes) for study in self._task_studies(labelled.task, prompts)]

    # -------------------------------------------------------------------------------------------- function vectors

    def function_vector_heads(
        self, prompts: int | None = None, intact: int | None = None, corruption: Corruption | None = None
    ) -> FunctionVectorHeads:
        """Returns the indirect effects of all heads on five word-pair tasks, see `roles.function_vectors`.

        prompts: corrupted ones of each task; intact: those that mean outputs are taken over. By default 25 and 100, as
        Todd et al. have; from 100 heads on 10 and 25. corruption: None takes that of Todd et al., shuffled outputs; but
        where the answer is hardly more probable after intact demonstrations (by less than 0.05), so that there is
        nothing to give back, outputs of other lists. Where these leave no room either, the
        result's lines say so. Raises ValueError for more prompts than a task has queries.
        """
        small = self.scores().mean.size < 100
        numbers = prompts or (25 if small else 10), intact or (100 if small else 25)
        for name in (corruption,) if corruption else get_args(Corruption):
            heads = function_vector_heads(
                [
                    FunctionVectorStudy(
                        self.model, task, self.k, numbers[0], self.seed,
                        intact=numbers[1], corruption=name, folder=self.folder, redo=self.redo,
                    )
                    for task in PAIR_TASKS
                ]
            )  # fmt: skip
            if heads.room >= ROOM:
                break
        return heads

    def function_vectors(
        self,
        prompts: int | None = None,
        intact: int | None = None,
        queries: int | None = None,
        *,
        n: int | None = None,
        control_sets: int | None = None,
        corruption: Corruption | None = None,
    ) -> FunctionVectors:
        """Returns function-vector heads beside induction heads, and what the model does without either.

        prompts, intact, corruption: see `function_vector_heads`. queries: of each word-pair task and twice as many of
        the primary task, by default 20; from 100 heads on 8. n: heads of each set, by default 4, or
        a third of the heads where that is less; from 100 heads on 3 % of them.
        control_sets: of each set, by default 20; from 100 heads on 10. All heads are ablated by their mean output.
        Raises ValueError for more prompts or queries than there are, for fewer than two of them or two
        sequences, which have no interval, and for sets of more than a third of the heads.
        """
        for name, number in (("prompts", prompts), ("queries", queries), ("sequences", self.sequences)):
            if number is not None and number < 2:
                raise ValueError(f"{name} = {number}: give two or more, as one has no interval")
        matching = self.scores().mean
        small = matching.size < 100
        asked = queries or (20 if small else 8)
        pairs = WordPairsStudy(self.model, PAIR_TASKS, self.k, asked, self.seed, folder=self.folder, redo=self.redo)
        classified = self._task_studies(self.primary_task, 2 * asked)[0]
        copies = CopiesStudy(
            self.model, self.length, 2, self.sequences, self.seed + self.sequences,
            bos=self.bos, folder=self.folder, redo=self.redo,
        )  # fmt: skip
        size = n or (min(4, matching.size // 3) if small else measures.how_many(PAPER_SHARES[1], matching.size))
        draws = control_sets or (20 if small else 10)
        check_size(size, matching.size)
        heads = self.function_vector_heads(prompts, intact, corruption)
        pairs = pairs.replace(tasks=[task for task in PAIR_TASKS if task not in heads.left_out])
        sets = head_sets(matching, heads.mean(), pairs.means().norms, size, draws, self.seed)
        edits = {name: Edit.ablate(chosen) if chosen else WHOLE for name, chosen in sets.ablations.items()}
        return FunctionVectors(
            heads,
            self.scores().heads,
            sets,
            pairs.answers(edits),
            self.primary_task,
            1 / len(classified.classes.labels),
            {name: answers.right for name, answers in classified.answers(edits).items()},
            copies.copied(edits),
        )

    # -------------------------------------------------------------------------------------------- controls

    def planted(self, **options: Any) -> tuple[HeadScores, Planted]:
        """Returns the scores of a model whose induction heads are known, and the truth.

        options: those of `models.planted.induction` (family, copies, noise, seed).
        """
        model, truth = planted_control(planted.induction, options)
        return self.on_sequences.replace(model=model, redo=False).scores(), truth

    def planted_errors(
        self, noises: tuple[float, ...] = (0.5, 1.0, 2.0), seeds: tuple[int, ...] = (0, 1)
    ) -> dict[float, dict[str, tuple[int, int]]]:
        """Returns how often a score of 0.3 misjudges planted heads, by the noise on their weights.

        "false alarms" among heads that are no induction heads, and "misses", each of how many.
        """

        def judge(noise: float, seed: int) -> list[tuple[bool, bool]]:
            scores, truth = self.planted(noise=noise, seed=seed)
            called = scores.mean() >= INDUCTION_HEAD
            known = {place: place in truth.heads["induction"] for place in np.ndindex(called.shape)}
            return [(induction, bool(called[place]) != induction) for place, induction in known.items()]

        return errors_by_noise(judge, noises, seeds)

    def planted_check(self) -> PlantedControl:
        """Returns whether planted heads are found, and how often noise hides them."""
        scores, truth = self.planted()
        exact = truth.found_exactly("induction", scores.mean(), INDUCTION_HEAD)
        return PlantedControl(scores.mean(), exact, self.planted_errors())

    def results(self) -> Results:
        """Returns all results together."""
        return Results(
            self.model.name,
            self.request,
            self.mechanism(),
            self.accuracies(),
            self.doses(),
            self.benefits(),
            self.function_vectors(),
            self.planted_check(),
        )


def _labelled(setup: Setup) -> list[Labelled]:
    """The tasks that are asked with several numbers of demonstrations; those with texts with unrelated labels, too."""
    pattern = [Labelled(task) for task in (*setup.tasks, *setup.four_way)]
    return pattern + [Labelled(task, unrelated) for task in setup.text_tasks for unrelated in (False, True)]
