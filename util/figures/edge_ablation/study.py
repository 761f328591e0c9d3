"""Edge ablation: what models say when token types read others from corrupted prompts (Bakalova et al., COLM 2025).

Tasks, corruptions and families of edges are those of `prompts.word_pair_prompts` and `edges`: our own definitions where
the paper's were not available to us.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tqdm import tqdm

from util.edges.ablation import WHOLE, Ablation, circuit_ablations, cuts
from util.edges.edge import ALWAYS, CIRCUITS, FAMILIES, TYPE_PAIRS, Edge, type_pairs
from util.edges.splicing import (
    Ablated,
    Group,
    Store,
    continuations,
    groups_of,
    outcomes,
    whole_logits,
    without_demonstrations,
)
from util.engine.attention import support
from util.engine.batches import TOKEN_BUDGET
from util.engine.label_scores import next_token_logits
from util.figures.edge_ablation import measures
from util.figures.edge_ablation.measures import Interval, line_right, prefix_right
from util.figures.planted_controls import planted_model
from util.models import planted
from util.prompts import word_pair_prompts, word_pairs
from util.prompts.classification import associative_map_prompts
from util.prompts.prompt import Layout, with_bos
from util.prompts.word_pair_prompts import typed_tokens
from util.prompts.words import column, table
from util.records import cache
from util.records.provenance import digest
from util.records.runs import ModelSource, Run, model_request, once
from util.stats.intervals import accuracy, bootstrap_mean
from util.stats.tests import rank_p

STEM = "edge_ablation"
DONOR_SEEDS = (0, 1, 2)
MEASURES = ("right", "log_prob", "kl", "agrees", "copied", "line_right", "prefix_right")


def request(
    model: str = "embedded",
    task: str = "country_capital",
    prompts: int = 200,
    k: int = 10,
    seed: int = 0,
    donor_seed: int = 0,
    split: str = "test",
    corruptions: Sequence[int] = (0,),
    ambiguous: int | None = None,
    order: str = "random",
    layout: Mapping[str, str] | None = None,
    token_budget: int = TOKEN_BUDGET,
    two_pass: bool = False,
    in_turn: bool = False,
    **which: Any,
) -> cache.Request:
    """Prompts of a word-pair task and their donors, see `word_pair_prompts.prompts`.

    layout: fields of `prompts.Layout` other than the task's, such as {"separator": ":", "join": " "}. two_pass: donors
    run before the prompts, not beside them, and once for many ablations: faster where there are many. in_turn: no query
    is asked again before all were asked. The embedded model is asked the words that it was trained on, every other
    model those of the longer lists. which: see `model_request`. Raises ValueError for a task, split, order, corruption
    or number that there is not.
    """
    trained = model.partition("/")[0] == "embedded"
    found = word_pairs.find(task, trained=trained)
    word_pair_prompts.marked_demonstrations(found, prompts, k, corruptions, split, ambiguous, order)
    try:
        written = found.layout if layout is None else Layout(**layout)
    except TypeError as error:
        raise ValueError(f"layout = {dict(layout or {})}: its fields are those of prompts.Layout ({error})") from error
    rules = [found.other(pair.x) for pair in found.pairs]
    words = [table(name) for name in found.lists]  # what corrupted prompts are made of
    # said where it can matter alone: records of other tasks are older than this rule, and as it would have them
    told = ["queries told from answers"] if word_pair_prompts.may_begin_alike(found.pairs) else []
    own = {
        "dataset": found.name,
        "words": digest([repr((found.pairs, rules, found.balanced, found.list_name, written)), repr(words), *told]),
        "prompts": prompts,
        "k": k,
        "seed": seed,
        "donor_seed": donor_seed,
        "split": split,
        "corruptions": list(corruptions),
        "ambiguous": ambiguous,
        "order": order,
        "layout": None if layout is None else dict(layout),
        "token_budget": token_budget,
        "two_pass": two_pass,
        "in_turn": in_turn,
        "trained_words": trained,
    }
    return {"stem": STEM, "schema": 1, "method_version": 2, **model_request(model, **which), **own}


class _Run(Run):
    """What all ablations of a request share; prompts are there once they are called for.

    planned: ablations that are to be looked at before the first forward pass, so that a bad one stops nothing halfway.
    """

    def __init__(
        self,
        asked: cache.Request,
        model: ModelSource,
        folder: str | Path | None,
        redo: bool,
        planned: Sequence[Ablation] = (),
        generate: bool = False,
        store: Store | None = None,
    ) -> None:
        super().__init__(asked, model, folder, redo)
        self.planned, self.generate = planned, generate
        self.store = (Store() if store is None else store) if asked["two_pass"] else None

    @cached_property
    def drawn(self) -> word_pair_prompts.WordPairPrompts:
        names = ("k", "seed", "corruptions", "split", "ambiguous", "order", "donor_seed", "in_turn")
        layout = None if self.asked["layout"] is None else Layout(**self.asked["layout"])
        options = {name: self.asked[name] for name in names}
        task = word_pairs.find(self.asked["dataset"], trained=self.asked["trained_words"])
        return word_pair_prompts.prompts(task, self.pair[1], self.asked["prompts"], layout=layout, **options)

    @cached_property
    def groups(self) -> list[Group]:
        return groups_of(self.drawn.items, self.pair[1])

    @cached_property
    def whole(self) -> np.ndarray:
        for ablation in self.planned:
            Ablated(self.pair[0], self.groups, ablation, target=not self.generate)
        if self.store is not None:
            return whole_logits(self.pair[0], self.groups, self.asked["token_budget"], self.store)
        prompts = [group.base.ids[: group.length] for group in self.groups]
        return next_token_logits(self.pair[0], prompts, token_budget=self.asked["token_budget"])

    @cached_property
    def about(self) -> dict[str, Any]:
        """What does not depend on the ablation."""
        drawn = self.drawn
        asked = [item.clean.text[slice(*item.clean.spans["x"][-1])] for item in drawn.items]
        copies = []
        for item, group, word in zip(drawn.items, self.groups, asked, strict=True):
            ids = with_bos(item.clean.with_label(word), self.pair[1], bos=True).ids
            told = len(ids) > group.length and ids[: group.length] == group.base.ids[: group.length]
            copies.append(ids[group.length] if told else -1)
        return {
            "index": np.array([item.index for item in drawn.items]),
            "target": np.array([group.target[0] for group in self.groups]),
            "copy": np.array(copies),
            "layers": len(support(self.pair[0]).layers),
            "queries": asked,
            "answers": [item.clean.label().strip() for item in drawn.items],
            "askable": drawn.askable,
            "left_out": {
                "rejected": dict(drawn.rejected),
                "resampled": dict(drawn.resampled),
                "dropped": dict(drawn.dropped),
                "coincidences": {str(c): count for c, count in drawn.coincidences.items()},
            },
        }

    @property
    def texts(self) -> list[str]:
        return [p.text for item in self.drawn.items for p in (item.clean, *item.donors.values())]

    def answer(self, ablation: Ablation) -> cache.Record:
        own = {"ablation": ablation.plain(), "generate": self.generate}
        return self.record(own, partial(self.measured, ablation))

    def zero_shot(self) -> cache.Record:
        """What the whole model says after the queries alone."""

        def measured() -> dict[str, Any]:
            alone = [without_demonstrations(group) for group in self.groups]
            return {**outcomes(self.pair[0], alone, token_budget=self.asked["token_budget"]), **self.about}

        return self.record({"ablation": "no demonstrations"}, measured)

    def measured(self, ablation: Ablation) -> dict[str, Any]:
        (net, tokenizer), budget = self.pair, self.asked["token_budget"]
        found: dict[str, Any] = outcomes(
            net, self.groups, ablation, self.whole, budget, self.asked["two_pass"], self.store
        )
        if self.generate:
            written = continuations(net, tokenizer, self.groups, ablation, budget, self.store)
            pairs = list(zip(written, self.about["answers"], strict=True))
            found["line_right"] = np.array([line_right(*pair) for pair in pairs])
            found["prefix_right"] = np.array([prefix_right(*pair) for pair in pairs])
            found["written"] = written
        return {**found, **self.about}


def records(
    asked: cache.Request,
    ablations: Mapping[str, Ablation],
    model: ModelSource = None,
    folder: str | Path | None = None,
    redo: bool = False,
    generate: bool = False,
    store: Store | None = None,
) -> dict[str, cache.Record]:
    """The record of each ablation, by its name; each is cached on its own.

    Their data, [N] each: what `splicing.outcomes` gives; index, the numbers of the prompts; target and copy, the first
    tokens of the answer and of the query said again (-1 where that would change the prompt); queries and answers as
    text. And layers; askable, how many queries of the split there are for this tokenizer; left_out, what of the lists
    was rejected, resampled, dropped, and how often a donor has the clean output.
    generate: also written, what the model goes on to write, and whether its first line is the answer
    (line_right: acc_line), or it begins with the answer (prefix_right: acc_prefix). store: one for several requests of
    this model, which then share plain runs. Raises what `word_pair_prompts.prompts` and `splicing.Ablated` raise,
    before any forward pass.
    """
    run = _Run(asked, model, folder, redo, list(ablations.values()), generate, store)
    found = {}
    for name, ablation in tqdm(ablations.items(), desc=f"{asked['dataset']}, {asked['k']} shots", leave=False):
        found[name] = run.answer(ablation)
    return found


def answers(
    asked: cache.Request,
    ablations: Mapping[str, Ablation],
    model: ModelSource = None,
    folder: str | Path | None = None,
    redo: bool = False,
    generate: bool = False,
    store: Store | None = None,
) -> dict[str, dict[str, Any]]:
    """The data of `records`."""
    measured = records(asked, ablations, model, folder, redo, generate, store)
    return {name: record.data for name, record in measured.items()}


def over_donors(
    asked: cache.Request,
    ablations: Mapping[str, Ablation],
    donor_seeds: Sequence[int] = DONOR_SEEDS,
    model: ModelSource = None,
    folder: str | Path | None = None,
    redo: bool = False,
    store: Store | None = None,
) -> dict[str, dict[str, np.ndarray]]:
    """The same with several draws of donors, see `aligned`."""
    model, store = once(model, asked), Store() if store is None else store
    draws = [{**asked, "donor_seed": donor_seed} for donor_seed in donor_seeds]
    return aligned([answers(draw, ablations, model, folder, redo, store=store) for draw in draws])


def aligned(runs: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, dict[str, np.ndarray]]:
    """Answers under several draws of donors as one: by ablation those of MEASURES that all draws have, [D, N].

    And query [N], a number for the query of each prompt: prompts that ask the same are not independent.
    The prompts, too, are those that all draws have.
    """
    if not runs[0]:
        return {}
    every = [next(iter(run.values()))["index"] for run in runs]
    common = [index for index in every[0] if all(index in other for other in every)]
    places = [np.searchsorted(index, common) for index in every]
    return {
        name: {
            "query": np.unique(np.array(runs[0][name]["queries"])[places[0]], return_inverse=True)[1],
            **{
                measure: np.stack([run[name][measure][place] for run, place in zip(runs, places, strict=True)])
                for measure in MEASURES
                if all(measure in run[name] for run in runs)
            },
        }
        for name in runs[0]
    }


# ------------------------------------------------------------------------------------------------ a notebook's settings


def as_list(name: str, value: Any) -> list[Any]:
    """A list of a parameter, which command lines hand over as text. Raises ValueError, naming it, for what is none."""
    given = value
    if isinstance(value, str):
        try:
            value = ast.literal_eval(value)
        except (SyntaxError, ValueError):
            value = [word.strip() for word in value.split(",")] if re.fullmatch(r"[\w ,./:-]+", value) else None
    value = value if isinstance(value, list | tuple) else [value] if isinstance(value, int) else value
    if not isinstance(value, list | tuple):
        raise ValueError(f"{name} = {given!r} is no list; from a command line, write it as -y '{name}: [...]'")
    return list(value)


def checked(
    tasks: Any,
    donor_seeds: Any,
    corruptions: Any,
    ambiguous_counts: Any,
    other_models: Any,
    *,
    primary_task: str,
    k: int,
    prompts: int,
    share: float,
    layer_cuts: int,
    random_circuits: int,
) -> tuple[list[str], list[int], list[int], list[int], list[str]]:
    """The lists among a notebook's parameters, as lists. Raises ValueError, before any work, for what cannot be."""
    given = {
        "tasks": tasks,
        "donor_seeds": donor_seeds,
        "corruptions": corruptions,
        "ambiguous_counts": ambiguous_counts,
        "other_models": other_models,
    }
    lists = {name: as_list(name, value) for name, value in given.items()}
    for name in ("donor_seeds", "corruptions", "ambiguous_counts"):
        if not lists[name] or any(not isinstance(number, int) or number < 0 for number in lists[name]):
            raise ValueError(f"{name} = {given[name]!r}: give a list of numbers from 0 on")
        if len(set(lists[name])) < len(lists[name]):
            raise ValueError(f"{name} = {given[name]!r}: a number stands there twice")
    for name, task in [("tasks", task) for task in lists["tasks"]] + [("primary_task", primary_task)]:
        if not isinstance(task, str):
            raise ValueError(f"{name}: {task!r} is no name of a task")
        word_pairs.find(task)
    # what the sampler refuses of all that is asked for later
    known = word_pairs.find(primary_task)
    word_pair_prompts.marked_demonstrations(known, prompts, k, [0, *lists["corruptions"]], "test", None, "random")
    for count in lists["ambiguous_counts"]:
        request(task="ambiguous_present_past", prompts=prompts, k=k, ambiguous=count)
    if not lists["tasks"] or prompts < 2 or 0 in lists["corruptions"]:
        raise ValueError("give one task or more, two prompts or more, and corruptions from 1 on")
    if not 0 < share <= 1 or random_circuits < 0:
        raise ValueError(
            f"share = {share}, random_circuits = {random_circuits}: 0 < share <= 1, and a number from 0 on"
        )
    cuts(2, layer_cuts)
    return tuple(lists.values())  # type: ignore[return-value]


