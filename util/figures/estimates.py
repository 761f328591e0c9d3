"""Estimates of every figure's study: seconds, memory and disk, before anything is measured.

What a study is made of is said in the folder of its figure, in `costs.py`. See `records.estimates`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Any

from tqdm import tqdm

from util.engine.call import UnsupportedModel
from util.figures import FIGURES
from util.prompts.prompt import UnsupportedTokenizer
from util.records import estimates
from util.records.estimates import Estimate, Part, Shape, Speed
from util.records.model import Model
from util.records.study import Study


def parts(asked: Any, shape: Shape) -> dict[str, Part]:
    """The parts of a figure's study, or of the plan beside it, by the names of their methods.

    Raises ValueError for anything else.
    """
    names = type(asked).__module__.split(".")
    if names[:2] != ["util", "figures"] or names[2] not in FIGURES:
        raise ValueError(f"{type(asked).__name__} is no study of a figure; there are {', '.join(FIGURES)}")
    costs = importlib.import_module(f"util.figures.{names[2]}.costs")
    function = getattr(costs, "parts" if isinstance(asked, Study) else "plan_parts", None)
    return {} if function is None else dict(function(asked, shape))


def estimate(
    asked: Any,
    names: Sequence[str] | None = None,
    *,
    speed: Speed | None = None,
    shape: Shape | None = None,
) -> Estimate:
    """What a study of a figure will take. Parts whose records are there count nothing.

    asked: a figure's study, the plan beside it, or several of them, on one model. names: the parts that are asked for;
    None: all. speed: None measures it, for which the model is loaded. shape: None takes that of the model, of its
    configuration where it is not loaded. Raises ValueError for parts that there are not, and what loading raises.
    """
    several = _several(asked)
    model = model_of(several[0])
    if speed is None:
        speed = Speed.measured(model.pair[0])
    shape = Shape.of_model(model) if shape is None else shape
    return estimates.estimate(_chosen(several, names, shape), model, shape, speed)


def _several(asked: Any) -> list[Any]:
    return list(asked) if isinstance(asked, list | tuple) else [asked]


def _chosen(several: Sequence[Any], names: Sequence[str] | None, shape: Shape) -> dict[str, Part]:
    """The parts of some studies that are asked for, by name; all of them for None. Raises ValueError for others."""
    found = {name: part for one in several for name, part in parts(one, shape).items()}
    if wrong := [name for name in names or () if name not in found]:
        raise ValueError(f"parts = {wrong}: there are {', '.join(found)}")
    return found if names is None else {name: found[name] for name in names}


def ahead(asked: Any, names: Sequence[str] | None = None) -> list[str]:
    """What a study will still take, in words, see `lines`; [] where all its records are there: no model is loaded then.

    [], too, for a model that a part cannot be measured on: that is for the part to say.
    """
    several = _several(asked)
    model = model_of(several[0])
    try:
        shape = Shape.of_model(model)
        chosen = _chosen(several, names, shape)
        if all(part.is_stored for part in chosen.values()):
            return []
        return estimates.estimate(chosen, model, shape, Speed.measured(model.pair[0])).lines
    except (UnsupportedModel, UnsupportedTokenizer):
        return []


def announce(*asked: Any) -> None:
    """Say on stderr what a study, and the plan beside it, will still take: where progress bars are shown, as they are.

    So the outputs of a notebook stay what they are, whatever the machine.
    """
    with tqdm(total=0, bar_format="{desc}", leave=False) as bar:
        are_shown = not bar.disable
    if are_shown and (told := ahead(asked)):
        tqdm.write("\n".join(told), file=sys.stderr)


def lines(asked: Any, names: Sequence[str] | None = None, *, speed: Speed | None = None) -> list[str]:
    """What a study will take, in words: one line of all, then one for each part that takes a tenth of it or more."""
    return estimate(asked, names, speed=speed).lines


def model_of(asked: Any) -> Model:
    """The model of a study, or of the study that a plan is about."""
    model: Model = asked.model if isinstance(asked, Study) else asked.study.model
    return model
