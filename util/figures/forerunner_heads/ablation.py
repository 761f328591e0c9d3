"""Disconnecting attention: what in-context learning loses without a step of its circuit (Cho et al. 2025, Tables 1, 2).

Every cut (`cuts.Cut`) is compared with as many other cells of the same prompt, drawn at random, and with no
demonstrations at all. Beside that what the query's forerunner reads of the labels (Fig. 6), and single heads.
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, fields
from functools import cached_property, partial
from typing import Any, Literal, Self

import numpy as np
import torch

from util.engine import batches
from util.engine.attention import support
from util.engine.label_scores import Attach, Scoring, knockouts, label_log_probs, label_reads, nothing, scoring
from util.engine.replay import replay
from util.figures.forerunner_heads.cuts import (
    DRAWS,
    EVERYWHERE,
    QUARTERS,
    WHOLE,
    Condition,
    Cut,
    cells,
    check_part,
    conditions,
    control_cells,
    layer_range,
    other_keys,
)
from util.figures.forerunner_heads.results import (
    Answers,
    HeadCuts,
    HeadEffects,
    InductionHeads,
    LabelReads,
    Tables,
    Task,
)
from util.figures.forerunner_heads.study import METHOD_VERSION, ForerunnerStudy, Study, blocks
from util.prompts.prompt import with_bos
from util.records.checked import Count, Counts, checked
from util.records.staicc import Datasets, Prompts
from util.records.study import plain_heads
from util.roles.cuts import head_cut
from util.roles.head_scores import heads_by_layer
from util.roles.heads import checked_head
from util.roles.label_task import LabelTask, candidates, first_done
from util.stats.heads import Head, top

CellLists = Literal["corrected", "reference"]
HEAD_BLOCK = 8  # prompts of one record of head effects: what an interruption can cost at most


# ------------------------------------------------------------------------------------------------ cuts of one data set


@checked
class AblationStudy(ForerunnerStudy):
    """Cuts of the circuit on one data set.

    cell_lists: "corrected", or "reference" for those of the authors' code, see `cuts.cells`. draws: of random cells,
    for each cut. every_part: whether there are random cells in every part of the layers, not in all layers only.
    """

    prompts: Prompts = 64
    _: KW_ONLY
    cell_lists: CellLists = "corrected"
    draws: Count = DRAWS
    every_part: bool = False

    @classmethod
    def like(cls, study: ForerunnerStudy, **options: Any) -> Self:
        """The cuts of another study's model on its data set, with other options."""
        given = {field.name: getattr(study, field.name) for field in fields(ForerunnerStudy)}
        return cls(**{**given, **options})

    @property
    def own_request(self) -> dict[str, Any]:
        return {
            "schema": 3,
            "method_version": METHOD_VERSION,
            **self.data_request,
            "part": "ablation",
            "variant": self.cell_lists,
        }

    @property
    def texts(self) -> list[str]:
        return [prompt.with_label() for prompt in self.items]

    @cached_property
    def plan(self) -> Scoring:
        """The prompts as tokens, with what is scored behind them."""
        return scoring(*self.pair, self.items)

    @cached_property
    def special(self) -> int:
        """How many special tokens stand in front of a prompt."""
        return with_bos(self.items[0].text, self.pair[1]).spans.count(None)

    # -------------------------------------------------------------------------------------------- tables

    def tables(self, task: Task) -> Tables:
        """What every cut changes in all layers and in each quarter of them, beside no demonstrations.

        task: why this data set is measured.
        """
        parts = (EVERYWHERE, *QUARTERS)
        controlled = parts if self.every_part else (EVERYWHERE,)
        with_all = conditions(parts=parts, controlled=controlled, draws=self.draws)
        alone = self.replace(k=0).answers([WHOLE])[WHOLE]
        return Tables(self.setting, task, self.answers(with_all), alone)

    def answers(self, wanted: Sequence[Condition]) -> dict[Condition, Answers]:
        """What the model says under these conditions, each cached on its own.

        Raises what `scoring`, `cells` and `control_cells` raise, and before that what `check_part` raises.
        """
        for condition in wanted:
            check_part(condition.part)

        def answered(condition: Condition) -> Answers:
            part = {
                "cut": None if condition.cut is None else str(condition.cut),
                "layers": list(condition.part),
                "draw": condition.draw,
            }
            data = self.record(part, partial(self._measure, condition)).data
            return Answers(data["log_prob"], data["gold"], data.get("text_loss"))

        answers = list(map(answered, self.progress(wanted, f"{self.dataset}: ablations")))
        return dict(zip(wanted, answers, strict=True))

    def _measure(self, condition: Condition) -> dict[str, Any]:
        layers = list(support(self.pair[0]).layers)  # the model's own numbers
        scores = label_log_probs(
            self.pair[0],
            self.plan,
            self._attach(condition, layers),
            token_budget=batches.TOKEN_BUDGET,
            text=condition.part == EVERYWHERE and condition.draw is None,
        )
        return {**scores, **self.label_numbers, "layers": layers}

    def _attach(self, condition: Condition, layers: list[int]) -> Attach:
        """What cuts the cells of a condition, or those of the control that it is, in its part of the layers."""
        if condition.cut is None:
            return nothing
        cut = [cells(condition.cut, tokens, self.cell_lists, self.special) for tokens in self.plan.tokens]
        if (draw := condition.draw) is not None:
            seed = (self.seed, list(Cut).index(condition.cut))
            both = enumerate(zip(cut, self.plan.ids, strict=True))
            cut = [control_cells(which, len(ids), draw + 1, (*seed, i))[draw] for i, (which, ids) in both]
        return knockouts(cut, dict.fromkeys(layer_range(layers, condition.part)))

    # -------------------------------------------------------------------------------------------- reads of labels

    def label_reads(self) -> LabelReads:
        """What the query's forerunner reads of the labels. Raises ValueError without demonstrations."""
        data = self.record({"part": "induction"}, self._measure_reads).data
        names = ("reads", "similarity", "gold", "demonstrations", "n_t", "classes")
        return LabelReads(**{name: data[name] for name in names})

    def _measure_reads(self) -> dict[str, Any]:
        reads = label_reads(self.pair[0], self.plan, batches.TOKEN_BUDGET)
        n_t = np.array([tokens.n_t for tokens in self.plan.tokens])
        return {**reads, **self.label_numbers, "n_t": n_t, "classes": len(self.items[0].labels)}

    def induction_heads(self, task: Task) -> InductionHeads:
        """Induction heads by layer, and whose labels they read. task: why this data set is measured."""
        request = {**self.request, "part": "induction"}
        return InductionHeads.of(self.setting, task, self.label_reads(), self.threshold, request)

    # -------------------------------------------------------------------------------------------- head by head

    def head_cuts(self, heads: Sequence[Head]) -> HeadCuts:
        """What each head's copying is worth to the labels; cached in blocks of prompts.

        heads: places (layer, head) in the stack of layers with attention, each once. Raises ValueError for a head twice
        or none, and, before anything is measured, for one that the model does not have.
        """
        places = tuple(checked_head(head, "heads") for head in heads)
        if len(set(places)) != len(places) or not places:
            raise ValueError(f"give each head once, and at least one: {list(heads)}")
        ordered = plain_heads(places)  # so that their order does not matter for the cache
        together = blocks(self.prompts, HEAD_BLOCK)
        # not `record_in_blocks`: its request of the whole would lose every cached record, which are of blocks here

        def measured(block: range) -> dict[str, Any]:
            part = {"part": "head effects", "scored": "labels", "heads": ordered, "block": [block.start, block.stop]}
            return self.record(part, partial(self._measure_heads, ordered, block)).data

        records = list(map(measured, self.progress(together, f"{self.dataset}: heads", unit="block")))
        whole, cut, control = (np.concatenate([r[name] for r in records]) for name in ("whole", "cut", "control"))
        order = [ordered.index([layer, head]) for layer, head in places]
        return HeadCuts(places, self.label_numbers["gold"], whole, cut[:, order], control[:, order])

    def _measure_heads(self, heads: list[list[int]], block: range) -> dict[str, Any]:
        heads_by_layer(support(self.pair[0]), heads)
        results = [self._replay(heads, number) for number in block]
        both = torch.cat([result.logits for result in results], 1)  # [2 M, N, C]
        cut, control = both.reshape(2, len(heads), *both.shape[1:]).transpose(1, 2).numpy()
        return {"whole": torch.cat([result.base for result in results]).numpy(), "cut": cut, "control": control}

    def _replay(self, heads: list[list[int]], number: int) -> Any:
        """One prompt with the cells of each head cut in turn, then with the control's."""
        layers = support(self.pair[0]).layers  # from places in the stack to the model's own numbers
        cut = cells(Cut.SI_TO_YI, self.plan.tokens[number], special=self.special)
        control = other_keys(cut, self.special, (self.seed, number))
        edits = [head_cut(layers[layer], head, [which]) for which in (cut, control) for layer, head in heads]
        first = min((int(which[:, 0].min()) for which in (cut, control) if len(which)), default=0)
        labels = torch.from_numpy(self.plan.first_tokens[number])
        return replay(self.pair[0], torch.tensor([self.plan.ids[number]]), edits, labels[None], first, True)


