"""README: its findings are those of the stored values."""

import re

import numpy as np
import pytest

from tests.stored import FOLDERS, flat, intervals_in, rounded, values
from util import paths
from util.figures import FIGURES
from util.figures.ioi_patching.show import conclude, few_edges, kept_alone, telling_sizes
from util.show.claims import claims_table
from util.show.words import written

README, NOTEBOOKS, BENCHMARKS = (
    (paths.root() / folder / "README.md").read_text(encoding="utf-8") for folder in ("", "notebooks", "data/benchmarks")
)


def rows(text, link):
    """The cells of a table's lines that lead to a notebook."""
    lines = [line for line in text.splitlines() if line.startswith("| ") and re.search(link, line)]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


ROWS = rows(NOTEBOOKS, r"\]\(\d\d_")
COLUMNS = {"smollm2": 2, "embedded": 3}


def test_readme_takes_two_minutes():
    text = re.sub(r"```.*?```|^    .*?$|^[|!].*?$", "", README, flags=re.DOTALL | re.MULTILINE)
    assert len(re.sub(r"\]\([^)]*\)", "]", text).split()) <= 900


@pytest.mark.parametrize(("row", "stem"), list(zip(rows(README, r"<img"), FIGURES, strict=True)), ids=FIGURES)
def test_a_finding_of_readme_has_one_interval_which_is_stored(row, stem):
    assert f"](notebooks/{row[0].split('](notebooks/')[1][:2]}_{stem}.ipynb)" in row[0]
    assert len(intervals_in(row[1])) == 1 and intervals_in(row[1]) <= rounded(values(stem, "smollm2"))


def test_the_counts_of_readme_are_stored():
    """Each number of a finding without an interval, and every one beside other tools."""
    _, forerunner, induction, ioi, edges, atlas = (row[1] for row in rows(README, r"<img"))
    assert f"{values('forerunner_heads', 'smollm2')['specificity']['judged']['confirmed']} of 270 heads" in forerunner
    accuracy = values("induction_scores", "smollm2")["accuracy"]["wordseq1"]
    assert f"from {accuracy['whole model'][0]:.2f} to {written(accuracy['top 3 ablated'])}" in induction
    assert "one of 20 random sets" in induction and "one of 20 control sets" in ROWS[2][2]
    assert " L23H3," in ioi and ROWS[3][2].startswith("L23H3 ")
    search = values("edge_ablation", "smollm2")["search"]
    assert f"{len(search['kept'])} of 31 " in edges and f"keeps {max(search['random']):.2f}" in edges
    assert f"{values('role_atlas', 'smollm2')['heads']} of 270 heads" in atlas


def test_the_numbers_beside_other_tools_are_those_of_the_benchmarks():
    table = README.partition("## Beside other tools")[2].partition("\nAttention is")[0]
    told = re.findall(r"\d[\d,]*\.\d+|\d[\d,]*\d", " ".join(line.split("|", 2)[2] for line in table.splitlines()[4:]))
    classes = (paths.root() / "data" / "classes" / "README.md").read_text(encoding="utf-8")
    measured = set(re.findall(r"[\d,.]*\d", BENCHMARKS + classes))
    assert len(told) == 12 and set(told) <= measured


@pytest.mark.parametrize(("row", "stem"), list(zip(ROWS, FIGURES, strict=True)), ids=FIGURES)
@pytest.mark.parametrize("model", FOLDERS)
def test_every_interval_of_the_findings_is_stored(row, stem, model):
    assert f"_{stem}.ipynb" in row[1]
    said = intervals_in(row[COLUMNS[model]])
    assert said and said <= rounded(values(stem, model))


def test_the_counts_of_the_findings_are_stored():
    for model, column in COLUMNS.items():
        _, forerunner, induction, _, edges, atlas = (row[column] for row in ROWS)
        heads = flat(values("forerunner_heads", model)["counts"]["correct"])
        stored = values("forerunner_heads", model)
        assert "{} [{}, {}]".format(*stored["frequent_heads"]["correct"]) + f" of {len(heads)} heads are" in forerunner
        confirmed = stored["specificity"]["judged"]["confirmed"]
        assert f"{confirmed} of them are forerunner heads" in forerunner or f", {confirmed} of them" in forerunner
        asked = values("induction_scores", model)["queries"]["wordseq1"]
        assert f"({asked} queries)" in induction
        assert edges.startswith(f"{len(values('edge_ablation', model)['search']['kept'])} of 31 ")
        found = values("role_atlas", model)
        assert atlas.startswith(f"{found['heads']} of {len(heads)}")
    ablation = values("induction_scores", "smollm2")["accuracy"]["wordseq1"]
    controls = [accuracy[0] for name, accuracy in ablation.items() if "-matched" in name]
    low = sum(accuracy <= ablation["top 3 ablated"][0] for accuracy in controls)
    assert low == 1 and f"one of {len(controls)} control sets is as low" in ROWS[2][2]
    contrast = values("induction_scores", "smollm2")["function vectors"]["contrast"]["word pairs"]
    assert contrast[1] > 0 and "Function-vector heads matter more for word pairs" in ROWS[2][2]
    forerunners = values("role_atlas", "smollm2")["roles"]["forerunner"]
    assert not forerunners["heads"]
    trec = [check["done"] for check in values("forerunner_heads", "smollm2")["task"] if check["name"] == "trec"]
    assert trec == [False, False] and "tested on TREC, which this model does not do" in ROWS[5][2]


def test_the_row_of_indirect_objects_says_what_the_conclusions_say():
    """The head that carries most, why it has no role, the curve of heads with its dip, and the few edges."""
    for model, column in COLUMNS.items():
        row, stored, atlas = ROWS[3][column], values("ioi_patching", model), values("role_atlas", model)["roles"]
        head = row.split()[0]
        assert f"The strongest, on the other half of the pairs: {head} " in " ".join(conclude(stored))
        assert len(atlas) == 9 and not any(head in role["heads"] for role in atlas.values())
        layer, number = map(int, head[1:].split("H"))
        direct, whole = stored["population"]["direct"], stored["population"]["noised"]["value"]
        assert direct[layer][number] > whole[layer][number] / 2 and "most of its effect is direct" in row
        assert f"4 of {np.size(direct)} heads keep {written(stored['circuit']['faithfulness']['4'])}" in row
    assert values("ioi_patching", "embedded")["circuit"]["surplus"]["4"][1] > 0  # "others work against the answer"
    reads = values("role_atlas", "embedded")["roles"]["inhibition"]["not confirmed"]["L2H5"]["score"][0]
    assert f"to the repeated name ({reads:.2f})" in ROWS[3][COLUMNS["embedded"]]
    stored, row = values("ioi_patching", "smollm2"), ROWS[3][COLUMNS["smollm2"]]
    kept = kept_alone(stored)
    assert (
        telling_sizes(kept, 270) == [4, 32, 128]
        and f"32 keep {kept[32].value:.2f} and 128 keep {kept[128].value:.2f}" in row
    )
    edges = few_edges(stored["component graph"])
    assert edges.replace(" inputs", "").partition(" of the effect")[0] in row


def test_the_claims_of_readme_are_the_stored_verdicts():
    assert claims_table() in NOTEBOOKS, "put what util.show.claims.claims_table() gives into notebooks/README.md"
