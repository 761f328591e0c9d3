"""What was found, in sentences that are made from the stored values of a figure: none of them is typed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from util import paths
from util.models.table import PACKAGED
from util.show import files
from util.show.part import Figure, Values, sentences

STORED = ("embedded", *PACKAGED)  # models whose values are committed


@dataclass(frozen=True)
class Conclusions:
    """The sentences on each model, by its title. Jupyter shows them as Markdown, a point for each."""

    sentences: Mapping[str, Sequence[str]]

    def _repr_markdown_(self) -> str:
        points = {title: "\n".join(f"- {said}" for said in found) for title, found in self.sentences.items()}
        return "\n\n".join(f"**{title}**\n\n{text}" for title, text in points.items())

    def __str__(self) -> str:
        return self._repr_markdown_()


def figure_of(stem: str) -> Figure:
    """A figure by its stem."""
    return import_module(f"util.figures.{stem}.show").FIGURE


def of(stem: str, model: str) -> Conclusions:
    """What the stored values of a figure say of the models that are committed, and of `model`, if it is another one.

    The values of `model` are those that were written last, see `files.save_values`; the others are those of the clone.
    What is about no model stands first.
    """
    figure, found = figure_of(stem), dict[str, list[str]]()
    for name in dict.fromkeys((*STORED, model)):
        values = stored(stem, name, latest=name == model)
        if values is None:
            continue
        if "whichever the model" not in found and (general := sentences(figure, values, measured=False)):
            found["whichever the model"] = general
        found[title(values)] = sentences(figure, values, measured=True)
    return Conclusions(found)


def stored(stem: str, model: str, *, latest: bool = False) -> dict[str, Any] | None:
    """The values of a figure that the clone has of a model; None if it has none.

    latest: those that this run has written come first, wherever it writes, with the clone's verdicts on claims where
    it has judged none.
    """
    file = paths.root() / "data" / "values" / paths.model_folder(model) / f"{stem}.json"
    committed = files.read_values(file) if file.exists() else None
    if not latest or not (written := paths.output("values", model) / file.name).exists():
        return committed
    judged = {"claims": committed["claims"]} if committed and "claims" in committed else {}
    return judged | files.read_values(written)


def title(values: Values) -> str:
    """The name of the model that values are of, and what was done to it."""
    return str(values["model"]).split(": ")[0]
