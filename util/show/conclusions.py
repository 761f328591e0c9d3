"""What was found, in sentences that are made from the stored values of a figure: none of them is typed.

Each figure has its own `conclusions.py`. There `sentences` makes sentences of stored values, for any model: it says
what they support, and leaves out what they do not. `of` reads the values of the committed models and of the one that
was run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from util import paths
from util.models.table import PACKAGED
from util.show import files
from util.show.part import Figure, sentences
from util.show.words import counted, in_words, interval_at, listed, none_or, sign, written  # noqa: F401  # for figures
from util.stats.verdicts import CANNOT_BE_TOLD, Claim, Verdicts, verdicts_of

Values = Mapping[str, Any]  # of data/values/<stem>.json
Sentences = Callable[[Values], list[str]]


# By figure, the paper whose claims it judges.
CLAIMS = {"induction_scores": "Crosbie & Shutova 2024", "edge_ablation": "Bakalova et al. 2025"}
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


def sentences_of(stem: str) -> Sentences:
    """From values to sentences, of a figure: of the parts that a model has a part in."""
    figure = figure_of(stem)
    return partial(sentences, figure, measured=True) if figure else _module(stem, "conclusions").sentences


def figure_of(stem: str) -> Figure | None:
    """The parts of a figure; None where it has not moved to parts yet."""
    return _module(stem, "show").FIGURE if find_spec(f"util.figures.{stem}.show") else None


def _module(stem: str, name: str) -> Any:
    return import_module(f"util.figures.{stem}.{name}")


def of(stem: str, model: str) -> Conclusions:
    """What the stored values of a figure say of the committed models and of `model`."""
    figure = figure_of(stem)
    general = partial(sentences, figure, measured=False) if figure else None
    return told(stem, sentences_of(stem), model, general)


def told(stem: str, of_model: Sentences, model: str, general: Sentences | None = None) -> Conclusions:
    """What the stored values of a figure say of the models that are committed, and of `model`, if it is another one.

    of_model: from values to sentences. The values of `model` are those that were written last, see
    `files.save_values`; the others are those of the clone. The verdicts on the figure's claims end each model's text
    where the clone has some of it. general: from the values of any model to what is about none of them.
    """
    found: dict[str, list[str]] = {}
    for name in dict.fromkeys((*STORED, model)):
        values = stored(stem, name, latest=name == model)
        if values is None:
            continue
        if general is not None and "whichever the model" not in found and (of_any := general(values)):
            found["whichever the model"] = of_any
        judged = stored_claims(stem, name)
        found[title(values)] = of_model(values) + (verdict_sentences(verdicts_of(judged)) if judged else [])
    return Conclusions(found)


def verdict_sentences(verdicts: Verdicts) -> list[str]:
    """A sentence for each verdict: which claims have it, and what would decide them."""
    grouped: dict[str, list[str]] = {}
    for claim in verdicts.claims:
        grouped.setdefault(claim.verdict, []).append(f"{claim.number}, {claim.text}{_made_of(claim)}")
    return [
        f"The paper's claims, up to {verdicts.queries} queries of a task: **{verdict}**: {'; '.join(texts)}."
        for verdict, texts in grouped.items()
    ]


def _made_of(claim: Claim) -> str:
    """What a verdict is made of, in brackets; "" where the verdict says all."""
    notes = [claim.note]
    for part in claim.parts:
        notes.append(f"{part.name}: {part.number}, wanted {'>' if part.above else '<'} {part.bound:g}")
        if part.verdict == CANNOT_BE_TOLD:
            there = f"; there are {part.available:,}" if part.available is not None else ""
            notes.append(f"{part.needed:,} queries would do{there}" if part.needed else "no number of queries would do")
    said = "; ".join(filter(None, notes))
    return f" ({said})" if said else ""


def claims_table() -> str:
    """The claims of the papers as a Markdown table: by a paper's own numbers, and of each published model.

    The embedded model was trained to show these circuits: it is the positive control, and no row of evidence.
    """
    titles = {model: title(values) for model in PACKAGED if (values := stored("forerunner_heads", model))}
    lines = [["paper", "claim", "its own numbers", *(name.split(",")[0] for name in titles.values())]]
    lines.append(["---"] * len(lines[0]))
    for stem, paper in CLAIMS.items():
        by_model = {model: stored_claims(stem, model) for model in (*titles, "embedded")}
        known = next(judged for judged in by_model.values() if judged is not None)
        for number, claim in enumerate(verdicts_of(known).claims):
            own = known["published"].get(str(claim.number))
            cells = [
                f"{own['value']:.2f}: {own['verdict'].removesuffix(' in this model')}" if own else "none published"
            ]
            for judged in (by_model[model] for model in titles):
                same = judged and verdicts_of(judged).claims[number]
                cells.append(f"{same.verdict}{_made_of(same)}" if same else "not yet judged by these rules")
            lines.append([paper, f"{claim.number}. {claim.text}", *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def stored(stem: str, model: str, *, latest: bool = False) -> dict[str, Any] | None:
    """The values of a figure that the clone has of a model; None if it has none.

    latest: those that this run has written come first, wherever it writes.
    """
    places = [paths.root() / "data" / "values" / paths.model_folder(model)]
    if latest:
        places.insert(0, paths.output("values", model))
    for place in places:
        file = place / f"{stem}.json"
        if file.exists():
            return files.read_values(file)
    return None


def stored_claims(stem: str, model: str, *, latest: bool = False) -> dict[str, Any] | None:
    """The claims that `make claims` has stored of a model; None if there are none. latest: see `stored`."""
    return (stored(stem, model, latest=latest) or {}).get("claims")


def title(values: Values) -> str:
    """The name of the model that values are of, and what was done to it."""
    return str(values["model"]).split(":")[0]
