"""Every picture of every figure, drawn of stored values: it is the stored one, and can be read, in a column too."""

import warnings

import numpy as np
import pytest

from tests.clone import ROOT
from tests.figures.legible import LONG_NAME, faults
from tests.stored import FOLDERS, look_alike, picture, read
from tests.tiers import quick
from util.figures import FIGURES
from util.show.draw import COLUMN, WIDTH
from util.show.files import png_of
from util.show.part import WORDS, drawn, figure_of, headline, words

SMOLLM2, LARGE = (30, 9), (48, 32)  # layers and heads


def enlarged(value):
    """Values of SmolLM2 as those of a larger model: what has an entry for every head has more of them."""
    if isinstance(value, dict):
        return {name: enlarged(entry) for name, entry in value.items()}
    try:
        entries = np.array(value)
    except ValueError:  # lists of unlike lengths
        return value
    for axis in range(entries.ndim - 1):
        if entries.shape[axis : axis + 2] == SMOLLM2:
            layers = np.arange(LARGE[0]) * SMOLLM2[0] // LARGE[0]
            return entries.take(layers, axis).take(np.arange(LARGE[1]) % SMOLLM2[1], axis + 1)
    return value


def of_model(stem, model):
    """The values of a figure; "large": of a model with more layers and heads, and with a long name."""
    return enlarged(read(stem, "smollm2")) | {"model": LONG_NAME} if model == "large" else read(stem, model)


MODELS = [(model, width) for model in ("embedded", "smollm2", "gemma3", "large") for width in (WIDTH, COLUMN)]


@pytest.mark.parametrize("model, width", quick(MODELS[:1], MODELS))
@pytest.mark.parametrize("stem", FIGURES)
def test_every_picture_is_the_stored_one_and_can_be_read_at_any_width(stem, model, width):
    values, parts = of_model(stem, model), figure_of(stem).parts
    for name in parts:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            figure = drawn(parts[name], values, width)
        if figure is None:
            assert not [*(ROOT / "figures" / FOLDERS.get(model, "smollm2")).glob(f"{stem}_{name}.png")], name
            continue
        if width == WIDTH and model != "large":
            assert look_alike(png_of(figure), picture(f"{stem}_{name}", model)), name
        assert faults(figure) == [], name
        assert words(title := headline(parts[name], values)) <= WORDS and not {*"[]()"} & {*title}, title
        assert figure.get_size_inches()[0] == width and figure.get_size_inches()[1] <= 8.5, name
