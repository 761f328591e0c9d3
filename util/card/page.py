"""A card: its topics, each some parts of a figure, what these say, and its files. It needs no model."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from util.figures.edge_ablation import show as edges
from util.figures.induction_scores import show as induction
from util.figures.ioi_patching import show as ioi
from util.figures.role_atlas import show as roles
from util.show.files import filled, png_of, write_whole
from util.show.part import Figure, Values, drawn

LOOK = "look.html"  # beside a card: what all heads do on a sentence
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
    "Roles of heads": (roles.FIGURE, ("atlas", "untrained"), roles.atlas_say),
    "Indirect objects (IOI)": (ioi.FIGURE, ("population", "circuit", "paths"), ioi_says),
    "Word pairs": (edges.FIGURE, ("circuits", "map"), word_pairs_say),
    "Induction heads removed": (induction.FIGURE, ("scores", "ablation"), induction_says),
}


def sentences(card: Card) -> dict[str, list[str]]:
    """What a card says of each topic, made of its values alone; of one that was refused, why."""
    by_topic = {}
    for topic, (figure, _, says) in TOPICS.items():
        refused = topic in card["refused"]
        lines = [f"Not measured: {card['refused'][topic]}"] if refused else says(card["values"][figure.stem])
        by_topic[topic] = [f"{sentence.rstrip('.')}." for sentence in lines if sentence]
    return by_topic


WIDTH, DPI = 7.2, 150  # of the pictures: inches, and pixels of each


def pictures(card: Card, topic: str) -> Iterator[tuple[str, str]]:
    """The pictures of a topic: the name of the part, and a PNG file as a data: address. None where it was refused."""
    figure, parts, _ = TOPICS[topic]
    for name in parts if figure.stem in card["values"] else ():
        if picture := drawn(figure.parts[name], card["values"][figure.stem], WIDTH):
            yield name, f"data:image/png;base64,{base64.b64encode(png_of(picture, DPI).getvalue()).decode()}"


def html(card: Card, command: str, look: bool = False) -> str:
    """The page. command: what made it; look: whether a page of all heads on a sentence lies beside it."""
    topics = [(topic, lines, list(pictures(card, topic))) for topic, lines in card["sentences"].items()]
    return filled(Path(__file__).with_name("card.html"), card=card, topics=topics, command=command, look=look)


def write(card: Card, folder: Path, command: str) -> list[Path]:
    """Write both files into a folder, which is made, and return their paths. command: what made the card."""
    folder.mkdir(parents=True, exist_ok=True)
    page = html(card, command, (folder / LOOK).exists())
    texts = {"card.json": json.dumps(card, indent=1, allow_nan=False) + "\n", "card.html": page}
    return [write_whole(folder / name, text) for name, text in texts.items()]
