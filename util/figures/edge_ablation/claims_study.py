"""The five claims about edges on a model: with many distinct queries, or from answers that a notebook has already.

The rules are those of `claims`. Every ablation of every task and draw of donors is a cached record, so that an
interrupted run goes on where it stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from util.edges.ablation import WHOLE, Ablation, windows
from util.edges.edge import CIRCUITS, TYPE_PAIRS
from util.edges.splicing import Store
from util.figures.edge_ablation import claims
from util.figures.edge_ablation import study as edges
from util.figures.edge_ablation.claims import RULE, Claim, Rows, Rule
from util.load_model_and_data import shown_name
from util.prompts import word_pairs
from util.records import cache
from util.records.runs import ModelSource, once

STEM = "edge_claims"
TASKS = ("copying", "capitalization", "country_capital", "present_past", "person_sport")
AMBIGUOUS = "ambiguous_present_past"
COUNTS = (0, 4, 7, 9)  # of 10 demonstrations; with 10 nothing asks for the past tense
# Bytes of a task's keys and values. Those of 250 prompts and their donors on 30 layers are 1.2 GB; with less room, each
# would push out the one that is needed next.
ROOM = 2**31
QUIET = 1.0  # seconds: what takes less was cached, and says nothing about what is left


def verdicts(
    model: str,
    tasks: Mapping[str, Rows],
    circuit: Rows,
    kept: int,
    ambiguous: Mapping[int, Rows],
    halves: Rows,
    layers: int,
    primary: str,
    k: int = 10,
    rule: Rule = RULE,
    askable: Mapping[str, int] | None = None,
) -> list[Claim]:
    """The five claims, in order, from answers as `edges.aligned` gives them, see `claims`.

    tasks: with FULL, AGG-ONLY and CTX+AGG. circuit: with FULL and "found", the circuit searched in the primary task,
    which keeps so many type pairs. ambiguous: with FULL and AGG-ONLY, by how many of k demonstrations are ambiguous.
    askable: by task, how many queries there are for the tokenizer, by default all of the list.
    halves: with FULL and the `edges.windows` at half of the layers, of the primary task.
    """
    has = {name: _task(model, name) for name in {*tasks, primary, AMBIGUOUS}}
    chance = {name: 1 / len(task.outputs) for name, task in has.items()}
    queries = {name: len(task.queries("test")) for name, task in has.items()} | dict(askable or {})
    here = (rule, chance[primary], queries[primary])
    losing = claims.some_lose(tasks, rule, chance, queries)
    late, early = half_windows(layers)
    return [
        claims.few_edges(circuit, kept, len(TYPE_PAIRS), *here),
        losing,
        claims.comes_back(tasks, losing, rule, queries),
        claims.more_if_ambiguous(ambiguous, k, rule, chance[AMBIGUOUS], queries[AMBIGUOUS]),
        claims.first_then(halves, late, early, *here),
    ]


def half_windows(layers: int) -> tuple[str, str]:
    """The names of the `edges.windows` of claim 5: CONTEXT out of the upper half, AGG out of the lower."""
    return f"CONTEXT from {layers // 2}", f"AGG below {layers // 2}"


def _task(model: str, name: str) -> word_pairs.WordPairTask:
    return word_pairs.find(name, trained=model.partition("/")[0] == "embedded")


# ------------------------------------------------------------------------------------------------ measured at length


@dataclass(frozen=True)
class Step:
    """One task under some ablations and one draw of donors; a search has no ablations of its own."""

    title: str
    request: cache.Request
    ablations: Mapping[str, Ablation]

    @property
    def size(self) -> int:
        """How many prompts it runs."""
        return self.request["prompts"] * (len(self.ablations) or 2 * len(TYPE_PAIRS) + 1)


class Progress:
    """Says which step is next, how long they took, and about how long all that are left will take."""

    def __init__(self, sizes: Sequence[int], say: Callable[[str], None] = print) -> None:
        self.sizes, self.say, self.place = list(sizes), say, 0
        self.measured, self.seconds = 0, 0.0

    def run(self, title: str, work: Callable[[], Any]) -> Any:
        """The result of the next step."""
        start = time.monotonic()
        result = work()
        took = time.monotonic() - start
        if took >= QUIET:
            self.measured, self.seconds = self.measured + self.sizes[self.place], self.seconds + took
        self.place += 1
        self.say(f"[{self.place}/{len(self.sizes)}] {title}: {took:.0f} s{self.left()}")
        return result

    def left(self) -> str:
        """About how long the steps that are left take, at the pace of those that were not cached."""
        if not self.measured or self.place == len(self.sizes):
            return ""
        minutes = sum(self.sizes[self.place :]) * self.seconds / self.measured / 60
        return f"; at most about {minutes:.0f} min left" if minutes >= 1 else "; less than a minute left"


def measure(
    model: str = "embedded",
    tasks: Sequence[str] = TASKS,
    prompts: int = 250,
    donor_seeds: Sequence[int] = edges.DONOR_SEEDS,
    primary: str = "capitalization",
    search_prompts: int = 64,
    source: ModelSource = None,
    rule: Rule = RULE,
    folder: str | Path | None = None,
    say: Callable[[str], None] = print,
    **which: Any,
) -> dict[str, Any]:
    """Measure what the claims ask for, and judge them: values for `report.save_values`.

    prompts: of each task, each with a query of its own, or as many as the list has. say: what is called with lines of
    progress. which: see `model_request`. Raises ValueError for tasks and numbers that there are not.
    """
    common = {"two_pass": True, "in_turn": True, **which}

    def asked(task: str, count: int = prompts, split: str = "test", **options: Any) -> cache.Request:
        count = min(count, len(_task(model, task).queries(split)))
        return edges.request(model, task, count, split=split, **options, **common)

    three = {"FULL": WHOLE, **{name: Ablation(kept=CIRCUITS[name]) for name in ("CTX+AGG", "AGG-ONLY")}}
    two = {name: three[name] for name in ("FULL", "AGG-ONLY")}
    searching = Step(f"{primary}, search", asked(primary, search_prompts, "search", donor_seed=donor_seeds[0]), {})
    by_task = {
        task: [Step(f"{task}, donors {d}", asked(task, donor_seed=d), three) for d in donor_seeds] for task in tasks
    }
    by_count = {
        count: [
            Step(f"{count} ambiguous, donors {d}", asked(AMBIGUOUS, ambiguous=count, donor_seed=d), two)
            for d in donor_seeds
        ]
        for count in COUNTS
    }
    plan = [step for steps in (*by_task.values(), *by_count.values()) for step in steps]
    later = len(donor_seeds) * asked(primary)["prompts"] * 4  # FULL, the circuit found, and two windows
    progress = Progress([*(step.size for step in plan), searching.size, later], say)
    source, there = once(source, searching.request), dict[str, int]()

    def answered(steps: Sequence[Step]) -> Rows:
        runs, store = [], Store(ROOM)  # draws of donors share the runs of the prompts
        for step in steps:
            work = partial(edges.answers, step.request, step.ablations, source, folder, store=store)
            runs.append(progress.run(step.title, work))
            there[step.request["dataset"]] = edges.askable(step.request, runs[-1]["FULL"])
        return edges.aligned(runs)

    found = {task: answered(steps) for task, steps in by_task.items()}
    unclear = {count: answered(steps) for count, steps in by_count.items()}
    search = progress.run(searching.title, lambda: edges.search(searching.request, rule.share, source, folder))
    record = edges.records(searching.request, {"FULL": WHOLE}, source, folder)["FULL"]
    layers = record.data["layers"]
    last = {name: ablation for name, ablation in windows(layers).items() if name in half_windows(layers)}
    last |= {"FULL": WHOLE, "found": Ablation(kept=search.kept)}
    rows = progress.run(
        f"{primary}, circuit and layers",
        lambda: edges.over_donors(asked(primary), last, donor_seeds, source, folder, store=Store(ROOM)),
    )
    judged = verdicts(model, found, rows, len(search.pairs), unclear, rows, layers, primary, rule=rule, askable=there)
    return {
        "model": shown_name(model),
        "about": record.provenance["model"],
        "settings": {
            "prompts": prompts, "k": searching.request["k"], "donor_seeds": donor_seeds, "primary": primary,
            "search_prompts": search_prompts,
        },
        "rule": rule,
        "kept": [str(edge) for edge in search.pairs],
        "claims": judged,
    }  # fmt: skip
