"""Runs of edge ablation from JSON: what a config may say, what is exported, and that nothing is overwritten."""

import csv
import json
import subprocess
import sys
from dataclasses import asdict, replace
from types import SimpleNamespace

import numpy as np
import pytest

from util import edges
from util.figures.edge_ablation import configs as edge_configs
from util.figures.edge_ablation import study as experiment
from util.figures.edge_ablation.configs import ACTIONS, Config
from util.figures.edge_ablation.pruning_study import PruningStudy
from util.figures.edge_ablation.study import Study
from util.records import exports
from util.records.model import Model
from util.scores.units import write_scores

FEW = {"task": "capitalization", "prompts": 4, "k": 3}


@pytest.fixture(scope="module")
def model():
    return Model("embedded", device="cpu", verbose=False)


def never():
    raise AssertionError("nothing is to be loaded")


MISSING = Model("embedded", loader=never)


def test_there_is_an_example_of_every_action():
    assert [config.action for config in edge_configs.examples()] == list(ACTIONS)


@pytest.mark.parametrize("example", edge_configs.examples(), ids=lambda config: config.action)
def test_every_example_runs_and_says_what_the_records_say(example, model, tmp_path):
    config = replace(example, request={**example.request, "prompts": 4}, out_dir=str(tmp_path / "out"))
    found = edge_configs.run(config, model, tmp_path)
    assert json.loads((tmp_path / "out" / "result.json").read_text()) == json.loads(json.dumps(found))
    with (tmp_path / "out" / "rows.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    seeds = {row["donor_seed"] for row in rows}
    assert len(rows) == 4 * len(found["results"]) * len(seeds)
    for name, measured in found["results"].items():
        right = [row["right"] == "True" for row in rows if row["ablation"] == name]
        assert measured["right"][0] == pytest.approx(np.mean(right))
        assert measured["right"][1] <= measured["right"][0] <= measured["right"][2]
    assert found["results"]["FULL"]["kl"][0] == pytest.approx(0, abs=1e-6)
    assert found["provenance"]["weights"] and found["left_out"]["rejected"] is not None
    if config.action == "accuracy":
        assert {row["written"].strip() for row in rows} <= {row["answers"] for row in rows}
        assert found["results"]["FULL"]["line_right"][0] == 1
    if config.action == "single_edges":
        assert list(found["results"]) == ["FULL", *map(str, edges.TYPE_PAIRS)]
    if config.action == "circuits":
        assert found["results"]["FULL"]["score"][0] == 1 and found["results"]["NONE"]["score"][0] == 0
        assert {"without AGG-ONLY", "random 1", "random 2"} <= set(found["results"]) and seeds == {"0", "1", "2"}
    if config.action == "windows":
        nothing = [found["results"][name] for name in ("CONTEXT from 4", "AGG below 0")]
        assert all(each["kl"] == found["results"]["FULL"]["kl"] for each in nothing)
    if config.action == "search":
        assert len(found["search"]["steps"]) == len(edges.TYPE_PAIRS)
        assert found["ablations"]["found"]["kept"][-len(found["search"]["kept"]) :] == found["search"]["kept"]


def test_an_equal_config_is_loaded_and_another_refused(model, tmp_path):
    config = Config("ablation", FEW, {"removed": ["CONTEXT"]}, donor_seeds=(0,), out_dir=str(tmp_path / "out"))
    first = edge_configs.run(config, model, tmp_path)
    before = (tmp_path / "out" / "result.json").read_bytes()
    assert edge_configs.run(config, MISSING, tmp_path / "elsewhere") == json.loads(json.dumps(first))
    other = replace(config, ablation={"removed": ["AGG"]})
    with pytest.raises(FileExistsError, match="another config \\(ablation\\)"):
        edge_configs.run(other, MISSING, tmp_path / "elsewhere")
    assert (tmp_path / "out" / "result.json").read_bytes() == before
    replaced = edge_configs.run(other, model, tmp_path, overwrite=True)
    assert json.loads((tmp_path / "out" / "result.json").read_text())["config"] == other.plain() == replaced["config"]


def test_score_files_are_compared_by_what_they_contain(model, tmp_path):
    study = PruningStudy(Study(model, **FEW, donor_seeds=(0,), folder=tmp_path), per_round=0.5)
    file, result = tmp_path / "scores.json", tmp_path / "out" / "result.json"
    scores = study.scores(study.first, "head")
    write_scores(file, study.first, "head", scores)
    pruning = {"keep": [100], "score_files": [str(file)]}
    config = Config("prune_heads", FEW, random=1, donor_seeds=(0,), pruning=pruning, out_dir=str(result.parent))
    first = edge_configs.run(config, model, tmp_path)
    assert edge_configs.run(config, MISSING, tmp_path / "elsewhere") == json.loads(json.dumps(first))
    write_scores(file, study.first, "head", -scores)
    with pytest.raises(FileExistsError, match="another config \\(score_file_digests\\)"):
        edge_configs.run(config, MISSING, tmp_path / "elsewhere")
    write_scores(file, study.first, "head", scores)
    assert edge_configs.run(config, MISSING, tmp_path / "elsewhere") == json.loads(json.dumps(first))
    older = json.loads(result.read_text())  # which says nothing of contents
    del older["config"]["score_file_digests"]
    result.write_text(json.dumps(older))
    with pytest.raises(FileExistsError, match="another config \\(score_file_digests\\)"):
        edge_configs.run(config, MISSING, tmp_path / "elsewhere")


def test_a_saved_data_set_is_compared_by_what_it_contains(tmp_path, monkeypatch):
    folder, out = tmp_path / "colours", tmp_path / "out"
    folder.mkdir()
    (folder / "dataset_info.json").write_text("{}")

    def load_from_disk(path):
        words = (folder / "words").read_text().split()
        return Columns(x=words, y=[word.upper() for word in words])

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_from_disk=load_from_disk))
    words = "red blue green white black brown pink grey gold silver"
    (folder / "words").write_text(words)
    config = Config("accuracy", {**FEW, "task": str(folder)}, donor_seeds=(0,), out_dir=str(out))
    out.mkdir()
    (out / "result.json").write_text(json.dumps({"config": config.plain(), "provenance": config.study.expected}))
    assert edge_configs.run(config, MISSING, tmp_path)["config"] == config.plain()
    (folder / "words").write_text(words.replace("red", "rose"))
    study = config.study
    with pytest.raises(FileExistsError, match="another config \\(request\\)"):
        edge_configs.run(config, MISSING, tmp_path)
    assert study.request != study.replace(seed=0).request  # a study keeps to what it has read
    (folder / "words").write_text(words)
    assert study.request == study.replace(seed=0).request
    assert edge_configs.run(config, MISSING, tmp_path)["config"] == config.plain()