# ------------------------------------------------------------------------------------------------ circuits compared


@dataclass(frozen=True)
class Circuits:
    """What circuits answer in one task.

    rows: by circuit, see `aligned`; alone: the same of the whole model after queries without demonstrations, None where
    that was not measured; written: by circuit the shares of prompts whose first line is the answer, and that begin with
    it (first draw of donors); chance: of the task; about: the model in words; layers: that it has; askable: how many
    queries there are.
    """

    task: str
    rows: Mapping[str, Mapping[str, np.ndarray]]
    alone: Mapping[str, np.ndarray] | None
    written: Mapping[str, tuple[float, float]]
    chance: float
    about: str
    layers: int
    askable: int

    @property
    def queries(self) -> int:
        """Distinct queries."""
        return len(set(self.rows["FULL"]["query"].tolist()))

    def accuracy(self, *, alone: bool = True) -> dict[str, Interval]:
        """Accuracy of the first token, with intervals by Wilson over distinct queries; "no demonstrations" the last."""
        rows = {**self.rows, **({} if self.alone is None or not alone else {ALONE: self.alone})}
        return {name: accuracy(row["right"], len(set(row["query"].tolist()))) for name, row in rows.items()}

    def kl(self) -> dict[str, Interval]:
        """Divergence from the whole model's next token, nats, with intervals by bootstrap over distinct queries."""
        return {name: _mean(row["kl"], row["query"]) for name, row in self.rows.items()}

    def draws(self) -> dict[str, np.ndarray]:
        """Accuracy by draw of donors."""
        return {name: row["right"].mean(1) for name, row in self.rows.items()}

    def scores(self) -> dict[str, Interval]:
        """(acc(C) - acc(NONE)) / (acc(FULL) - acc(NONE)), see `measures.score`."""
        ends = self.rows["FULL"]["right"], self.rows["NONE"]["right"]
        return {name: measures.score(row["right"], *ends, row["query"]) for name, row in self.rows.items()}

    def loss(self, name: str) -> Interval:
        """acc(FULL) - acc(C) of a circuit, see `measures.deficit`."""
        full = self.rows["FULL"]
        return measures.deficit(self.rows[name]["right"], full["right"], full["query"])

    def table(self) -> pd.DataFrame:
        """One line for each circuit: accuracies, divergence, agreement and score."""
        right, kl, scores = self.accuracy(), self.kl(), self.scores()
        lines = []
        for name, value in right.items():
            line, begins = self.written.get(name, (np.nan, np.nan))
            lines.append(
                {
                    "task": self.task,
                    "circuit": name,
                    "first token": with_interval(value),
                    "line": f"{line:.2f}",
                    "begins": f"{begins:.2f}",
                    "KL": with_interval(kl[name]) if name in kl else "",
                    "same": f"{self.rows[name]['agrees'].mean():.2f}" if name in kl else "",
                    "score": with_interval(scores[name]) if name in scores else "",
                }
            )
        return pd.DataFrame(lines).set_index(["task", "circuit"])


