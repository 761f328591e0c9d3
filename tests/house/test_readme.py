"""README: its findings are those of the stored values."""

import re

import pytest

from tests.stored import FOLDERS, flat, intervals_in, rounded, values
from util import paths
from util.figures import FIGURES

README = (paths.root() / "README.md").read_text(encoding="utf-8")
TABLE = re.search(r"## What it finds\n(.*?)\n## ", README, flags=re.DOTALL)
assert TABLE is not None
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in TABLE[1].splitlines() if line[:3] == "| ["]


@pytest.mark.parametrize(("row", "stem"), list(zip(ROWS, FIGURES, strict=True)), ids=FIGURES)
@pytest.mark.parametrize(("column", "model"), list(enumerate(FOLDERS, 1)), ids=FOLDERS)
def test_every_interval_of_the_findings_is_stored(row, stem, column, model):
    said = intervals_in(row[column])
    assert said and said <= rounded(values(stem, model))


def test_the_counts_of_the_findings_are_stored():
    for column, model in enumerate(FOLDERS, 1):
        heads = flat(values("forerunner_heads", model)["counts"]["correct"])
        assert f" of {len(heads)};" in ROWS[1][column]
        edges = values("edge_ablation", model)
        assert ROWS[4][column].startswith(f"{len(edges['search']['kept'])} of 31,")
        pruned = edges["pruning"]["by_task"]["capitalization"]["head"]
        kept = "{:.2f} [{:.2f}, {:.2f}]".format(*pruned["explained"][str(pruned["result"])])
        assert f"; {pruned['result']} of {pruned['units']}, {kept};" in ROWS[4][column]
    accuracy = values("induction_scores", "smollm2")["accuracy"]["wordseq1"]
    controls = [v[0] for name, v in accuracy.items() if name.startswith(("layer-matched", "norm-matched"))]
    costly = sum(value <= accuracy["top 3 ablated"][0] for value in controls)
    assert f"{costly} of {len(controls)} sets of other heads" in ROWS[2][2]
