"""What a report of one model says: read from committed figures and values, cached records and executed notebooks."""

import base64
import importlib
import io
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from util import paths
from util.figures import FIGURES
from util.figures.conclusions import CLAIMS
from util.figures.report import DPI, published
from util.models.table import PACKAGED
from util.report.notebooks import Notebook, Part
from util.report.provenance import Provenance
from util.report.values import Entry, entries_of
from util.stats.verdicts import VERDICTS, Verdicts, verdicts_of


@dataclass(frozen=True)
class Sources:
    """Where a report reads.

    stored: has figures/ and data/values/. executed: has executed notebooks. records: has cached records.
    """

    stored: Path
    executed: Path
    records: Path

    def figures(self, model: str) -> Path:
        """The folder of a model's figures."""
        return self.stored / paths.KINDS["figures"] / paths.model_folder(model)

    def values(self, model: str, name: str) -> Path:
        """A values file of a model."""
        return self.stored / paths.KINDS["values"] / paths.model_folder(model) / f"{name}.json"


@dataclass(frozen=True)
class Picture:
    """A stored figure: its name, its finding and setting ("" where it does not say), its size in inches, its image."""

    name: str
    finding: str
    setting: str
    width: float
    height: float
    image: str  # a data: address

    @classmethod
    def of(cls, file: Path) -> "Picture":
        """The figure in a PNG file, without loss as WebP, which takes a third of the bytes.

        The finding and the setting are those that `figures.report.save_figure` has written into it.
        """
        with Image.open(file) as stored:
            said = {name: str(stored.info.get(name, "")) for name in ("Title", "Description")}
            width, height = (pixels / DPI for pixels in stored.size)
            packed = io.BytesIO()
            stored.convert("RGB").save(packed, "WEBP", lossless=True, method=4)
        image = f"data:image/webp;base64,{base64.b64encode(packed.getvalue()).decode()}"
        return cls(file.stem, said["Title"], said["Description"], width, height, image)


@dataclass(frozen=True)
class Published:
    """What a paper has for a figure, and what was printed of it beside ours, None where no notebook was executed."""

    paper: str
    note: str
    rows: tuple[dict[str, Any], ...]  # as stored: quantity, model, value, reading_error, source
    comparison: str | None


@dataclass(frozen=True)
class Claims:
    """Verdicts on a paper's claims from a values file."""

    file: str
    verdicts: Verdicts | None  # None where the file has none


@dataclass(frozen=True)
class Section:
    """One figure of the suite, and what there is of it for a model.

    pictures: by panel; parts: in the order of the notebook; others: panels that the notebook does not draw. values,
    provenance: None where there is no values file, or no request in it. shown: sentences made of the values, see
    `figures.conclusions`. missing: what there is not, in words.
    """

    stem: str
    notebook: Notebook
    parts: tuple[Part, ...]
    pictures: dict[str, Picture]
    others: tuple[str, ...]
    published: Published | None
    claims: Claims | None
    values: tuple[Entry, ...] | None
    provenance: Provenance | None
    shown: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def findings(self) -> list[Picture]:
        """The pictures that say what was found, in the order of the notebook."""
        order = [panel for part in self.parts for panel in part.panels] + list(self.others)
        return [self.pictures[panel] for panel in order if panel in self.pictures and self.pictures[panel].finding]


@dataclass(frozen=True)
class Report:
    """All figures of a model. name: what the model is called; about: what the values files say of it, or ""."""

    name: str
    about: str
    sections: tuple[Section, ...]

    @property
    def counts(self) -> dict[str, int]:
        """How many claims have each verdict."""
        found = [section.claims.verdicts for section in self.sections if section.claims and section.claims.verdicts]
        counted = Counter(claim.verdict for verdicts in found for claim in verdicts.claims)
        return {verdict: counted[verdict] for verdict in VERDICTS}

    @property
    def command(self) -> str:
        """The command that makes figures and values."""
        return command(self.name, "figures")


