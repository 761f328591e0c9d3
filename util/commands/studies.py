"""Studies as JSON describes them: of which figure, with which arguments, and which parts of it are measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from util.card.study import Study as CardStudy
from util.figures.edge_ablation.claims_study import ClaimsStudy
from util.figures.edge_ablation.plan import Plan as EdgePlan
from util.figures.edge_ablation.study import Study as EdgeStudy
from util.figures.forerunner_heads.study import Study as ForerunnerStudy
from util.figures.induction_scores.study import Study as InductionStudy
from util.figures.ioi_patching.study import Study as IOIStudy
from util.figures.role_atlas.study import Study as RoleStudy
from util.figures.toy_induction_head.study import Study as ToyStudy
from util.records.model import Model
from util.records.study import Study

# By the stem of a figure: the class of its study, and that of the plan beside it, which takes the study and more.
STUDIES: Mapping[str, tuple[type[Study], type | None]] = {
    "toy_induction_head": (ToyStudy, None),
    "forerunner_heads": (ForerunnerStudy, None),
    "induction_scores": (InductionStudy, None),
    "ioi_patching": (IOIStudy, None),
    "edge_ablation": (EdgeStudy, EdgePlan),
    "edge_claims": (EdgeStudy, ClaimsStudy),
    "role_atlas": (RoleStudy, None),
    "card": (CardStudy, None),
}


@dataclass(frozen=True)
class Collection:
    """What a file asks for.

    study: a figure's study, or a card; measuring: it, and the plan beside it where there is one; parts: the names of
    those that are asked for, None for all.
    """

    study: Study
    measuring: tuple[Any, ...]
    parts: tuple[str, ...] | None


def read(file: Path, folder: Path | None = None) -> Collection:
    """The study that a JSON file describes; no model is loaded. folder: of its records, default `paths.material()`.

    "study" is one of `STUDIES`; "model" a name, or an object of arguments of `records.model.Model`; "parts" the names
    of some parts, default all; "plan" an object of arguments of the plan beside the study, where it has one; and
    everything else are arguments of the study. Raises ValueError, which names the file, for anything else.
    """
    try:
        return _collection(json.loads(file.read_text(encoding="utf-8")), folder)
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"{file}: {error}") from error


def _collection(given: Any, folder: Path | None) -> Collection:
    if not isinstance(given, dict):
        raise ValueError(f'{given!r:.60} is no object such as {{"study": "forerunner_heads", "model": "smollm2"}}')
    arguments = dict(given)
    name, parts = arguments.pop("study", None), arguments.pop("parts", None)
    if name not in STUDIES:
        raise ValueError(f"study = {name!r}: choose from {', '.join(STUDIES)}")
    if parts is not None and not (isinstance(parts, list) and all(isinstance(part, str) for part in parts)):
        raise ValueError(f"parts = {parts!r}: give a list of names")
    of_study, of_plan = STUDIES[name]
    plan = arguments.pop("plan", {})
    if isinstance(arguments.get("model"), dict):
        arguments["model"] = Model(**arguments["model"])
    study = of_study(**arguments, folder=folder)
    if of_plan is None and plan:
        raise ValueError(f"plan: {name} has none beside its study")
    measuring = (study,) if of_plan is None else (study, of_plan(**{"study": study, **plan}))
    return Collection(study, measuring, None if parts is None else tuple(parts))
