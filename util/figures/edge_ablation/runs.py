"""What models say when token types read others from corrupted prompts: prompts, ablations, and their records.

Tasks, corruptions and families of edges are those of `prompts.word_pair_prompts` and `edges`: our own definitions where
the paper's were not available to us.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from util.edges import names
from util.edges.ablation import WHOLE, Ablation, single_edges
from util.edges.edge import ALWAYS, TYPE_PAIRS, Edge
from util.edges.splicing import Ablated, Group, groups_of, outcomes, whole_logits, without_demonstrations
from util.edges.states import STORED, Store
from util.edges.writing import continuations
from util.engine.attention import support
from util.engine.batches import TOKEN_BUDGET
from util.figures.edge_ablation.numbers import SHARE, Rows, aligned, line_right, prefix_right
from util.figures.edge_ablation.settings import Draw
from util.prompts import word_pair_prompts, word_pairs
from util.prompts.classification import associative_map_prompts
from util.prompts.prompt import Layout
from util.prompts.words import column, table
from util.study.model import digest
from util.study.study import Study

Data = dict[str, Any]  # of a record, see `Run.answer`


class Run:
    """What a model answers to one draw of prompts and donors, whole and ablated. Each ablation is a record.

    Runs that share a store share the plain runs of prompts and donors.
    """

    def __init__(self, study: Study, draw: Draw, store: Store | None = None) -> None:
        self.study, self.draw, self.budget = study, draw, draw.token_budget or TOKEN_BUDGET
        self.store = Store() if store is None else store
        self._unchecked: list[Ablation] = []

    @cached_property
    def task(self) -> word_pairs.WordPairTask:
        """The task in the draw's layout, read once: a saved data set that is changed later changes nothing here."""
        task, changes = word_pairs.find(self.draw.task, trained=self.draw.trained), self.draw.layout
        if changes is None:
            return task
        return replace(task, layout=Layout(**{str(field): text for field, text in changes.items()}))

    @cached_property
    def request(self) -> dict[str, Any]:
        """All that decides the answers but for the model and the ablation, in plain JSON."""
        task = self.task
        words = (task.pairs, [task.other(pair.x) for pair in task.pairs], task.balanced, task.list_name, task.layout)
        lists = [table(name) for name in task.lists]  # what corrupted prompts are made of
        shown = {"task": word_pairs.shown_task(self.draw.task), "words": digest([repr(words), repr(lists)])}
        return json.loads(json.dumps({**asdict(self.draw), **shown, "two_pass": True}))  # as stored records say

    @cached_property
    def drawn(self) -> word_pair_prompts.WordPairPrompts:
        """The prompts and their donors. Raises what `word_pair_prompts.prompts` raises."""
        fields = ("k", "seed", "donor_seed", "corruptions", "split", "ambiguous", "order", "in_turn")
        options = {field: getattr(self.draw, field) for field in fields}
        return word_pair_prompts.prompts(self.task, self.study.pair[1], self.draw.prompts, **options)

    @cached_property
    def groups(self) -> list[Group]:
        """The prompts and their donors as tokens."""
        return groups_of(self.drawn.items, self.study.pair[1])

    def texts(self) -> list[str]:
        """The text of every prompt and donor."""
        return [p.text for item in self.drawn.items for p in (item.clean, *item.donors.values())]

    @cached_property
    def about(self) -> Data:
        """What the records of all ablations have in common, see `answer`."""
        drawn = self.drawn
        return {
            "index": np.array([item.index for item in drawn.items]),
            "layers": len(support(self.study.pair[0]).layers),
            "queries": [item.clean.text[slice(*item.clean.spans["x"][-1])] for item in drawn.items],
            "answers": [item.clean.label().strip() for item in drawn.items],
            "askable": drawn.askable,
            "left_out": {name: dict(getattr(drawn, name)) for name in ("rejected", "resampled", "dropped")},
        }

    @cached_property
    def whole(self) -> NDArray[np.floating]:
        """The whole model's logits after every prompt, [N, V]."""
        return whole_logits(self.study.pair[0], self.groups, self.budget, self.store)

    def keep(self, measure: str, compute: Callable[[], Data], **request: Any) -> Data:
        """The data of a measurement of these prompts, kept as a record, see `Study.record`."""
        return self.study.record(measure, compute, self.texts, **self.request, **request).data

    def answer(self, ablation: Ablation, *, generate: bool = False) -> Data:
        """What the model answers under an ablation.

        [N] each: what `splicing.outcomes` gives; index, the numbers of the prompts; queries and answers as text. And
        layers; askable, how many queries of the split there are for this tokenizer; left_out, what of the lists was
        rejected, resampled and dropped. generate: also written, what the model goes on to write, and whether its first
        line is the answer (line_right: acc_line), or it begins with the answer (prefix_right: acc_prefix).
        Raises what `word_pair_prompts.prompts` and `splicing.Ablated` raise, before any forward pass.
        """

        def compute() -> Data:
            net, tokenizer = self.study.pair
            while self._unchecked:  # a bad one stops nothing halfway
                Ablated(net, self.groups, self._unchecked.pop(), target=not generate)
            data: Data = outcomes(net, self.groups, ablation, self.whole, self.budget, self.store)
            if generate:
                written = continuations(net, tokenizer, self.groups, ablation, self.budget, self.store)
                for name, measure in (("line_right", line_right), ("prefix_right", prefix_right)):
                    data[name] = np.array([*map(measure, written, self.about["answers"])])
                data["written"] = written
            return {**data, **self.about}

        return self.keep("edge answers", compute, ablation=ablation.plain(), generate=generate)

    def answers(self, ablations: Mapping[str, Ablation], *, generate: bool = False) -> dict[str, Data]:
        """The answers under each ablation by its name; all are looked at before one is measured."""
        self._unchecked = list(ablations.values())
        steps = self.study.progress(ablations.items(), f"{self.draw.task}, {self.draw.k} shots")
        return {name: self.answer(ablation, generate=generate) for name, ablation in steps}

    def alone(self) -> Data:
        """What the whole model says after the queries alone."""

        def compute() -> Data:
            bare = [without_demonstrations(group) for group in self.groups]
            return {**outcomes(self.study.pair[0], bare, token_budget=self.budget), **self.about}

        return self.keep("bare queries", compute)

    def search(self) -> tuple[Edge, ...]:
        """The type pairs that are left when pairs go one by one, as long as SHARE of the accuracy is kept.

        This is our definition. The pair that costs least when it alone is removed goes first (accuracy, then
        log-probability, then by name); one that cannot go is put back for good.
        """
        singles = self.answers({names.FULL: WHOLE, **single_edges()})
        whole, kept = singles[names.FULL], TYPE_PAIRS

        def costs(edge: Edge) -> tuple[Any, ...]:
            single = singles[str(edge)]
            return *(float(whole[what].mean() - single[what].mean()) for what in ("right", "log_prob")), edge

        for edge in sorted(TYPE_PAIRS, key=costs):
            fewer = tuple(other for other in kept if other != edge)
            right = self.answer(Ablation(kept=(*ALWAYS, *fewer)))["right"]
            if right.mean() >= SHARE * float(whole["right"].mean()):
                kept = fewer
        return kept