def command(name: str, target: str) -> str:
    """The command that runs a target of the Makefile for a model."""
    return f"make {target}" + ("" if name == "embedded" else f" MODEL={name}")


def report_of(model: str, sources: Sources) -> Report:
    """The report of a model.

    Raises ValueError if nothing is stored of this model.
    """
    name = Path(model).name if Path(model).exists() else model
    if not any([*sources.figures(model).glob("*.png"), *sources.values(model, "x").parent.glob("*.json")]):
        raise ValueError(
            f"model = {name!r}: there are neither figures nor values of it in {sources.stored}. "
            f"Make them with `{command(name, 'figures')}`"
        )
    sections = tuple(section_of(stem, model, name, sources) for stem in FIGURES)
    stored = [_read(sources.values(model, stem)) for stem in FIGURES]
    about = next((str(values["model"]) for values in stored if values and isinstance(values.get("model"), str)), "")
    return Report(name, about or (PACKAGED[model].full_title if model in PACKAGED else ""), sections)


def section_of(stem: str, model: str, name: str, sources: Sources) -> Section:
    """What there is of one figure. name: what the model is called."""
    notebook = Notebook.of(stem, model, sources.executed)
    once = {f"{stem}_{panel}.png" for part in notebook.parts for panel in part.of_no_model}
    files = {file.name: file for file in sources.figures(model).glob(f"{stem}_*.png")}
    files |= {file.name: file for file in sources.figures("embedded").glob(f"{stem}_*.png") if file.name in once}
    pictures = {file.stem.removeprefix(f"{stem}_"): Picture.of(file) for _, file in sorted(files.items())}
    drawn = [panel for part in notebook.parts for panel in part.panels]
    values = _read(sources.values(model, stem))
    cure = f"`{command(name, 'figures')}` writes it."
    missing = [f"{notebook.lacking} {cure}"] if notebook.lacking else []
    lacking = [panel for panel in drawn if panel not in pictures]
    missing += [
        f"There is no figure {stem}_{panel}.png. {cure[:-1]} if there is something to draw." for panel in lacking
    ]
    if values is None:
        missing.append(f"There is no values file {_shown(sources.values(model, stem), sources)}. {cure}")
    sentences = sentences_of(stem, values) if values is not None else []
    if values is not None and not sentences:
        missing.append(f"Its values are not all there, so nothing is said of what they show. {cure}")
    claims = _claims(stem, values or {}, _shown(sources.values(model, stem), sources))
    if claims and claims.verdicts is None:
        missing.append(f"There are no claims in {claims.file}. `{command(name, 'claims')}` writes them.")
    request = (values or {}).get("request")
    return Section(
        stem,
        notebook,
        notebook.parts,
        pictures,
        tuple(panel for panel in pictures if panel not in drawn),
        _published(stem, notebook),
        claims,
        entries_of(values) if values is not None else None,
        Provenance.of(request, sources.records) if isinstance(request, dict) else None,
        tuple(sentences),
        tuple(missing),
    )


def sentences_of(stem: str, values: dict[str, Any]) -> list[str]:
    """What the values of a figure say in words; nothing, where they lack what the sentences are made of."""
    sentences = importlib.import_module(f"util.figures.{stem}.conclusions").sentences
    try:
        return sentences(values)
    except (KeyError, TypeError):  # of an older version, or of a part of the figure alone
        return []


def _read(file: Path) -> dict[str, Any] | None:
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None


def _shown(file: Path, sources: Sources) -> str:
    return file.relative_to(sources.stored).as_posix()


def _claims(stem: str, values: dict[str, Any], file: str) -> Claims | None:
    if stem not in CLAIMS:
        return None
    return Claims(file, verdicts_of(values["claims"]) if "claims" in values else None)


def _published(stem: str, notebook: Notebook) -> Published | None:
    if not (paths.root() / "data" / "published" / f"{stem}.json").exists():
        return None
    stored = published(stem)
    return Published(stored["paper"], stored["note"], tuple(stored["values"]), notebook.comparison)