class Columns(dict):
    """Columns of a data set, as far as they are read."""

    column_names = property(lambda self: [*super().keys()])
    keys = property(lambda self: (_ for _ in ()).throw(AttributeError()))


def test_the_result_of_other_weights_or_a_file_of_someone_else_is_not_taken(model, tmp_path):
    config = Config(
        "accuracy",
        {**FEW, "task": "country_capital", "model": "given:mine"},
        donor_seeds=(0,),
        out_dir=str(tmp_path / "out"),
    )
    trained, untrained = (Model.given(one.pair[0], one.pair[1], "given:mine") for one in (model, model.twin()))
    first = edge_configs.run(config, trained, tmp_path)
    again = edge_configs.run(config, trained, tmp_path / "elsewhere")
    assert again == json.loads(json.dumps(first))
    with pytest.raises(FileExistsError, match="another config \\(weights\\)"):
        edge_configs.run(config, untrained, tmp_path)
    second = edge_configs.run(config, untrained, tmp_path, overwrite=True)
    assert second["results"]["FULL"]["right"][0] == 0 and first["results"]["FULL"]["right"][0] == 1
    (tmp_path / "out" / "result.json").unlink()
    with pytest.raises(FileExistsError):  # rows.csv alone is not to be replaced either
        edge_configs.run(config, Model("given:mine", loader=never), tmp_path / "elsewhere")
    (tmp_path / "out" / "result.json").write_text("{}")
    with pytest.raises(FileExistsError):
        edge_configs.run(config, Model("given:mine", loader=never), tmp_path / "elsewhere")


def test_without_a_folder_the_records_are_the_result(model, tmp_path):
    config = Config("accuracy", FEW, donor_seeds=(0,))
    first = edge_configs.run(config, model, tmp_path)
    assert edge_configs.run(config, MISSING, tmp_path)["results"] == first["results"]
    assert {file.suffix for file in tmp_path.rglob("*") if file.is_file()} <= {".pickle", ".lock"}