def draws(study: Study, **changes: Any) -> list[Draw]:
    """The prompts of a study's model with each draw of donors, see `Settings.draws`."""
    return study.settings.draws(trained=word_pairs.is_trained(study.model.name), **changes)


def answers(study: Study, ablations: Mapping[str, Ablation], room: int = STORED, **changes: Any) -> Rows:
    """The answers under each ablation with all draws of donors, see `numbers.aligned`. changes: of `draws`.

    room: bytes for what the draws share, see `Store`.
    """
    store = Store(room)
    return aligned([Run(study, draw, store).answers(ablations) for draw in draws(study, **changes)])


# ------------------------------------------------------------------------------------------------ the planted circuit


class LookUp(Run):
    """Look-up prompts, each with one of other words as its donor, in the place of those of a word-pair task."""

    @cached_property
    def request(self) -> dict[str, Any]:
        shown = {"task": "look-up", "two_pass": False}  # as stored records say
        return json.loads(json.dumps({**asdict(self.draw), **shown}))

    @cached_property
    def groups(self) -> list[Group]:
        """The prompts and their donors as tokens: words of one token, of which a prompt and its donor share none."""
        tokenizer, typed = self.study.pair[1], word_pair_prompts.typed_tokens
        words = [
            word
            for word in dict.fromkeys(column("categories", "word"))
            if {*typed(word_pairs.TAB.prompt([(word, word)], word, word), tokenizer).sizes} == {1}
        ]
        keys, both = len(words) // 3, len(words) // 3 + len(words) // 6
        base, donors = (
            associative_map_prompts(part[:keys], part[keys:both], 6, self.draw.prompts)
            for part in (words, words[both:])
        )
        return [
            Group(typed(prompt, tokenizer), {0: typed(donor, tokenizer)})
            for prompt, donor in zip(base, donors, strict=True)
        ]

    @cached_property
    def about(self) -> Data:
        """The numbers of the prompts."""
        return {"index": np.arange(len(self.groups))}

    def texts(self) -> list[str]:
        """The tokens of every prompt."""
        return [str(group.base.ids) for group in self.groups]
