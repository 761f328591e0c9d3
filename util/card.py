"""Circuit cards: what is measured of a model, in two sizes, its page, and cards side by side (an atlas).

A card has topics, each some parts of a figure. What measures one imports PyTorch, all else needs no model.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture
from tqdm import tqdm

from util import paths
from util.figures.edge_ablation import show as edges
from util.figures.induction_scores import show as induction
from util.figures.ioi_patching import show as ioi
from util.figures.ioi_patching.numbers import carriers, intervals
from util.figures.role_atlas import show as roles
from util.prompts.prompt import UnsupportedTokenizer
from util.roles.rules import Role
from util.show.draw import ROLES, Grid, draw
from util.show.files import filled, plain, png_of
from util.show.part import Figure, Values, drawn, listed, written
from util.stats.heads import head_name, heads_where, place_of

if TYPE_CHECKING:
    from util.study.model import Model

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


# ------------------------------------------------------------------------------------------------ measured

# Settings by size and figure. Those of a full card are the notebooks', so that it shares their records.
SIZES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "small": {
        "role_atlas": {
            "datasets": ("trec",), "ks": (4,), "prompts": 8, "sequences": 12, "pairs": 32, "word_prompts": 4,
            "intact": 8,
        },
        "ioi_patching": {"prompts": 12, "path_heads": 6, "random_sets": 1},
        "edge_ablation": {"prompts": 8, "donor_seeds": (0,)},
        "induction_scores": {"tasks": ("wordseq1",), "text_tasks": (), "prompts": 10},
    },
    "full": {},
}  # fmt: skip
OF_PROMPTS = ("prompt_digest", "finished")  # what of a record's provenance is not the card's


def measured(model: Model, size: str = "full", seed: int = 0, **places: Any) -> dict[str, Any]:
    """The card of a model: what card.json has. What was measured before is not measured again.

    size: how much is measured, see `SIZES`. places: `folder` and `redo` of the studies. A topic that the model or its
    tokenizer does not allow is refused. Raises ValueError for wrong settings, before anything is measured.
    """
    from util.engine.call import UnsupportedModel
    from util.study.study import Study

    studies = {
        topic: Study(
            figure.stem, model, seed=seed, untrained_control=False, **places, **SIZES[size].get(figure.stem, {})
        )
        for topic, (figure, _, _) in TOPICS.items()
    }
    values, refused = {}, {}
    for topic, study in tqdm(studies.items(), "card", unit="topic", leave=False):
        try:
            values[study.figure.stem] = plain(study.values_of(*TOPICS[topic][1]), decimals=6)
        except (UnsupportedModel, UnsupportedTokenizer) as error:  # such as names that the tokenizer splits
            refused[topic] = str(error)
    origin = next((origin for study in studies.values() for origin in study.origins.values()), {})
    card = {
        "schema": SCHEMA,
        "model": model.title,
        "described": next((of_figure["model"] for of_figure in values.values()), model.title),
        "size": size,
        "seed": seed,
        "refused": refused,
        "values": values,
        "provenance": {name: entry for name, entry in origin.items() if name not in OF_PROMPTS},
    }
    return card | {"sentences": sentences(card)}


# ------------------------------------------------------------------------------------------------ one card


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


def page(card: Card, command: str, *, look: bool = False) -> str:
    """The page of a card. command: what made it; look: whether a page of all heads on a sentence lies beside it."""
    topics = [(topic, lines, list(pictures(card, topic))) for topic, lines in card["sentences"].items()]
    return filled(Path(__file__).with_name("card.html"), card=card, topics=topics, command=command, look=look)


def write(card: Card, folder: Path, command: str) -> list[Path]:
    """Write card.json and the page into a folder, and return their paths. command: what made the card."""
    html = page(card, command, look=(folder / LOOK).exists())
    texts = {"card.json": json.dumps(card, indent=1, allow_nan=False) + "\n", "card.html": html}
    return [paths.write_whole(folder / name, text) for name, text in texts.items()]


def read(place: Path) -> Card:
    """The card in a file, or in a folder that has one.

    Raises ValueError, which says what to do, where there is none, and for one that is damaged or of another schema.
    """
    file = place / "card.json" if place.is_dir() else place
    try:
        card = json.loads(file.read_text(encoding="utf-8"))
        schema = card["schema"]
        if schema == SCHEMA:
            table([card])  # all that is read of it
    except OSError:
        cure = f"`python -m util card MODEL --out {place}` makes one"
        raise ValueError(f"{place}: there is no card.json; {cure}") from None
    except Exception as error:  # whatever an entry that is missing or of another type leads to
        raise ValueError(f"{file} is damaged ({type(error).__name__}: {error}); make the card again") from error
    if schema != SCHEMA:
        raise ValueError(f"{file} has schema {schema!r}, this version reads {SCHEMA}; make the card again")
    return card


# ------------------------------------------------------------------------------------------------ cards side by side

ROW, MODEL = 0.22, 1.4  # inches: the height of a role, and the least width of a model
ABOUT = "roles by score and effect; a ring: the head carries more than a hundredth of the effect in IOI, too"


def depths(card: Card) -> dict[str, dict[str, float]]:
    """How deep the heads of each role lie: 0 in the first layer, 1 in the last; {} where roles were refused."""
    if (atlas := card["values"].get("role_atlas")) is None:
        return {}
    last = max(1, atlas["shape"][0] - 1)
    return {
        str(role): {name: place_of(name)[0] / last for name in atlas["roles"].get(role, {"heads": {}})["heads"]}
        for role in Role
    }


def in_ioi(card: Card) -> set[str]:
    """The heads that carry more than a hundredth of the effect in IOI; none where it is not done, or was refused."""
    values = card["values"].get("ioi_patching")
    if not values or not ioi.kept_alone(values):
        return set()
    return {*map(head_name, heads_where(carriers(intervals(values["population"]["noised"]))))}


def table(cards: Sequence[Card]) -> pd.DataFrame:
    """A row for each model and role: how many heads, how deep (mean, least and most), and which serve IOI, too."""
    rows = {}
    for card in cards:
        for role, heads in depths(card).items():
            deep = list(heads.values())
            rows[card["model"], role] = {
                "heads": len(deep),
                "depth": f"{np.mean(deep):.2f} ({min(deep):.2f}-{max(deep):.2f})" if deep else "",
                "in IOI too": ", ".join(sorted({*heads} & in_ioi(card))),
            }
    return pd.DataFrame.from_dict(rows, orient="index")


def atlas_page(cards: Sequence[Card], looks: Sequence[str | None]) -> str:
    """The atlas as a page. looks: of each model, where a page is that shows what its heads do, or None."""
    models = []
    for card, look in zip(cards, looks, strict=True):
        atlas = card["values"].get("role_atlas", {"shape": (0, 0), "roles": {}})
        by_head = dict[str, dict[str, str]]()
        for role, tested in atlas["roles"].items():
            for name, head in tested["heads"].items():
                by_head.setdefault(name, {})[role] = written(head["effect"])
        models.append({"name": card["model"], "shape": atlas["shape"], "look": look, "roles": by_head})
    colours = {str(role): ROLES[role].colour for role in Role}
    return filled(Path(__file__).with_name("card_atlas.html"), models=models, colours=colours)


def picture(cards: Sequence[Card]) -> Picture:
    """The depth of every head: a panel for each model, a row for each role. The title: how deep induction heads lie."""
    ranges = []
    for card in cards:
        if heads := depths(card).get(Role.INDUCTION):
            ends = [f"{end(heads.values()):.2f}" for end in (min, max)]
            ranges.append(f"{card['model']} {' to '.join(dict.fromkeys(ends))}")
    title = f"Depth of induction heads: {listed(ranges)}" if ranges else ""
    panels, label = [partial(_panel, card=card) for card in cards], "layer / last layer; at the right: number of heads"
    return draw(Grid(panels, least=MODEL, height=0.6 + ROW * len(Role), share="xy", x=label), title, ABOUT)


def _panel(ax: Axes, card: Card) -> None:
    rings = in_ioi(card)
    for row, (role, heads) in enumerate(depths(card).items()):
        ax.text(1.07, row, str(len(heads)), fontsize=6, va="center", color="0.35")
        beside = row + np.linspace(-0.4, 0.4, len(heads) + 2)[1:-1]  # heads of one layer lie beside each other
        rims = ["black" if name in rings else "none" for name in heads]
        ax.scatter([*heads.values()], beside, s=14, color=ROLES[role].colour, edgecolors=rims, linewidths=0.9)
    ax.set(title=card["model"], xlim=(-0.06, 1.04), ylim=(len(Role) - 0.4, -0.6))
    ax.set_yticks(range(len(Role)), list(map(str, Role)))
    ax.grid(axis="y", color="0.93", lw=0.6)
    ax.set_axisbelow(True)
