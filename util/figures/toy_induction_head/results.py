"""Results of this figure that models have a part in, without any model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pandas as pd
from matplotlib.figure import Figure

from util.figures.toy_induction_head import plots
from util.figures.toy_induction_head.by_hand import Built, Floats, Lecture, Likeliest
from util.roles.attention_scores import ROLES, ScoredHead
from util.roles.results import Patterns


@dataclass(frozen=True)
class ShownHead:
    """A head with its scores, whose it is, and what is expected of it."""

    whose: str
    role: str
    scored: ScoredHead

    @property
    def title(self) -> str:
        """Whose head it is, which, and what it does."""
        return f"{self.whose}, {self.scored.name}: {self.role}"

    def check_line(self) -> str:
        """Its scores, in a line."""
        means = ", ".join(f"{name} {interval.value:.3f}" for name, interval in self.scored.scores.items())
        return f"{self.whose}, {self.scored.name}, {self.role}: {means}"


@dataclass(frozen=True)
class Heads:
    """Planted heads, the best heads of a model, and those of its untrained twin.

    best: those of the model, by role. decoys: the most that a planted decoy has of each score. description: the model
    in words.
    """

    shown: Sequence[ShownHead]
    best: Mapping[str, ScoredHead]
    decoys: Mapping[str, float]
    description: str

    def table(self) -> pd.DataFrame:
        """Returns the scores with their intervals, a line for each head."""
        columns = {
            role.replace("_", "-"): ["{:.3f} [{:.3f}, {:.3f}]".format(*head.scored.scores[role]) for head in self.shown]
            for role in ROLES
        }
        return pd.DataFrame(columns, [head.title for head in self.shown])

    def decoy_line(self) -> str:
        """The largest scores of the planted model's decoys, in a line."""
        return "planted decoys, at most: " + ", ".join(f"{role} {value:.3f}" for role, value in self.decoys.items())


@dataclass(frozen=True)
class FoundPatterns:
    """The whole attention of the best head of each role, on one sequence in copies of so many tokens."""

    patterns: Patterns
    best: Mapping[str, ScoredHead]
    model_title: str
    length: int

    def figure(self, by_hand: Mapping[str, tuple[Floats, float]]) -> Figure:
        """Returns the attention of each role, drawn by hand and as the model found it.

        by_hand: attention [T, T] without BOS and its score, by role.
        """
        panels = {}
        for role, head in self.best.items():
            shown, (drawing, score) = role.replace("_", " "), by_hand[role]
            panels[f"by hand\n{shown} {score:.2f}"] = drawing
            title = f"{self.model_title}, {head.name}\n{shown} {head.scores[role].value:.2f}"
            panels[title] = self.patterns.without_bos(head.head)
        return plots.patterns(panels, self.length)


class Training(Protocol):
    """Runs of training, see `util.training.phase_change.PhaseChange`."""

    @property
    def formed(self) -> Mapping[str, int | None]: ...

    def check_lines(self) -> list[str]: ...


@dataclass(frozen=True)
class Results:
    """All results, for the file of values and the check. texts: what the construction predicts after them."""

    request: Mapping[str, Any]
    lecture: Lecture
    built: Built
    heads: Heads
    texts: Likeliest
    training: Training

    def values(self) -> dict[str, Any]:
        """Returns what the file of values holds."""
        return {
            "toy": self.lecture.values(),
            "construction": self.built.values(),
            "request": self.request,
            "model": self.heads.description,
            "heads": {head.title: head.scored.scores for head in self.heads.shown},
            "planted": {"decoys, at most": self.heads.decoys},
            "texts": self.texts.shares,
            "phase_change": {"tokens at a score of 0.5": self.training.formed},
        }

    def check_lines(self) -> list[str]:
        """Returns what a fresh run must reproduce."""
        heads = [head.check_line() for head in self.heads.shown]
        lines = [*self.lecture.check_lines(), *self.built.check_lines(), *heads, *self.texts.check_lines()]
        return lines + self.training.check_lines()
