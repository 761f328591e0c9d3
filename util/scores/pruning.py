"""Iterated pruning: score the living units, prune those with the lowest scores, and again (Bakalova et al., COLM 2025).

A round measures the circuit as it is: its accuracy, and the scores of its units in it. Where the accuracy is too low,
pruning ends, and the circuit of the last round that was good enough is the result.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from util.scores.units import Alive, Circuit, Floats, Sort
from util.show.files import write_whole


class Round(NamedTuple):
    """A circuit, and what it answers on the prompts that units are scored on. accuracy: a share from 0 to 1."""

    circuit: Circuit
    accuracy: float


class Pruning(NamedTuple):
    """All rounds of pruning units, the unpruned circuit first, and how many units each has.

    result: the smallest circuit before the accuracy fell below the floor; the unpruned one where that lies below it.
    """

    rounds: list[Round]
    units_left: list[int]
    result: Circuit
    floor: float


def prune(
    measure: Callable[[Circuit, int], tuple[NDArray[np.bool_], Floats | None]],
    start: Circuit,
    sort: Sort,
    floor: float,
    share: float = 0.1,
    keep: Sequence[int] | None = None,
) -> Pruning:
    """Prune units of one sort, round by round, until the accuracy falls below `floor` or no unit is left.

    measure: of a circuit and the number of its round, in which dead units have no effect: which prompts are answered
    right [N], and the scores [L, H, K], which the last round has no need of. share: of the living units, goes in each
    round. keep: instead, round i leaves keep[i] units, whatever the accuracy, as the reference code's `prune_k`. Raises
    ValueError for a round that would have more units than the one before.
    """
    circuit, rounds, left = start, list[Round](), list[int]()
    while True:
        number = len(rounds)
        right, scores = measure(circuit, number)
        rounds.append(Round(circuit, float(right.mean())))
        left.append(circuit.count(sort))
        fell = keep is None and rounds[-1].accuracy < floor
        ended = not left[-1] if keep is None else number == len(keep)
        if fell or ended:
            return Pruning(rounds, left, rounds[-2].circuit if fell and number else circuit, floor)
        assert scores is not None  # only the last round has none
        fewer = next_keep(left[-1], share) if keep is None else keep[number]
        circuit = circuit.keeping(sort, kept(scores, circuit.living(sort), fewer))


def next_keep(living: int, share: float) -> int:
    """How many of the living units the next round keeps: a share of them goes, rounded up, and at least one."""
    tiny = 1e-9  # 0.1 * 70 is 7, whatever the rounding of floats
    return living - max(1, math.ceil(living * share - tiny))


def kept(scores: Floats, living: Alive, keep: int) -> Alive:
    """Which units [L, H, K] stay: the `keep` of the living ones with the highest scores [L, H, K]; ties by order.

    Raises ValueError for scores of another shape, for NaN as the score of a living unit, and if `keep` are not alive.
    """
    if scores.shape != living.shape or np.isnan(scores[living]).any():
        raise ValueError(f"scores {scores.shape} of units {living.shape}: give a number for each of the living units")
    if not 0 <= keep <= living.sum():
        raise ValueError(f"keep = {keep}: {int(living.sum())} units are alive")
    order = np.argsort(np.where(living, -scores, np.inf), axis=None, kind="stable")
    stays = np.zeros(living.shape, bool)
    stays.flat[order[:keep]] = True
    return stays & living


def random_living(circuit: Circuit, like: Circuit, sort: Sort, draws: int, seed: int = 0) -> list[Alive]:
    """Random prunings of a circuit: sets of its living units [L, H, K], each as large as that of `like`.

    All sets differ from each other and from that of `like`. There are fewer than `draws` where so many are not found,
    and none where `like` has all units of the circuit, or none of them.
    """
    rng, living = np.random.default_rng(seed), circuit.living(sort)
    places, size, own = np.flatnonzero(living), like.count(sort), like.living(sort)
    sets: dict[bytes, Alive] = {}
    for _ in range(20 * draws if 0 < size < len(places) else 0):
        chosen = np.zeros(living.shape, bool)
        chosen.flat[rng.choice(places, size, replace=False)] = True
        if len(sets) < draws and (chosen != own).any():
            sets.setdefault(chosen.tobytes(), chosen)
    return list(sets.values())


# ------------------------------------------------------------------------------------------------ files of scores


def write_scores(path: Path, circuit: Circuit, sort: Sort, scores: Floats, **about: Any) -> None:
    """Write the scores [L, H, K] that the units of a circuit had, as JSON with the units' names.

    about: what else the file says. "parent" in the file is the digest of the circuit.
    """
    named = dict(zip(circuit.all_names(sort), scores.ravel().tolist(), strict=True))
    lines = {"sort": sort, "parent": circuit.digest, **about, "scores": named}
    write_whole(path, json.dumps(lines, indent=0) + "\n")


def read_scores(path: Path, circuit: Circuit, sort: Sort) -> Floats:
    """The scores [L, H, K] of a file, for the circuit in which they were measured.

    Raises ValueError, naming the file, for scores of other units or of another circuit.
    """
    try:
        lines = json.loads(path.read_text(encoding="utf-8"))
        given, parent, scores = lines["sort"], lines["parent"], lines["scores"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} holds no scores of units: {error!r}") from error
    names = circuit.all_names(sort)
    if given != sort or [*scores] != names:
        raise ValueError(f"{path}: scores of {len(scores)} {given} units; the circuit has {len(names)} {sort} units")
    if parent != circuit.digest:
        raise ValueError(f"{path}: its scores were measured in the circuit {parent}, this one is {circuit.digest}")
    return np.array([*scores.values()], float).reshape(circuit.living(sort).shape)