ALONE = "no demonstrations"


def with_interval(value: Interval) -> str:
    """Such as "0.50 [0.40, 0.60]"."""
    return "{:.2f} [{:.2f}, {:.2f}]".format(*value)


def _mean(values: np.ndarray, query: np.ndarray) -> Interval:
    means = measures.by_query(values, query)
    if len(means) < 2:
        return float(means.mean()), np.nan, np.nan
    value, low, high = map(float, bootstrap_mean(means))
    return value, low, high


def compare(
    asked: cache.Request,
    donor_seeds: Sequence[int] = DONOR_SEEDS,
    model: ModelSource = None,
    folder: str | Path | None = None,
    redo: bool = False,
    written: bool = True,
) -> Circuits:
    """The circuits of `edges.CIRCUITS` in the task of a request, and the model without demonstrations.

    written: also what is written out, with the first draw of donors, and the answers to the queries alone.
    """
    model, store = once(model, asked), Store()
    compared = {name: Ablation(kept=kept) for name, kept in CIRCUITS.items()}
    draws = [{**asked, "donor_seed": donor_seed} for donor_seed in donor_seeds]
    first = records(draws[0], compared, model, folder, redo, generate=written, store=store)
    runs = [{name: record.data for name, record in first.items()}]
    runs += [answers(draw, compared, model, folder, redo, store=store) for draw in draws[1:]]
    alone = None
    if written:
        data = _Run(draws[0], model, folder, redo).zero_shot().data
        alone = aligned([{ALONE: data}])[ALONE]
    lines = {
        name: (float(data["line_right"].mean()), float(data["prefix_right"].mean()))
        for name, data in runs[0].items()
        if written
    }
    chance = 1 / len(word_pairs.find(asked["dataset"]).outputs)
    full = first["FULL"]
    return Circuits(
        asked["dataset"],
        aligned(runs),
        alone,
        lines,
        chance,
        full.provenance["model"],
        int(full.data["layers"]),
        askable(asked, full.data),
    )


