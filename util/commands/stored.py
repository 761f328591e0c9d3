"""Cards of models, and what is done with values files: `card`, `atlas`, `claims`, `draw`, `replication`.

A replication is a second run on fresh prompts. Two independent means differ by more than 1.96 of their joint standard
errors in one case of twenty, even if nothing is different. So single numbers that moved say little. How many of all
numbers moved, and which claims changed, says more. The intervals of a map hold together: of those numbers fewer move by
chance, one in twenty maps has any.
"""

from __future__ import annotations

import json
import math
import os
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from util import card as circuit_cards
from util import paths
from util.commands.arguments import Int, ModelFlags, Seed, Words, made
from util.figures import FIGURES
from util.show import files
from util.show.draw import WIDTH
from util.show.part import drawn, figure_of, stored
from util.stats.heads import Head, head_name
from util.stats.intervals import Interval

CONTROL_SETS = 20  # of claims
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
        out: receives card.html, card.json, and look.html: all heads on the sentence of IOI
        redo: measure again what is cached
    """
    source, twin = model.source, ""
    if untrained is not None:
        source, twin = source.twin(untrained), f"untrained-{untrained}"
    folder = made(out or paths.output("cards", model.model) / twin)
    result = circuit_cards.measured(source, size, seed, redo=redo)
    command = model.command("card", untrained=untrained, size=size, seed=seed or None)
    (folder / circuit_cards.LOOK).unlink(missing_ok=True)  # of another model
    if untrained is None:
        from util.look import example, look

        print(look(source, None, example("ioi", source)).write(folder / circuit_cards.LOOK, command))
    for topic, sentences in result["sentences"].items():
        print(f"{topic}:", *sentences)
    print(*circuit_cards.write(result, folder, command), sep="\n")


def atlas(card: Path, *cards: Path, out: Path | None = None) -> None:
    """Print the table, and write the figure and a page. Raises ValueError for files that are no cards.

    Args:
        card: a card.json, or a folder that has one
        cards: more of them
        out: receives card_atlas.png, .pdf, .json and .html, from which a head leads to look.html beside its card;
            default: data/cards/ in what ICL_OUTPUT names
    """
    places = (card, *cards)
    read = [circuit_cards.read(place) for place in places]
    models = [one["model"] for one in read]
    if len({*models}) < len(models):
        raise ValueError(f"cards of {', '.join(models)}: give one of each model")
    print(circuit_cards.table(read).to_string())
    file = made(out or paths.output("cards")) / "card_atlas"
    pictures = files.write_figure(circuit_cards.picture(read), file)
    depths = {one["model"]: circuit_cards.depths(one) for one in read}
    looks = [(place if place.is_dir() else place.parent) / circuit_cards.LOOK for place in places]
    beside = [Path(os.path.relpath(look, file.parent)).as_posix() if look.exists() else None for look in looks]
    page = paths.write_whole(file.with_suffix(".html"), circuit_cards.atlas_page(read, beside))
    print(*pictures, files.write_values(depths, file.with_suffix(".json")), page, sep="\n")


def claims(model: ModelFlags = ModelFlags(), *, prompts: Int | None = None) -> None:
    """Measure the claims of notebooks 02 and 04, print the verdicts, and write all into the values files.

    Args:
        prompts: of each task, each with a query of its own; default: induction_scores 200, edge_ablation 250
    """
    from util.figures.edge_ablation.measure import judge
    from util.figures.induction_scores import numbers as induction_claims
    from util.stats import verdicts
    from util.study.study import Study

    def save(claims: Mapping[str, Any], study: Study) -> None:
        print(verdicts.table(claims["claims"]).to_string())
        print(files.save_claims(claims, study.figure.stem, model.model))

    made(paths.output("values", model.model))  # where nothing can be written is known before hours of work
    source = model.source
    patterns = Study(
        "induction_scores", source, untrained_control=False, prompts=200 if prompts is None else prompts,
        control_sets=CONTROL_SETS, other_sets=CONTROL_SETS, shots=(0, 10),
    )  # fmt: skip
    pairs = Study("edge_ablation", source, untrained_control=False, prompts=250 if prompts is None else prompts)
    save(induction_claims.stored(source.title, patterns.arrays("shots"), patterns.settings), patterns)
    save(judge(pairs), pairs)


def draw(model: str, *models: str, figure: Words = FIGURES, width: float = WIDTH, out: Path | None = None) -> None:
    """Draw every picture of the figures, and print their files. Raises ValueError where none or old ones are stored.

    Args:
        model: embedded, smollm2, or another model whose values were stored
        models: others, whose pictures stand beside those of the first
        figure: one or more; default: all
        width: inches of a model's picture
        out: default: figures/ in what ICL_OUTPUT names
    """
    if wrong := sorted({*figure} - {*FIGURES}):
        raise ValueError(f"figure = {', '.join(wrong)}: there are {', '.join(FIGURES)}")
    everyone = model, *models
    folder = made(out or paths.output("figures", "+".join(everyone)))
    for stem in figure:
        values = list[dict[str, Any]]()
        for one in everyone:
            if (entries := stored(stem, one, latest=True)) is None:
                raise ValueError(f"no values of {stem} of {one} are stored; `make figures MODEL={one}` measures them")
            values.append(entries)
        for name, part in figure_of(stem).parts.items():
            shown = values if part.measure or everyone == ("embedded",) else ()  # what is about no model is drawn once
            try:
                pictures = [picture for one in shown if (picture := drawn(part, one, width))]
            except KeyError as error:
                old = f"the values of {stem} have no {error}, as an older version of the suite wrote them"
                raise ValueError(f"{old}; `make figures` writes them again") from error
            if pictures and not models:
                print(*files.write_figure(pictures[0], folder / f"{stem}_{name}"))
            elif pictures:
                print(files.write_beside(pictures, folder / f"{stem}_{name}"))


def replication(first: Path, second: Path) -> None:
    """Print what held and what moved. Raises ValueError where the second folder has no values file of a figure.

    Args:
        first: a folder of values files, such as data/values
        second: the same figures, measured on other prompts
    """
    shared = [stem for stem in FIGURES if all((folder / f"{stem}.json").exists() for folder in (first, second))]
    if not shared:
        raise ValueError(f"{first}, {second}: there is no figure of which both have a values file")
    for stem in shared:
        both = [json.loads((folder / f"{stem}.json").read_text(encoding="utf-8")) for folder in (first, second)]
        if both[0]["request"]["model"] != both[1]["request"]["model"]:
            raise ValueError(f"{first}, {second}: give two runs of one model")
        lines, moved = compared(stem, *both)
        print(*lines, sep="\n")
        if len(moved):
            print(f"  moved most:\n{textwrap.indent(moved[:MOVED].to_string(), '    ')}")
        runs = [files.read_values(folder / f"{stem}.json") for folder in (first, second)]
        if otherwise := said_otherwise(stem, *runs):
            print("  said otherwise now:", *otherwise, sep="\n    ")


NORMAL = 1.96  # a 95 % interval reaches so many standard errors to either side
VALUES = ("value", "mean", "log_prob")  # what an entry may call the number between "low" and "high"
LISTS_OF_RUNS = ("random", "by_draw", "trace", "steps", "request", "undefined")  # of three numbers, but no interval
# Sets of heads and rankings of edges that every run draws for itself, so that two runs measure different ones.
CONTROLS = re.compile(r"layer-matched|norm-matched|in others|others out|random \d|.*, control \d")
NUMBERS = re.compile(r"(?<!\w)[-+]?\d[\d.,]*")  # but for those of names, such as L5H1
Place = tuple[str | int, ...]


def compared(stem: str, first: Mapping[str, Any], second: Mapping[str, Any]) -> tuple[list[str], pd.DataFrame]:
    """What held and what moved between the values of a figure, as values files hold them, and those of another run.

    Returns sentences, and the numbers that moved, the farthest first: both intervals, and how many joint standard
    errors lie between them. Where a figure chooses by the data what to measure, its values say under "chosen", by part,
    what that was. Parts of which the runs chose another are not compared, nor claims that one run alone has.
    """
    chosen, other = (values["chosen"] if isinstance(values.get("chosen"), dict) else {} for values in (first, second))
    unlike = [part for part in chosen if part in other and chosen[part] != other[part]]
    left_out = {*unlike} | ({"claims"} & (first.keys() ^ second.keys()))
    ours, theirs = (
        {": ".join(map(str, place)): interval for place, interval in intervals(run) if place[0] not in left_out}
        for run in (first, second)
    )
    shared = [name for name in ours if name in theirs]
    rows = [(str(ours[name]), str(theirs[name]), standard_errors(ours[name], theirs[name])) for name in shared]
    apart = pd.DataFrame(rows, shared, ["first", "again", "standard errors"])
    moved = apart[apart["standard errors"] > NORMAL].sort_values("standard errors", ascending=False, kind="stable")
    judged, again = (
        {one["number"]: one for one in run.get("claims", {"claims": ()})["claims"]} for run in (first, second)
    )
    remarks = [
        f"claim {number}, {claim['text']}: {claim['verdict']}, now {again[number]['verdict']}"
        for number, claim in judged.items()
        if again.get(number, claim)["verdict"] != claim["verdict"]
    ]
    remarks += [f"not compared: {part}: measured on {chosen[part]}, now on {other[part]}" for part in unlike]
    if alone := ours.keys() ^ theirs.keys():
        remarks.append(f"in one of the runs alone: {len(alone)}")
    held = f"{len(shared) - len(moved)} of {len(shared)} numbers held"
    lines = [f"{stem}: {held}; by chance at most 1 in 20 moves.", *(f"  {remark}" for remark in remarks)]
    return lines, moved.round(1)


def said_otherwise(stem: str, first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """What the second run says and the first does not, whatever the numbers: other heads, pairs, methods, verdicts."""

    def sentences(values: Mapping[str, Any]) -> dict[str, str]:
        parts = [part for name, part in figure_of(stem).parts.items() if name != "claims" or name in second]
        return {NUMBERS.sub("", text): text for part in parts for text in part.says(values) if text}

    known = sentences(first)
    return [text for words, text in sentences(second).items() if words not in known]


def standard_errors(first: Interval, second: Interval) -> float:
    """How many joint standard errors lie between two numbers, by the sides of their intervals that face each other.

    Of intervals that hold together for a whole map the sides are longer, and 1.96 is the bound for the whole map.
    Infinite where the two differ and neither interval has a width.
    """
    down, up = sorted((first, second), key=lambda interval: interval.value)
    apart = up.value - down.value
    joint = math.hypot(down.high - down.value, up.value - up.low) / NORMAL
    return 0.0 if apart == 0 else apart / joint if joint > 0 else math.inf


def intervals(values: Any, place: Place = (), heads: Sequence[Head] = ()) -> Iterator[tuple[Place, Interval]]:
    """Every interval in the values of a figure, with its place; places without a value (null) are left out.

    An interval is a list (value, low, high) with low <= value <= high; an entry with numbers or arrays "low", "high",
    and one of `VALUES` has such lists. Those of control sets are left out, because every run draws its own. Where an
    entry has a list "heads" (layer, head), places in the lists below it are by the names of these heads, since which
    heads they are may differ from run to run. heads: that list.
    """

    def step(number: int) -> str | int:
        return head_name(heads[number]) if number < len(heads) else number

    if isinstance(values, Mapping):
        value = next((name for name in VALUES if name in values), "")
        ends = (value, "low", "high") if value and {"low", "high"} <= values.keys() else ()
        if ends:
            arrays = np.array([values[name] for name in ends], dtype=float)  # null becomes NaN
            yield from intervals(np.moveaxis(arrays, 0, -1).tolist(), place, heads)
        below = values["heads"] if isinstance(values.get("heads"), list) else heads
        for name, entry in values.items():
            if name not in (*LISTS_OF_RUNS, *ends) and not CONTROLS.match(str(name)):
                yield from intervals(entry, (*place, str(name)), below)
    elif isinstance(values, list):
        plain = [type(entry) in (int, float) for entry in values]
        if plain == [True] * 3 and values[1] <= values[0] <= values[2]:
            yield place, Interval(*map(float, values))
        else:
            for number, entry in enumerate(values):
                yield from intervals(entry, (*place, step(number)), heads)
