"""The referee on a contest whose answer is known, the benchmarks on tiny models, and the page of their results."""

import contextlib
import itertools
import json
import sys

import numpy as np
import pytest

from tests.benchmarks import referee, sensitivity, verdicts
from tests.benchmarks.referee import MEMORY, TIME, Bar, Contest
from tests.clone import ROOT, text
from tests.tiers import quick
from util.figures.edge_ablation import numbers as edge_claims
from util.figures.induction_scores import numbers as induction_claims
from util.prompts.prompt import with_bos
from util.stats.intervals import Interval
from util.stats.verdicts import DOES_NOT_HOLD, HOLDS

CONTESTS = {(name, title): c for name in referee.CONTESTED for title, c in referee.contests(name).items()}
HERE = {place: c for place, c in CONTESTS.items() if referee.HARNESS not in c.pythons.values()}


def served(code, before=""):
    program = f"from tests.benchmarks.referee import serve\n{before}\nserve(lambda: {code})"
    return referee.serving([sys.executable, "-c", program], {"PYTHONPATH": str(ROOT)})


def test_a_contestant_answers_whatever_it_prints():
    with served("print('chatter') or [len(b'a' * (64 << 20)), 1.5]") as ask:
        assert ask("value") == [64 << 20, 1.5]
        assert 0 <= ask("time") < 5
        assert 60 <= ask("peak") / 2**20 <= 70


def test_a_contestant_that_dies_is_told_of():
    with pytest.raises(RuntimeError, match="a contestant died"), served("1 / 0"):
        pass
    with pytest.raises(RuntimeError, match="died"), served("numbers.pop()", "numbers = [1]") as ask:
        ask("time")


def test_what_is_found_of_a_contest(monkeypatch):
    """Rounds are paired; peaks are beyond that of `plain`; half of the work of `plain` counts twice."""
    seconds = {"ours": iter([2.0, 4.0, 12.0]), "plain": iter([0.5, 1.0, 2.0])}
    answers: dict = {"peak": {"ours": 3 << 20, "plain": 1 << 20}, "value": {"ours": [1, np.nan], "plain": [1.5, 2]}}
    bars = (Bar(TIME, "ours", "plain", most=1.9), Bar(MEMORY, "ours", least=2), Bar(TIME, "plain"))
    options = {"same": (("plain", "ours"),), "part": {"plain": 2}, "beyond": "plain"}
    toy = Contest(dict.fromkeys(seconds, lambda: float), bars, {}, {}, 3, **options)

    @contextlib.contextmanager
    def started(benchmark, title, names, setting):
        yield {n: lambda question, n=n: next(seconds[n]) if question == "time" else answers[question][n] for n in names}

    monkeypatch.setattr(referee, "contests", lambda name: {"toy": toy})
    monkeypatch.setattr(referee, "started", started)
    found = referee.measured("", "toy")
    assert found[TIME] == {"ours": 4.0, "plain": 2.0, "ours / plain": [2.0, 2.0, 3.0]}
    assert (found[MEMORY], found[referee.DIFFERENCE], found["rounds"]) == ({"ours": 2.0}, {"ours": 0.5}, 3)
    assert [bar.told(found)[1:] for bar in bars] == [
        ("at most 1.9", "2 [2, 3]", False),
        ("at least 2 MiB", "2 MiB", True),
        ("", "2 s", True),
    ]


@pytest.mark.parametrize(("name", "title"), quick([*{place[0]: place for place in reversed(HERE)}.values()], HERE))
def test_contestants_agree_on_a_tiny_model(name, title):
    """Those of other groups find something else, or nothing would be compared."""
    contest = HERE[name, title]
    run = {n: make(**contest.tiny)() for n, make in contest.contestants.items() if n not in contest.pythons}
    values = {n: np.asarray(value, float) for n, value in run.items() if value is not None}
    assert values and not any(np.isnan(value).all() for value in values.values())
    group = {n: number for number, names in enumerate(contest.same) for n in names}
    for one, other in itertools.combinations(values, 2):
        a, b = values[one], values[other]
        alike = a.shape == b.shape and bool(np.nanmax(np.abs(a - b)) < 1e-4)
        assert alike == (group.get(one, one) == group.get(other, other)), (one, other)