def askable(asked: cache.Request, data: Mapping[str, Any]) -> int:
    """How many queries there are for the prompts of a request, by a record of it.

    Records from before it was counted are of tasks that ask all of their list.
    """
    task = word_pairs.find(asked["dataset"], trained=asked["trained_words"])
    return int(data.get("askable", len(task.queries(asked["split"]))))


# ------------------------------------------------------------------------------------------------ circuits


@dataclass(frozen=True)
class Search:
    """A circuit that was searched, with `ALWAYS`; what each type pair costs alone; accuracy after each step."""

    kept: tuple[Edge, ...]
    alone: Mapping[Edge, float]
    trace: tuple[tuple[Edge, bool, float], ...]

    def steps(self) -> list[tuple[int, float, bool]]:
        """Pairs left, accuracy on the search split, and whether the pair stays out, step by step."""
        left, found = len(self.trace), []
        for _, gone, right in self.trace:
            found.append((left - 1, right, gone))
            left -= gone
        return found

    @property
    def pairs(self) -> tuple[Edge, ...]:
        """The type pairs that are kept."""
        return self.kept[len(ALWAYS) :]


def greedy_circuit(
    evaluate: Callable[[Ablation], Mapping[str, np.ndarray]], share: float = 0.9, pairs: Sequence[Edge] = TYPE_PAIRS
) -> Search:
    """Take type pairs out one by one, as long as the accuracy stays at `share` of the whole model's (our definition).

    The pair that costs least when it alone is removed goes first (accuracy, then log-probability, then by name); one
    that cannot go is put back for good. evaluate: `right` and `log_prob` [N] under an ablation; see `search`.
    """
    whole = evaluate(WHOLE)
    costs = {}
    for edge in pairs:
        alone = evaluate(Ablation(removed=(edge,)))
        lost = whole["right"].mean() - alone["right"].mean(), whole["log_prob"].mean() - alone["log_prob"].mean()
        costs[edge] = float(lost[0]), float(lost[1])
    kept, trace = list(pairs), []
    for edge in sorted(pairs, key=lambda edge: (*costs[edge], edge)):
        fewer = [other for other in kept if other != edge]
        accuracy = float(evaluate(Ablation(kept=(*ALWAYS, *fewer)))["right"].mean())
        gone = accuracy >= share * float(whole["right"].mean())
        kept = fewer if gone else kept
        trace.append((edge, gone, accuracy))
    return Search((*ALWAYS, *kept), {edge: cost for edge, (cost, _) in costs.items()}, tuple(trace))