def test_a_run_that_was_interrupted_goes_on(model, tmp_path, monkeypatch):
    config, measured = Config("windows", FEW, donor_seeds=(0,)), experiment.outcomes
    done = []

    def breaks(*arguments, **options):
        done.append(1)
        if len(done) == 4:
            raise KeyboardInterrupt
        return measured(*arguments, **options)

    monkeypatch.setattr(experiment, "outcomes", breaks)
    with pytest.raises(KeyboardInterrupt):
        edge_configs.run(config, model, tmp_path)
    done.clear()
    monkeypatch.setattr(experiment, "outcomes", lambda *a, **o: done.append(1) or measured(*a, **o))
    assert len(edge_configs.run(config, model, tmp_path)["results"]) == 11 and len(done) == 11 - 3


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"action": "acuracy"}, "action = 'acuracy': input should be 'accuracy', 'ablation', 'single_edges'"),
        ({"action": "accuracy", "tsk": "copying"}, "Config has no argument 'tsk'; it has action, request"),
        ({"action": "accuracy", "request": {"task": "copyin"}}, "copying"),
        ({"action": "accuracy", "request": {"shots": 3}}, "shots"),
        ({"action": "circuits", "circuits": ["CTX"]}, "unknown circuit 'CTX'"),
        ({"action": "ablation"}, "`ablation` says what"),
        ({"action": "accuracy", "ablation": {"removed": ["AGG"]}}, "no other action"),
        ({"action": "ablation", "ablation": {"removed": ["y->last_seperator"]}}, "did you mean 'last_separator'"),
        ({"action": "ablation", "ablation": {"probed": [["x->y", 0]]}}, "corruption 0 removes"),
        ({"action": "ablation", "ablation": {"mode": "zero"}}, "unknown mode"),
        ({"action": "ablation", "ablation": {"channel": "q"}}, "unknown channel 'q'"),
        (
            {"action": "ablation", "ablation": {"removed": ["AGG"], "layers": [0.5, 0.2]}},
            "layers: [0.2, 0.5] are no numbers of layers; give whole numbers from 0 on",
        ),
        ({"action": "ablation", "ablation": {"removed": ["AGG"], "layers": [-1, 1]}}, "layers: [-1] are no numbers"),
        ({"action": "ablation", "ablation": {"removed": ["AGG"], "layers": [0, 2.0]}}, "layers: [2.0] are no numbers"),
        ({"action": "ablation", "ablation": {"removed": ["AGG"], "heads": [[0, True]]}}, "heads: [True]"),
        ({"action": "ablation", "ablation": {"remove": ["AGG"]}}, "its fields are those of Ablation"),
        ({"action": "ablation", "ablation": {"removed": 5}}, "ablation = {'removed': 5}: its fields are"),
        (
            {"action": "ablation", "ablation": {"removed": ["AGG"], "heads": [[0]]}},
            "ablation = {'removed': ['AGG'], ",
        ),
        ({"action": "ablation", "ablation": {"removed": ["AGG"], "inside": "no"}}, "inside = 'no': give true or false"),
        ({"action": "accuracy", "request": "x"}, "request = 'x': input should be a valid dictionary"),
        ({"action": "ablation", "ablation": "x"}, "ablation = 'x': input should be a valid dictionary"),
        ({"action": "circuits", "circuits": [5]}, "circuits.0 = 5: input should be a valid string"),
        ({"action": "circuits", "circuits": "FULL"}, "circuits = 'FULL': input should be a valid tuple"),
        ({"action": "circuits", "random": -1}, "random = -1: input should be greater than or equal to 0"),
        ({"action": "accuracy", "donor_seeds": [1, 1]}, "donor_seeds = [1, 1]: give one or more, none of them twice"),
        ({"action": "accuracy", "donor_seeds": ["a"]}, "donor_seeds.0 = 'a': input should be a valid integer"),
        ({"action": "accuracy", "donor_seeds": [-1]}, "donor_seeds.0 = -1: input should be greater than or equal to 0"),
        ({"action": "accuracy", "donor_seeds": ["1"]}, "donor_seeds.0 = '1': input should be a valid integer"),
        ({"action": "accuracy", "request": {"k": 2.5}}, "k = 2.5: input should be a valid integer"),
        (
            {"action": "accuracy", "request": {"two_pass": "perhaps"}},
            "two_pass = 'perhaps': input should be a valid boolean",
        ),
        ({"action": "accuracy", "request": {"token_budget": 0}}, "token_budget = 0"),
        ({"action": "accuracy", "request": {"split": "train"}}, "split = 'train'"),
        ({"action": "accuracy", "request": {"order": "sorted"}}, "order = 'sorted'"),
        ({"action": "accuracy", "request": {"model": ""}}, "name = ''"),
        ({"action": "accuracy", "out_dir": __file__}, "is a file; name a folder"),
        ({"action": "accuracy", "out_dir": f"{__file__}/out"}, "is a file; name a folder"),
        ({"action": "accuracy", "out_dir": ""}, "out_dir = ''"),
        ({"action": "accuracy", "request": {"model": __file__, "revision": "main"}}, "revision = 'main'"),
        ({"action": "ablation", "ablation": {"removed": ["AGG"], "heads": [0, 1]}}, "heads: 0 is no head"),
        ({"action": "search", "share": 1.5}, "share = 1.5: input should be less than or equal to 1"),
        ({"action": "search", "share": 0}, "share = 0: input should be greater than 0"),
        ({"action": "accuracy", "donor_seeds": []}, "donor_seeds = []: give one or more"),
        ({"action": "accuracy", "donor_seeds": 0}, "donor_seeds = 0: input should be a valid tuple"),
        ({"action": "circuits", "circuits": []}, "circuits = []: give one or more"),
        ({"action": "search", "random": "5"}, "random = '5': input should be a valid integer"),
        ({"action": "accuracy", "request": {"prompts": 1}}, "two prompts or more"),
        ({"action": "accuracy", "request": {"donor_seed": 7}}, "unknown field of request 'donor_seed'"),
        ({"action": "accuracy", "request": {"layout": {"sep": ":"}}}, "it has the fields separator"),
        ({"action": "probes", "request": {"corruptions": [0, 1]}}, "lacks ['x->x:earlier'"),
        ({"action": "probes", "circuits": ["CTX+AGG"]}, "corruptions are [0]"),
        (
            [{"action": "accuracy", "out_dir": "a"}, {"action": "windows", "out_dir": "a"}],
            "two configs have one out_dir",
        ),
        ({}, "action"),
        ([["accuracy"]], "no object"),
    ],
)
def test_a_config_that_cannot_be_run_is_refused_before_any_work(given, words, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(given))
    with pytest.raises(ValueError, match="cannot run .*config.json") as caught:
        edge_configs.load(tmp_path / "config.json")
    assert words in str(caught.value)


