"""What the benchmarks share: contestants and their rounds, bars and their verdicts, the tables of data/benchmarks."""

import importlib
import json
import re
import sys
import types

import pytest

from tests.benchmarks import bench_coverage, referee, report, tables

REPORT = {"embedded": {"ours / plain": {"median": 3.8, "low": 3.75, "high": 3.912}, "extra, MiB": 1374.27}}
PASSES = ("embedded", "ours / plain")


# ------------------------------------------------------------------------------------------------ the referee


def served(code: str, before: str = "") -> referee.Contestant:
    """A contestant that runs this expression. before: what is done once, before the first run."""
    program = f"from tests.benchmarks.referee import serve\n{before}\nserve(lambda: {code})"
    return referee.Contestant([sys.executable, "-c", program], {"PYTHONPATH": str(referee.ROOT)})


def test_a_contestant_that_says_more_than_a_pipe_holds_answers():
    contestant = served("print('x' * 10**6) or 3")
    assert contestant.ask("value") == 3
    contestant.close()


def test_a_contestant_answers_and_closes():
    contestant = served("print('chatter') or [[1.5, 2]]")
    assert contestant.ask("value") == [[1.5, 2]]
    assert 0 <= contestant.ask("time") < 5
    contestant.close()
    assert contestant.process.returncode == 0


def test_a_peak_is_what_a_run_takes():
    contestant = served("len(b'a' * (64 << 20))")
    assert 60 <= contestant.ask("peak") / 2**20 <= 70
    contestant.close()


def test_a_contestant_that_dies_says_why():
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        served("1 / 0")
    contestant = served("numbers.pop()", "numbers = [1]")  # the first run empties the list
    with pytest.raises(RuntimeError, match="pop from empty list"):
        contestant.ask("time")
    contestant.close()


def test_contestants_are_closed_whatever_happens(monkeypatch):
    started = []

    def start(team, name):
        started.append(served("0"))
        return started[-1]

    monkeypatch.setattr(referee.Team, "start", start)
    with pytest.raises(KeyError), referee.Team("bench_none").started(["a", "b"]) as contestants:
        contestants["c"].ask("time")
    assert contestants.keys() == {"a", "b"}
    assert [contestant.process.poll() for contestant in started] == [0, 0]


def test_a_team_gives_each_contestant_its_options(monkeypatch):
    started = []
    monkeypatch.setattr(referee, "Contestant", lambda command, environment: started.append((command, environment)))
    own, pythons = {"tl": {"count": 2}}, {"tl": "other/python"}
    team = referee.Team("bench_x", {"shape": "tiny llama", "count": 32, "some": None}, own, threads=2, pythons=pythons)
    team.start("ours")
    team.start("tl", memory=True)
    begin = ["-m", "tests.benchmarks.bench_x", "--contestant"]
    assert [command for command, _ in started] == [
        [sys.executable, *begin, "ours", "--shape", "tiny llama", "--count", "32"],
        ["other/python", *begin, "tl", "--shape", "tiny llama", "--count", "2"],
    ]
    assert [environment["OMP_NUM_THREADS"] for _, environment in started] == ["2", "2"]
    assert ["MALLOC_TRIM_THRESHOLD_" in environment for _, environment in started] == [False, True]


def test_rounds_are_paired_and_compared(capsys):
    answers = {"ours": iter([2.0, 4.0, 12.0]), "plain": iter([1.0, 2.0, 4.0])}
    contestants = {name: types.SimpleNamespace(ask=lambda _, left=left: next(left)) for name, left in answers.items()}
    seconds = referee.rounds(contestants, 3, "toy")
    assert seconds == {"ours": [2, 4, 12], "plain": [1, 2, 4]}
    assert "toy, round 3/3: ours 12.00, plain 4.00 s" in capsys.readouterr().out
    found = referee.comparison(seconds, [("ours", "plain")])
    assert found["cpu_seconds"] == {"ours": 4.0, "plain": 2.0}
    assert found["ours / plain"] == {"median": 2.0, "low": 2.0, "high": 3.0}


# ------------------------------------------------------------------------------------------------ reports and bars


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"most": 6}, "units: at most 6 plain passes: 3.80 [3.75, 3.91], held"),
        ({"most": 3.5}, "units: at most 3.5 plain passes: 3.80 [3.75, 3.91], MISSED"),
        ({"least": 3.8}, "units: at least 3.8 plain passes: 3.80 [3.75, 3.91], held"),
        ({"least": 4, "most": 6}, "units: at least 4, at most 6 plain passes: 3.80 [3.75, 3.91], MISSED"),
    ],
)
def test_a_bar_is_held_or_missed(limits, said):
    assert report.Line("units", PASSES, unit="plain passes", **limits).verdict(REPORT) == said


