"""What models say when token types read others from corrupted prompts: prompts, ablations, pruning, and their records.

Tasks, corruptions and families of edges are those of `prompts.word_pair_prompts` and `edges`: our own definitions where
the paper's were not available to us.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from util.edges.ablation import WHOLE, Ablation, single_edges
from util.edges.edge import ALWAYS, FULL, TYPE_PAIRS, Edge
from util.edges.splicing import Ablated, Group, continuations, groups_of, outcomes, whole_logits, without_demonstrations
from util.edges.states import STORED, Store
from util.engine.attention import support
from util.engine.batches import TOKEN_BUDGET
from util.figures.edge_ablation.numbers import SHARE, Rows, aligned, line_right, prefix_right, row_of
from util.figures.edge_ablation.settings import Draw
from util.prompts import word_pair_prompts, word_pairs
from util.prompts.classification import associative_map_prompts
from util.prompts.own_tasks import column, table
from util.prompts.prompt import type_tokens
from util.scores import token_types
from util.scores.pruning import SORTS, Circuit, Floats, Pruning, Sort, prune, random_living, read_scores
from util.scores.token_types import METHOD, REDUCE
from util.stats.heads import Bools
from util.study.model import Model, digest
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
    def request(self) -> dict[str, Any]:
        """All that decides the answers but for the model and the ablation, in plain JSON."""
        task = self.draw.pairs
        others = [task.other(pair.x) for pair in task.pairs]
        words = (task.pairs, others, task.balanced, task.list_name, task.layout, *task.words)
        lists = [table(name) for name in task.lists]  # what corrupted prompts are made of
        shown = {"words": digest([repr(words), repr(lists)]), "two_pass": True}  # as stored records say
        return json.loads(json.dumps({**asdict(self.draw), **shown}))

    @cached_property
    def drawn(self) -> word_pair_prompts.WordPairPrompts:
        """The prompts and their donors. Raises what `word_pair_prompts.prompts` raises."""
        return self.draw.drawn(self.study.pair[1])

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
            "queries": [item.clean.texts("x")[-1] for item in drawn.items],
            "answers": [item.clean.label().strip() for item in drawn.items],
            "askable": drawn.askable,
            "left_out": {name: dict(getattr(drawn, name)) for name in ("rejected", "resampled", "dropped")},
        }

    @cached_property
    def whole(self) -> Floats:
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

    def examples(self, count: int) -> list[Data]:
        """The first prompts and donors as text, with the types of the prompts' tokens, in plain JSON."""

        def compute() -> Data:
            first = zip(self.drawn.items[:count], self.groups, strict=False)
            return {
                "examples": [
                    {
                        "prompt": item.clean.text,
                        "corrupted": {str(number): donor.text for number, donor in item.donors.items()},
                        "token_types": list(group.base.types),
                    }
                    for item, group in first
                ]
            }

        return list(self.keep("edge examples", compute, count=count)["examples"])

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
        singles = self.answers({FULL: WHOLE, **single_edges()})
        whole, kept = singles[FULL], TYPE_PAIRS

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


def check_tokens(draw: Draw, model: Model) -> None:
    """Raises what `Draw.drawn` raises; the tokenizer is read where the task is from a file."""
    if draw.pairs.source:
        draw.drawn(model.tokenizer)


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
        typed = partial(type_tokens, tokenizer=self.study.pair[1], target=True)
        words = [
            word
            for word in dict.fromkeys(column("categories", "word"))
            if {*typed(word_pairs.TAB.prompt([(word, word)], word, word)).sizes} == {1}
        ]
        keys, both = len(words) // 3, len(words) // 3 + len(words) // 6
        base, donors = (
            associative_map_prompts(part[:keys], part[keys:both], 6, self.draw.prompts)
            for part in (words, words[both:])
        )
        return [Group(typed(prompt), {0: typed(donor)}) for prompt, donor in zip(base, donors, strict=True)]

    @cached_property
    def about(self) -> Data:
        """The numbers of the prompts."""
        return {"index": np.arange(len(self.groups))}

    def texts(self) -> list[str]:
        """The tokens of every prompt."""
        return [str(group.base.ids) for group in self.groups]


HEADS_SHARE = 0.95  # of the accuracy, kept by heads that are pruned before edges, which would else have none to lose


