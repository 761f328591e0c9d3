"""The card of a model: the studies of the figures, one after the other, in two fixed sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from tqdm import tqdm

from util.card.costs import EVERY, CostStudy
from util.card.results import IOI, KNOCKED_OUT, PARTS, ROLES, WORD_PAIRS, Card, Losses, WordPairsResult, closest
from util.engine.attention import support
from util.engine.call import UnsupportedModel
from util.figures.edge_ablation.measure import compare
from util.figures.ioi_patching.numbers import carriers, intervals
from util.figures.role_atlas.show import place_of
from util.prompts.prompt import UnsupportedTokenizer
from util.roles.pair_task import task_checks
from util.roles.rules import Role
from util.stats.heads import Head, heads_where
from util.study import base as study
from util.study.checked import Natural, checked
from util.study.study import Study as FigureStudy

Size = Literal["small", "full"]
SIZES: Mapping[Size, Mapping[str, Mapping[str, Any]]] = {  # arguments of the parts' studies
    "small": {
        ROLES: {
            "datasets": ("trec",),
            "ks": (4,),
            "prompts": 8,
            "sequences": 12,
            "pairs": 32,
            "word_prompts": 4,
            "intact": 8,
        },
        IOI: {"prompts": 12, "path_heads": 6, "random_sets": 1},
        WORD_PAIRS: {"prompts": 8, "donor_seeds": (0,)},
        KNOCKED_OUT: {"queries": 10, "sequences": 6, "texts": 8, "control_sets": 2},
    },
    "full": {
        ROLES: {"prompts": 16, "sequences": 16, "pairs": 48, "word_prompts": 8, "intact": 16},
        IOI: {"prompts": 32, "path_heads": 10, "random_sets": 3},
        WORD_PAIRS: {"prompts": 32, "donor_seeds": (0,)},
        KNOCKED_OUT: {"queries": 16, "sequences": 8, "texts": 16, "control_sets": 3},
    },
}


@checked
class Study(study.Study):
    """Which circuits of in-context learning a model has: roles, IOI, word pairs, and what the found heads are worth.

    size: how much is measured, see `SIZES`. The parts are studies of their own, with records of their own, so that a
    card that is interrupted goes on where it stopped.
    """

    size: Size = "full"
    seed: Natural = 0

    stem = "card"

    @property
    def own_request(self) -> Mapping[str, Any]:
        return {"schema": 2, "method_version": 3, "size": self.size, "seed": self.seed}

    @property
    def texts(self) -> Iterable[str]:
        """None of its own: the parts have prompts."""
        return []

    @property
    def _places(self) -> dict[str, Any]:
        return {"folder": self.folder, "redo": self.redo}

    # -------------------------------------------------------------------------------------------- the parts

    def roles_study(self, **settings: Any) -> FigureStudy:
        """The study of roles, of a size."""
        return FigureStudy(
            "role_atlas", self.model, seed=self.seed, untrained_control=False, **settings, **self._places
        )

    def ioi_study(self, **settings: Any) -> FigureStudy:
        """The study of IOI, of a size."""
        fixed = {"seed": self.seed, "untrained_control": False, **self._places}
        return FigureStudy("ioi_patching", self.model, **settings, **fixed)

    def word_pairs_study(self, **settings: Any) -> FigureStudy:
        """The study of word pairs, of a size; single edges are of its primary task, as in notebook 04."""
        return FigureStudy(
            "edge_ablation", self.model, seed=self.seed, untrained_control=False, **settings, **self._places
        )

    def cost_study(self, **settings: Any) -> CostStudy:
        """The study of what found heads are worth, of a size."""
        return CostStudy(self.model, seed=self.seed, places=self._places, **settings)

    def roles(self, **settings: Any) -> dict[str, Any]:
        """Returns the values of the role atlas; of roles without heads also which tested head comes closest."""
        of_roles = self.roles_study(**settings)
        values = of_roles.values_of("atlas")
        for one in of_roles.arrays("atlas")["evidence"]:
            found = values["roles"][str(one.role)]
            found["closest"] = None if found["heads"] else closest(one)
        return values

    def ioi(self, **settings: Any) -> dict[str, Any]:
        """Returns what indirect object identification rests on: the numbers of all pairs, sets of heads, and paths."""
        found = self.ioi_study(**settings)
        measured = found.numbers("population") | found.numbers("circuit") | found.numbers("paths")
        return {"request": found.request, "model": found.description, **measured}

    def word_pairs(self, **settings: Any) -> WordPairsResult:
        """Returns the circuits of word pairs, the single edges of one task, and which tasks are done."""
        study = self.word_pairs_study(**settings)
        checks = task_checks(self.model, self.seed, **self._places)
        circuits = {task: compare(study, task) for task in study.settings.tasks}
        single = {"request": study.request, **study.numbers("map"), "model": study.description}
        return WordPairsResult(circuits, single, checks)

    def losses(self, roles: Mapping[str, Any], ioi: Mapping[str, Any] | None, **settings: Any) -> Losses:
        """Returns what the model loses without the heads that have a role, of which there is one at least.

        roles: see `roles`. ioi: the heads that count in it are no controls; None where it was not measured.
        """
        of = {role: list(map(place_of, one["heads"])) for role, one in roles["roles"].items()}
        sets: dict[str, list[Head]] = {EVERY: sorted({head for heads in of.values() for head in heads})}
        for role in (Role.INDUCTION, Role.PREVIOUS_TOKEN):
            sets[f"{role} heads"] = of.get(role, [])
        counted = [] if ioi is None else heads_where(carriers(intervals(ioi["population"]["noised"])))
        return self.cost_study(**settings).losses(sets, tuple(roles["shape"]), counted)

    # -------------------------------------------------------------------------------------------- all of them

    def check(self) -> None:
        """Raises ValueError for settings that a part refuses, before the model is loaded."""
        self.roles_study(**SIZES[self.size][ROLES])
        self.ioi_study(**SIZES[self.size][IOI])
        self.word_pairs_study(**SIZES[self.size][WORD_PAIRS])
        self.cost_study(**SIZES[self.size][KNOCKED_OUT])

    def card(self) -> Card:
        """Returns the card; measures what is not there yet. A part that this model refuses is left out."""
        found: dict[str, Any] = dict.fromkeys(PARTS)
        refused: dict[str, str] = {}
        model = self.record({"part": "model"}, self._measure_shape)
        for part in (bar := tqdm(PARTS, "card", unit="part", leave=False)):
            bar.set_postfix_str(part)
            settings = SIZES[self.size][part]
            try:
                if part == ROLES:
                    found[part] = self.roles(**settings)
                elif part == IOI:
                    found[part] = self.ioi(**settings)
                elif part == WORD_PAIRS:
                    found[part] = self.word_pairs(**settings)
                elif found[ROLES] is None:
                    refused[part] = "the roles of heads were not measured"
                elif not found[ROLES]["heads"]:
                    refused[part] = "no head has a role"
                else:
                    found[part] = self.losses(found[ROLES], found[IOI], **settings)
            except (UnsupportedModel, UnsupportedTokenizer) as error:  # such as names that the tokenizer splits
                refused[part] = str(error)
        origin = {name: value for name, value in model.provenance.items() if name != "prompt_digest"}
        return Card(
            self.model.title,
            origin["model"],
            (int(model.data["layers"]), int(model.data["heads"])),
            self.request,
            SIZES[self.size],
            refused,
            found[ROLES],
            found[IOI],
            found[WORD_PAIRS],
            found[KNOCKED_OUT],
            origin,
        )

    def _measure_shape(self) -> dict[str, Any]:
        prepared = support(self.pair[0])
        return {"layers": len(prepared.layers), "heads": prepared.heads}