def test_a_line_says_what_a_report_has():
    assert report.Line("", ("embedded", "extra, MiB"), unit="MiB").result(REPORT) == "1,374 MiB"
    assert report.Line("", ("smollm2", "ours / plain"), unit="MiB").result(REPORT) == "not measured yet"
    one_round = {"ratio": {"median": 2.0, "low": 2.0, "high": 2.0}}
    assert report.Line("", ("ratio",)).result(one_round) == "2.00"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1374.27, "1,374"),
        (57.25, "57.2"),
        (1.5, "1.50"),
        (0.0026, "0.0026"),
        (1.2e-7, "1.2e-07"),
        (0, "0"),
    ],
)
def test_numbers_are_written_short(value, text):
    assert report.written(value) == text


def test_a_report_is_printed_with_its_verdicts_and_saved(tmp_path, capsys):
    bars = [
        report.Line("units", PASSES, most=6),
        report.Line("no bar", PASSES),
        report.Line("not measured", ("smollm2", "ours / plain"), most=6),
    ]
    report.finish(REPORT, bars, tmp_path / "deep" / "report.json")
    printed = capsys.readouterr().out
    assert printed.splitlines()[-1] == "units: at most 6: 3.80 [3.75, 3.91], held"
    assert "no bar" not in printed and "not measured" not in printed
    assert json.loads((tmp_path / "deep" / "report.json").read_text()) == REPORT


def test_a_report_begins_with_machine_versions_and_rounds():
    found = report.report_head(7, threads=2)
    assert found["rounds"] == 7 and found["machine"].endswith("two threads per process")
    assert found["versions"].keys() == {"torch", "transformers"}


# ------------------------------------------------------------------------------------------------ the page


MODULES = {file.stem for file in referee.ROOT.glob("tests/benchmarks/bench_*.py")}


def test_the_tables_of_the_page_are_those_of_the_stored_reports():
    page = (tables.FOLDER / "README.md").read_text(encoding="utf-8")
    assert tables.renewed(page) == page, "make bench-tables"


def test_a_page_without_a_table_is_refused():
    with pytest.raises(ValueError, match="no table that begins with '| `make bench-forerunner`:'"):
        tables.renewed("# Benchmarks\n")


def test_every_benchmark_has_a_table_and_a_target():
    modules = {target: benchmark.__name__.rpartition(".")[2] for target, (benchmark, _) in tables.BENCHMARKS.items()}
    assert {*modules.values(), "bench_coverage"} == MODULES
    makefile = (referee.ROOT / "Makefile").read_text(encoding="utf-8")
    for target, module in modules.items():
        recipe = rf"^{target}:.*\n\t@.*-m tests\.benchmarks\.{module} .*\$\(BENCH_ARGS\)$"
        assert re.search(recipe, makefile, re.MULTILINE), target


@pytest.mark.parametrize("target", tables.BENCHMARKS)
def test_every_line_stands_in_the_stored_report(target):
    """A line whose name no stored report has would say "not measured yet" for ever."""
    benchmark, file = tables.BENCHMARKS[target]
    if not (tables.FOLDER / file).exists():
        pytest.skip(f"{file} was not measured yet")
    stored = json.loads((tables.FOLDER / file).read_text())
    assert not [line.what for line in benchmark.LINES if line.found(stored) is None]


@pytest.mark.parametrize("module", sorted(MODULES))
def test_every_benchmark_has_the_same_options(module, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [module, "--help"])
    with pytest.raises(SystemExit):
        importlib.import_module(f"tests.benchmarks.{module}").main()
    shown = capsys.readouterr().out
    assert "--rounds ROUNDS" in shown and "--save SAVE" in shown


def test_coverage_is_a_report_of_its_cases(tmp_path, monkeypatch):
    case = bench_coverage.Case("01", "always", lambda random: True)
    monkeypatch.setattr(bench_coverage, "cases", lambda: iter([case]))
    monkeypatch.setattr(sys, "argv", ["bench_coverage", "--rounds", "3", "--save", str(tmp_path / "coverage.json")])
    bench_coverage.main()
    found = json.loads((tmp_path / "coverage.json").read_text())
    assert found["samples"] == 3 and found["cases"][0]["coverage"] == 1