def test_the_tables_of_the_page_are_those_of_the_files():
    page = (referee.FOLDER / "README.md").read_text(encoding="utf-8")
    assert referee.renewed(page) == page, 'make bench NAME=edges BENCH_ARGS="--only --save"'
    with pytest.raises(ValueError, match="no table of `make bench NAME=capture`"):
        referee.renewed("# Benchmarks\n")


def test_files_have_the_contests_and_make_names_the_benchmarks():
    stored = {n: json.loads((referee.FOLDER / f"{n}.json").read_text(encoding="utf-8")) for n in referee.CONTESTED}
    assert {(name, title) for name, report in stored.items() for title in report} == {*CONTESTS}
    makefile = text("Makefile")
    assert f"NAME={', '.join(referee.CONTESTED)}, or {', '.join(referee.SIMULATED)}: no contests\n" in makefile


def test_margins_are_those_of_the_simulation():
    """At the margin no verdict is wrong in more than one sample of twenty."""
    claims = json.loads((referee.FOLDER / "verdicts.json").read_text(encoding="utf-8"))["claims"]
    by_paper: dict[str, dict[int, float]] = {}
    for claim in claims:
        by_paper.setdefault(claim["paper"], {})[claim["claim"]] = claim["margin"]
        wrong = claim["at the margin"]
        assert max(wrong["holds"], wrong["does not hold in this model"]) <= 0.05, claim
    assert [*by_paper.values()] == [induction_claims.MARGINS, edge_claims.MARGINS]


def test_a_simulated_margin_goes_through_the_rule():
    """Of no effect a claim of a difference is refused, of the paper's it is not; at the margin few are wrong."""
    random = np.random.default_rng(0)
    no, yes = (verdicts.of_induction(1, random, effect)({1: 0.1}) for effect in (0.0, 0.4))
    assert (no, yes) == ("does not hold in this model", "holds")
    assert verdicts.of_edges(3, random, 0.4)({3: 0.1}) == "holds"
    at_the_margin = verdicts.sample(verdicts.of_edges, 3, 0.05, 200, (0, 0))  # of three tasks together
    wrong = [verdicts.share(at_the_margin, 3, 0.05, verdict) for verdict in (HOLDS, DOES_NOT_HOLD)]
    assert 0 < max(wrong) <= 0.05


def test_variants_stand_beside_each_other_each_as_a_model_of_its_own(monkeypatch, tmp_path):
    asked = []

    def measured(model, seed, **labels):
        asked.append((model.name, seed, labels))
        return {"an endpoint": Interval(0.5, 0.4, 0.6), "a head": "L0H0"}

    for name in ("forerunner", "induction", "ioi", "edges"):
        monkeypatch.setattr(sensitivity, name, measured)
    report = sensitivity.simulate(1, "embedded")
    names = ["as it is", "seed 1", "BOS"]  # the embedded model has no chat template
    assert [*report["numbers"]["an endpoint"]] == [*names, *map("/".join, sensitivity.LABELS)]
    models = ["embedded", "embedded", "given:embedded, BOS"]
    assert [(model, seed) for model, seed, _ in asked[:12:4]] == list(zip(models, [0, 1000, 0], strict=True))
    assert asked[-1] == ("embedded", 0, {"labels": sensitivity.LABELS[-1]})
    monkeypatch.setattr(referee, "FOLDER", tmp_path)
    (tmp_path / "sensitivity.json").write_text(json.dumps(report))
    assert f"| an endpoint {'| 0.50 [0.40, 0.60] ' * 7}|\n" in referee.table("sensitivity")


def test_what_stands_in_front_is_read_as_special_tokens():
    tokenizer = sensitivity.variant("embedded", "BOS").pair[1]
    found = with_bos("the words", tokenizer)
    assert found.ids[0] == tokenizer.bos_token_id and found.spans[0] is None and None not in found.spans[1:]
