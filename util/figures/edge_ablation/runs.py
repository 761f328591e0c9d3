"""What models say when token types read others from corrupted prompts: prompts, ablations, pruning, and their records.

Tasks, corruptions and families of edges are those of `prompts.word_pair_prompts` and `edges`: our own definitions where
the paper's were not available to us.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from tqdm import tqdm

from util.edges.edge import ALWAYS, FULL, TYPE_PAIRS, WHOLE, Ablation, Edge, single_edges
from util.edges.splicing import Ablated, Group, continuations, groups_of, outcomes, whole_logits, without_demonstrations
from util.edges.states import STORED, Store
from util.engine.attention import support
from util.engine.batches import TOKEN_BUDGET
from util.figures.edge_ablation.numbers import SHARE, Rows, aligned, line_right, prefix_right, row_of
from util.figures.edge_ablation.show import Layout, Seeds, Task
from util.prompts import word_pair_prompts, word_pairs
from util.prompts.classification import associative_map_prompts
from util.prompts.own_tasks import column, table
from util.prompts.prompt import type_tokens
from util.prompts.word_pair_prompts import WordPairPrompt
from util.prompts.word_pairs import TAB
from util.scores import token_types
from util.scores.pruning import SORTS, Circuit, Pruning, Sort, prune, random_living, read_scores
from util.scores.token_types import METHOD, REDUCE
from util.stats.heads import Bools, Floats
from util.study.checked import Count, Natural, checked
from util.study.model import Model, digest
from util.study.study import Study

Data = dict[str, Any]  # of a record, see `Run.answer`


@checked
class Draw:
    """Prompts of one word-pair task and one draw of donors, see `word_pair_prompts.prompts`.

    task: by its name, or a file or folder of pairs, see `prompts.own_tasks`. layout: one of `LAYOUTS`, or what differs
    from the task's own, such as {"separator": ":", "join": " "}. token_budget: None for that of `engine.batches`.
    in_turn: no query comes again before all came. trained: the words that the embedded model was trained on, not the
    longer lists. Raises ValueError for an unknown task, split, order or corruption, and for a number that the task does
    not have.
    """

    task: Task = "country_capital"
    k: Count = 10
    prompts: Count = 200
    seed: Natural = 0
    donor_seed: Natural = 0
    split: Literal["all", "search", "test"] = "test"
    corruptions: Seeds = (0,)
    ambiguous: Natural | None = None
    order: Literal["random", "ambiguous first", "ambiguous last"] = "random"
    layout: Layout | None = None
    token_budget: Count | None = None
    in_turn: bool = False
    trained: bool = False

    def __post_init__(self) -> None:
        word_pair_prompts.marked_demonstrations(
            self.pairs, self.prompts, self.k, self.corruptions, self.split, self.ambiguous
        )

    @cached_property
    def pairs(self) -> word_pairs.WordPairTask:
        """The task in this layout, read once: a file that is changed later changes nothing here.

        Raises ValueError for words that the layout cannot hold.
        """
        return word_pairs.find(self.task, trained=self.trained).in_layout(self.layout)

    def drawn(self, tokenizer: Any) -> word_pair_prompts.WordPairPrompts:
        """The prompts and their donors. Raises what `word_pair_prompts.prompts` raises."""
        return word_pair_prompts.prompts(
            self.pairs,
            tokenizer,
            self.prompts,
            self.k,
            self.seed,
            self.corruptions,
            self.split,
            self.ambiguous,
            self.order,
            self.donor_seed,
            in_turn=self.in_turn,
        )

    @cached_property
    def request(self) -> Data:
        """All that decides the prompts and donors, in plain JSON."""
        task = self.pairs
        others = [task.other(pair.x) for pair in task.pairs]
        words = (task.pairs, others, task.balanced, task.list_name, task.layout, *task.words)
        lists = [table(name) for name in task.lists]  # what corrupted prompts are made of
        decides = {**asdict(self), "words": digest([repr(words), repr(lists)]), "two_pass": True}  # as records say
        return json.loads(json.dumps(decides))


class LookUp:
    """Look-up prompts, each with one of other words as its donor, that a `Run` takes in the place of a `Draw`.

    There are 12, of 6 demonstrations each.
    """

    task, prompts, k, seed, token_budget = "look-up", 12, 6, 0, None

    @property
    def request(self) -> Data:
        """All that decides the prompts and donors, in plain JSON: entries as those of a `Draw`."""
        defaults = {field.name: field.default for field in fields(Draw)}
        changes = {"task": self.task, "prompts": self.prompts, "k": self.k, "corruptions": [0], "two_pass": False}
        return {**defaults, **changes}

    def drawn(self, tokenizer: Any) -> word_pair_prompts.WordPairPrompts:
        """The prompts and their donors: words of one token, of which a prompt and its donor share none."""
        words = [
            word
            for word in dict.fromkeys(column("categories", "word"))
            if {*type_tokens(TAB.prompt([(word, word)], word, word), tokenizer, target=True).sizes} == {1}
        ]
        keys, both = len(words) // 3, len(words) // 3 + len(words) // 6
        base, donors = (
            associative_map_prompts(part[:keys], part[keys:both], self.k, self.prompts)
            for part in (words, words[both:])
        )
        items = [WordPairPrompt(i, base[i], {0: donors[i]}) for i in range(self.prompts)]
        return word_pair_prompts.WordPairPrompts(tuple(items), askable=len(items))


class Run:
    """What a model answers to one draw of prompts and donors, whole and ablated. Each ablation is a record.

    Runs that share a store share the plain runs of prompts and donors.
    """

    def __init__(self, study: Study, draw: Draw | LookUp, store: Store | None = None) -> None:
        self.study, self.draw, self.budget = study, draw, draw.token_budget or TOKEN_BUDGET
        self.store = Store() if store is None else store
        self._unchecked: list[Ablation] = []

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
        return self.study.record(measure, compute, self.texts, **self.draw.request, **request).data

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

    def chance(self, task: word_pairs.WordPairTask) -> float:
        """The share of the most frequent first token among the outputs of the draw's task."""

        def compute() -> Data:
            begins = word_pair_prompts.first_tokens(task, self.study.pair[1])
            counted = Counter(begins[pair.y] for pair in task.pairs if pair.y in begins)
            return {"chance": max(counted.values()) / counted.total()}

        return float(self.keep("chance of outputs", compute)["chance"])

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
            if right.mean() >= SHARE * float(whole["right"].mean()) - 1e-9:  # 0.9 * 0.8 is 0.72, whatever its rounding
                kept = fewer
        return kept


