"""Cards side by side, see `util.card.atlas`."""

from __future__ import annotations

from pathlib import Path

from util import paths
from util.card import atlas
from util.commands.arguments import Folder
from util.show import files
from util.show.draw import draw
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
    found = [atlas.read(place) for place in (card, *cards)]
    atlas.check(found)
    print(atlas.table(found).to_string())
    folder.mkdir(parents=True, exist_ok=True)
    pictures = files.write_figure(draw(atlas.grid(found), atlas.finding(found), atlas.ABOUT), folder / NAME)
    depths = {one["model"]: atlas.depths(one) for one in found}
    print(*pictures, files.write_values(depths, folder / f"{NAME}.json"), sep="\n")
