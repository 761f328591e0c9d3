"""The card of a model: the studies of the figures, one after the other, in sizes that fit into the time."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field

from util.card import budget
from util.card.budget import IOI, KNOCKED_OUT, PARTS, ROLES, SIZES, WORD_PAIRS, Pace, Shape, Size
from util.card.costs import EVERY, CostStudy
from util.card.results import IOI as IOIResult
from util.card.results import Card, Losses, Taken
from util.card.results import WordPairs as WordPairsResult
from util.engine import memory
from util.engine.attention import support
from util.engine.batches import TOKEN_BUDGET
from util.engine.call import UnsupportedModel
from util.figures.edge_ablation.plan import Plan
from util.figures.edge_ablation.study import Study as EdgeStudy
from util.figures.ioi_patching.measures import carriers
from util.figures.ioi_patching.study import Study as IOIStudy
from util.figures.role_atlas.results import Atlas
from util.figures.role_atlas.study import Study as RoleStudy
from util.prompts.prompt import UnsupportedTokenizer
from util.records import cache, shards, study
from util.records.checked import Natural, Number, checked
from util.records.estimates import PROBE_ROWS, Speed
from util.records.provenance import code_digest
from util.roles.rules import Role
from util.stats.heads import Head, heads_where

PRIMARY_TASK = "capitalization"  # of the map of single edges, as in notebook 04
Minutes = Annotated[Number, Field(gt=0)]


@checked
class Study(study.Study):
    """Which circuits of in-context learning a model has: roles, IOI, word pairs, and what the found heads are worth.

    minutes: what all parts together may take. The parts are studies of their own, with records of their own: what a
    card or a notebook has measured with the same settings is not measured again. Sizes of a part share no records, so
    that a part that grows with the minutes is measured anew. Which size of each part is measured is decided before it
    begins and kept as a record, so that a card that is interrupted goes on as it was planned. On another machine, or
    with other code, it is decided again.
    """

    minutes: Minutes = 20.0
    seed: Natural = 0

    stem = "card"
    parts = ("card",)

    @property
    def own_request(self) -> Mapping[str, Any]:
        return {"schema": 1, "method_version": 3, "minutes": float(self.minutes), "seed": self.seed}

    @property
    def texts(self) -> Iterable[str]:
        """None of its own: the parts have prompts."""
        return []

    @property
    def _places(self) -> dict[str, Any]:
        return {"folder": self.folder, "redo": self.redo}

    # -------------------------------------------------------------------------------------------- the parts

    def roles_study(self, **settings: Any) -> RoleStudy:
        """The study of roles, of a size."""
        return RoleStudy(self.model, seed=self.seed, untrained_control=False, **settings, **self._places)

    def ioi_study(self, **settings: Any) -> IOIStudy:
        """The study of IOI, of a size."""
        return IOIStudy(self.model, seed=self.seed, untrained_control=False, **settings, **self._places)

    def word_pairs_plan(self, **settings: Any) -> Plan:
        """The studies of word pairs, of a size."""
        of_one = EdgeStudy(self.model, PRIMARY_TASK, seed=self.seed, two_pass=True, **settings, **self._places)
        return Plan(of_one, untrained_control=False)

    def cost_study(self, **settings: Any) -> CostStudy:
        """The study of what found heads are worth, of a size."""
        return CostStudy(self.model, seed=self.seed, places=self._places, **settings)

    def roles(self, **settings: Any) -> Atlas:
        """Returns the roles of all heads."""
        return self.roles_study(**settings).atlas()

    def ioi(self, **settings: Any) -> IOIResult:
        """Returns what indirect object identification rests on."""
        of_pairs = self.ioi_study(**settings)
        parts: tuple[Callable[[], Any], ...] = (of_pairs.population, of_pairs.curve, of_pairs.paths)
        return IOIResult(*shards.each(lambda part: part(), parts))

    def word_pairs(self, **settings: Any) -> WordPairsResult:
        """Returns the circuits of word pairs, and the single edges of one task."""
        plan = self.word_pairs_plan(**settings)
        parts: tuple[Callable[[], Any], ...] = (partial(plan.circuits, written=False), plan.single_edges)
        return WordPairsResult(*shards.each(lambda part: part(), parts))

    def losses(self, atlas: Atlas, ioi: IOIResult | None, **settings: Any) -> Losses | None:
        """Returns what the model loses without the heads that have a role; None where none has one.

        ioi: the heads that count in it are no controls; None where it was not measured.
        """
        sets: dict[str, list[Head]] = {EVERY: list(atlas.heads)}
        for role in (Role.INDUCTION, Role.PREVIOUS_TOKEN):
            sets[f"{role} heads"] = [one.head for one in atlas.roles.get(role, [])]
        if not atlas.heads:
            return None
        counted = [] if ioi is None else heads_where(carriers(ioi.population.noised))
        return self.cost_study(**settings).losses(sets, atlas.shape, counted)

    # -------------------------------------------------------------------------------------------- all of them

    @cached_property
    def shape(self) -> Shape:
        """Layers and heads of the model, which is loaded."""
        prepared = support(self.pair[0])
        return Shape(len(prepared.layers), prepared.heads)

    def estimates(self, pace: Pace) -> dict[str, list[float]]:
        """The seconds of every size of each part, smallest first."""
        return {part: [budget.seconds(part, size, self.shape, pace) for size in SIZES[part]] for part in PARTS}

    def prices(self, pace: Pace) -> dict[str, list[float]]:
        """The same, where sizes up to the largest one that was measured before cost nothing."""
        each = self.estimates(pace)
        for part in PARTS:
            there = [place for place, size in enumerate(SIZES[part]) if self._taken_before(part, size)]
            for place in range(max(there, default=-1) + 1):
                each[part][place] = 0.0
        return each

    @cached_property
    def pace(self) -> Pace:
        """How fast the model runs, here and now."""
        measured = Speed.measured(self.pair[0])
        return Pace(measured.tokens, measured.passes)

    @cached_property
    def _machine(self) -> dict[str, Any]:
        """What decides how fast a part is measured, as far as that is known before the model is loaded."""
        on_gpu = torch.cuda.is_available() and self.model.device != "cpu"
        return {
            "device": torch.cuda.get_device_name() if on_gpu else platform.machine(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "code": code_digest(),
        }

    def check(self) -> None:
        """Raises ValueError for settings that a part refuses, before the model is loaded."""
        for part, build in {
            ROLES: self.roles_study,
            IOI: self.ioi_study,
            WORD_PAIRS: self.word_pairs_plan,
            KNOCKED_OUT: self.cost_study,
        }.items():
            for size in SIZES[part]:
                build(**size.settings)

    def plan_lines(self) -> list[str]:
        """What is going to be measured, how long that takes, and in how much memory; the model is loaded."""
        needed = memory.estimate(self.pair[0], [budget.CLASSIFIED] * PROBE_ROWS, TOKEN_BUDGET)
        planned = self.planned()
        fitting = sum(seconds for size, seconds in planned.values() if size)
        return [
            f"{self.model.title}: {self.pace.speed:,.0f} tokens a second here; {needed}",
            *(f"{part}: {_planned(size, seconds)}" for part, (size, seconds) in planned.items()),
            f"in all about {fitting / 60:.1f} of {self.minutes:g} minutes; records are not measured again",
        ]

    def planned(self) -> dict[str, tuple[str | None, float]]:
        """Returns the size of each part that fits into the minutes, and the seconds it is expected to take.

        None where no size fits, and the seconds of the smallest; 0 seconds for what was measured before.
        """
        each = self.prices(self.pace)
        chosen = budget.plan(60 * self.minutes, PARTS, each)
        return {
            part: (None, each[part][0]) if place is None else (SIZES[part][place].name, each[part][place])
            for part, place in chosen.items()
        }

    def card(self, say: Callable[[str], None] = print) -> Card:
        """Returns the card; measures what is not there yet.

        say: is told what is going to be measured, and how long each part took.
        """
        found: dict[str, Any] = dict.fromkeys(PARTS)
        taken: list[Taken] = []
        first = self._decision(PARTS[0], PARTS, [], None)
        pace = Pace(float(first["speed"]), float(first["of_pass"]))
        for number, part in enumerate(PARTS):
            if part == KNOCKED_OUT and (found[ROLES] is None or not found[ROLES].heads):
                missing = "the roles of heads were not measured" if found[ROLES] is None else "no head has a role"
                taken.append(Taken(part, None, {}, 0.0, None, missing))
                say(f"{part}: left out, {missing}")
                continue
            decision = self._decision(part, PARTS[number:], taken, pace)
            if decision["size"] is None:
                say(f"{part}: left out, it needs about {decision['estimated'] / 60:.1f} minutes")
                taken.append(Taken(part, None, {}, decision["estimated"], None))
                continue
            size = next(size for size in SIZES[part] if size.name == decision["size"])
            say(f"{part}: {_planned(size.name, 0.0 if decision['there'] else decision['estimated'])}")
            try:
                found[part], seconds, resumed = self._timed(part, size, found)
            except (UnsupportedModel, UnsupportedTokenizer) as error:  # such as names that the tokenizer splits
                taken.append(Taken(part, size.name, size.settings, decision["estimated"], None, str(error)))
                say(f"{part}: cannot be measured on this model: {error}")
                continue
            one = Taken(part, size.name, size.settings, decision["estimated"], seconds, "", resumed, decision["there"])
            taken.append(one)
            said = "read from records" if one.there else f"done after {seconds:.0f} s"
            say(f"{part}: {said}{', the rest of an interrupted run' * resumed}")
        described = next(iter(self.origins.values()))["model"]
        provenance = {
            name: value for name, value in next(iter(self.origins.values())).items() if name != "prompt_digest"
        }
        return Card(
            self.model.title,
            described,
            (int(first["layers"]), int(first["heads"])),
            self.request,
            float(self.minutes),
            pace.speed,
            tuple(taken),
            found[ROLES],
            found[IOI],
            found[WORD_PAIRS],
            found[KNOCKED_OUT],
            provenance,
        )

    def _measured(self, part: str, settings: Mapping[str, Any], found: Mapping[str, Any]) -> Any:
        if part == KNOCKED_OUT:
            return self.losses(found[ROLES], found[IOI], **settings)
        measure: Mapping[str, Callable[..., Any]] = {ROLES: self.roles, IOI: self.ioi, WORD_PAIRS: self.word_pairs}
        return measure[part](**settings)

    # -------------------------------------------------------------------------------------------- decisions

    def _decision(
        self, part: str, ahead: Sequence[str], taken: Sequence[Taken], known: Pace | None
    ) -> Mapping[str, Any]:
        """Which size of a part is measured, with the time that is left; kept as a record.

        ahead: this part and those after it; taken: those before it; known: the pace, None to measure it.
        """

        def decide() -> dict[str, Any]:
            pace = self.pace if known is None else known
            each, prices = self.estimates(pace), self.prices(pace)
            slower = _slower(taken)
            scaled = {name: [slower * seconds for seconds in prices[name]] for name in ahead}
            spent = sum(one.spent for one in taken)
            place = budget.plan(60 * self.minutes - spent, ahead, scaled)[part]
            if any(one.size is None for one in taken):  # parts are left out from the end, as the plan said beforehand
                place = None
            return {
                "size": None if place is None else SIZES[part][place].name,
                "estimated": slower * each[part][place or 0],
                "there": place is not None and self._taken_before(part, SIZES[part][place]),
                "speed": pace.speed,
                "of_pass": pace.of_pass,
                "layers": self.shape.layers,
                "heads": self.shape.heads,
            }

        return self.record({"part": "decision", "about": part, "machine": self._machine}, decide).data

    # -------------------------------------------------------------------------------------------- times

    def _timed(self, part: str, size: Size, found: Mapping[str, Any]) -> tuple[Any, float, bool]:
        """Measures a part, or loads it. Returns its result, the seconds that it took when it was measured, and whether
        these are a rest: where a run was interrupted, they lack what it took until then.
        """
        resumed = False
        if not self._taken_before(part, size):
            resumed = self._begin(part, size)
        start = time.monotonic()
        result = self._measured(part, size.settings, found)
        seconds = time.monotonic() - start
        kept = self.record(self._seconds_of(part, size), lambda: {"seconds": seconds, "resumed": resumed}).data
        self._mark(part, size).unlink(missing_ok=True)
        return result, float(kept["seconds"]), bool(kept["resumed"])

    def _begin(self, part: str, size: Size) -> bool:
        """Mark that a part is measured from now on. Returns whether that is only the rest of it, or a share."""
        begun, share = self._mark(part, size).exists(), shards.active()
        if share is None:
            self.record(self._of_size("begun", part, size), dict)
            return begun
        if share.shard is None:  # nothing is measured, it is only looked at
            return begun
        with share.measuring():  # every shard may be the first
            self.record(self._of_size("begun", part, size), dict)
        return begun or share.shard.of > 1

    def _taken_before(self, part: str, size: Size) -> bool:
        """Whether any card of this model and seed, whatever its minutes, has measured a part in this size."""
        request = {**self.request, **self._seconds_of(part, size)}
        return not self.redo and cache.load(request, self.place, self.expected) is not None

    def _mark(self, part: str, size: Size) -> Path:
        """The file of the record that is there from the start of a measurement to its end."""
        return cache.record_path({**self.request, **self._of_size("begun", part, size)}, self.place)

    def _seconds_of(self, part: str, size: Size) -> dict[str, Any]:
        """The request of the seconds of a part; other code may have to measure it again."""
        return {**self._of_size("seconds", part, size), "code": self._machine["code"]}

    def _of_size(self, what: str, part: str, size: Size) -> dict[str, Any]:
        """The request of what is known of a size of a part, whatever the minutes."""
        settings = {name: list(value) if isinstance(value, tuple) else value for name, value in size.settings.items()}
        return {"part": what, "about": part, "settings": settings, "minutes": None}


def _planned(size: str | None, seconds: float) -> str:
    """What is planned of a part, in words. seconds: 0 where it was measured before."""
    if size is None:
        return f"left out, it needs about {seconds:.0f} s"
    return f"{size}, about {seconds:.0f} s" if seconds else f"{size}, measured before"


def _slower(taken: Sequence[Taken]) -> float:
    """How many times their estimates parts took that were measured from start to end; 1 without any, or for less.

    That one part took less than expected is no reason to expect the same of others, which run other code.
    """
    measured = [one for one in taken if one.seconds is not None and not one.is_read and not one.resumed]
    expected = sum(one.estimated for one in measured)
    return max(1.0, sum(one.seconds or 0.0 for one in measured) / expected) if expected else 1.0
