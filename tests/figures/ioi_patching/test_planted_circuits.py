"""The control of edge scores: which method finds which edges of planted circuits, as the notebook tells it."""

import pytest

from util.figures.ioi_patching.planted_edges import KINDS
from util.figures.ioi_patching.study import Study
from util.records.study import Study as Measured
from util.scores.planted import METHODS

FIRST_ORDER = METHODS[1:]
pytestmark = pytest.mark.slow  # sixteen models


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return Study(folder=tmp_path_factory.mktemp("records"))


@pytest.fixture(scope="module")
def known(study):
    return study.planted_edges()


def test_exact_scores_alone_see_what_queries_and_keys_read(known):
    for kind in KINDS:
        seen, there = known.seen(kind, "exact", attention=True)
        assert seen == there >= 4
        assert known.seen(kind, "exact", attention=False)[0] == known.seen(kind, "EAP", attention=False)[1]
        for method in FIRST_ORDER:
            assert known.seen(kind, method, attention=True)[0] < there
        assert known.seen(kind, "EAP", attention=True)[0] == 0
        assert known.recoveries[kind].auroc("exact").value == 1


def test_what_is_said_of_planted_circuits(known):
    table = known.table()
    assert [*table.index] == [(kind, method) for kind in KINDS for method in METHODS]
    assert table.loc[("plain", "EAP"), "q, k seen"] == "0 of 4"
    assert table.loc[("backup", "exact"), "q, k seen"] == "4 of 4"
    assert table.loc[("two copies", "exact"), "AUROC"] == "1.00 [1.00, 1.00]"
    assert known.silent_sentences() == [
        "input -> duplicate token <v>, input -> copier <k>: every name is marked as a name, whichever it is",
        "input -> copier <v>, copier -> logits: the copier adds as much to one answer as to the other",
        "duplicate token -> mover <k> (backup): the backup does the mover's work",
        "duplicate token -> backup mover <k>, input -> backup mover <v>, backup mover -> logits (backup): "
        "the backup does nothing while the mover works",
    ]
    assert known.lines()[0].startswith(
        "planted edges seen, plain, where queries and keys read, and elsewhere: exact 4 of 4, 2 of 2; EAP 0 of 4,"
    )
    assert [*known.values()] == [*KINDS]
    assert [*known.values()["noise"]] == [*METHODS]


def test_planted_circuits_are_measured_once(study, known, monkeypatch):
    monkeypatch.setattr(Measured, "pair", property(lambda _: pytest.fail("a model was loaded")))
    assert study.replace(prompts=8).planted_edges().lines() == known.lines()
