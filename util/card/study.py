"""The card of a model: the studies of the figures, one after the other, in sizes that fit into the time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import Annotated, Any

from pydantic import Field

from util.card import budget
from util.card.budget import IOI, KNOCKED_OUT, PARTS, ROLES, SIZES, WORD_PAIRS, Shape
from util.card.costs import EVERY, CostStudy
from util.card.results import IOI as IOIResult
from util.card.results import Card, Losses, Taken
from util.card.results import WordPairs as WordPairsResult
from util.engine import memory
from util.engine.attention import support
from util.engine.batches import TOKEN_BUDGET, Row, forward, run_rows
from util.engine.call import UnsupportedModel
from util.figures.edge_ablation.plan import Plan
from util.figures.edge_ablation.study import Study as EdgeStudy
from util.figures.ioi_patching.study import Study as IOIStudy
from util.figures.role_atlas.results import Atlas
from util.figures.role_atlas.study import Study as RoleStudy
from util.records import shards, study
from util.records.checked import Natural, Number, checked
from util.roles.rules import Role
from util.stats.heads import Head

PRIMARY_TASK = "capitalization"  # of the map of single edges, as in notebook 04
PROBE_ROWS, PROBE_TOKENS, PROBE_RUNS = 32, 64, 3  # of the run that the speed is measured on
Minutes = Annotated[Number, Field(gt=0)]


@checked
class Study(study.Study):
    """Which circuits of in-context learning a model has: roles, IOI, word pairs, and what the found heads are worth.

    minutes: what all parts together may take. The parts are studies of their own, with records of their own: what a
    card or a notebook has measured with the same settings is not measured again. Which size of each part is measured is
    decided before it begins and kept as a record, so that a card that is interrupted goes on as it was planned.
    """

    minutes: Minutes = 20.0
    seed: Natural = 0

    stem = "card"
    parts = ("card",)

    @property
    def own_request(self) -> Mapping[str, Any]:
        return {"schema": 1, "method_version": 2, "minutes": float(self.minutes), "seed": self.seed}

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

    def losses(self, atlas: Atlas, **settings: Any) -> Losses | None:
        """Returns what the model loses without the heads that have a role; None where none has one."""
        sets: dict[str, list[Head]] = {EVERY: list(atlas.heads)}
        for role in (Role.INDUCTION, Role.PREVIOUS_TOKEN):
            sets[f"{role} heads"] = [one.head for one in atlas.roles.get(role, [])]
        return self.cost_study(**settings).losses(sets, atlas.shape) if atlas.heads else None

    # -------------------------------------------------------------------------------------------- all of them

    @cached_property
    def shape(self) -> Shape:
        """Layers and heads of the model, which is loaded."""
        prepared = support(self.pair[0])
        return Shape(len(prepared.layers), prepared.heads)

    def estimates(self, speed: float) -> dict[str, list[float]]:
        """The seconds of every size of each part, smallest first. speed: tokens a second."""
        return {part: [budget.seconds(part, size, self.shape, speed) for size in SIZES[part]] for part in PARTS}

    @cached_property
    def speed(self) -> float:
        """How many tokens run through the whole model in a second, here and now."""
        model = self.pair[0]
        vocabulary = model.config.get_text_config(decoder=True).vocab_size
        row = [
            Row(tuple((7 * place + number) % vocabulary for place in range(PROBE_TOKENS)))
            for number in range(PROBE_ROWS)
        ]

        def seconds() -> float:
            begun = time.perf_counter()
            run_rows(model, row, lambda batch: forward(model, batch))
            return time.perf_counter() - begun

        seconds()  # the first run makes what later ones find
        return PROBE_ROWS * PROBE_TOKENS / min(seconds() for _ in range(PROBE_RUNS))

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
            f"{self.model.title}: {self.speed:,.0f} tokens a second here; {needed}",
            *(
                f"{part}: {size}, about {seconds:.0f} s"
                if size
                else f"{part}: left out, it needs about {seconds:.0f} s"
                for part, (size, seconds) in planned.items()
            ),
            f"in all about {fitting / 60:.1f} of {self.minutes:g} minutes; records are not measured again",
        ]

    def planned(self) -> dict[str, tuple[str | None, float]]:
        """Returns the size of each part that fits into the minutes, and the seconds it is expected to take."""
        each = self.estimates(self.speed)
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
        for number, part in enumerate(PARTS):
            if part == KNOCKED_OUT and (found[ROLES] is None or not found[ROLES].heads):
                missing = "the roles of heads were not measured" if found[ROLES] is None else "no head has a role"
                taken.append(Taken(part, None, {}, 0.0, None, missing))
                say(f"{part}: left out, {missing}")
                continue
            decision = self._decision(part, PARTS[number:], taken, first["speed"])
            if decision["size"] is None:
                say(f"{part}: left out, it needs about {decision['estimated'] / 60:.1f} minutes")
                taken.append(Taken(part, None, {}, decision["estimated"], None))
                continue
            size = next(size for size in SIZES[part] if size.name == decision["size"])
            say(f"{part}: {size.name}, about {decision['estimated']:.0f} s")
            begun = time.monotonic()
            try:
                found[part] = self._measured(part, size.settings, found)
            except (UnsupportedModel, ValueError) as error:  # such as names that the tokenizer splits
                taken.append(Taken(part, size.name, size.settings, decision["estimated"], None, str(error)))
                say(f"{part}: cannot be measured on this model: {error}")
                continue
            seconds = self._seconds(part, time.monotonic() - begun)
            taken.append(Taken(part, size.name, size.settings, decision["estimated"], seconds))
            say(f"{part}: done after {seconds:.0f} s")
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
            float(first["speed"]),
            tuple(taken),
            found[ROLES],
            found[IOI],
            found[WORD_PAIRS],
            found[KNOCKED_OUT],
            provenance,
        )

    def _measured(self, part: str, settings: Mapping[str, Any], found: Mapping[str, Any]) -> Any:
        if part == KNOCKED_OUT:
            return self.losses(found[ROLES], **settings)
        measure: Mapping[str, Callable[..., Any]] = {ROLES: self.roles, IOI: self.ioi, WORD_PAIRS: self.word_pairs}
        return measure[part](**settings)

    # -------------------------------------------------------------------------------------------- decisions

    def _decision(
        self, part: str, ahead: Sequence[str], taken: Sequence[Taken], known: float | None
    ) -> Mapping[str, Any]:
        """Which size of a part is measured, with the time that is left; kept as a record.

        ahead: this part and those after it; taken: those before it; known: the speed, None to measure it.
        """

        def decide() -> dict[str, Any]:
            speed = self.speed if known is None else float(known)
            each = self.estimates(speed)
            spent = sum(one.seconds or 0.0 for one in taken)
            measured = [one for one in taken if one.seconds is not None and not one.is_read]
            expected = sum(one.estimated for one in measured)
            slower = sum(one.seconds or 0.0 for one in measured) / expected if expected else 1.0
            scaled = {name: [slower * seconds for seconds in each[name]] for name in ahead}
            place = budget.plan(60 * self.minutes - spent, ahead, scaled)[part]
            if any(one.size is None for one in taken):  # parts are left out from the end, as the plan said beforehand
                place = None
            return {
                "size": None if place is None else SIZES[part][place].name,
                "estimated": scaled[part][place or 0],
                "speed": speed,
                "layers": self.shape.layers,
                "heads": self.shape.heads,
            }

        return self.record({"part": "decision", "about": part}, decide).data

    def _seconds(self, part: str, now: float) -> float:
        """What a part took, as it was kept when it was done first."""
        return float(self.record({"part": "seconds", "about": part}, lambda: {"seconds": now}).data["seconds"])