def draws(study: Study, **changes: Any) -> list[Draw]:
    """Prompts of a study with each draw of donors. changes: fields of `Draw`, such as another task than the primary."""
    s, trained = study.settings, word_pairs.is_trained(study.model.name)
    shared = {"task": s.primary_task, "k": s.k, "prompts": s.prompts, "seed": s.seed, "layout": s.layout}
    return [Draw(**{**shared, **changes}, donor_seed=seed, trained=trained) for seed in s.donor_seeds]


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


# ------------------------------------------------------------------------------------------------ pruning

HEADS_SHARE = 0.95  # of the accuracy, kept by heads that are pruned before edges, which would else have none to lose


def runs_to_prune(study: Study, drawn: Sequence[Draw], search_prompts: int | None = None) -> tuple[list[Run], Run]:
    """A run for each draw of donors of a task, and one on the split "search", where units are scored and pruned.

    drawn: on the test split. search_prompts: by default as many as on that. All runs share what donors leave.
    """
    store, prompts = Store(), search_prompts or drawn[0].prompts
    search = replace(drawn[0], split="search", prompts=prompts)
    return [Run(study, draw, store) for draw in drawn], Run(study, search, store)


def all_units(search: Run, start: Ablation = WHOLE) -> Circuit:
    """The circuit of all units that occur in the prompts of a run. start: edges that are removed beforehand."""

    def compute() -> Data:
        prepared = support(search.study.pair[0])
        circuit = Circuit.whole(len(prepared.layers), prepared.heads, [group.base for group in search.groups], start)
        living = circuit.living_edges.astype(np.int8)
        return {"types": list(circuit.types), "kinds": [*map(str, circuit.kinds)], "living": living}

    data = search.keep("token-type units", compute, start=start.plain())
    types, living = tuple(data["types"]), data["living"].astype(bool)
    heads = np.ones((*living.shape[:2], len(types)), bool)
    return Circuit(types, tuple(map(Edge.of, data["kinds"])), heads, living, start)


