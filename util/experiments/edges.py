"""Edge ablation: what models say when token types read others from corrupted prompts (Bakalova et al., COLM 2025).

Tasks, corruptions and families of edges are those of `tasks.word_pair_prompts` and `edges`: our own definitions where
the paper's were not available to us.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from util import cache
from util.attention import support
from util.edges import ALWAYS, TYPE_PAIRS, WHOLE, Ablation, Edge, type_pairs
from util.embedded import planted
from util.experiments.runs import ModelSource, Run, digest, model_request, once, planted_model
from util.inference import TOKEN_BUDGET
from util.measures.edges import line_right, prefix_right
from util.prompts import Layout, with_bos
from util.scoring import next_token_logits
from util.splicing import Ablated, Group, Store, continuations, groups_of, outcomes
from util.tasks import word_pair_prompts, word_pairs
from util.tasks.classification import associative_map_prompts
from util.tasks.word_pair_prompts import typed_tokens
from util.tasks.words import column, table

STEM = "edge_ablation"
DONOR_SEEDS = (0, 1, 2)
MEASURES = ("right", "log_prob", "kl", "agrees", "line_right", "prefix_right")


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
    own = {
        "dataset": found.name,
        "words": digest([repr((found.pairs, rules, found.balanced, found.list_name, written)), repr(words)]),
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
    return {"stem": STEM, "schema": 1, "method_version": 1, **model_request(model, **which), **own}


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
    ) -> None:
        super().__init__(asked, model, folder, redo)
        self.planned, self.generate = planned, generate
        self.store: Store = {}

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

    def measured(self, ablation: Ablation) -> dict[str, Any]:
        (net, tokenizer), budget = self.pair, self.asked["token_budget"]
        found: dict[str, Any] = outcomes(
            net, self.groups, ablation, self.whole, budget, self.asked["two_pass"], self.store
        )
        if self.generate:
            written = continuations(net, tokenizer, self.groups, ablation, budget)
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
) -> dict[str, cache.Record]:
    """The record of each ablation, by its name; each is cached on its own.

    Their data, [N] each: what `splicing.outcomes` gives; index, the numbers of the prompts; target and copy, the first
    tokens of the answer and of the query said again (-1 where that would change the prompt); queries and answers as
    text; layers; left_out, what of the lists was rejected, resampled, dropped, and how often a donor has the clean
    output. generate: also written, what the model goes on to write, and whether its first line is the answer
    (line_right: acc_line), or it begins with the answer (prefix_right: acc_prefix). Raises what
    `word_pair_prompts.prompts` and `splicing.Ablated` raise, before any forward pass.
    """
    run = _Run(asked, model, folder, redo, list(ablations.values()), generate)
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
) -> dict[str, dict[str, Any]]:
    """The data of `records`."""
    return {name: record.data for name, record in records(asked, ablations, model, folder, redo, generate).items()}


def over_donors(
    asked: cache.Request,
    ablations: Mapping[str, Ablation],
    donor_seeds: Sequence[int] = DONOR_SEEDS,
    model: ModelSource = None,
    folder: str | Path | None = None,
    redo: bool = False,
) -> dict[str, dict[str, np.ndarray]]:
    """The same with several draws of donors, see `aligned`."""
    model = once(model, asked)
    return aligned([answers({**asked, "donor_seed": each}, ablations, model, folder, redo) for each in donor_seeds])


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


# ------------------------------------------------------------------------------------------------ circuits


@dataclass(frozen=True)
class Search:
    """A circuit that was searched, with `ALWAYS`; what each type pair costs alone; accuracy after each step."""

    kept: tuple[Edge, ...]
    alone: Mapping[Edge, float]
    trace: tuple[tuple[Edge, bool, float], ...]

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
