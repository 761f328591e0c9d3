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
from util.edges import ALWAYS, TYPE_PAIRS, WHOLE, Ablation, Edge
from util.experiments.runs import ModelSource, Run, digest, model_request, provenance
from util.inference import TOKEN_BUDGET
from util.prompts import Layout, with_bos
from util.scoring import next_token_logits
from util.splicing import Group, continuations, groups_of, outcomes
from util.tasks import word_pair_prompts, word_pairs

STEM = "edge_ablation"
DONOR_SEEDS = (0, 1, 2)


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
    **which: Any,
) -> cache.Request:
    """Prompts of a word-pair task and their donors, see `word_pair_prompts.prompts`.

    layout: fields of `prompts.Layout` other than the task's, such as {"separator": ":", "join": " "}. two_pass: donors
    run before the prompts, not beside them. which: see `model_request`. Raises ValueError for an unknown task.
    """
    found = word_pairs.find(task)
    own = {
        "dataset": found.name,
        "pairs": digest("\t".join(pair) for pair in found.pairs),
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
    }
    return {"stem": STEM, "schema": 1, "method_version": 1, **model_request(model, **which), **own}


class _Run(Run):
    """What all ablations of a request share; prompts are there once they are called for."""

    @cached_property
    def drawn(self) -> word_pair_prompts.WordPairPrompts:
        names = ("k", "seed", "corruptions", "split", "ambiguous", "order", "donor_seed")
        layout = None if self.asked["layout"] is None else Layout(**self.asked["layout"])
        options = {name: self.asked[name] for name in names}
        return word_pair_prompts.prompts(
            self.asked["dataset"], self.pair[1], self.asked["prompts"], layout=layout, **options
        )

    @cached_property
    def groups(self) -> list[Group]:
        return groups_of(self.drawn.items, self.pair[1])

    @cached_property
    def whole(self) -> np.ndarray:
        prompts = [group.base.ids[: group.length] for group in self.groups]
        return next_token_logits(self.pair[0], prompts, token_budget=self.asked["token_budget"])

    @cached_property
    def about(self) -> dict[str, Any]:
        """What does not depend on the ablation."""
        drawn = self.drawn
        asked = [item.clean.text[slice(*item.clean.spans["x"][-1])] for item in drawn.items]
        copies = [
            with_bos(item.clean.with_label(word), self.pair[1], bos=True).ids
            for item, word in zip(drawn.items, asked, strict=True)
        ]
        return {
            "index": np.array([item.index for item in drawn.items]),
            "target": np.array([group.target[0] for group in self.groups]),
            "copy": np.array([ids[group.length] for ids, group in zip(copies, self.groups, strict=True)]),
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

    @cached_property
    def origin(self) -> dict[str, Any]:
        texts = [p.text for item in self.drawn.items for p in (item.clean, *item.donors.values())]
        return provenance(self.asked, self.pair, texts)

    def answer(self, ablation: Ablation, generate: bool) -> cache.Record:
        own = {"ablation": ablation.plain(), "generate": generate}
        return self.record(own, partial(self.measured, ablation, generate))

    def measured(self, ablation: Ablation, generate: bool) -> dict[str, Any]:
        (net, tokenizer), budget = self.pair, self.asked["token_budget"]
        found: dict[str, Any] = outcomes(net, self.groups, ablation, self.whole, budget, self.asked["two_pass"])
        if generate:
            found["written"] = continuations(net, tokenizer, self.groups, ablation, budget)
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
    tokens of the answer and of the query where it is said again; queries and answers as text; layers; left_out, what of
    the lists was rejected, resampled, dropped, and how often a donor has the clean output. generate: also written, what
    the model goes on to write. Raises what `word_pair_prompts.prompts` and `splicing.Ablated` raise, before any forward
    pass.
    """
    run = _Run(asked, model, folder, redo)
    found = {}
    for name, ablation in tqdm(ablations.items(), desc=f"{asked['dataset']}, {asked['k']} shots", leave=False):
        found[name] = run.answer(ablation, generate)
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
    """right, log_prob, kl, agrees [D, N] by name, with D draws of donors: those prompts that there are with all of them."""
    runs = [answers({**asked, "donor_seed": seed}, ablations, model, folder, redo) for seed in donor_seeds]
    every = [next(iter(run.values()))["index"] for run in runs]
    common = [index for index in every[0] if all(index in other for other in every)]
    places = [np.searchsorted(index, common) for index in every]
    return {
        name: {
            field: np.stack([run[name][field][place] for run, place in zip(runs, places, strict=True)])
            for field in ("right", "log_prob", "kl", "agrees")
        }
        for name in ablations
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
        gone = accuracy >= share * whole["right"].mean()
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
    run = _Run(asked, model, folder, redo)

    def evaluate(ablation: Ablation) -> dict[str, np.ndarray]:
        return run.answer(ablation, generate=False).data

    return greedy_circuit(evaluate, share)
