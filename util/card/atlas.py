"""Cards side by side: how deep the heads of each role lie in each model, how many there are, and which serve IOI too.

It reads card.json alone, so that models are compared where none of them can be loaded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from util.card import plots
from util.card.results import SCHEMA
from util.card.sentences import Told, sentences
from util.roles.rules import Role
from util.show.style import WIDTH
from util.show.words import listed

FILE = "card.json"


@dataclass(frozen=True)
class Entry:
    """One model of the atlas: the values of its card."""

    values: Mapping[str, Any]

    @classmethod
    def read(cls, place: Path) -> Entry:
        """The card in a file, or in a folder that has one.

        Raises ValueError, which says what to do, for a place without a card, and for a card of another schema.
        """
        file = place / FILE if place.is_dir() else place
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
        except OSError:
            raise ValueError(
                f"{place}: there is no {FILE}; `python -m util card MODEL --out {place}` makes one"
            ) from None
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{file} is no {FILE} ({error}); make the card again") from None
        if not isinstance(values, dict) or values.get("schema") != SCHEMA:
            there = values.get("schema") if isinstance(values, dict) else None
            raise ValueError(f"{file} has schema {there!r}, this version reads {SCHEMA}; make the card again")
        entry = cls(values)
        try:
            CardAtlas((entry,)).table()  # all that an atlas reads of it
        except Exception as error:  # whatever an entry that is missing or of another type leads to
            raise ValueError(f"{file} is damaged ({type(error).__name__}: {error}); make the card again") from error
        return entry

    @property
    def name(self) -> str:
        """The model's name."""
        return str(self.values["model"])

    def heads(self, role: Role) -> dict[str, float]:
        """The heads of a role, each with its effect; none where roles were not measured."""
        if self.values["roles"] is None:
            return {}
        heads = self.values["roles"]["roles"].get(role, {"heads": {}})["heads"]
        return {name: one["effect"][0] for name, one in heads.items()}

    def rows(self) -> dict[str, dict[str, float]]:
        """The heads of each role, and those that count in IOI and have none, each with its effect."""
        return {**{str(role): self.heads(role) for role in Role}, plots.NAMELESS: self.nameless}

    def depth(self, head: str) -> float:
        """How deep a head lies: 0 in the first layer, 1 in the last."""
        found = re.fullmatch(r"L(\d+)H\d+", head)
        assert found is not None, head
        return int(found[1]) / max(1, self.values["layers"] - 1)

    @property
    def nameless(self) -> dict[str, float]:
        """The carriers without a role, each with the size of its effect in IOI; none where roles were not measured."""
        if self.values["roles"] is None:
            return {}
        named = {name for role in Role for name in self.heads(role)}
        shares = self.values["IOI"]["carriers"] if self.carriers else {}
        return {name: abs(share[0]) for name, share in shares.items() if name not in named}

    @property
    def carriers(self) -> set[str]:
        """The heads that carry more than a hundredth of the effect in IOI; none where the model does not do it."""
        told = {one.topic: one.told for one in sentences(self.values)}
        done = self.values["IOI"] is not None and told["Indirect objects (IOI)"] is Told.FOUND
        return {*self.values["IOI"]["carriers"]} if done else set()


@dataclass(frozen=True)
class CardAtlas:
    """Several cards beside each other. Raises ValueError for none, and for two of one name."""

    entries: tuple[Entry, ...]

    def __post_init__(self) -> None:
        models = [entry.name for entry in self.entries]
        if not models or len(set(models)) < len(models):
            raise ValueError(f"cards of {models}: give one or more, of different models")

    def table(self) -> pd.DataFrame:
        """A row for each model and role, and for heads of IOI without one: how many, how deep (mean, least, most)."""
        rows = []
        for entry in self.entries:
            for role, heads in entry.rows().items():
                depths = [entry.depth(head) for head in heads]
                rows.append(
                    {
                        "model": entry.name,
                        "role": role,
                        "heads": len(heads),
                        "depth": f"{np.mean(depths):.2f} ({min(depths):.2f}-{max(depths):.2f})" if depths else "",
                        "in IOI too": ", ".join(sorted({*heads} & entry.carriers)),
                    }
                )
        return pd.DataFrame(rows).set_index(["model", "role"])

    @property
    def finding(self) -> str | None:
        """How deep the induction heads of each model lie, and which models have none; None where none has any."""
        depths = {entry.name: [entry.depth(head) for head in entry.heads(Role.INDUCTION)] for entry in self.entries}
        with_heads = {name: found for name, found in depths.items() if found}
        if not with_heads:
            return None
        said = [
            f"{name} {min(found):.2f}" + (f" to {max(found):.2f}" if max(found) > min(found) else "")
            for name, found in with_heads.items()
        ]
        measured = [entry.name for entry in self.entries if entry.values["roles"] is not None]
        none = [name for name in measured if name not in with_heads]
        have = "have" if len(none) > 1 else "has"
        return f"Depth of induction heads: {listed(said)}" + (f"; {listed(none)} {have} none" if none else "")

    @property
    def setting(self) -> str:
        """What is shown."""
        return "roles by score and effect; size: the effect, within row and model; ring: counts in IOI, for or against"

    def figure(self, width: float = WIDTH) -> Figure:
        """The depth of every head, a row for each role, a panel for each model."""
        shown: dict[str, Mapping[str, Sequence[tuple[float, float, bool]]]] = {}
        for entry in self.entries:
            of_model = {}
            for role, heads in entry.rows().items():
                most = max(heads.values(), default=1.0)
                of_model[role] = [
                    (entry.depth(head), effect / most, head in entry.carriers) for head, effect in heads.items()
                ]
            shown[entry.name] = of_model
        return plots.depths(shown, finding=self.finding, setting=self.setting, width=width)

    def values(self) -> dict[str, Any]:
        """The plain values of the table."""
        return {
            entry.name: {
                role: {
                    "heads": len(heads),
                    "depths": sorted(entry.depth(head) for head in heads),
                    "in IOI too": sorted({*heads} & entry.carriers),
                }
                for role, heads in entry.rows().items()
            }
            for entry in self.entries
        }
