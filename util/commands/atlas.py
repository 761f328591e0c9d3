"""Cards side by side, see `util.card.atlas`."""

from __future__ import annotations

from pathlib import Path

from util import paths
from util.card.atlas import CardAtlas, Entry
from util.commands.arguments import Folder
from util.show import files
from util.study.exports import check_folder

NAME = "card_atlas"


def run(card: Path, *cards: Path, out: Folder | None = None) -> None:
    """Print the table, and write the figure. Raises ValueError for what is no card.

    Args:
        card: a card.json, or a folder that has one
        cards: more of them
        out: receives card_atlas.png, .pdf and .json; default: data/cards/ in what ICL_OUTPUT names
    """
    folder = out or paths.output("cards")
    check_folder(folder, "out")
    atlas = CardAtlas(tuple(map(Entry.read, (card, *cards))))
    print(atlas.table().to_string())
    folder.mkdir(parents=True, exist_ok=True)
    pictures = files.write_figure(atlas.figure(), folder / NAME)
    print(*pictures, files.write_values(atlas.values(), folder / f"{NAME}.json"), sep="\n")
