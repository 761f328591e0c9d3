"""The values that are stored of all models, and the intervals that texts quote of them."""

import json
import re

import numpy as np
from PIL import Image

from tests.clone import ROOT
from util.show import files

FOLDERS = {"embedded": "", "smollm2": "smollm2", "gemma3": "gemma3"}  # where a model's values lie


def place(stem, model):
    """The file of a figure's stored values."""
    return ROOT / "data/values" / FOLDERS[model] / f"{stem}.json"


def values(stem, model):
    """The stored values of a figure."""
    return json.loads(place(stem, model).read_text())


def read(stem, model):
    """The same with the arrays that stand beside the file, as figures are drawn of it."""
    return files.read_values(place(stem, model))


def picture(name, model):
    """The stored picture of a panel, such as "role_atlas_atlas"; what no model has a part in is stored once."""
    places = (ROOT / "figures" / folder / f"{name}.png" for folder in (FOLDERS[model], ""))
    return next(place for place in places if place.exists())


def look_alike(one, other):
    """Whether two pictures have one size, and hardly a pixel that differs visibly. Each: an image, or its file."""
    given = (place if isinstance(place, Image.Image) else Image.open(place) for place in (one, other))
    first, second = (np.array(image.convert("RGB"), dtype=int) for image in given)
    return first.shape == second.shape and (np.abs(first - second).max(axis=2) > files.VISIBLE).sum() < 200


def triples(value):
    """Every (value, low, high) of stored values, however deep."""
    if isinstance(value, dict):
        for name in ("value", "mean", "log_prob"):
            if {name, "low", "high"} <= value.keys():
                yield from zip(*(flat(value[part]) for part in (name, "low", "high")), strict=True)
        for entry in value.values():
            yield from triples(entry)
    elif isinstance(value, list):
        if len(value) == 3 and all(isinstance(entry, int | float) for entry in value):
            yield tuple(value)
        for entry in value:
            yield from triples(entry)


def flat(value):
    return [number for entry in value for number in flat(entry)] if isinstance(value, list) else [value]


def rounded(stored):
    """Those as they are written: counts as they are, all else with two decimals, and no minus before 0.00."""
    found = [triple for triple in triples(stored) if None not in triple]
    return {
        tuple(
            f"{number}" if all(isinstance(other, int) for other in triple) else f"{round(number, 2) + 0.0:.2f}"
            for number in triple
        )
        for triple in found
    }


def intervals_in(text):
    """Every "value [low, high]" of a text, as it is written."""
    return set(re.findall(r"(-?[\d.]+) \[(-?[\d.]+), (-?[\d.]+)\]", text))