def test_a_key_that_stands_twice_is_named(tmp_path):
    for text in ('{"action": "accuracy", "action": "windows"}', '{"action": "accuracy", "request": {"k": 1, "k": 2}}'):
        (tmp_path / "twice.json").write_text(text)
        with pytest.raises(ValueError, match="cannot run .*twice.json: '(action|k)' stands twice"):
            edge_configs.load(tmp_path / "twice.json")


def test_a_folder_that_cannot_be_written_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(exports.os, "access", lambda *_: False)
    with pytest.raises(ValueError, match=f"out_dir = '{tmp_path}/out': {tmp_path} cannot be written to"):
        Config("accuracy", FEW, out_dir=str(tmp_path / "out"))


def test_another_model_than_the_configs_is_refused(tmp_path):
    with pytest.raises(ValueError, match="model = 'given:other': the config asks for"):
        edge_configs.run(Config("accuracy", FEW), Model("given:other", loader=never), tmp_path)


def test_a_missing_or_broken_file_is_named(tmp_path):
    (tmp_path / "broken.json").write_text("{")
    for name in ("broken.json", "none.json"):
        with pytest.raises(ValueError, match=name):
            edge_configs.load(tmp_path / name)


def test_configs_survive_json(tmp_path):
    configs = edge_configs.examples()
    (tmp_path / "configs.json").write_text(json.dumps([asdict(config) for config in configs]))
    assert edge_configs.load(tmp_path / "configs.json") == configs
    (tmp_path / "one.json").write_text(json.dumps(asdict(configs[1])))
    assert edge_configs.load(tmp_path / "one.json") == [configs[1]]


def test_the_command_line(tmp_path):
    """Two configs in one file; the second time nothing is measured; bad input ends with one line and status 1."""

    def call(*arguments):
        command = [sys.executable, "-m", "util", "edges", *arguments]
        return subprocess.run(command, capture_output=True, text=True)

    assert json.loads(call("--examples").stdout) == json.loads(json.dumps([asdict(c) for c in edge_configs.examples()]))
    file, out = tmp_path / "configs.json", tmp_path / "out"
    one = asdict(Config("accuracy", FEW, donor_seeds=(0,), out_dir=str(out)))
    twin = asdict(Config("accuracy", {**FEW, "untrained_seed": 0}, donor_seeds=(0,)))
    file.write_text(json.dumps([one, twin]))
    done = call(str(file))
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("  FULL")]
    assert [line[2] for line in lines] == ["1.000", "0.000"]
    assert (out / "result.json").exists()
    file.write_text(json.dumps({**one, "action": "windows"}))
    refused = call(str(file))
    assert refused.returncode == 1 and "of another config (action)" in refused.stderr
    assert "Traceback" not in refused.stderr
