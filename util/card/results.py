"""What a card knows: the results of its parts, and the plain values of them that card.json has. It needs no model.

`SCHEMA` is the version of card.json. A field that is added leaves it as it is; a field that changes its meaning or goes
raises it. README has the fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from util.edges import names
from util.figures.edge_ablation.numbers import by_query, queries_of, right_of
from util.figures.edge_ablation.show import beyond_chance, task_of
from util.figures.ioi_patching.numbers import KEPT, carriers, intervals
from util.figures.ioi_patching.pictures import channel, path_parts
from util.figures.ioi_patching.show import certain_paths, path_name
from util.figures.role_atlas.show import atlas_about
from util.roles.rules import Evidence
from util.stats.heads import head_name, heads_where, top
from util.stats.intervals import Interval, mean_intervals, paired_interval
from util.stats.task_check import TaskCheck

SCHEMA = 2
ROLES, IOI, WORD_PAIRS, KNOCKED_OUT = PARTS = "roles", "IOI", "word pairs", "knocked out"  # in the order of measuring
PARTS_OF_CIRCUITS = {"demonstrations": names.QUERY_ONLY, "contextualisation": names.AGG_ONLY}  # by what lacks them
STRONGEST = 8  # heads, paths and edges that are listed
COPIES, PATTERNS, PLAIN_TEXT = "copies", "pattern task", "plain text"


def word_pair_name(task: str) -> str:
    """The name of an outcome: a task of word pairs, or all of them that the model does ("")."""
    return f"{WORD_PAIRS}, {task}" if task else WORD_PAIRS


@dataclass(frozen=True)
class Loss:
    """What a model loses of one outcome without a set of heads.

    heads: how many; whole: what the whole model has; lost: in the outcome's unit; controls: what is lost without as
    many other heads, a number for each set; matched: how these were drawn; beyond: the loss beyond the mean of the
    controls, None where there are none.
    """

    ablated: str
    heads: int
    outcome: str
    whole: float
    lost: float
    controls: tuple[float, ...]
    matched: str
    beyond: Interval | None

    @property
    def is_sure(self) -> bool:
        """Whether the heads are missed more than others for certain."""
        return self.beyond is not None and self.beyond.low > 0


@dataclass(frozen=True)
class Losses:
    """What a model loses without several sets of heads.

    whole: by outcome, the whole model's value with its interval, and whether it does the task: copied tokens and right
    answers as shares, plain text as nats of loss. each: for every set and outcome that can be lost. of_labels: what
    each set costs of which label and of label mass in the pattern task, in nats; empty where the task is not done.
    """

    whole: Mapping[str, tuple[float, float, float, bool]]
    each: tuple[Loss, ...]
    of_labels: Mapping[str, Mapping[str, Interval]] = field(default_factory=dict)

    @property
    def finding(self) -> str | None:
        """What is lost for certain without all heads that have a role; None where nothing is."""
        if not self.each:
            return None
        largest = max(self.each, key=lambda one: one.heads).ablated
        sure = [one for one in self.each if one.ablated == largest and one.is_sure]
        if not sure:
            return None
        lost = ", ".join(f"{one.outcome} {one.beyond}" for one in sure)
        return f"Without its {sure[0].heads} heads with a role the model loses, beyond controls: {lost}"

    @property
    def setting(self) -> str:
        """The controls, for titles."""
        matched = dict.fromkeys(one.matched for one in self.each if one.matched)
        return (
            f"controls: as many other heads, {' or '.join(matched)}" if matched else "no controls: too few other heads"
        )

    def values(self) -> dict[str, Any]:
        """The plain values."""
        return {
            "whole": {name: {"value": row[:3], "done": bool(row[3])} for name, row in self.whole.items()},
            "losses": [
                {
                    "ablated": one.ablated,
                    "heads": one.heads,
                    "outcome": one.outcome,
                    "whole": one.whole,
                    "lost": one.lost,
                    "controls": list(one.controls),
                    "matched": one.matched,
                    "beyond": None if one.beyond is None else list(one.beyond),
                }
                for one in self.each
            ],
            "of labels": {name: dict(lost) for name, lost in self.of_labels.items()},
        }


def ioi_values(found: Mapping[str, Any]) -> dict[str, Any]:
    """Of the numbers of IOI patching: whether the task is done, the strongest heads, how many are enough, the paths."""
    population, circuit, paths = (found[name] for name in ("population", "circuit", "paths"))
    noised, measured = intervals(population["noised"]), intervals(population["measured"])
    chosen, whole = np.abs(np.array(population["chosen"])), circuit["whole"]
    low = [int(size) for size, alone in circuit["alone"].items() if alone[0] < KEPT * whole[0]]
    enough = min((int(size) for size in circuit["alone"] if int(size) > max(low, default=0)), default=None)
    told: dict[str, Any] = {"refused": paths.get("refused", "")} | dict.fromkeys(("between", "tested", "certain"), 0)
    told["strongest"] = []
    if not told["refused"]:
        parts, sure = path_parts(paths), certain_paths(paths)
        told |= {
            "between": len(paths["heads"]),
            "tested": int(np.isfinite(parts["edges"].value).sum()),
            "certain": len(sure),
            "strongest": [
                {
                    "path": path_name(paths, edge),
                    "share": list(parts["edges"][edge]),
                    "channel": channel(parts, edge) or None,
                }
                for edge in sure[:STRONGEST]
            ],
        }
    return {
        "pairs": population["pairs"],
        "accuracy": list(population["accuracy"]),
        "logit difference": list(population["intact"]),
        "carriers": {head_name(head): list(noised[head]) for head in heads_where(carriers(noised))},
        "strongest": {head_name(head): list(measured[head]) for head in top(chosen, min(STRONGEST, chosen.size))},
        "circuit": {
            "heads": chosen.size,
            "whole": list(whole),
            "level": KEPT,
            "enough": enough,
            "kept": {size: list(share) for size, share in circuit["faithfulness"].items()},
            "random": {size: [value / whole[0] for value in some] for size, some in circuit["random"].items()},
        },
        "paths": told,
    }


@dataclass(frozen=True)
class WordPairsResult:
    """Circuits of token types in every task of word pairs, single edges of one task, and whether tasks are done.

    circuits: by task, see `edge_ablation.measure.compare`; single: values of the part "map" of edge ablation.
    """

    circuits: Mapping[str, Mapping[str, Any]]
    single: Mapping[str, Any]
    checks: Mapping[str, TaskCheck]

    def accuracy(self) -> dict[str, dict[str, Interval]]:
        """Accuracy by task and circuit."""
        return {task: {name: right_of(row) for name, row in one["rows"].items()} for task, one in self.circuits.items()}

    @property
    def finding(self) -> str | None:
        """In how many tasks accuracy falls without a part of the circuit, as the sentence says; None where in none."""
        tasks = self.values()["tasks"].values()
        falls = {part: sum(part in one["surely needed"] for one in tasks) for part in PARTS_OF_CIRCUITS}
        said = [f"in {count} without {part} ({PARTS_OF_CIRCUITS[part]})" for part, count in falls.items() if count]
        return f"Accuracy falls, of {len(tasks)} tasks, {', '.join(said)}" if said else None

    def values(self) -> dict[str, Any]:
        """The plain values: accuracies, what falls for certain without a part of the circuit, and the dearest edges.

        The intervals of losses hold together, for all tasks and parts. A task needs a part for certain where its loss
        is above 0 by this interval.
        """
        comparisons = len(PARTS_OF_CIRCUITS) * len(self.circuits)
        losses = {
            task: {
                part: _paired(one["rows"][names.FULL], one["rows"][name], comparisons)
                for part, name in PARTS_OF_CIRCUITS.items()
            }
            for task, one in self.circuits.items()
        }
        accuracy, costs = self.accuracy(), self.single["costs"]
        dearest = sorted(costs, key=lambda name: -costs[name]["log_prob"])[:STRONGEST]
        return {
            "tasks": {
                task: {
                    "queries": queries_of(one["rows"][names.FULL]),
                    "chance": one["chance"],
                    "check": {"done": self.checks[task].done, **vars(self.checks[task])},
                    "accuracy": {name: list(value) for name, value in accuracy[task].items()},
                    "loss": {part: list(loss) for part, loss in losses[task].items()},
                    "CTX+AGG minus AGG-ONLY": list(_paired(one["rows"][names.CTX_AGG], one["rows"][names.AGG_ONLY], 1)),
                    "surely needed": [part for part, loss in losses[task].items() if loss.low > 0],
                }
                for task, one in self.circuits.items()
            },
            "edges": {
                "task": task_of(self.single),
                "tested": len(costs),
                "certain": beyond_chance(costs),
                "dearest": {
                    name: {
                        "nats": [costs[name][end] for end in ("log_prob", "low", "high")],
                        "accuracy": costs[name]["accuracy"],
                        "p": costs[name]["p"],
                    }
                    for name in dearest
                },
            },
        }


def _paired(whole: Mapping[str, Any], ablated: Mapping[str, Any], comparisons: int) -> Interval:
    """What the ablated loses of the whole's accuracy, with an interval over distinct queries.

    comparisons: how many such intervals are to hold together.
    """
    return paired_interval(by_query(whole["right"] * 1.0 - ablated["right"], whole["query"]), comparisons)


def role_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """What a card keeps of the values of a role atlas."""
    layers, of_a_layer = values["shape"]
    heads = {"heads": values["heads"], "of": layers * of_a_layer, "setting": atlas_about(values)}
    return {**heads, "left out": values["left out"], "roles": values["roles"]}


def closest(evidence: Evidence) -> dict[str, Any] | None:
    """The tested head whose effect may be the largest: that whose interval reaches furthest; None if none was tested.

    The intervals hold for all tested heads together.
    """
    effect = evidence.effect
    if not effect.heads:
        return None
    second = evidence.score.halves[1]
    excess = np.asarray(effect.excess, np.float64)
    clusters = evidence.score.clusters_of(second)
    intervals = mean_intervals(excess, comparisons=len(effect.heads), clusters=clusters)
    place = int(intervals.high.argmax())
    return {
        "head": head_name(effect.heads[place]),
        "effect": list(intervals[place]),
        "p": float(evidence.p()[effect.heads[place]]),
    }


@dataclass(frozen=True)
class Card:
    """All that a card knows; parts that were not measured are None."""

    model: str
    described: str
    shape: tuple[int, int]
    request: Mapping[str, Any]
    settings: Mapping[str, Mapping[str, Any]]  # of every part's studies
    refused: Mapping[str, str]  # why a part was not measured
    roles: Mapping[str, Any] | None  # values of the role atlas
    ioi: Mapping[str, Any] | None  # numbers of IOI patching
    word_pairs: WordPairsResult | None
    losses: Losses | None
    provenance: Mapping[str, Any]

    def values(self) -> dict[str, Any]:
        """All of card.json but its sentences."""
        return {
            "schema": SCHEMA,
            "model": self.model,
            "described": self.described,
            "layers": self.shape[0],
            "heads": self.shape[1],
            "request": dict(self.request),
            "settings": {part: dict(settings) for part, settings in self.settings.items()},
            "refused": dict(self.refused),
            "roles": None if self.roles is None else role_values(self.roles),
            "IOI": None if self.ioi is None else ioi_values(self.ioi),
            "word pairs": None if self.word_pairs is None else self.word_pairs.values(),
            "knocked out": None if self.losses is None else self.losses.values(),
            "provenance": dict(self.provenance),
        }
