"""Saves figures and plotted numbers, and compares published values with ours."""

from __future__ import annotations

import json
import math
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from PIL import Image, ImageChops
from safetensors.numpy import load_file, save

from util import paths
from util.stats.intervals import NAN_IN_VALUES

if TYPE_CHECKING:
    from IPython.display import Image as Picture

DPI = 200  # of PNG files: for screens
ARRAY, ARRAYS = "$array", ".safetensors"  # what stands for an array in a values file, and the file beside it
LARGEST = 2000  # numbers of an array in a values file
DECIMALS = 6  # of its numbers
VISIBLE = 36  # of 255: a change of a single pixel that is hardly seen


def write_figure(figure: Figure, file: Path) -> list[Path]:
    """Write <file>.png and <file>.pdf, and return their paths. The same figure gives the same bytes."""
    png, pdf = write_beside([figure], file), file.with_name(f"{file.name}.pdf")
    with mpl.rc_context({"pdf.fonttype": 42}):  # PDF is for print; its fonts stay editable
        figure.savefig(pdf, dpi=DPI, metadata=dict.fromkeys(("CreationDate", "Producer", "Creator")))
    return [png, pdf]


def write_beside(figures: Sequence[Figure], file: Path) -> Path:
    """Write figures side by side, as they are, to <file>.png, and return its path."""
    drawn = [Image.open(png_of(figure)) for figure in figures]
    edges = np.cumsum([0, *(one.width for one in drawn)]).tolist()
    joined = Image.new("RGB", (edges[-1], max(one.height for one in drawn)), "white")
    for left, one in zip(edges, drawn, strict=False):
        joined.paste(one.convert("RGB"), (left, 0))
    png = file.with_name(f"{file.name}.png")
    reduced_colours(joined).save(png, dpi=(DPI, DPI), optimize=True)
    return png


def png_of(figure: Figure, dpi: int = DPI) -> BytesIO:
    """A figure as a PNG file in memory."""
    buffer = BytesIO()
    figure.savefig(buffer, dpi=dpi)
    return buffer


def reduced_colours(full: Image.Image) -> Image.Image:
    """Returns a picture in 256 colours, which takes less than half the bytes; itself where that changes it visibly."""
    reduced = full.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    changed = np.array(ImageChops.difference(full, reduced.convert("RGB")))
    return reduced if changed.max() <= VISIBLE else full


def save_values(values: Mapping[str, Any], stem: str, model: str = "embedded") -> Path:
    """Write the plotted numbers to <stem>.json in a model's output folder, and return the path.

    They are as in `plain`, which raises ValueError. Arrays of more than LARGEST numbers go into <stem>.safetensors
    beside it; {"$array": name} stands for them. What `save_claims` has left in the file stays there.
    """
    file, arrays = paths.output("values", model) / f"{stem}.json", dict[str, np.ndarray]()
    claims = {name: entry for name, entry in _read(file).items() if name == "claims"}
    small = plain(values, DECIMALS, arrays)
    if arrays:
        paths.write_whole(file.with_suffix(ARRAYS), save(arrays))
    write_values(small | claims, file)
    if not arrays:
        file.with_suffix(ARRAYS).unlink(missing_ok=True)
    return file


def read_values(file: Path) -> dict[str, Any]:
    """What a values file holds, with the arrays beside it."""
    beside = file.with_suffix(ARRAYS)
    arrays = load_file(beside) if beside.exists() else {}
    return json.loads(
        file.read_text(encoding="utf-8"), object_hook=lambda made: arrays[made[ARRAY]] if ARRAY in made else made
    )


def save_claims(claims: Mapping[str, Any], stem: str, model: str = "embedded") -> Path:
    """Write verdicts on claims as the entry "claims" of <stem>.json, whose other entries stay, and return the path."""
    file = paths.output("values", model) / f"{stem}.json"
    return write_values(_read(file) | {"claims": plain(claims, DECIMALS)}, file)


def write_values(values: Mapping[str, Any], file: Path) -> Path:
    """Write numbers to a JSON file as `plain` makes them, and return its path."""
    return paths.write_whole(file, json.dumps(plain(values, DECIMALS), indent=1, allow_nan=False) + "\n")


