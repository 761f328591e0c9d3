"""README: its findings are those of the stored values."""

import re

import pytest

from tests.clone import text
from tests.stored import intervals_in, rounded, values
from util.figures import FIGURES
from util.figures.ioi_patching.show import few_edges, kept_alone
from util.show.part import judged, made_of, written

README, NOTEBOOKS, BENCHMARKS = map(text, ("README.md", "notebooks/README.md", "data/benchmarks/README.md"))


def rows(page, link):
    """The cells of a table's lines that lead to a notebook."""
    lines = [line for line in page.splitlines() if line.startswith("| ") and re.search(link, line)]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_readme_takes_two_minutes():
    prose = re.sub(r"```.*?```|^    .*?$|^[|!].*?$", "", README, flags=re.DOTALL | re.MULTILINE)
    assert len(re.sub(r"\]\([^)]*\)", "]", prose).split()) <= 900


@pytest.mark.parametrize("row, stem", list(zip(rows(README, r"<img"), FIGURES, strict=True)), ids=FIGURES)
def test_a_finding_of_readme_has_one_interval_which_is_stored(row, stem):
    assert re.search(rf"\]\(notebooks/smollm2/\d\d_{stem}\.ipynb\)", row[0])
    for said, model in zip(row[1:], ("smollm2", "gemma3"), strict=True):
        assert len(intervals_in(said)) == 1 and intervals_in(said) <= rounded(values(stem, model)), model


def test_the_counts_of_readme_are_stored():
    """Each number of a finding without an interval, and every one beside other tools."""
    *_, induction, ioi, edges, atlas = (row[1] for row in rows(README, r"<img"))
    accuracy = values("induction_scores", "smollm2")["accuracy"]["wordseq1"]
    assert f"from {accuracy['whole model'][0]:.2f} to {written(accuracy['top 3 ablated'])}" in induction
    controls = [row[0] for name, row in accuracy.items() if "-matched" in name]
    assert sum(control <= accuracy["top 3 ablated"][0] for control in controls) == 1
    assert f"one of {len(controls)} sets of other heads" in induction
    edges_of_ioi = [few_edges(values("ioi_patching", model)["component graph"]) for model in ("smollm2", "gemma3")]
    counts = [said.partition(" edges")[0].rpartition(" of ")[0].rpartition(" ")[2] for said in edges_of_ioi]
    assert all(count in row for count, row in zip(counts, rows(README, r"<img")[3][1:], strict=True))
    kept = kept_alone(values("ioi_patching", "smollm2"))
    assert f"at their means, 4 keep {kept[4].value:.2f}, but 32 keep {kept[32].value:.2f}" in ioi and "L23H3 " in ioi
    search = values("edge_ablation", "smollm2")["search"]
    assert f"{len(search['kept'])} of 31 " in edges
    same = [pairs for pairs, score in search["aggregating"].items() if score >= search["scores"]["found"][1]]
    assert len(same) == 4 and all("x->y:same" in pairs for pairs in same) and len(search["aggregating"]) == 20
    assert f"{values('role_atlas', 'smollm2')['heads']} of 270 heads" in atlas


def test_the_counts_of_gemma_in_readme_are_stored():
    toy, _, _, ioi, _, atlas = (row[2] for row in rows(README, r"<img"))
    change = values("toy_induction_head", "gemma3")["in context"]["change"]
    others = max(change[0] for name, change in change.items() if "other" in name)
    assert f"shrinks by {change['without induction heads'][0]:.2f}, without others by up to {others:.2f}" in toy
    assert "L11H3 " in ioi and "; L15H1 works against the answer" in ioi
    assert atlas.startswith(f"{values('role_atlas', 'gemma3')['heads']} of 72 heads")


def test_the_numbers_beside_other_tools_are_those_of_the_benchmarks():
    table = README.partition("## Beside other tools")[2].partition("\nAttention is")[0]
    told = re.findall(r"\d[\d,]*\.\d+|\d[\d,]*\d", " ".join(line.split("|", 2)[2] for line in table.splitlines()[4:]))
    measured = set(re.findall(r"[\d,.]*\d", BENCHMARKS + text("data/classes/README.md")))
    assert len(told) == 12 and set(told) <= measured


PAPERS = {"induction_scores": "Crosbie & Shutova 2024", "edge_ablation": "Bakalova et al. 2025"}


@pytest.mark.parametrize("stem", PAPERS)
def test_the_claims_of_the_notebooks_page_are_the_stored_verdicts(stem):
    """By the paper's own numbers, and of published models; the embedded one, trained to show them, has no column."""
    positive = values(stem, "embedded")
    models = [{claim.number: claim for claim in judged(values(stem, model))} for model in ("smollm2", "gemma3")]
    for claim in judged(positive):
        own, here = positive["claims"]["published"].get(str(claim.number)), [one[claim.number] for one in models]
        paper = f"{own['value']:.2f}: {own['verdict'].removesuffix(' in this model')}" if own else "none published"
        cells = [f"{one.verdict}{made_of(one)}" for one in here]
        line = f"| {PAPERS[stem]} | {claim.number}. {claim.text} | {paper} | {' | '.join(cells)} |"
        assert line in NOTEBOOKS, f"put this line into notebooks/README.md: {line}"
