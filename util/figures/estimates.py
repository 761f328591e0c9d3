"""Estimates of every figure's study: seconds, memory and disk, before anything is measured.

What a study is made of is said in the folder of its figure, in `costs.py`. See `records.estimates`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from util.figures import FIGURES
from util.records import estimates
from util.records.estimates import Estimate, Part, Shape, Speed
from util.records.model import Model


def parts(asked: Any, shape: Shape) -> Mapping[str, Part]:
    """The parts of a figure's study (of edge ablation its `Plan`), by name. Raises ValueError for anything else."""
    stem = type(asked).__module__.split(".")[2:3]
    if not stem or stem[0] not in FIGURES:
        raise ValueError(f"{type(asked).__name__} is no study of a figure; there are {', '.join(FIGURES)}")
    found: Mapping[str, Part] = importlib.import_module(f"util.figures.{stem[0]}.costs").parts(asked, shape)
    return found


def estimate(
    asked: Any,
    names: Sequence[str] | None = None,
    *,
    speed: Speed | None = None,
    shape: Shape | None = None,
    more: Mapping[str, Part] | None = None,
) -> Estimate:
    """What a study of a figure will take. Parts whose records are there count nothing.

    asked: a figure's study, or the `Plan` of edge ablation. names: the parts that are asked for; None: all that the
    notebook asks of it. more: further parts, such as those of grids. speed: None measures it, for which the model is
    loaded. shape: None takes that of the model, of its configuration where it is not loaded. Raises ValueError for
    parts that there are not, and what loading raises.
    """
    model = model_of(asked)
    if speed is None:
        speed = Speed.measured(model.pair[0])
    shape = Shape.of_model(model) if shape is None else shape
    found = {**parts(asked, shape), **(more or {})}
    if wrong := [name for name in names or () if name not in found]:
        raise ValueError(f"parts = {wrong}: there are {', '.join(found)}")
    chosen = found if names is None else {name: found[name] for name in names}
    return estimates.estimate(chosen, model, shape, speed)


def lines(asked: Any, names: Sequence[str] | None = None, *, speed: Speed | None = None) -> list[str]:
    """What a study will take, in words: one line of all, then one for each part that takes a tenth of it or more."""
    told = estimate(asked, names, speed=speed)
    long = {name: seconds for name, seconds in told.parts.items() if seconds >= 0.1 * told.seconds > 0}
    return [told.line, *(f"    {name}: about {estimates.in_words(seconds)}" for name, seconds in long.items())]


def model_of(asked: Any) -> Model:
    """The model of a study, or of the study of a `Plan`."""
    model: Model = asked.model if hasattr(asked, "model") else asked.study.model
    return model
