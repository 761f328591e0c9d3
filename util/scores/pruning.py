"""Iterated pruning: score the living units, prune those with the lowest scores, and again (Bakalova et al., COLM 2025).

A round measures the circuit as it is: its accuracy, and the scores of its units in it. Where the accuracy is too low,
pruning ends, and the circuit of the last round that was good enough is the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from util.scores.units import Circuit, Floats, Sort, check_keep, kept, next_keep


class Measured(Protocol):
    """What a round measures of a circuit. right: of each prompt [N]; scores: of the units that are pruned [L, H, K]."""

    @property
    def right(self) -> NDArray[np.bool_]:
        """Which prompts are answered right [N]."""

    @property
    def scores(self) -> Floats:
        """The scores [L, H, K]."""


@dataclass(frozen=True)
class Round:
    """A circuit, and what it answers on the prompts that units are scored on. accuracy: a share from 0 to 1."""

    circuit: Circuit
    accuracy: float


@dataclass(frozen=True)
class Pruning:
    """All rounds of pruning units of a sort, the unpruned circuit first. floor: the accuracy that had to be kept.

    stopped: whether the last round falls below the floor; the result is then the round before it.
    """

    sort: Sort
    rounds: tuple[Round, ...]
    floor: float
    stopped: bool

    @property
    def passing(self) -> tuple[Round, ...]:
        """The rounds up to the result."""
        return self.rounds[:-1] if self.stopped else self.rounds

    @property
    def result(self) -> Circuit:
        """The smallest circuit before the accuracy fell below the floor; the unpruned one where that lies below it."""
        return self.rounds[0].circuit if not self.passing else self.passing[-1].circuit

    @property
    def units_left(self) -> list[int]:
        """How many units each round has."""
        return [one.circuit.count(self.sort) for one in self.rounds]


def prune(
    measure: Callable[[Circuit, int], Measured],
    start: Circuit,
    sort: Sort,
    floor: float,
    share: float = 0.1,
    keep: Sequence[int] | None = None,
) -> Pruning:
    """Prune units of one sort, round by round, until the accuracy falls below `floor` or no unit is left.

    measure: of a circuit and the number of its round, in which dead units have no effect. Its scores are read only if
    there is another round. share: of the living units, goes in each round. keep: instead, round i leaves keep[i]
    units, whatever the accuracy, as the reference code's `prune_k`. Raises ValueError for a list that increases, before
    anything is measured.
    """
    circuit, rounds = start, list[Round]()
    if keep is not None:
        check_keep(keep, start.count(sort))
    for number in count():
        measured = measure(circuit, number)
        rounds.append(Round(circuit, float(measured.right.mean())))
        living = circuit.count(sort)
        if keep is not None:
            if number == len(keep):
                break
            left = keep[number]
        else:
            if rounds[-1].accuracy < floor:
                return Pruning(sort, tuple(rounds), floor, True)
            if not living:
                break
            left = next_keep(living, share)
        circuit = circuit.keeping(sort, kept(measured.scores, circuit.living(sort), left))
    return Pruning(sort, tuple(rounds), floor, False)
