"""What the study of roles gives: the roles of all heads, with scores and effects on held-out prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from util.figures.role_atlas import plots
from util.roles.rules import Evidence, Role, RoleOfHead, units_of
from util.show.style import WIDTH
from util.stats.heads import Head

EXPLAINED = (Role.INHIBITION, Role.MOVER)  # the figure of IOI says why heads that carry most have none of these


@dataclass(frozen=True)
class Atlas:
    """The roles of a model's heads.

    evidence: score and effect of every role that was tested; setting: model and data, for titles; described: the model
    in words; left_out: what could not be tested, or not as it should be, a line for each. The numbers of layers and
    heads are those of the scores.
    """

    evidence: tuple[Evidence, ...]
    setting: str
    described: str
    left_out: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, int]:
        """Layers and heads of each."""
        _, layers, heads = self.evidence[0].score.value.shape
        return layers, heads

    @cached_property
    def roles(self) -> Mapping[Role, list[RoleOfHead]]:
        """The heads that have each role, those with the largest effect first."""
        found = {one.role: one.heads() for one in self.evidence}
        return {role: found[role] for role in Role if role in found}

    @property
    def heads(self) -> Mapping[Head, list[RoleOfHead]]:
        """The roles of each head that has any."""
        found: dict[Head, list[RoleOfHead]] = {}
        for listed in self.roles.values():
            for one in listed:
                found.setdefault(one.head, []).append(one)
        return dict(sorted(found.items()))

    @property
    def finding(self) -> str:
        """How many heads have a role, and where the induction heads lie."""
        total, count = self.shape[0] * self.shape[1], len(self.heads)
        if not count:
            return f"None of {total} heads has a role that its effect confirms"
        verb, owner = ("has", "its") if count == 1 else ("have", "their")
        said = f"{count} of {total} heads {verb} a role that {owner} effect confirms"
        induction = self.roles.get(Role.INDUCTION, [])
        if len(induction) < 2:
            return "; ".join([said, *(f"the induction head is {one.name}" for one in induction)])
        layers = sorted({one.head[0] for one in induction})
        place = f"layer {layers[0]}" if len(layers) == 1 else f"layers {layers[0]}-{layers[-1]}"
        return f"{said}; induction heads lie in {place}"

    def table(self, count: int = 5) -> pd.DataFrame:
        """The heads of each role with the largest effects, `count` at most; a role that no head has is a row, too.

        Beside the count stand the units of the held-out half and the effect from which on every tested head would have
        been seen. Scores and effects are those on this half. The effect is what is lost beyond the control, in nats, or
        for function vectors what is gained, as a probability. Intervals of a role's heads hold together.
        """
        columns = ["role", "heads", "units", "seen from", "head", "score", "null", "effect", "p"]
        rows: list[tuple[str, ...]] = []
        for one in self.evidence:
            listed = self.roles[one.role]
            said = str(one.role), f"{len(listed)} of {len(one.effect.heads)} tested", units_of(one.role, one.n)
            seen_from = "" if one.detectable is None else f"{one.detectable:.2f}"
            for head in listed[:count]:
                numbers = f"{head.null:.2f}", str(head.effect), f"{head.p:.1g}"
                rows.append((*said, seen_from, head.name, str(head.score), *numbers))
            if not listed:
                rows.append((*said, seen_from, *[""] * 5))
        return pd.DataFrame(rows, columns=columns).set_index(columns[:4])

    def figure(self, width: float = WIDTH) -> Figure:
        """All heads by layer, in the colours of their roles; a bar is the effect beside the largest of the role."""
        largest = {role: max((one.effect.value for one in listed), default=1.0) for role, listed in self.roles.items()}
        strengths = {
            head: [(one.role, one.effect.value / largest[one.role]) for one in listed]
            for head, listed in self.heads.items()
        }
        counts = {one.role: (len(self.roles[one.role]), one.detectable) for one in self.evidence}
        return plots.atlas(self.shape, strengths, counts, finding=self.finding, setting=self.setting, width=width)

    def values(self) -> dict[str, Any]:
        """For each role, how many heads were tested, and of those that have it score, null, effect and p.

        n: the independent units that confirm heads; detectable: the effect from which on they would have been seen.
        "not confirmed" has the same of those that were tested and do not have it, for the roles of EXPLAINED.
        """
        return {
            str(one.role): {
                "tested": len(one.effect.heads),
                "n": one.n,
                "detectable": one.detectable,
                "heads": _by_name(self.roles[one.role]),
                **({"not confirmed": _by_name(one.not_confirmed())} if one.role in EXPLAINED else {}),
            }
            for one in self.evidence
        }

    def lines(self) -> list[str]:
        """What is left out, and every head that has a role, with its roles."""
        heads = [f"{listed[0].name}: {', '.join(str(one.role) for one in listed)}" for listed in self.heads.values()]
        return [*self.left_out, *heads]


def _by_name(heads: Sequence[RoleOfHead]) -> dict[str, Any]:
    return {one.name: {"score": one.score, "null": one.null, "effect": one.effect, "p": one.p} for one in heads}


@dataclass(frozen=True)
class Findings:
    """All parts of the figure.

    atlas: of the model; untrained: of its twin with fresh weights, None where that is switched off; planted: for each
    circuit that was planted, whether just its heads have just their roles.
    """

    atlas: Atlas
    untrained: Atlas | None
    planted: Mapping[str, bool]

    def values(self, request: Mapping[str, Any]) -> dict[str, Any]:
        untrained = {} if self.untrained is None else {"heads": len(self.untrained.heads), **self.untrained.values()}
        return {
            "request": dict(request),
            "model": self.atlas.described,
            "finding": self.atlas.finding,
            "heads": len(self.atlas.heads),
            "roles": self.atlas.values(),
            "left out": list(self.atlas.left_out),
            "untrained": untrained,
            "planted": dict(self.planted),
        }

    def control_lines(self) -> list[str]:
        """What the controls say."""
        said = {True: "just the planted roles", False: "NOT RIGHT"}
        lines = [f"planted {name}: {said[right]}" for name, right in self.planted.items()]
        if self.untrained is not None:
            lines.append(f"untrained twin: {len(self.untrained.heads)} heads with a role")
        return lines

    def check_lines(self) -> list[str]:
        return [self.atlas.finding, *self.atlas.lines(), *self.control_lines()]


def found_exactly(evidence: Sequence[Evidence], planted: Mapping[Role, set[Head]]) -> bool:
    """Whether just the planted heads have each role; roles that are not planted must have none."""
    return all({head.head for head in one.heads()} == planted.get(one.role, set()) for one in evidence)
