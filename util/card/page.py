"""A card as files: card.json, and card.html with everything in one file."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path

from util.card.topics import TOPICS, Card
from util.show.files import filled, write_whole
from util.show.part import drawn

WIDTH, DPI = 7.2, 150  # of the pictures: inches, and pixels of each


def pictures(card: Card, topic: str) -> Iterator[tuple[str, str]]:
    """The pictures of a topic: the name of the part, and a PNG file as a data: address. None where it was refused."""
    figure, parts, _ = TOPICS[topic]
    for name in parts if figure.stem in card["values"] else ():
        if picture := drawn(figure.parts[name], card["values"][figure.stem], WIDTH):
            file = io.BytesIO()
            picture.savefig(file, dpi=DPI)
            yield name, f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def html(card: Card, command: str) -> str:
    """The page. command: what made it."""
    topics = [(topic, said, list(pictures(card, topic))) for topic, said in card["sentences"].items()]
    return filled(Path(__file__).with_name("card.html"), card=card, topics=topics, command=command)


def write(card: Card, folder: Path, command: str) -> list[Path]:
    """Write both files into a folder, which is made, and return their paths. command: what made the card."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {"card.json": json.dumps(card, indent=1, allow_nan=False) + "\n", "card.html": html(card, command)}
    return [write_whole(folder / name, text) for name, text in texts.items()]
