"""README: its findings are those of the stored values."""

import json
import re

import pytest

from util import paths

README = (paths.root() / "README.md").read_text(encoding="utf-8")
TABLE = re.search(r"## What it finds\n(.*?)\n## ", README, flags=re.DOTALL)
assert TABLE is not None
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in TABLE[1].splitlines() if line[:3] == "| ["]
STEMS = ("toy_induction_head", "forerunner_heads", "induction_scores", "ioi_patching", "edge_ablation")


def triples(value):
    """Every (value, low, high) of stored values, however deep, with two decimals."""
    if isinstance(value, dict):
        if {"value", "low", "high"} <= value.keys():
            yield from zip(*(flat(value[name]) for name in ("value", "low", "high")), strict=True)
        for entry in value.values():
            yield from triples(entry)
    elif isinstance(value, list):
        if len(value) == 3 and all(isinstance(entry, int | float) for entry in value):
            yield tuple(value)
        for entry in value:
            yield from triples(entry)


def flat(value):
    return [number for entry in value for number in flat(entry)] if isinstance(value, list) else [value]


def rounded(stored):
    """Those as they are written: counts as they are, all else with two decimals."""
    return {
        tuple(f"{number:.0f}" if isinstance(number, int) else f"{number:.2f}" for number in triple)
        for triple in triples(stored)
        if None not in triple
    }


def intervals_in(text):
    """Every "value [low, high]" of a text, as it is written."""
    return set(re.findall(r"(-?[\d.]+) \[(-?[\d.]+), (-?[\d.]+)\]", text))


@pytest.mark.parametrize(("row", "stem"), list(zip(ROWS, STEMS, strict=True)), ids=STEMS)
@pytest.mark.parametrize(("column", "folder"), [(1, ""), (2, "smollm2")], ids=["embedded", "smollm2"])
def test_every_interval_of_the_findings_is_stored(row, stem, column, folder):
    stored = json.loads((paths.root() / "data" / "values" / folder / f"{stem}.json").read_text())
    said = intervals_in(row[column])
    assert said and said <= rounded(stored)


def test_the_counts_of_the_findings_are_stored():
    for column, folder in ((1, ""), (2, "smollm2")):
        values = {
            stem: json.loads((paths.root() / "data" / "values" / folder / f"{stem}.json").read_text()) for stem in STEMS
        }
        heads = flat(values["forerunner_heads"]["counts"]["correct"])
        assert f" of {len(heads)};" in ROWS[1][column]
        assert ROWS[4][column].startswith(f"{len(values['edge_ablation']['search']['kept'])} of 31,")
    controls = {
        name: value[0]
        for name, value in values["induction_scores"]["accuracy"]["wordseq1"].items()
        if name.startswith(("layer-matched", "norm-matched"))
    }
    whole = values["induction_scores"]["accuracy"]["wordseq1"]["top 3 ablated"][0]
    costly = sum(value <= whole for value in controls.values())
    assert f"{costly} of {len(controls)} sets of other heads" in ROWS[2][2]
