"""Cards of models, and what is done with values files: `card`, `atlas`, `claims`, `draw`, `replication`."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any, Literal

from util import paths
from util.card import atlas as cards_atlas
from util.commands.arguments import ModelFlags, Seed, Words
from util.commands.results import made
from util.figures import FIGURES
from util.figures.replication import compared
from util.show import files
from util.show.draw import draw as drawing
from util.show.part import drawn, figure_of, stored
from util.show.style import WIDTH

PROMPTS = {"induction_scores": 200, "edge_ablation": 250}  # of claims
CONTROL_SETS = 20
MOVED = 10  # numbers that moved are listed


def card(
    model: ModelFlags = ModelFlags(),
    *,
    size: Literal["small", "full"] = "full",
    seed: Seed = 0,
    untrained: Seed | None = None,
    out: Path | None = None,
    redo: bool = False,
) -> None:
    """Measure the card and write the page. Raises ValueError for an unknown model.

    Args:
        size: how many prompts are measured
        seed: of all prompts
        untrained: of the model's untrained twin with fresh weights from this seed: what a card says of nothing
        out: receives card.html and card.json
        redo: measure again what is cached
    """
    from util.card import page
    from util.card.measure import card as measured

    source, twin = model.source, ""
    if untrained is not None:
        source, twin = source.twin(untrained), f"untrained-{untrained}"
    folder = made(out or paths.output("cards", model.model) / twin)
    result = measured(source, size, seed, redo=redo)
    command = model.command("card", untrained=untrained, size=size, seed=seed or None)
    for topic, sentences in result["sentences"].items():
        print(f"{topic}:", *sentences)
    print(*page.write(result, folder, command), sep="\n")


def atlas(card: Path, *cards: Path, out: Path | None = None) -> None:
    """Print the table, and write the figure. Raises ValueError for files that are no cards.

    Args:
        card: a card.json, or a folder that has one
        cards: more of them
        out: receives card_atlas.png, .pdf and .json; default: data/cards/ in what ICL_OUTPUT names
    """
    read = [cards_atlas.read(place) for place in (card, *cards)]
    cards_atlas.check(read)
    print(cards_atlas.table(read).to_string())
    file = made(out or paths.output("cards")) / "card_atlas"
    pictures = files.write_figure(drawing(cards_atlas.grid(read), cards_atlas.finding(read), cards_atlas.ABOUT), file)
    depths = {one["model"]: cards_atlas.depths(one) for one in read}
    print(*pictures, files.write_values(depths, file.with_suffix(".json")), sep="\n")


def claims(model: ModelFlags = ModelFlags(), *, prompts: int | None = None) -> None:
    """Measure the claims of notebooks 02 and 04, print the verdicts, and write all into the values files.

    Args:
        prompts: of each task, each with a query of its own; default: induction_scores 200, edge_ablation 250
    """
    from util.figures.edge_ablation.measure import judge
    from util.figures.induction_scores import claims as induction_claims
    from util.stats.verdicts import Verdicts
    from util.study.study import Study

    paths.output("values", model.model)  # where nothing can be written is known before hours of work
    source, counts = model.source, PROMPTS if prompts is None else dict.fromkeys(PROMPTS, prompts)
    sets = {"control_sets": CONTROL_SETS, "other_sets": CONTROL_SETS, "shots": (0, 10)}
    settings: dict[str, dict[str, Any]] = {
        "induction_scores": {"prompts": counts["induction_scores"], **sets},
        "edge_ablation": {"prompts": counts["edge_ablation"]},
    }
    studies = {stem: Study(stem, source, untrained_control=False, **own) for stem, own in settings.items()}
    for stem, measure in {
        "induction_scores": lambda study: induction_claims.stored(source.title, study.arrays("shots"), study.settings),
        "edge_ablation": judge,
    }.items():
        values = measure(studies[stem])
        print(Verdicts(values["claims"]).table().to_string())
        print(files.save_claims(values, stem, model.model))


def draw(model: str, *, figure: Words = FIGURES, width: float = WIDTH, out: Path | None = None) -> None:
    """Draw every picture of the figures, and print their files. Raises ValueError where no values are stored.

    Args:
        model: embedded, smollm2, or another model whose values were stored
        figure: one or more; default: all
        width: inches
        out: default: figures/ in what ICL_OUTPUT names
    """
    if wrong := sorted({*figure} - {*FIGURES}):
        raise ValueError(f"figure = {', '.join(wrong)}: there are {', '.join(FIGURES)}")
    folder = made(out or paths.output("figures", model))
    for stem in figure:
        values = stored(stem, model, latest=True)
        if values is None:
            raise ValueError(f"no values of {stem} of {model} are stored; `make figures` measures them")
        for name, part in figure_of(stem).parts.items():
            if picture := drawn(part, values, width):
                print(*files.write_figure(picture, folder / f"{stem}_{name}"))


def replication(first: Path, second: Path) -> None:
    """Print what held and what moved. Raises ValueError where the second folder has no values file of a figure.

    Args:
        first: a folder of values files, such as data/values
        second: the same figures, measured on other prompts
    """
    shared = [f"{stem}.json" for stem in FIGURES if (second / f"{stem}.json").exists()]
    if not shared:
        raise ValueError(f"second = {second}: there is no values file of a figure")
    for name in shared:
        both = [json.loads((folder / name).read_text(encoding="utf-8")) for folder in (first, second)]
        lines, moved = compared(name.removesuffix(".json"), *both)
        print(*lines, sep="\n")
        if len(moved):
            print(f"  moved most:\n{textwrap.indent(moved[:MOVED].to_string(), '    ')}")
