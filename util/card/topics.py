"""What a card has: topics, each some parts of a figure, and what these say. It needs no model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from util.figures.edge_ablation import show as edges
from util.figures.induction_scores import show as induction
from util.figures.ioi_patching import show as ioi
from util.figures.role_atlas import show as roles
from util.show.part import Figure, Values

SCHEMA = 4  # of card.json: a field that changes its meaning, or goes, raises it
Card = Mapping[str, Any]  # see data/cards/README.md
Says = Callable[[Values], Iterable[str]]


def ioi_says(values: Values) -> Iterator[str]:
    """How many heads are enough, which carry the effect, and which paths are between them, if the task is done."""
    yield from ioi.circuit_says(values)
    if ioi.kept_alone(values):
        yield from ioi.population_says(values)
        yield from ioi.paths_say(values)


def word_pairs_say(values: Values) -> Iterator[str]:
    """Where accuracy falls, what circuits of token types are worth, and what single edges cost."""
    yield from edges.circuits_say(values)
    yield from edges.map_say(values)


def induction_says(values: Values) -> Iterator[str]:
    """Whether accuracy falls without induction heads, and which these are."""
    yield from list(induction.ablation_say(values))[1:]
    yield from induction.scores_say(values)


# Of each topic: its figure, the parts that are measured and drawn, and what their values say.
TOPICS: Mapping[str, tuple[Figure, Sequence[str], Says]] = {
    "Roles of heads": (roles.FIGURE, ("atlas", "untrained"), roles.concludes),
    "Indirect objects (IOI)": (ioi.FIGURE, ("population", "circuit", "paths"), ioi_says),
    "Word pairs": (edges.FIGURE, ("circuits", "map"), word_pairs_say),
    "Induction heads removed": (induction.FIGURE, ("scores", "ablation"), induction_says),
}


def sentences(card: Card) -> dict[str, list[str]]:
    """What a card says of each topic, made of its values alone; of one that was refused, why."""
    said = {}
    for topic, (figure, _, says) in TOPICS.items():
        refused = topic in card["refused"]
        found = [f"Not measured: {card['refused'][topic]}"] if refused else says(card["values"][figure.stem])
        said[topic] = [f"{sentence.rstrip('.')}." for sentence in found if sentence]
    return said
