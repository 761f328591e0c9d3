"""One classification task under edits of a model: answers, plain text, means, attention."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from transformers import PreTrainedModel

from util.engine.attention import support
from util.engine.batches import TOKEN_BUDGET, Batch, Row, check_context, context_length, forward
from util.engine.handshake import prepare
from util.engine.instruments import CaptureRows, PatchHeads
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
from util.figures.edits import Edit, TaskName
from util.load_model_and_data import load_text_task, reference_texts, staicc_prompts, staicc_task, staicc_version
from util.prompts import classification, induction_pattern
from util.prompts.prompt import Prompt, with_bos
from util.prompts.text_tasks import DATASETS, TEXT_TASKS, THEIRS
from util.roles.effects import heads_by_layer
from util.stats.answers import right
from util.stats.heads import Floats, Head
from util.study.checked import AsList, Count, Natural, Text, capped, checked
from util.study.model import digest
from util.study.records import Compute, Fields, Measurement, Record, Records
from util.study.study import Study

TEXTS = "financial_phrasebank"  # of StaICC: plain text, and the other reference of means
SAMPLE_TOKENS = 3000  # of a sample of MNLI's premises
REFERENCE_PROMPTS = {"default": 64, "paper": 500}  # that means are taken over, by `settings`
SKIPPED_POSITIONS = 8  # first tokens of a prompt or sample that no mean counts
BY_POSITION = ("mean_pos", "input_mean")  # modes with a value for each position
Edits = Mapping[str, Edit]  # by name


@checked
class TaskStudy(Measurement):
    """A classification task to answer: `prompts` queries from the one at `start` on; from 0, at most all.

    task: one of `classification.NAMES`, of `text_tasks.TEXT_TASKS`, of StaICC's data sets, or of one's own, see
    `prompts.own_tasks`. k, seed: demonstrations of each query, and what they are drawn by. labels: other words than the
    task's own, in their order; those of a text task become unrelated to its classes with Foo, Bar. data: where the
    texts of a text task are, and those of another one's authors, see `load_text_task`. reference: what means are taken
    over, other prompts of the task, StaICC's, or samples of MNLI's premises (Crosbie & Shutova 2024, section 4.3);
    reference_prompts: how many, and how many plain texts; reference_data: a folder with the premises, None for the hub.
    permuted: whether the labels of the demonstrations are permuted among them.
    """

    task: TaskName = "wordseq1"
    k: Natural = 10
    prompts: Count = 60
    seed: Natural = 42
    _: KW_ONLY
    labels: Annotated[tuple[Text, ...], AsList] | None = None
    data: Text | None = None
    reference: Literal["task", "staicc", "mnli"] = "task"
    reference_data: Text | None = None
    start: Natural = 0
    permuted: bool = False
    reference_prompts: Count = 64

    stem = "induction_scores"
    word_lists = ("categories.csv",)

    def __post_init__(self) -> None:
        read = self.task in (*TEXT_TASKS, *THEIRS)
        if self.data is not None and not read:
            raise ValueError(f"data = {self.data!r}: leave it out with the task {self.task!r}, which has its texts")
        if self.reference_data is not None and self.reference != "mnli":
            raise ValueError(
                f"reference_data = {self.reference_data!r}: leave it out with reference {self.reference!r}"
            )
        self.premises, self.classes  # noqa: B018  # raise ValueError where they cannot be read, or be called so
        rows = len(self.classes.rows)
        if not self.start:
            object.__setattr__(self, "prompts", capped(self.prompts, rows, self.task))
        if self.start + self.prompts > rows:
            raise ValueError(f"prompts = {self.prompts}, start = {self.start}: {self.task} has {rows} rows to ask for")
        classification.prompts(self.classes, self.k, self.seed, 1)  # raises ValueError for too many demonstrations

    @cached_property
    def classes(self) -> classification.Task:
        """The task, with its rows and labels."""
        classes = self._texts[0]
        return classes if self.labels is None else classification.relabelled(classes, self.labels)

    @cached_property
    def _texts(self) -> tuple[classification.Task, dict[str, str]]:
        """The task with its own labels, and which texts it has; they are read once."""
        if self.task in classification.NAMES and self.data is None:
            return classification.task(self.task), {}
        if self.task in TEXT_TASKS or self.data is not None:
            task, version = load_text_task(self.task, self.data)
        elif self.task in DATASETS:
            task, version = staicc_task(self.task), f"StaICC {staicc_version()}"
        else:
            task = classification.task(self.task)
            version = digest([repr((task.rows, task.pool or None, task.labels, task.layout))])
        return task, {"data_version": version}

    @property
    def own_request(self) -> Fields:
        return {
            "schema": 2,
            "method_version": 1,
            "dataset": self.classes.name,
            "task": self.task,
            "hard_negatives": False,
            "k": self.k,
            "items": self.prompts,
            "start": self.start,
            "seed": self.seed,
            "labels": None if self.labels is None else list(self.labels),
            "reference": self.reference,
            **self._reference_request,
            **self._texts[1],
            **({"permuted": True} if self.permuted else {}),
        }

    @property
    def _reference_request(self) -> Fields:
        """What decides the reference. Of a model with a shorter context, a sample has as many tokens as the context."""
        samples = {"reference_version": digest(self.premises), "reference_tokens": SAMPLE_TOKENS}
        return {
            "reference_prompts": self.reference_prompts,
            **(samples if self.premises else {}),
            "skipped_positions": SKIPPED_POSITIONS,
            "token_budget": TOKEN_BUDGET,
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
    def premises(self) -> tuple[str, ...]:
        """All premises of MNLI, where means are taken over these. Raises ValueError where they cannot be read."""
        try:
            return reference_texts(self.reference_data) if self.reference == "mnli" else ()
        except ValueError as error:
            raise ValueError(f"reference_data = {self.reference_data!r}: {error}") from error

    @cached_property
    def reference_texts(self) -> Sequence[str]:
        """The texts that means are taken over; premises are not joined yet.

        Prompts of the task have other demonstrations, and other queries as far as the task has so many.
        """
        if self.reference == "mnli":
            return self.premises
        if self.reference == "staicc":
            return [prompt.text for prompt in staicc_prompts(TEXTS, 4)[: self.reference_prompts]]
        end = self.start + self.prompts
        others = classification.prompts(self.classes, self.k, self.seed + 1000, end + self.reference_prompts)
        return [prompt.text for prompt in others[-self.reference_prompts :]]

    @cached_property
    def reference_rows(self) -> list[Row]:
        """The tokens that means are taken over.

        Raises ValueError where a prompt is longer than the model's context, or the premises fill no sample.
        """
        model, tokenizer = self.pair
        if self.reference == "mnli":
            length = min(SAMPLE_TOKENS, context_length(model))
            if rows := samples(self.premises, tokenizer, length, self.reference_prompts):
                return rows
            raise ValueError(
                f"reference_data = {self.reference_data!r}: {len(self.premises)} premises do not fill one sample of "
                f"{length} tokens; give all of MNLI's training split, or another reference"
            )
        rows = [Row(with_bos(text, tokenizer).ids) for text in self.reference_texts]
        check_context(model, list(map(len, rows)))
        return rows

    @property
    def chance(self) -> float:
        """The accuracy of always naming the label that most of the queries have; not below that of guessing."""
        gold = np.bincount([prompt.gold for prompt in self.drawn])
        return max(1 / len(self.classes.labels), float(gold.max() / gold.sum()))

    @cached_property
    def scoring(self) -> Scoring:
        """How labels are scored. Raises what `label_scores.scoring` raises."""
        return scoring(*self.pair, self.drawn)

    # -------------------------------------------------------------------------------------------- means

    def _means(self, compute: Compute, **part: Any) -> Record:
        """A record of means over the reference; those over premises are the same for all tasks."""
        if self.reference != "mnli":
            return self.measured(compute, **part)
        request = {"stem": self.stem, "schema": 1, "method_version": 1, "dataset": "mnli"}
        return self.record(self.stem, compute, lambda: self.premises, **request, **self._reference_request, **part)

    def means(self) -> Fields:
        """The mean outputs of all heads over the reference, see `means_over`."""
        return means_over(self, self._means, lambda: self.reference_rows)

    def means_by_position(self, edit: Edit) -> Floats:
        """What stands for the heads of an edit at each position, [T, heads, dv]."""

        def compute() -> Fields:
            model, rows = self.pair[0], self.reference_rows
            measure = position_means if edit.mode == "mean_pos" else outputs_of_mean_inputs
            by_layer = heads_by_layer(support(model), edit.heads)
            values = measure(model, rows, list(by_layer), TOKEN_BUDGET)
            chosen = [values[layer][:, heads] for layer, heads in by_layer.items()]
            return {"values": np.concatenate(chosen, axis=1), "prompts": len(rows)}

        return self._means(compute, part="means", mode=edit.mode, heads=[*map(list, edit.heads)]).data["values"]

    # -------------------------------------------------------------------------------------------- edits

    def instruments(self, edit: Edit, lengths: Sequence[int]) -> Attach:
        """What an edit attaches to texts of so many tokens.

        Raises ValueError, before any forward pass, for heads that there are not, for prompts that cannot be cut at
        their parts, and for texts that are longer than the reference of their positions.
        """
        model, tokenizer = self.pair
        by_layer = heads_by_layer(prepare(model), edit.heads)
        if not edit.heads:
            return nothing
        if edit.pattern is not None:
            cells = [induction_pattern.cells(prompt, tokenizer, edit.pattern, edit.seed) for prompt in self.drawn]
            return knockouts(cells, by_layer)
        if edit.mode == "zero":
            return replacements(by_layer, dict.fromkeys(by_layer, 0.0))
        if edit.mode == "mean":
            patches = mean_patches(model, edit.heads, self.means()["mean"])
            return lambda batch: patches
        longest, known = max(lengths), max(map(len, self.reference_rows))
        if longest > known:
            raise ValueError(
                f"the longest prompt of {self.classes.name} has {longest} tokens, the reference of {edit.mode} "
                f"{known}; take mode 'mean', or a reference of longer prompts"
            )
        values = torch.from_numpy(self.means_by_position(edit)).split([len(heads) for heads in by_layer.values()], 1)
        return replacements(by_layer, dict(zip(by_layer, values, strict=True)))

    def answers(self, edits: Edits) -> dict[str, Fields]:
        """What the model answers under each edit, by the edit's name; each is a record of its own.

        log_prob [N, C]: of the labels, in nats; gold [N]: the right one's index; right [N]: whether it is the answer.
        An ablation acts on the tokens of a label as on all others; a knockout on the prompt's alone. Raises ValueError,
        before any forward pass, for what `scoring` refuses in labels and lengths; and what `instruments` raises.
        """

        def compute(edit: Edit, runs: BaseRuns) -> Fields:
            attach = self.instruments(edit, self.scoring.lengths)
            scores = label_log_probs(self.pair[0], self.scoring, attach, TOKEN_BUDGET, runs=runs)
            return {**scores, "gold": self.scoring.gold}

        measured = under_edits(self, "answers", f"{self.classes.name}, {self.k} shots", edits, compute)
        return {name: data | {"right": right(data["log_prob"], data["gold"])} for name, data in measured.items()}

    def losses(self, edits: Edits) -> dict[str, Fields]:
        """The mean next-token "loss" of plain texts, StaICC's without labels, under each ablation, [N] in nats.

        By the edit's name, with the size of the "vocabulary". Raises ValueError for knockouts, as these texts have no
        pattern, and before any forward pass for heads that there are not.
        """
        if any(edit.pattern is not None for edit in edits.values()):
            raise ValueError("edits: plain texts have no induction pattern to knock out; give ablations alone")
        prompts = staicc_prompts(TEXTS, 0)[: self.reference_prompts]
        texts = cache(lambda: [with_bos(p.texts("x")[-1], self.pair[1]).ids for p in prompts])

        def compute(edit: Edit, runs: BaseRuns) -> Fields:
            model, attach = self.pair[0], self.instruments(edit, list(map(len, texts())))
            losses = text_losses(model, texts(), attach, TOKEN_BUDGET, runs)
            return {"loss": losses, "vocabulary": model.config.get_text_config().vocab_size}

        return under_edits(self, "text", "plain text", edits, compute, data_version=f"StaICC {staicc_version()}")

    # -------------------------------------------------------------------------------------------- attention

    def pattern(self, head: Head) -> Fields:
        """What one head attends to in the first prompt.

        attention [T, T], query by key; tokens, as text; kinds, of the parts that they are of; answer, the right label;
        labels, those of the demonstrations. Raises ValueError for a head that there is not.
        """

        def compute() -> Fields:
            model, tokenizer = self.pair
            tokens = with_bos(self.drawn[0].text, tokenizer)
            [attention] = whole_attention(model, tokens.ids, [head])
            kinds = [""] * len(tokens.ids)
            for kind, span in induction_pattern.parts(self.drawn[0]):
                for token in tokens.under(span):
                    kinds[token] = kind or "text"
            return {
                "attention": attention,
                "tokens": [tokenizer.decode([token]) for token in tokens.ids],
                "kinds": kinds,
            }

        prompt = self.drawn[0]
        return {
            "answer": prompt.label(),
            "labels": prompt.texts("y"),
            **self.measured(compute, part="pattern", head=list(head)).data,
        }


def task_studies(study: Study, task: str, **changes: Any) -> list[TaskStudy]:
    """The studies of the same model on a task, one for each seed of demonstrations. changes: of their arguments."""
    s = study.settings
    folder = None if s.text_data in (None, "hub") else Path(s.text_data)
    data = str(folder / task) if folder else s.text_data
    of: Fields = {
        "k": s.k,
        "data": data if task in TEXT_TASKS else None,
        "reference": s.reference,
        "reference_data": str(folder / "mnli") if folder and s.reference == "mnli" else None,
        "reference_prompts": REFERENCE_PROMPTS[s.settings],
        **study.places,
        **changes,
    }
    return [TaskStudy(study.model, task, seed=seed, **of) for seed in s.demonstration_seeds]


def whole_attention(model: PreTrainedModel, ids: Sequence[int], heads: Sequence[Head]) -> list[Floats]:
    """The attention [T, T] of some heads on one text, query by key. Raises ValueError for heads that there are not."""
    layers, by_layer = prepare(model).layers, heads_by_layer(prepare(model), heads)
    rows = CaptureRows(torch.arange(len(ids)), layers=by_layer)
    forward(model, Batch.of([Row(tuple(ids))]), rows)
    return [rows.weights[layers[layer]][0, head].cpu().numpy() for layer, head in heads]


def samples(premises: Iterable[str], tokenizer: Any, tokens: int, count: int) -> list[Row]:
    """Samples of so many tokens: premises in their order, joined by blanks, and cut at the end.

    A sample ends with the premise that fills it; the next one begins with the premise behind. There are `count` of
    them, fewer where the premises run out. No BOS is added but what the tokenizer puts in front.
    """
    rows: list[Row] = []
    joined: list[str] = []
    counted = 0  # of the premises one by one: joined texts are tokenized only when this says that they may be enough
    for premise in premises:
        joined.append(premise)
        counted += len(with_bos(premise, tokenizer).ids)
        if counted < tokens:
            continue
        ids = with_bos(" ".join(joined), tokenizer).ids
        if len(ids) >= tokens:
            rows.append(Row(ids[:tokens]))
            joined, counted = [], 0
        if len(rows) == count:
            break
    return rows


def means_over(study: Records, measured: Callable[..., Record], reference: Callable[[], list[Row]]) -> Fields:
    """A record of the mean outputs of all heads over some rows but for their first tokens, see `means.mean_outputs`.

    Raises ValueError for rows that are longer than the context.
    """

    def compute() -> Fields:
        rows = reference()
        check_context(study.pair[0], list(map(len, rows)))
        return mean_outputs(study.pair[0], rows, SKIPPED_POSITIONS, TOKEN_BUDGET)

    return dict(measured(compute, part="means", mode="mean", heads=None).data)


def mean_patches(model: PreTrainedModel, heads: Sequence[Head], mean: Floats) -> list[PatchHeads]:
    """What replaces the outputs of heads by their mean [L, H, dv]. Raises ValueError for heads that there are not."""
    layers, means = prepare(model).layers, torch.from_numpy(mean)
    by_layer = heads_by_layer(prepare(model), heads)
    return [PatchHeads(at, chosen, means[layers.index(at)][chosen]) for at, chosen in by_layer.items()]


def under_edits(
    study: Measurement,
    part: str,
    title: str,
    edits: Edits,
    compute: Callable[[Edit, BaseRuns], Fields],
    **request: Any,
) -> dict[str, Fields]:
    """What is measured under each edit of the same texts, by the edit's name; each is a record of its own.

    title: of the bar. compute: measures; its base runs let an edit start at its first layer. request: what else decides
    the numbers.
    """

    @cache
    def runs() -> BaseRuns:
        model = study.pair[0]
        for edit in edits.values():  # heads that there are not are refused before anything is run
            heads_by_layer(prepare(model), edit.heads)
        return BaseRuns(model)

    def run(edit: Edit) -> Fields:
        return compute(edit, runs())

    return {
        name: study.measured(partial(run, edit), part=part, edit=edit.plain(), **request).data
        for name, edit in study.progress(edits.items(), title)
    }
