"""Figures and numbers out: files named after their figure, and the table that sets published values beside ours."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from util import paths


def save_figure(figure: Figure, stem: str, panel: str, model: str = "embedded") -> list[Path]:
    """Write <stem>_<panel>.png and .pdf into a model's output folder; the same figure gives the same bytes."""
    folder = paths.output("figures", model)
    files = [folder / f"{stem}_{panel}{suffix}" for suffix in (".png", ".pdf")]
    with mpl.rc_context({"savefig.dpi": 300, "pdf.fonttype": 42}):  # for print; fonts stay editable text
        figure.savefig(files[0], metadata={"Software": None})
        figure.savefig(files[1], metadata={"CreationDate": None, "Producer": None, "Creator": None})
    return files


def save_values(values: Mapping[str, Any], stem: str, model: str = "embedded", decimals: int = 6) -> Path:
    """Write the plotted numbers to <stem>.json in a model's output folder, floats rounded to `decimals`."""
    file = paths.output("values", model) / f"{stem}.json"
    file.write_text(json.dumps(_plain(values, decimals), indent=1) + "\n", encoding="utf-8")
    return file


def _plain(value: Any, decimals: int) -> Any:
    if hasattr(value, "__dataclass_fields__"):
        value = {name: getattr(value, name) for name in value.__dataclass_fields__}
    if isinstance(value, Mapping):
        return {str(key): _plain(entry, decimals) for key, entry in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(entry, decimals) for entry in value]
    return round(value, decimals) if isinstance(value, float) else value


def published(stem: str) -> dict[str, Any]:
    """The published values of a figure, data/published/<stem>.json."""
    return json.loads((paths.root() / "data" / "published" / f"{stem}.json").read_text(encoding="utf-8"))


def comparison(stem: str, model: str, here: Mapping[str, tuple[float, float]]) -> str:
    """A table of published values beside ours, as text.

    here: our value and its standard error by quantity id, measured on `model`. Match rule: the gap is at most the
    reading error plus two standard errors. Quantities of another model are "not measured here", whatever was measured
    on this one.
    """
    lines = []
    for row in published(stem)["values"]:
        value = "not available to us" if row["value"] is None else f"{row['value']} +- {row['reading_error']}"
        if row["model"] != model:
            ours = f"not measured here: needs {row['model']}"
        elif row["id"] not in here:
            ours = "not computed by this notebook"
        elif row["value"] is None:
            ours = f"{here[row['id']][0]:.3f} (nothing to compare with)"
        else:
            mine, error = here[row["id"]]
            match = abs(mine - row["value"]) <= row["reading_error"] + 2 * error
            ours = f"{mine:.3f} +- {error:.3f}: {'match' if match else 'NO MATCH'}"
        lines.append((row["quantity"], row["source"], value, ours))
    head = ("quantity", "source", "published", "here")
    widths = [max(len(line[i]) for line in [head, *lines]) for i in range(4)]
    rows = [head, tuple("-" * width for width in widths), *lines]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