def _read(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def plain(
    values: Mapping[str, Any], decimals: int | None = None, arrays: dict[str, np.ndarray] | None = None
) -> dict[str, Any]:
    """Returns numbers, arrays [...] and results as JSON has them, floats rounded to `decimals`, default not at all.

    arrays: receives those of more than LARGEST numbers, for which {"$array": name} stands. JSON has no NaN: a NaN
    becomes null, and the entry "undefined" says why, by place: `NAN_IN_VALUES` has the reasons, by the name of an
    entry; a NaN without a reason gives a warning. Raises ValueError for an infinity.
    """
    undefined: dict[str, str] = {}

    def made(value: Any, *place: str) -> Any:
        if hasattr(value, "__dataclass_fields__"):
            value = {name: getattr(value, name) for name in value.__dataclass_fields__}
        if isinstance(value, Mapping):
            return {str(key): made(entry, *place, str(key)) for key, entry in value.items()}
        if arrays is not None and isinstance(value, np.ndarray) and value.size > LARGEST:
            name, double = "/".join(place), value.dtype == np.float64
            while name in arrays:  # one more of the same list
                name += "'"
            arrays[name] = value.astype(np.float32) if double else np.ascontiguousarray(value)
            return {ARRAY: name}
        if isinstance(value, np.ndarray | np.generic):
            value = value.tolist()
        if isinstance(value, list | tuple):
            return [made(entry, *place) for entry in value]
        if not isinstance(value, float):
            return value
        if math.isfinite(value):
            return value if decimals is None else round(value, decimals)
        where = ": ".join(place)
        if math.isinf(value):
            raise ValueError(f"{where} is infinite; a figure has no place for it")
        if where not in undefined:
            undefined[where] = next(
                (NAN_IN_VALUES[name] for name in reversed(place) if name in NAN_IN_VALUES), "not known"
            )
            if undefined[where] == "not known":
                warnings.warn(f"{where} is NaN and is stored as null; nothing says why", stacklevel=2)
        return None

    made_plain = made(values)
    return made_plain | {"undefined": undefined} if undefined else made_plain


def published(stem: str) -> dict[str, Any]:
    """The published values of a figure, read from data/published/<stem>.json."""
    return json.loads((paths.root() / "data" / "published" / f"{stem}.json").read_text(encoding="utf-8"))


def comparison(stem: str, model: str, here: Mapping[str, tuple[float, float]]) -> str:
    """A table, as text, of published values beside ours.

    here: by quantity id, our value and its standard error, measured on `model`. Two values match if they differ by at
    most the reading error plus two standard errors. Published values that are known but were not measured are counted
    below the table: those of other models, and those of this model that need other settings.
    """
    rows, text = [], list[str]()
    missing = Counter[str]()
    for row in published(stem)["values"]:
        if row["model"] != model or row["id"] not in here:
            missing[row["model"]] += row["value"] is not None
            continue
        (mine, error), theirs = here[row["id"]], row["value"]
        if theirs is None:
            known, ours = "not available to us", f"{mine:.3f} (nothing to compare with)"
        else:
            known, match = f"{theirs} +- {row['reading_error']}", abs(mine - theirs) <= row["reading_error"] + 2 * error
            ours = f"{mine:.3f} +- {error:.3f}: {'match' if match else 'NO MATCH'}"
        rows.append({"quantity": row["quantity"], "source": row["source"], "published": known, "here": ours})
    if rows:
        text.append(pd.DataFrame(rows).to_string(index=False))
    for other, count in (+missing).items():
        why = "with these settings" if other == model else f"here: needs {other}"
        text.append(f"{count} published value{'s' * (count > 1)} not measured {why}")
    return "\n".join(text)


def shown(figure: Figure, file: Path) -> Picture:
    """The PNG file itself, so that a notebook shows what is in figures/, at two pixels for each that it takes."""
    from IPython.display import Image as Picture  # half a second, for notebooks alone

    png, _ = write_figure(figure, file)
    with Image.open(png) as image:
        return Picture(filename=png, width=image.width // 2)


def filled(template: Path, **values: Any) -> str:
    """The text of a page: a Jinja template with values, which are escaped. Raises UndefinedError for a missing one."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # not for every command

    environment = Environment(
        loader=FileSystemLoader(template.parent), autoescape=True, trim_blocks=True, undefined=StrictUndefined
    )
    return environment.get_template(template.name).render(**values)