def search(
    asked: cache.Request,
    share: float = 0.9,
    model: ModelSource = None,
    folder: str | Path | None = None,
    redo: bool = False,
) -> Search:
    """`greedy_circuit` on the prompts of a request, of which the split should be "search"; each step is cached."""
    return _search(_Run(asked, model, folder, redo), share)


def _search(run: _Run, share: float) -> Search:
    steps = tqdm(desc=f"{run.asked['dataset']}, search", total=2 * len(TYPE_PAIRS) + 1, leave=False)

    def evaluate(ablation: Ablation) -> dict[str, np.ndarray]:
        steps.update()
        return run.answer(ablation).data

    with steps:
        return greedy_circuit(evaluate, share)


@dataclass(frozen=True)
class VerifiedCircuit:
    """A circuit on prompts that it was not searched on.

    names: its type pairs; rows: see `aligned`, by FULL, NONE, "found", "without found", and "without F" and "found
    without F" for families of edges F; scores: of those; random: scores of random circuits with as many pairs; by_draw:
    its score with each draw of donors; explained: acc(found) / acc(FULL).
    """

    names: tuple[str, ...]
    rows: Mapping[str, Mapping[str, np.ndarray]]
    scores: Mapping[str, Interval]
    random: tuple[float, ...]
    by_draw: tuple[float, ...]
    explained: Interval

    @property
    def p(self) -> float:
        """How rare it is among random circuits to score as high."""
        return rank_p(self.scores["found"][0], self.random, tail="high").p

    def gaps(self) -> dict[str, float]:
        """Score without a family of edges, in the circuit minus in the model: 0 where the circuit is complete."""
        return {
            family: self.scores[f"found without {family}"][0] - self.scores[f"without {family}"][0]
            for family in COMPLETENESS
        }

    def lines(self) -> list[str]:
        """What there is to say of it."""
        drawn, gaps = ", ".join(f"{score:.2f}" for score in self.by_draw), self.gaps()
        return [
            f"kept {len(self.names)} of {len(TYPE_PAIRS)} type pairs: {', '.join(self.names) or 'none'}",
            f"score {with_interval(self.scores['found'])}; by draw of donors {drawn}",
            f"random circuits: p = {self.p:.3f}, at least {1 / (1 + len(self.random)):.3f}",
            "completeness, score without a family, in the circuit minus in the model: "
            + ", ".join(f"{family} {gap:.2f}" for family, gap in gaps.items()),
        ]