class Pruner:
    """Head units and edge units of a model, scored and pruned on prompts of the search split.

    drawn: draws of donors of one task, on the test split. search_prompts: by default as many as on that.
    start: edges that are removed beforehand. All runs share a store of what donors leave.
    """

    def __init__(
        self, study: Study, drawn: Sequence[Draw], search_prompts: int | None = None, start: Ablation = WHOLE
    ) -> None:
        store, prompts = Store(), search_prompts or drawn[0].prompts
        self.study, self.start = study, start
        self.runs = [Run(study, draw, store) for draw in drawn]
        self.search = Run(study, replace(drawn[0], split="search", prompts=prompts), store)

    @cached_property
    def first(self) -> Circuit:
        """The circuit of all units that occur in the prompts of the search split."""

        def compute() -> Data:
            prepared, prompts = support(self.study.pair[0]), [group.base for group in self.search.groups]
            circuit = Circuit.whole(len(prepared.layers), prepared.heads, prompts, self.start)
            return {
                "layers": len(prepared.layers),
                "heads": prepared.heads,
                "types": list(circuit.types),
                "kinds": [*map(str, circuit.kinds)],
                "living": circuit.living_edges.astype(np.int8),
            }

        data = self.search.keep("token-type units", compute, start=self.start.plain())
        heads = np.ones((data["layers"], data["heads"], len(data["types"])), bool)
        kinds = tuple(map(Edge.of, data["kinds"]))
        return Circuit(tuple(data["types"]), kinds, heads, data["living"].astype(bool), self.start)

    def scored(self, circuit: Circuit, sort: Sort) -> tuple[Bools, Floats]:
        """On the search split, which answers are right [N], and scores of the units of a sort in a circuit [L, H, K].

        The record has those of both sorts, and losses [N].
        """

        def compute() -> Data:
            run = self.search
            scores = token_types.scores(self.study.pair[0], run.groups, circuit, run.budget, run.store)
            return {"right": scores["right"], "losses": scores["losses"]} | {f"{s}s_{REDUCE}": scores[s] for s in SORTS}

        data = self.search.keep("token-type scores", compute, circuit=circuit.digest, method=METHOD)
        return data["right"], data[f"{sort}s_{REDUCE}"]

    def answer(self, run: Run, circuit: Circuit) -> Data:
        """What a circuit answers in a run, see `Run.answer`."""
        return run.keep(
            "token-type answers",
            lambda: {
                **token_types.answers(self.study.pair[0], run.groups, circuit, run.budget, run.store),
                **run.about,
            },
            circuit=circuit.digest,
        )

    def pruned(
        self,
        sort: Sort,
        start: Circuit,
        share: float,
        per_round: float,
        keep: Sequence[int] | None = None,
        score_files: Sequence[str] = (),
    ) -> Pruning:
        """The rounds of pruning units of a sort, from a circuit on, while `share` of the accuracy is kept.

        per_round: the share of the living units that goes in a round. keep: instead, so many units are left by each
        round; score_files: scores of earlier rounds, one for each entry of keep, in place of measured ones.
        """
        whole = self.search.answer(WHOLE)
        with tqdm(desc=f"{self.search.draw.task}, pruning {sort} units", unit="round", leave=False) as steps:

            def measure(circuit: Circuit, number: int) -> tuple[Bools, Floats]:
                steps.update()
                if number < len(score_files):
                    scores = read_scores(Path(score_files[number]), circuit, sort)
                    return self.answer(self.search, circuit)["right"], scores
                return self.scored(circuit, sort)

            return prune(measure, start, sort, share * float(whole["right"].mean()), per_round, keep)

    def before_edges(
        self, per_round: float, keep: Sequence[int] | None = None, score_files: Sequence[str] = ()
    ) -> Circuit:
        """What pruning of edges begins with: the edges of the heads that are left where heads are pruned first.

        keep, score_files: of the heads, see `pruned`.
        """
        pruned = self.pruned("head", self.first, HEADS_SHARE, per_round, keep, score_files)
        return pruned.result.without_idle_edges()

    def at_random(self, sort: Sort, start: Circuit, result: Circuit, sets: int) -> list[Circuit]:
        """So many random prunings of a circuit, as large as the result, by the seed of the prompts."""
        drawn = random_living(start, result, sort, sets, self.search.draw.seed)
        return [start.keeping(sort, living) for living in drawn]

    def left(self, sort: Sort, start: Circuit, per_round: float, sets: int) -> dict[str, Any]:
        """What is left of the units of one sort, measured on the test split. sets: random prunings.

        units: how many there are at first. whole: the row of the whole model. result: how many units are left before
        the accuracy on the search split falls below SHARE of the whole model's; kept: their names; pruned: their row.
        random: rows of random prunings that leave as many, with the first draw of donors.
        """
        result = self.pruned(sort, start, SHARE, per_round).result
        random = self.at_random(sort, start, result, sets)
        return {
            "units": start.count(sort),
            "whole": row_of([run.answer(WHOLE) for run in self.runs]),
            "pruned": row_of([self.answer(run, result) for run in self.runs]),
            "result": result.count(sort),
            "kept": result.names(sort),
            "random": [row_of([self.answer(self.runs[0], circuit)]) for circuit in random],
        }


def units_left(study: Study, task: str) -> dict[str, Data]:
    """Head units of a task pruned, and edge units of the heads that are left, see `Pruner.left`."""
    settings = study.settings
    pruner = Pruner(study, draws(study, task=task), settings.search_prompts)
    options = settings.per_round, settings.random_circuits
    heads = pruner.left("head", pruner.first, *options)
    return {"head": heads, "edge": pruner.left("edge", pruner.before_edges(settings.per_round), *options)}
