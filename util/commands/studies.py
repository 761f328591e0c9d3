"""Studies as JSON describes them: of which figure, with which arguments, and which parts of it are measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from util.card.study import Study as CardStudy
from util.figures.edge_ablation.plan import Plan as EdgePlan
from util.figures.edge_ablation.study import Study as EdgeStudy
from util.figures.forerunner_heads.plan import Plan as ForerunnerPlan
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
    "forerunner_heads": (ForerunnerStudy, ForerunnerPlan),
    "induction_scores": (InductionStudy, None),
    "ioi_patching": (IOIStudy, None),
    "edge_ablation": (EdgeStudy, EdgePlan),
    "role_atlas": (RoleStudy, None),
    "card": (CardStudy, None),
}
NOT_HERE = {"folder": "name it with --folder", "redo": "give another --folder"}  # arguments that no file has


@dataclass(frozen=True)
class Collection:
    """What a file asks for.

    name: of the study in `STUDIES`; measuring: the study, and the plan beside it where there is one; parts: by name,
    what measures or loads them.
    """

    study: Study
    name: str
    measuring: tuple[Any, ...]
    parts: Mapping[str, Callable[[], Any]]

    @property
    def title(self) -> str:
        """The study and its model."""
        return f"{self.name}, {self.study.model.title}"


def read(file: Path, folder: Path | None = None) -> Collection:
    """The study that a JSON file describes; no model is loaded. folder: of its records, default `paths.material()`.

    "study" is one of `STUDIES`; "model" a name, or an object of arguments of `records.model.Model`; "parts" the names
    of some parts, default all; "plan" an object of arguments of the plan beside the study, where it has one; and
    everything else are arguments of the study. Raises ValueError, which names the file, for anything else.
    """
    try:
        return collection(json.loads(file.read_text(encoding="utf-8")), folder)
    except (OSError, ValueError) as error:
        raise ValueError(f"{file}: {error}") from error


def collection(given: Any, folder: Path | None = None) -> Collection:
    """The study that a JSON object describes, see `read`. Raises ValueError for what there is not."""
    if not isinstance(given, dict):
        raise ValueError(f'{given!r:.60} is no object such as {{"study": "forerunner_heads", "model": "smollm2"}}')
    arguments = dict(given)
    name = arguments.pop("study", None)
    if not isinstance(name, str) or name not in STUDIES:
        raise ValueError(f"study = {name!r}: choose from {', '.join(STUDIES)}")
    for argument, cure in NOT_HERE.items():
        if argument in arguments:
            raise ValueError(f"{argument} is no argument here: {cure}")
    of_study, of_plan = STUDIES[name]
    asked, plan = arguments.pop("parts", None), arguments.pop("plan", {})
    if "model" in arguments:
        arguments["model"] = _model(arguments["model"])
    study = of_study(**arguments, folder=folder)
    measuring: list[Any] = [study]
    if of_plan is not None:
        measuring.append(of_plan(**{"study": study, **_object(plan, "plan")}))
    elif plan:
        raise ValueError(f"plan: {name} has none beside its study")
    parts = {part: partial(_part, one, part) for one in measuring for part in one.parts}
    return Collection(study, name, tuple(measuring), _chosen(parts, asked))


def _part(one: Any, part: str) -> Any:
    return getattr(one, part)()


def _chosen(parts: Mapping[str, Callable[[], Any]], asked: Any) -> dict[str, Callable[[], Any]]:
    """The parts that are asked for, in the order of the notebook; all of them for None."""
    wanted = list(parts) if asked is None else asked
    known = isinstance(wanted, list) and wanted and all(isinstance(part, str) and part in parts for part in wanted)
    if not known:
        raise ValueError(f"parts = {asked!r}: give a list of {', '.join(parts)}")
    return {part: parts[part] for part in parts if part in wanted}


def _model(given: Any) -> Model:
    """A model by its name, or by an object of its arguments."""
    arguments = {"name": given} if isinstance(given, str) else _object(given, "model")
    return Model(**arguments)


def _object(given: Any, name: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise ValueError(f"{name} = {given!r:.60}: give an object of its arguments")
    return given
