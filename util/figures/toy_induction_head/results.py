"""Results of this figure that models have a part in, without any model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from util import paths
from util.figures.style import WIDTH
from util.figures.toy_induction_head import plots
from util.figures.toy_induction_head.by_hand import Built, Floats, Lecture, Likeliest
from util.roles.attention_scores import ROLES, ScoredHead
from util.roles.results import Patterns

VOCABULARY = 64  # tokens of the model that shows the phase change
COPY = 15  # distinct ones of a sequence that it is measured on


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

    @property
    def finding(self) -> str | None:
        """Which heads give a role more than half of their attention, with intervals; None where that is open."""
        scores = {role: head.scores[role] for role, head in self.best.items()}
        if all(score.high < 0.5 for score in scores.values()):
            return "No head gives half of its attention to the previous token or to what followed earlier occurrences"
        said = [
            f"{self.best[role].name} gives {score} to {_READS[role]}"
            for role, score in scores.items()
            if score.low > 0.5
        ]
        return f"Of its attention {', '.join(said)}" if said else None

    @property
    def setting(self) -> str:
        """Whose heads they are, and on what."""
        return f"{self.model_title}, one random sequence of {self.length} tokens in copies; scores on held-out ones"

    def figure(self, by_hand: Mapping[str, tuple[Floats, float]], width: float = WIDTH) -> Figure:
        """Returns the attention of each role, drawn by hand and as the model found it.

        by_hand: attention [T, T] without BOS and its score, by role.
        """
        panels = {}
        for role, head in self.best.items():
            shown, (drawing, score) = role.replace("_", " "), by_hand[role]
            panels[f"by hand\n{shown} {score:.2f}"] = drawing
            panels[f"{head.name} of the model\n{shown} {head.scores[role].value:.2f}"] = self.patterns.without_bos(
                head.head
            )
        return plots.patterns(panels, self.length, self.finding, self.setting, width)


_READS = {"previous_token": "the previous token", "prefix_matching": "what followed earlier occurrences"}


def formed_at(run: Mapping[str, Any], score: float = 0.5) -> int | None:
    """How many tokens were read when the best prefix-matching score was first measured above `score`; None: never."""
    best = np.array(run["prefix_matching"]).max(axis=(1, 2))
    return int(run["tokens"][int((best > score).argmax())]) if (best > score).any() else None


def fell_at(run: Mapping[str, Any]) -> int | None:
    """How many tokens were read when the loss on later copies was first below half of what guessing among COPY costs.

    None: never.
    """
    below = np.array(run["later_copies"]) < np.log(COPY) / 2
    return int(run["tokens"][int(below.argmax())]) if below.any() else None


@dataclass(frozen=True)
class PhaseChange:
    """Runs of training by name, the one that is drawn in full first; about: where they are from.

    A run is what `data/embedded_models/recipe/phase_change.py` measured while it trained: tokens read; first_copy and
    later_copies, losses in nats per token; prefix_matching and previous_token, scores [L, H] of heads.
    """

    runs: Mapping[str, Mapping[str, Any]]
    about: str

    @property
    def formed(self) -> dict[str, int | None]:
        """How many tokens were read when induction heads formed, see `formed_at`, by run."""
        return {name: formed_at(run) for name, run in self.runs.items()}

    @property
    def finding(self) -> str | None:
        """How near to each other losses fall and heads form; None where a run does not show both."""
        moments = [(fell_at(run), formed_at(run)) for run in self.runs.values()]
        apart = [abs(fell - formed) for fell, formed in moments if fell is not None and formed is not None]
        if len(apart) < len(moments):
            return None
        resolution = max(int(np.diff(run["tokens"]).max()) for run in self.runs.values())
        return (
            f"In all {len(apart)} runs the loss falls within {max(apart) + resolution:,} tokens of when induction "
            "heads form"
        )

    @property
    def setting(self) -> str:
        """What was trained, and which run is drawn in full."""
        name, run = next(iter(self.runs.items()))
        _, layers, heads = np.shape(run["prefix_matching"])
        moments = "falls: below half of the lower dashed line; form: prefix matching above 0.5"
        return f"Llama of {layers} layers x {heads} heads on repeated random tokens; {moments}; in full: {name}"

    def figure(self, width: float = WIDTH) -> Figure:
        """Returns losses and scores of heads against the tokens read."""
        guesses = {
            f"guessing among all {VOCABULARY} tokens": float(np.log(VOCABULARY)),
            f"among the {COPY} of the text": float(np.log(COPY)),
        }
        return plots.phase_change(list(self.runs.values()), guesses, self.finding, self.setting, width)

    def check_lines(self) -> list[str]:
        """Returns a line for each run."""
        return [
            f"{name}: prefix matching {np.max(run['prefix_matching'][-1]):.2f}, above 0.5 from {formed_at(run):,} "
            f"tokens on; loss on the later copies {run['later_copies'][0]:.2f}, at last {run['later_copies'][-1]:.2f}"
            for name, run in self.runs.items()
        ]


def phase_change() -> PhaseChange:
    """Returns the stored runs, `data/phase_change.json`."""
    log = json.loads((paths.root() / "data" / "phase_change.json").read_text(encoding="utf-8"))
    return PhaseChange({f"seed {seed}": run for seed, run in log["seeds"].items()}, log["about"])


@dataclass(frozen=True)
class Results:
    """All results, for the file of values and the check. texts: what the construction predicts after them."""

    request: Mapping[str, Any]
    lecture: Lecture
    built: Built
    heads: Heads
    texts: Likeliest
    training: PhaseChange

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
