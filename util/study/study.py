"""A study: one figure, measured on one model with some settings."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from IPython.display import Markdown, display

from util import paths
from util.models.table import PACKAGED
from util.show import files
from util.show.part import Arrays, Figure, Part, Values, beside, drawn, figure_of, findings, stored, title
from util.study.model import Model, as_model
from util.study.records import Records


class Text(Markdown):
    """Markdown that a terminal prints as it is written."""

    def __repr__(self) -> str:
        return str(self.data)


def points(lines: Iterable[str]) -> str:
    """Lines as a list in Markdown."""
    return "\n".join(f"- {line}" for line in lines)


def conclusions(figure: Figure, values: Values) -> Text:
    """What values of a figure say of their model, with all parts: its title, and a point for each of the `findings`."""
    return Text(_titled(figure, values, figure.parts))


def published(stem: str) -> Text:
    """What the stored values of a figure say of published models, with the parts that say what a model does."""
    figure, values_of = figure_of(stem), filter(None, (stored(stem, model) for model in PACKAGED))
    return Text("\n\n".join(_titled(figure, values) for values in values_of))


def _titled(figure: Figure, values: Values, parts: Iterable[str] = ()) -> str:
    return f"**{title(values)}**\n\n{points(findings(figure, values, parts))}"


class Study(Records):
    """What is measured of one model for one figure; it does not change, `replace` gives another one.

    figure: its stem, such as "toy_induction_head". model: a `Model` or a model's name. settings: of the figure, see its
    `show.py`; each wrong one is named in a ValueError. folder: where records are kept, default `paths.material()`.
    redo: measure again even if there is a record. What was measured or loaded stays in memory.
    """

    def __init__(
        self,
        figure: str,
        model: Model | str = "embedded",
        *,
        folder: Path | None = None,
        redo: bool = False,
        **settings: Any,
    ) -> None:
        self.figure = figure_of(figure)
        self._measures = import_module(f"util.figures.{figure}.measure")
        self.model, self.folder, self.redo = as_model(model), Path(folder or paths.material()), redo
        self._given = settings  # what is not given follows from the others, so that it changes with them
        self.settings = self.figure.settings(**settings)
        self.model.expect_twin(getattr(self.settings, "untrained_control", False))
        if hasattr(self._measures, "check"):  # settings that this model or a data set refuses
            self._measures.check(self)
        self._arrays: dict[str, Arrays] = {}
        self._numbers: dict[tuple[str, Callable[..., Any]], dict[str, Any]] = {}

    def replace(self, **changes: Any) -> Study:
        """The same study with another model, folder, redo or other settings, checked again."""
        return Study(self.figure.stem, **{**self._given, "model": self.model, **self.places, **changes})

    def twin(self, seed: int = 0, **changes: Any) -> Study:
        """The same study on the model's untrained twin: the negative control. Its records are among this one's."""
        if hasattr(self.settings, "untrained_control"):
            changes["untrained_control"] = False
        twin = self.replace(model=self.model.twin(seed), **changes)
        twin._records, twin._asked = self._records, self._asked
        return twin

    @property
    def request(self) -> dict[str, Any]:
        """The figure, the model and the settings, in plain JSON."""
        return json.loads(json.dumps({"figure": self.figure.stem, **self.model.request, **asdict(self.settings)}))

    # -------------------------------------------------------------------------------------------- parts

    def _part(self, name: str) -> Part:
        if name not in self.figure.parts:
            raise ValueError(f"{self.figure.stem} has no part {name!r}; it has {', '.join(self.figure.parts)}")
        return self.figure.parts[name]

    def arrays(self, part: str) -> Arrays:
        """What was measured for a part. Raises ValueError, which lists the parts, for one that there is not."""
        measure = self._part(part).measure
        if measure and measure not in self._arrays:
            self._arrays[measure] = getattr(self._measures, measure)(self)
        return self._arrays.get(measure, {})

    def numbers(self, part: str) -> dict[str, Any]:
        """The numbers of a part: entries of the values file, computed once. Raises what `arrays` raises."""
        shown = self._part(part)
        place = shown.measure, shown.numbers  # parts may share them
        if place not in self._numbers:
            self._numbers[place] = shown.numbers(self.arrays(part), self.settings)
        return self._numbers[place]

    @property
    def values(self) -> dict[str, Any]:
        """What the values file holds: the numbers of all parts."""
        return self.values_of(*self.figure.parts)

    def values_of(self, *parts: str) -> dict[str, Any]:
        """The numbers of some parts, as the values file holds them."""
        numbers, request = dict[str, Any](), self.request | self.model.stored
        for part in parts:
            numbers |= self.numbers(part)
        return {"request": request, "model": self.description, **numbers}

    @property
    def description(self) -> str:
        """The model in words, as its records have it; its title where nothing of it was measured."""
        request = self.model.request.items()
        described = [
            record.provenance["model"] for record in self._records.values() if record.request.items() >= request
        ]
        described += [arrays["description"] for arrays in self._arrays.values() if "description" in arrays]
        line = next(iter(described), self.model.title)
        twin = self.model.untrained_seed is not None  # whose class and size are those of the trained model
        return "".join([self.model.title, *line.partition(": ")[1:]]) if twin else line

    def save(self) -> Text:
        """Writes the values file, and returns what it says: the `findings` of all parts.

        Verdicts on claims are those that the file has, if any: `make claims` writes them.
        """
        values = self.values
        measured = {name: entry for name, entry in values.items() if name != "claims"}
        files.save_values(measured, self.figure.stem, self.model.name)
        return conclusions(self.figure, values)

    def show(self, part: str) -> Any:
        """Shows the sentences of a part and its table, and gives its picture, which is written into figures/.

        Raises what `numbers` raises.
        """
        shown = self._part(part)
        for name in (*shown.needs, part):  # all is measured before numbers are computed of it
            self.arrays(name)
        values = self.values_of(*shown.needs, part)
        picture = drawn(shown, values)
        sentences, table = beside(shown, values, pictured=picture is not None)
        if sentences:
            display(Text(points(sentences)))
        if table is not None:
            display(table)
        model = self.model.name if shown.measure else "embedded"  # what no model has a part in is stored once
        return files.shown(picture, paths.output("figures", model) / f"{self.figure.stem}_{part}") if picture else None