COMPLETENESS = ("WITHIN", "CONTEXT", "AGG", "QUERY")


def verified(
    found: Search,
    asked: cache.Request,
    donor_seeds: Sequence[int] = DONOR_SEEDS,
    random: int = 20,
    seed: int = 0,
    model: ModelSource = None,
    folder: str | Path | None = None,
    redo: bool = False,
) -> VerifiedCircuit:
    """A searched circuit on the prompts of a request, of which the split should be "test"."""
    tried = circuit_ablations({"found": found.kept}, random, seed, like="found")
    for family in COMPLETENESS:  # the same family out of the circuit and out of the model
        members = type_pairs(FAMILIES[family])
        tried[f"without {family}"] = Ablation(removed=members)
        tried[f"found without {family}"] = Ablation(kept=tuple(edge for edge in found.kept if edge not in members))
    rows = over_donors(asked, tried, donor_seeds, model, folder, redo)
    full, none, query = rows["FULL"]["right"], rows["NONE"]["right"], rows["FULL"]["query"]
    scores = {name: measures.score(row["right"], full, none, query) for name, row in rows.items()}
    by_chance = tuple(
        scores.pop(f"random {number}")[0] for number in range(1, random + 1) if f"random {number}" in rows
    )
    draws = zip(rows["found"]["right"], full, none, strict=True)
    return VerifiedCircuit(
        tuple(map(str, found.pairs)),
        rows,
        scores,
        by_chance,
        tuple(measures.score(*draw)[0] for draw in draws),
        measures.ratio(rows["found"]["right"], full, query),
    )


