"""README: its findings are those of the stored values."""

import re

import pytest

from tests.stored import FOLDERS, flat, intervals_in, rounded, values
from util import paths
from util.figures import FIGURES
from util.figures.conclusions import claims_table

README = (paths.root() / "README.md").read_text(encoding="utf-8")
TABLE = re.search(r"## What it finds\n(.*?)\n## ", README, flags=re.DOTALL)
assert TABLE is not None
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")] for line in TABLE[1].splitlines() if "](notebooks/" in line
]
COLUMNS = {"smollm2": 2, "embedded": 3}


@pytest.mark.parametrize(("row", "stem"), list(zip(ROWS, FIGURES, strict=True)), ids=FIGURES)
@pytest.mark.parametrize("model", FOLDERS)
def test_every_interval_of_the_findings_is_stored(row, stem, model):
    assert f"_{stem}.ipynb" in row[1]
    said = intervals_in(row[COLUMNS[model]])
    assert said and said <= rounded(values(stem, model))


def test_the_counts_of_the_findings_are_stored():
    for model, column in COLUMNS.items():
        _, forerunner, induction, ioi, edges, atlas = (row[column] for row in ROWS)
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
        circuit = values("ioi_patching", model)["circuit"]
        assert "{:.2f} [{:.2f}, {:.2f}]".format(*circuit["faithfulness"]["4"]) in ioi
    circuit = values("ioi_patching", "smollm2")["circuit"]
    shares = [f"{share[0]:.2f}" for share in circuit["faithfulness"].values()]
    assert (
        shares == re.findall(r"\d\.\d\d(?=[ ,])(?!,? \d\.\d\d\])", ROWS[3][2].partition("alone keep")[2])[: len(shares)]
    )
    assert f"random sets of 256 up to {max(circuit['random']['256']) / circuit['whole'][0]:.2f}" in ROWS[3][2]
    ablation = values("induction_scores", "smollm2")["accuracy"]["wordseq1"]
    controls = [accuracy[0] for name, accuracy in ablation.items() if "-matched" in name]
    low = sum(accuracy <= ablation["top 3 ablated"][0] for accuracy in controls)
    assert low == 1 and f"one of {len(controls)} control sets is as low" in ROWS[2][2]
    contrast = values("induction_scores", "smollm2")["function vectors"]["contrast"]["word pairs"]
    assert contrast[1] > 0 and "Function-vector heads matter more for word pairs" in ROWS[2][2]
    forerunners = values("role_atlas", "smollm2")["roles"]["forerunner"]
    assert not forerunners["heads"]
    trec = [check["done"] for check in values("forerunner_heads", "smollm2")["task"] if check["name"] == "trec"]
    assert trec == [False, False] and "tested on TREC, which this model does not do" in README
    assert "25 are coloured" in README and values("role_atlas", "smollm2")["heads"] == 25


def test_the_claims_of_readme_are_the_stored_verdicts():
    assert claims_table() in README, "put what util.figures.conclusions.claims_table() gives into README"
