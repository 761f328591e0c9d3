"""Pruning of heads and edges by importance scores, in one word-pair task (Bakalova et al., COLM 2025).

Every round is a record, so that an interrupted run goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from util.edges import names
from util.edges.ablation import WHOLE, Ablation
from util.edges.edge import Edge
from util.edges.states import Store
from util.engine.attention import support
from util.figures.edge_ablation.numbers import SHARE, Row, aligned
from util.figures.edge_ablation.runs import Data, Run, draws
from util.figures.edge_ablation.settings import Draw
from util.scores import token_types
from util.scores.pruning import Pruning, prune, random_living, read_scores
from util.scores.token_types import METHOD, REDUCE
from util.scores.units import SORTS, Circuit, Floats, Sort
from util.study.study import Study

SCORE = {"method": METHOD, "reduce": REDUCE}
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
            found, prompts = support(self.study.pair[0]), [group.base for group in self.search.groups]
            circuit = Circuit.whole(len(found.layers), found.heads, prompts, self.start)
            return {
                "layers": len(found.layers),
                "heads": found.heads,
                "types": list(circuit.types),
                "kinds": [*map(str, circuit.kinds)],
                "living": circuit.living_edges.astype(np.int8),
            }

        data = self.search.keep("token-type units", compute, start=self.start.plain())
        heads = np.ones((data["layers"], data["heads"], len(data["types"])), bool)
        kinds = tuple(map(Edge.of, data["kinds"]))
        return Circuit(tuple(data["types"]), kinds, heads, data["living"].astype(bool), self.start)

    def scored(self, circuit: Circuit, sort: Sort) -> tuple[NDArray[np.bool_], Floats]:
        """On the search split, which answers are right [N], and scores of the units of a sort in a circuit [L, H, K].

        The record has those of both sorts, and losses [N].
        """

        def compute() -> Data:
            run = self.search
            found = token_types.scores(self.study.pair[0], run.groups, circuit, run.budget, run.store)
            return {"right": found["right"], "losses": found["losses"]} | {f"{s}s_{REDUCE}": found[s] for s in SORTS}

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

    def row(self, circuit: Circuit, runs: Sequence[Run]) -> Row:
        """What a circuit answers in some runs, see `numbers.aligned`."""
        return aligned([{names.PRUNED: self.answer(run, circuit)} for run in runs])[names.PRUNED]

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
        round; score_files: scores of earlier rounds, one for each entry of keep, with which none are measured.
        """
        whole = self.search.answers({names.FULL: WHOLE})[names.FULL]
        with tqdm(desc=f"{self.search.draw.task}, pruning {sort} units", unit="round", leave=False) as steps:

            def measure(circuit: Circuit, number: int) -> tuple[NDArray[np.bool_], Floats | None]:
                steps.update()
                if not score_files:
                    return self.scored(circuit, sort)
                last = number == len(score_files)  # after it nothing is pruned
                scores = None if last else read_scores(Path(score_files[number]), circuit, sort)
                return self.answer(self.search, circuit)["right"], scores

            return prune(measure, start, sort, share * float(whole["right"].mean()), per_round, keep)

    def before_edges(self, per_round: float) -> Circuit:
        """What pruning of edges begins with: the edges of the heads that are left where heads are pruned first."""
        return self.pruned("head", self.first, HEADS_SHARE, per_round).result.without_idle_edges()

    def at_random(self, sort: Sort, start: Circuit, result: Circuit, sets: int) -> list[Circuit]:
        """So many random prunings of a circuit, as large as the result, by the seed of the prompts."""
        drawn = random_living(start, result, sort, sets, self.search.draw.seed)
        return [start.keeping(sort, living) for living in drawn]

    def left(self, sort: Sort, start: Circuit, per_round: float, sets: int) -> dict[str, Any]:
        """What is left of the units of one sort, measured on the test split. sets: random prunings.

        units: how many there are at first. whole: the row of the whole model. result: how many units are left before
        the accuracy on the search split falls below SHARE of the whole model's; pruned: their row. random: rows of
        random prunings that leave as many, with the first draw of donors.
        """
        result = self.pruned(sort, start, SHARE, per_round).result
        return {
            "units": start.count(sort),
            "whole": aligned([run.answers({names.FULL: WHOLE}) for run in self.runs])[names.FULL],
            "pruned": self.row(result, self.runs),
            "result": result.count(sort),
            "random": [self.row(one, self.runs[:1]) for one in self.at_random(sort, start, result, sets)],
        }


def units_left(study: Study, task: str) -> dict[str, dict[str, Any]]:
    """Head units of a task pruned, and edge units of the heads that are left, see `Pruner.left`."""
    settings = study.settings
    pruner = Pruner(study, draws(study, task=task), settings.search_prompts)
    options = settings.per_round, settings.random_circuits
    heads = pruner.left("head", pruner.first, *options)
    return {"head": heads, "edge": pruner.left("edge", pruner.before_edges(settings.per_round), *options)}