@dataclass(frozen=True)
class Ambiguity:
    """Answers by how many demonstrations fit two rules.

    rows: see `aligned`, by count and circuit, with `copied`; askable: how many queries there are.
    """

    rows: Mapping[int, Mapping[str, Mapping[str, np.ndarray]]]
    askable: int

    def shares(self, what: str) -> dict[str, list[Interval]]:
        """By circuit, for every count, the share of prompts that are "right", "copied", or "other" than both."""
        found: dict[str, list[Interval]] = {}
        for by_circuit in self.rows.values():
            for name, row in by_circuit.items():
                is_so = ~(row["right"] | row["copied"]) if what == "other" else row[what]
                found.setdefault(name, []).append(accuracy(is_so, len(set(row["query"].tolist()))))
        return found

    def solved(self) -> dict[int, np.ndarray]:
        """By count, the prompts that the whole model solves, [N]."""
        return {count: by_circuit["FULL"]["right"][0] for count, by_circuit in self.rows.items()}


def ambiguity(
    asked: Mapping[int, cache.Request],
    donor_seeds: Sequence[int] = DONOR_SEEDS,
    model: ModelSource = None,
    folder: str | Path | None = None,
    redo: bool = False,
) -> Ambiguity:
    """FULL, CTX+AGG and AGG-ONLY on the prompts of several requests, by the number of ambiguous demonstrations."""
    three = {name: Ablation(kept=CIRCUITS[name]) for name in ("FULL", "CTX+AGG", "AGG-ONLY")}
    rows = {}
    for count, request_ in asked.items():
        store, draws = Store(), []
        for donor_seed in donor_seeds:
            said = answers({**request_, "donor_seed": donor_seed}, three, model, folder, redo, store=store)
            draws.append({name: {**data, "copied": data["top"] == data["copy"]} for name, data in said.items()})
        rows[count] = aligned(draws)
    return Ambiguity(rows, askable(request_, said["FULL"]))


# ------------------------------------------------------------------------------------------------ the planted circuit


class _LookUp(_Run):
    """Look-up prompts, each with one of other words as its donor, instead of those of a word-pair task."""

    @cached_property
    def groups(self) -> list[Group]:
        tokenizer, layout = self.pair[1], word_pairs.TAB
        sizes = {w: typed_tokens(layout.prompt([(w, w)], w, w), tokenizer).sizes for w in column("categories", "word")}
        words = [word for word, found in sizes.items() if set(found) == {1}]
        keys, labels = (len(words) // 3, len(words) // 6)
        drawn = []
        for start in (0, keys + labels):  # prompts and donors have no word in common
            own, outputs = words[start : start + keys], words[start + keys : start + keys + labels]
            drawn.append(associative_map_prompts(own, outputs, 6, 6, self.asked["prompts"], layout=layout))
        typed = [[typed_tokens(prompt, tokenizer) for prompt in part] for part in drawn]
        return [Group(base, {0: donor}) for base, donor in zip(*typed, strict=True)]

    @cached_property
    def about(self) -> dict[str, Any]:
        return {"index": np.arange(len(self.groups))}

    @property
    def texts(self) -> list[str]:
        return [str(group.base.ids) for group in self.groups]


def planted_control(
    prompts: int = 24, folder: str | Path | None = None, **options: Any
) -> tuple[Search, frozenset[Edge]]:
    """A circuit that is known, `planted.lookup` on the embedded model's tokenizer, searched; and its true type pairs.

    options: those of the planted circuit (family, copies, noise, seed).
    """
    pair, truth, which = planted_model(planted.lookup, options)
    asked = {**request(prompts=prompts, k=6), **which, "dataset": "look-up", "words": ""}
    run = _LookUp(asked, pair, folder, redo=False)
    return _search(run, 0.9), frozenset(type_pairs([Edge(*names) for names in truth.edges]))
