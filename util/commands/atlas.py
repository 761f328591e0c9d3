"""Cards side by side, see `util.card.atlas`."""

import argparse
from pathlib import Path

from util import paths
from util.card import atlas
from util.show import files
from util.show.draw import draw
from util.study.exports import check_folder

NAME = "card_atlas"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command to a parser."""
    parser.add_argument("card", nargs="+", type=Path, help="a card.json, or a folder that has one")
    about = "receives card_atlas.png, .pdf and .json; default: data/cards/ in what ICL_OUTPUT names"
    parser.add_argument("--out", type=Path, metavar="FOLDER", help=about)


def run(arguments: argparse.Namespace) -> None:
    """Print the table, and write the figure. Raises ValueError for what is no card."""
    if arguments.out is not None:
        check_folder(arguments.out, "out")
    cards = [atlas.read(place) for place in arguments.card]
    atlas.check(cards)
    print(atlas.table(cards).to_string())
    folder = arguments.out or paths.output("cards")
    folder.mkdir(parents=True, exist_ok=True)
    pictures = files.write_figure(draw(atlas.grid(cards), atlas.finding(cards), atlas.ABOUT), folder / NAME)
    depths = {card["model"]: atlas.depths(card) for card in cards}
    print(*pictures, files.write_values(depths, folder / f"{NAME}.json"), sep="\n")