def scored(search: Run, circuit: Circuit, sort: Sort) -> tuple[Bools, Floats]:
    """Which answers of a circuit are right [N], and scores of its units of a sort [L, H, K].

    The record has those of both sorts, and losses [N].
    """

    def compute() -> Data:
        scores = token_types.scores(search.study.pair[0], search.groups, circuit, search.budget, search.store)
        return {"right": scores["right"], "losses": scores["losses"]} | {f"{s}s_{REDUCE}": scores[s] for s in SORTS}

    data = search.keep("token-type scores", compute, circuit=circuit.digest, method=METHOD)
    return data["right"], data[f"{sort}s_{REDUCE}"]


def circuit_answer(run: Run, circuit: Circuit) -> Data:
    """What a circuit answers in a run, see `Run.answer`."""

    def compute() -> Data:
        answered = token_types.answers(run.study.pair[0], run.groups, circuit, run.budget, run.store)
        return {**answered, **run.about}

    return run.keep("token-type answers", compute, circuit=circuit.digest)


def pruned(
    search: Run,
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
    whole = search.answer(WHOLE)
    with tqdm(desc=f"{search.draw.task}, pruning {sort} units", unit="round", leave=False) as steps:

        def measure(circuit: Circuit, number: int) -> tuple[Bools, Floats]:
            steps.update()
            if number < len(score_files):
                scores = read_scores(Path(score_files[number]), circuit, sort)
                return circuit_answer(search, circuit)["right"], scores
            return scored(search, circuit, sort)

        return prune(measure, start, sort, share * float(whole["right"].mean()), per_round, keep)


def before_edges(
    search: Run, units: Circuit, per_round: float, keep: Sequence[int] | None = None, score_files: Sequence[str] = ()
) -> Circuit:
    """What pruning of edges begins with: of all units the edges of the heads that are left where heads go first.

    keep, score_files: of the heads, see `pruned`.
    """
    return pruned(search, "head", units, HEADS_SHARE, per_round, keep, score_files).result.without_idle_edges()


def at_random(search: Run, sort: Sort, start: Circuit, result: Circuit, sets: int) -> list[Circuit]:
    """So many random prunings of a circuit, as large as the result, by the seed of the prompts."""
    return [start.keeping(sort, living) for living in random_living(start, result, sort, sets, search.draw.seed)]


def units_left(study: Study, drawn: Sequence[Draw]) -> dict[str, Data]:
    """Head units of a task pruned, and edge units of the heads that are left; each sort measured on the test split.

    units: how many there are at first. whole: the row of the whole model. result: how many units are left before the
    accuracy on the search split falls below SHARE of the whole model's; kept: their names; pruned: their row. random:
    rows of random prunings that leave as many, with the first draw of donors.
    """
    settings = study.settings
    runs, search = runs_to_prune(study, drawn, settings.search_prompts)

    def left(sort: Sort, start: Circuit) -> Data:
        result = pruned(search, sort, start, SHARE, settings.per_round).result
        random = at_random(search, sort, start, result, settings.random_circuits)
        return {
            "units": start.count(sort),
            "whole": row_of([run.answer(WHOLE) for run in runs]),
            "pruned": row_of([circuit_answer(run, result) for run in runs]),
            "result": result.count(sort),
            "kept": result.names(sort),
            "random": [row_of([circuit_answer(runs[0], circuit)]) for circuit in random],
        }

    units = all_units(search)
    return {"head": left("head", units), "edge": left("edge", before_edges(search, units, settings.per_round))}
