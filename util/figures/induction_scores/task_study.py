"""One classification task under edits of a model: answers, plain text, means, attention."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cache, cached_property, partial
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from util.engine.attention import support
from util.engine.batches import TOKEN_BUDGET, Batch, Row, check_context, forward
from util.engine.handshake import prepare
from util.engine.instruments import CaptureRows
from util.engine.label_scores import (
    Attach,
    Scoring,
    knockouts,
    label_log_probs,
    nothing,
    replacements,
    scoring,
    text_losses,
)
from util.engine.means import mean_outputs, outputs_of_mean_inputs, position_means
from util.engine.replay import BaseRuns
from util.figures.induction_scores.edits import WHOLE, Edit
from util.figures.induction_scores.premises import SKIPPED_POSITIONS, PremisesStudy
from util.load_model_and_data import load_text_task, staicc_prompts, text_task_version
from util.prompts import classification, induction_pattern
from util.prompts.prompt import Prompt, with_bos
from util.prompts.text_tasks import TEXT_TASKS
from util.roles import heads as head_arguments
from util.roles.head_scores import heads_by_layer
from util.stats import answers
from util.stats.answers import which_label
from util.stats.heads import Head
from util.stats.intervals import accuracy
from util.stats.task_check import TaskCheck, task_check
from util.study.checked import AsList, Count, Natural, Text, capped, checked
from util.study.records import Measurement

TEXTS = "financial_phrasebank"  # of StaICC: plain text, and the other reference of means
Reference = Literal["task", "staicc", "mnli"]
BY_POSITION = ("mean_pos", "input_mean")  # modes with a value for each position
Labels = Annotated[tuple[Text, ...], AsList]
Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class Answers:
    """Log-probabilities of the labels, log_prob [N, C] in nats, and which is the right one, gold [N]."""

    log_prob: NDArray[np.floating]
    gold: NDArray[np.integer]

    @property
    def right(self) -> NDArray[np.bool_]:
        """Which queries are answered right, [N]."""
        return answers.right(self.log_prob, self.gold)

    @property
    def terms(self) -> NDArray[np.floating]:
        """`answers.TERMS` of each query, [N, 2] in nats."""
        return np.stack([which_label(self.log_prob, self.gold), answers.label_mass(self.log_prob)], axis=1)


@dataclass(frozen=True)
class Means:
    """Mean outputs of heads over a reference: mean [L, H, dv], of so many tokens and prompts.

    norms [L, H]: how long what each head writes is at the last token of a prompt, on average.
    """

    mean: NDArray[np.floating]
    norms: NDArray[np.floating]
    tokens: int
    prompts: int


@checked
class TaskStudy(Measurement):
    """A classification task to answer: `prompts` queries from the one at `start` on; from 0, at most all.

    task: one of `classification.NAMES` or of `text_tasks.TEXT_TASKS`. k, seed: demonstrations of each query, and what
    they are drawn by. hard_negatives: see `classification.task`. labels: other words than the task's own, in their
    order; those of a text task become unrelated to its classes with Foo, Bar. data: where the texts of a text task are,
    see `load_text_task`. reference: what means are taken over, other prompts of the task, StaICC's, or samples of
    MNLI's premises, see `premises`; reference_prompts: how many, and how many plain texts; reference_data: a folder
    with the premises, None for the hub. permuted: whether the labels of the demonstrations are permuted among them.
    """

    task: Text = "wordseq1"
    k: Natural = 10
    prompts: Count = 60
    seed: Natural = 42
    _: KW_ONLY
    hard_negatives: bool = False
    labels: Labels | None = None
    data: Text | None = None
    reference: Reference = "task"
    reference_data: Text | None = None
    start: Natural = 0
    permuted: bool = False
    reference_prompts: Count = 64
    token_budget: Count = TOKEN_BUDGET

    stem = "induction_scores"
    word_lists = ("categories.csv",)

    def __post_init__(self) -> None:
        if self.task not in (*classification.NAMES, *TEXT_TASKS):
            raise ValueError(f"task = {self.task!r}: there are {', '.join((*classification.NAMES, *TEXT_TASKS))}")
        if self.hard_negatives and self.task not in classification.PATTERNS:
            raise ValueError(
                f"hard_negatives = True: {self.task} has none; they are for {', '.join(classification.PATTERNS)}"
            )
        if self.data is not None and self.task not in TEXT_TASKS:
            raise ValueError(f"data = {self.data!r}: {self.task} is made, not read; leave it out")
        if self.reference_data is not None and self.reference != "mnli":
            raise ValueError(
                f"reference_data = {self.reference_data!r}: that is where the premises of reference 'mnli' are; leave "
                f"it out with reference {self.reference!r}"
            )
        self._premises  # noqa: B018  # raises ValueError where they are missing
        plain = self._unlabelled
        if not self.start:
            object.__setattr__(self, "prompts", capped(self.prompts, len(plain.rows), self.task))
        if self.start + self.prompts > len(plain.rows):
            raise ValueError(
                f"prompts = {self.prompts}, start = {self.start}: {self.task} has {len(plain.rows)} rows to ask for"
            )
        of_a_class, there = -(-self.k // len(plain.labels)), min(map(len, plain.candidates.values()))
        if of_a_class > there:
            raise ValueError(
                f"k = {self.k}: that is {of_a_class} demonstrations of a class, and {self.task} has {there}; choose a "
                "smaller k"
            )
        if self.labels is not None and not len(self.labels) == len(set(self.labels)) == len(plain.labels):
            raise ValueError(
                f"labels = {list(self.labels)}: {self.task} has {len(plain.labels)} classes, give each a word of its "
                "own"
            )
        if self.labels is not None:
            classification.relabelled(plain, self.labels)

    @cached_property
    def _unlabelled(self) -> classification.Task:
        """The task with its own labels."""
        if self.task not in TEXT_TASKS:
            return classification.task(self.task, self.hard_negatives)
        return self._texts[0]

    @cached_property
    def _texts(self) -> tuple[classification.Task, str]:
        """A text task, and which texts it has."""
        try:
            return load_text_task(self.task, self.data), text_task_version(self.task, self.data)
        except ValueError as error:
            raise ValueError(f"data = {self.data!r}: {error}") from error

    @cached_property
    def classes(self) -> classification.Task:
        """The task, with its rows and labels."""
        return self._unlabelled if self.labels is None else classification.relabelled(self._unlabelled, self.labels)

    @property
    def own_request(self) -> dict[str, Any]:
        return {
            "schema": 2,
            "method_version": 1,
            "dataset": self.classes.name,
            "task": self.task,
            "hard_negatives": self.hard_negatives,
            "k": self.k,
            "items": self.prompts,
            "start": self.start,
            "seed": self.seed,
            "labels": None if self.labels is None else list(self.labels),
            "reference": self.reference,
            "reference_prompts": self.reference_prompts,
            **({} if self._premises is None else self._premises.samples_request),
            "skipped_positions": SKIPPED_POSITIONS,
            "token_budget": self.token_budget,
            **({"data_version": self._texts[1]} if self.task in TEXT_TASKS else {}),
            **({"permuted": True} if self.permuted else {}),
        }

    @property
    def texts(self) -> list[str]:
        return [*(prompt.text for prompt in self.drawn), *self.reference_texts]

    @property
    def other_queries(self) -> TaskStudy:
        """The same with as many other queries, those behind these. Raises ValueError where there are too few rows."""
        return self.replace(start=self.start + self.prompts)

    # -------------------------------------------------------------------------------------------- prompts and rows

    @cached_property
    def drawn(self) -> list[Prompt]:
        """The prompts to answer. Raises what `classification.prompts` raises."""
        prompts = classification.prompts(self.classes, self.k, self.seed, self.start + self.prompts)[self.start :]
        return [prompt.permuted(number) for number, prompt in enumerate(prompts)] if self.permuted else prompts

    @cached_property
    def _premises(self) -> PremisesStudy | None:
        """The study of the means over premises. Raises ValueError where these cannot be read."""
        if self.reference != "mnli":
            return None
        return PremisesStudy(
            self.model, self.reference_prompts, reference_data=self.reference_data, token_budget=self.token_budget,
            folder=self.folder, redo=self.redo,
        )  # fmt: skip

    @cached_property
    def reference_texts(self) -> Sequence[str]:
        """The texts that means are taken over; prompts of the task have other queries, premises are not joined yet."""
        if self._premises is not None:
            return self._premises.texts
        if self.reference == "staicc":
            return [prompt.text for prompt in staicc_prompts(TEXTS, 4)[: self.reference_prompts]]
        end = self.start + self.prompts
        others = classification.prompts(self.classes, self.k, self.seed + 1000, end + self.reference_prompts)
        return [prompt.text for prompt in others[end:] or others[: self.reference_prompts]]

    @property
    def chance(self) -> float:
        """The accuracy of always naming the label that most of the queries have; not below that of guessing."""
        gold = np.bincount([prompt.gold for prompt in self.drawn])
        return max(1 / len(self.classes.labels), float(gold.max() / gold.sum()))

    @cached_property
    def scoring(self) -> Scoring:
        """How labels are scored. Raises what `label_scores.scoring` raises."""
        return scoring(*self.pair, self.drawn)

    @cached_property
    def reference_rows(self) -> list[Row]:
        """The tokens that means are taken over. Raises ValueError where a prompt is longer than the model's context."""
        if self._premises is not None:
            return self._premises.rows
        rows = [Row(with_bos(text, self.pair[1]).ids) for text in self.reference_texts]
        check_context(self.pair[0], [len(row) for row in rows])
        return rows

    @property
    def _longest_reference(self) -> int:
        """The tokens of the longest text that means are taken over."""
        return max(map(len, self.reference_rows)) if self._premises is None else self._premises.sample_tokens

    @cached_property
    def plain_texts(self) -> list[tuple[int, ...]]:
        """The token ids of StaICC's texts without their labels."""
        prompts = staicc_prompts(TEXTS, 0)[: self.reference_prompts]
        return [with_bos(prompt.text[slice(*prompt.spans["x"][-1])], self.pair[1]).ids for prompt in prompts]

    # -------------------------------------------------------------------------------------------- means

    @property
    def means_study(self) -> Measurement:
        """The study that the records of means over the reference belong to.

        Those over premises are the same for all tasks.
        """
        return self if self._premises is None else self._premises

    def means(self) -> Means:
        """Returns the mean outputs of all heads over the reference, without the first tokens of its prompts."""

        def compute() -> dict[str, Any]:
            return mean_outputs(self.pair[0], self.reference_rows, SKIPPED_POSITIONS, self.token_budget)

        return Means(**self.means_study.measured(compute, part="means", mode="mean", heads=None).data)

    def means_by_position(self, edit: Edit) -> NDArray[np.floating]:
        """Returns what stands for the heads of an edit at each position, [T, heads, dv]."""

        def compute() -> dict[str, Any]:
            model, rows = self.pair[0], self.reference_rows
            measure = position_means if edit.mode == "mean_pos" else outputs_of_mean_inputs
            by_layer = heads_by_layer(support(model), edit.heads)
            values = measure(model, rows, list(by_layer), self.token_budget)
            chosen = [values[layer][:, heads] for layer, heads in by_layer.items()]
            return {"values": np.concatenate(chosen, axis=1), "prompts": len(rows)}

        heads = head_arguments.plain(edit.heads)
        return self.means_study.measured(compute, part="means", mode=edit.mode, heads=heads).data["values"]

    # -------------------------------------------------------------------------------------------- edits

    def instruments(self, edit: Edit, lengths: Sequence[int]) -> Attach:
        """Returns what an edit attaches to texts of so many tokens.

        Raises ValueError, before any forward pass, for heads that there are not, for prompts that cannot be cut at
        their parts, and for texts that are longer than the reference of their positions.
        """
        model, tokenizer = self.pair
        prepared = prepare(model)
        by_layer = heads_by_layer(prepared, edit.heads)
        if not edit.heads:
            return nothing
        if edit.pattern is not None:
            pattern, seed = edit.pattern, edit.seed
            cells = [induction_pattern.cells(prompt, tokenizer, pattern, seed) for prompt in self.drawn]
            return knockouts(cells, by_layer)
        if edit.mode == "zero":
            return replacements(by_layer, dict.fromkeys(by_layer, 0.0))
        if edit.mode == "mean":
            mean = torch.from_numpy(self.means().mean)
            means = {layer: mean[prepared.layers.index(layer)][heads] for layer, heads in by_layer.items()}
            return replacements(by_layer, means)
        self._check_reference(edit.mode, lengths)
        kept = torch.from_numpy(self.means_by_position(edit))
        parts = kept.split([len(heads) for heads in by_layer.values()], dim=1)
        return replacements(by_layer, dict(zip(by_layer, parts, strict=True)))

    def _check_reference(self, mode: str | None, lengths: Sequence[int]) -> None:
        longest, there = max(lengths), self._longest_reference
        if longest > there:
            raise ValueError(
                f"the longest prompt of {self.classes.name} has {longest} tokens, the reference of {mode} {there}; "
                "take mode 'mean', or a reference of longer prompts"
            )

    def check_lengths(self, mode: str) -> None:
        """Raises ValueError for prompts that are too long: for the model, or for an ablation in this mode.

        Only the tokenizer is at work.
        """
        lengths = self.scoring.lengths
        if mode in BY_POSITION:
            self._check_reference(mode, lengths)

    def answers(self, edits: Mapping[Name, Edit]) -> dict[Name, Answers]:
        """Returns what the model answers under each edit, by the edit's name; each is a record of its own.

        An ablation acts on the tokens of a label as on all others; a knockout on the prompt's alone. Raises ValueError,
        before any forward pass, for heads that there are not and for what `scoring` refuses in labels and lengths; and
        what `instruments` raises.
        """
        runs = cache(lambda: base_runs(self.pair[0], edits))

        def compute(edit: Edit) -> dict[str, Any]:
            starts, attach = runs(), self.instruments(edit, self.scoring.lengths)
            scores = label_log_probs(self.pair[0], self.scoring, attach, self.token_budget, runs=starts)
            return {**scores, "gold": self.scoring.gold}

        found = under_edits(self, "answers", f"{self.classes.name}, {self.k} shots", edits, compute)
        return {name: Answers(data["log_prob"], data["gold"]) for name, data in found.items()}

    # -------------------------------------------------------------------------------------------- plain text

    def losses(self, edits: Mapping[Name, Edit]) -> dict[Name, NDArray[np.floating]]:
        """Returns the mean next-token loss of plain texts under each ablation, [N] in nats, by the edit's name.

        Raises ValueError for knockouts, and before any forward pass for heads that there are not.
        """
        if any(edit.pattern is not None for edit in edits.values()):
            raise ValueError("edits: plain texts have no induction pattern to knock out; give ablations alone")
        return {name: data["loss"] for name, data in self._of_texts(edits).items()}

    def uniform_loss(self) -> float:
        """Returns the loss of a model that gives all tokens of its vocabulary the same probability, in nats."""
        return float(np.log(self._of_texts({"": WHOLE})[""]["vocabulary"]))

    def _of_texts(self, edits: Mapping[Name, Edit]) -> dict[Name, dict[str, Any]]:
        runs = cache(lambda: base_runs(self.pair[0], edits))

        def compute(edit: Edit) -> dict[str, Any]:
            model, texts, starts = self.pair[0], self.plain_texts, runs()
            attach = self.instruments(edit, list(map(len, texts)))
            losses = text_losses(model, texts, attach, self.token_budget, starts)
            return {"loss": losses, "vocabulary": model.config.get_text_config().vocab_size}

        return under_edits(self, "text", "plain text", edits, compute)

    # -------------------------------------------------------------------------------------------- attention

    def pattern(self, head: Head) -> dict[str, Any]:
        """Returns what one head attends to in the first prompt.

        attention [T, T], query by key; tokens, as text; kinds, of the parts that they are of; answer, the right label.
        Raises ValueError for a head that there is not.
        """
        chosen = head_arguments.checked_head(head)

        def compute() -> dict[str, Any]:
            model, tokenizer = self.pair
            ((layer, (place,)),) = heads_by_layer(support(model), [chosen]).items()
            prompt = self.drawn[0]
            tokens = with_bos(prompt.text, tokenizer)
            rows = CaptureRows(torch.arange(len(tokens.ids)), layers=layer)
            forward(model, Batch.of([Row(tokens.ids)], [0]), rows)
            kinds = [""] * len(tokens.ids)
            for part in induction_pattern.parts(prompt):
                for token in tokens.under(part.span):
                    kinds[token] = part.kind or "text"
            return {
                "attention": rows.weights[layer][0, place].cpu().numpy(),
                "tokens": [tokenizer.decode([token]) for token in tokens.ids],
                "kinds": kinds,
            }

        data = self.measured(compute, part="pattern", head=list(chosen)).data
        return {"answer": self.drawn[0].label(), **data}