# ------------------------------------------------------------------------------------------------ all of it


@checked
class CausalStudy:
    """All causal parts of the figure, on the first of several data sets that the model does from its demonstrations.

    study: whose model and seed, and how the cuts are measured; its data set and k are of no account. datasets, ks: to
    try, in order, all data sets with one k before the next k; where none is done, the first is measured all the same.
    choice_prompts: the last queries of each, on which this is decided; read_prompts: of the induction heads;
    single_heads: prompts of the cuts of one head at a time; heads_cut: how many heads are cut so.
    Raises ValueError where prompts that are measured would choose the task.
    """

    study: AblationStudy
    datasets: Datasets
    ks: Counts
    _: KW_ONLY
    choice_prompts: Prompts = 128
    read_prompts: Prompts = 64
    single_heads: Prompts = 8
    heads_cut: Count = 16

    def __post_init__(self) -> None:
        self.candidates  # noqa: B018  # checks every k on every data set

    @cached_property
    def candidates(self) -> tuple[LabelTask, ...]:
        """The data sets, with each k, as studies of their last prompts."""
        study, measured = self.study, max(self.study.prompts, self.read_prompts, self.single_heads)
        return candidates(
            study.model, self.datasets, self.ks, self.choice_prompts, study.seed, measured,
            folder=study.folder, redo=study.redo,
        )  # fmt: skip

    @cached_property
    def _task(self) -> Task:
        checks, left_out = first_done(self.candidates)
        return Task(tuple(checks), left_out)

    def task(self) -> Task:
        """Which data set the model does: they are tried in order until one is done."""
        return self._task

    def tables(self) -> Tables:
        """What the model loses when a step of the circuit is cut."""
        return self._chosen(self.study.prompts).tables(self._task)

    def induction_heads(self) -> InductionHeads:
        """Whose labels the query's forerunner reads."""
        return self._chosen(self.read_prompts).induction_heads(self._task)

    def head_effects(self, study: Study) -> HeadEffects:
        """What the heads that move most are worth, cut one at a time. study: whose heads, by what they move."""
        measured = study.magnitudes()
        heads = top(measured.moved, min(self.heads_cut, measured.moved.size))
        cut = self._chosen(self.single_heads).head_cuts(heads)
        counts = measured.reading(0).counts(study.threshold)
        return HeadEffects.of(study.setting, self._task, counts, measured.moved, cut)

    def _chosen(self, prompts: int) -> AblationStudy:
        return self.study.replace(dataset=self._task.check.name, k=self._task.check.k, prompts=prompts)