def base_runs(model: PreTrainedModel, edits: Mapping[Name, Edit]) -> BaseRuns:
    """Returns what lets each edit of the same texts start at its first layer."""
    starts = [min(heads_by_layer(prepare(model), edit.heads)) for edit in edits.values() if edit.heads]
    return BaseRuns(model, starts)


def under_edits(
    study: Measurement, part: str, title: str, edits: Mapping[Name, Edit], compute: Callable[[Edit], dict[str, Any]]
) -> dict[Name, dict[str, Any]]:
    """Returns what is measured under each edit, by the edit's name; each is a record of its own. title: of the bar."""
    return {
        name: study.measured(partial(compute, edit), part=part, edit=edit.plain()).data
        for name, edit in study.progress(edits.items(), title)
    }


def answered_right(studies: Sequence[TaskStudy], edits: Mapping[Name, Edit]) -> dict[Name, NDArray[np.bool_]]:
    """Returns which queries are answered right under each edit, [R, N] by name: a row for each study."""
    runs = [study.answers(edits) for study in studies]
    return {name: np.stack([run[name].right for run in runs]) for name in edits}


def check_task(study: TaskStudy, candidates: int = 1) -> TaskCheck:
    """Returns whether the whole model does a task from its demonstrations, on the queries of a study.

    candidates: how many tasks are asked, see `task_check`.
    """
    asked = (study, study.replace(k=0), study.replace(permuted=True))
    answered = [one.answers({"": WHOLE})[""] for one in asked]
    shown, bare, permuted = (which_label(one.log_prob, one.gold) for one in answered)
    return task_check(study.classes.name, study.k, answered[0].right, shown, bare, permuted, study.chance, candidates)


def does_bare(study: TaskStudy) -> bool:
    """Returns whether the whole model is above chance without demonstrations, on the queries of a study."""
    answered = study.replace(k=0).answers({"": WHOLE})[""]
    return accuracy(answered.right).low > study.chance


def tasks_done(studies: Sequence[TaskStudy]) -> dict[str, TaskCheck]:
    """Returns the tasks that the whole model does, asked on as many other queries.

    An ablation of a task that the model does not do says nothing. The queries are not those of the studies, so that
    what a task is chosen by is not measured again.
    """
    checks = {study.task: check_task(study.other_queries, len(studies)) for study in studies}
    return {task: check for task, check in checks.items() if check.done}
