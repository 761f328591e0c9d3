"""Runs of edge ablation from JSON: what a config may say, what is exported, and that nothing is overwritten."""

import csv
import json
import shutil
import subprocess
import sys
from types import SimpleNamespace
from typing import get_args, get_type_hints

import numpy as np
import pytest

from util.commands import edge_configs
from util.commands.edge_configs import Config
from util.figures.edge_ablation import pruning, runs
from util.figures.edge_ablation.pruning import Pruner
from util.figures.edge_ablation.settings import Draw
from util.scores.units import write_scores
from util.study import exports
from util.study.model import Model
from util.study.study import Study

FEW = {"task": "capitalization", "prompts": 4, "k": 3}


@pytest.fixture(scope="module")
def model():
    return Model("embedded", device="cpu", verbose=False)


def never():
    raise AssertionError("nothing is to be loaded")


MISSING = Model("embedded", loader=never)


def config_of(action="accuracy", request=FEW, donor_seeds=(0,), **fields):
    return Config(action, request, donor_seeds, **fields)


def pruner_in(folder, model, **options):
    study = Study("edge_ablation", model, folder=folder, untrained_control=False)
    return Pruner.of(study, [Draw(**FEW, trained=True)], **options)


def test_there_is_an_example_of_every_action():
    actions = get_args(get_type_hints(Config)["action"])
    assert [config["action"] for config in edge_configs.EXAMPLES] == list(actions)


@pytest.mark.parametrize("example", edge_configs.EXAMPLES, ids=lambda config: config["action"])
def test_every_example_runs_and_says_what_the_records_say(example, model, tmp_path):
    request = {**example["request"], "prompts": 4}
    config = config_of(**{**example, "request": request, "out_dir": str(tmp_path / "out")})
    found = edge_configs.run(config, model, tmp_path)
    assert json.loads((tmp_path / "out" / "result.json").read_text()) == json.loads(json.dumps(found))
    with (tmp_path / "out" / "rows.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4 * len(found["results"]) and {row["donor_seed"] for row in rows} == {"0"}
    for name, measured in found["results"].items():
        right = [row["right"] == "True" for row in rows if row["ablation"] == name]
        assert measured["right"][0] == pytest.approx(np.mean(right))
        assert measured["right"][1] <= measured["right"][0] <= measured["right"][2]
    assert found["results"]["FULL"]["kl"][0] == pytest.approx(0, abs=1e-6)
    assert found["provenance"]["weights"] and found["left_out"]["rejected"] is not None
    if config.action == "accuracy":
        assert {row["written"].strip() for row in rows} <= {row["answers"] for row in rows}
        assert found["results"]["FULL"]["line_right"][0] == 1
    if config.action == "probes":
        assert len(found["results"]) == 2 + 2 * len(edge_configs.PROBED)


def test_an_equal_config_is_loaded_and_another_refused(model, tmp_path):
    out = {"out_dir": str(tmp_path / "out")}
    config = config_of("ablation", ablation={"removed": ["CONTEXT"]}, **out)
    first = edge_configs.run(config, model, tmp_path)
    before = (tmp_path / "out" / "result.json").read_bytes()
    assert edge_configs.run(config, MISSING, tmp_path / "elsewhere") == json.loads(json.dumps(first))
    other = config_of("ablation", ablation={"removed": ["AGG"]}, **out)
    with pytest.raises(FileExistsError, match="another config \\(ablation\\)"):
        edge_configs.run(other, MISSING, tmp_path / "elsewhere")
    assert (tmp_path / "out" / "result.json").read_bytes() == before
    replaced = edge_configs.run(other, model, tmp_path, overwrite=True)
    assert json.loads((tmp_path / "out" / "result.json").read_text())["config"] == other.plain() == replaced["config"]


def test_score_files_are_compared_by_what_they_contain(model, tmp_path):
    study = pruner_in(tmp_path, model)
    file, result = tmp_path / "scores.json", tmp_path / "out" / "result.json"
    scores = study.scores(study.first, "head")
    write_scores(file, study.first, "head", scores)
    pruning = {"keep": [100], "score_files": [str(file)]}
    config = config_of("prune_heads", random=1, pruning=pruning, out_dir=str(result.parent))
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
    given = {"request": {**FEW, "task": str(folder)}, "out_dir": str(out)}
    config = config_of(**given)
    out.mkdir()
    (out / "result.json").write_text(
        json.dumps({"config": config.plain(), "provenance": Study("edge_ablation").expected})
    )
    assert edge_configs.run(config, MISSING, tmp_path)["config"] == config.plain()
    (folder / "words").write_text(words.replace("red", "rose"))
    with pytest.raises(FileExistsError, match="another config \\(request\\)"):
        edge_configs.run(config, MISSING, tmp_path)
    (folder / "words").write_text(words)
    assert edge_configs.run(config, MISSING, tmp_path)["config"] == config.plain()


class Columns(dict):
    """Columns of a data set, as far as they are read."""

    column_names = property(lambda self: [*super().keys()])
    keys = property(lambda self: (_ for _ in ()).throw(AttributeError()))


def test_the_result_of_other_weights_or_a_file_of_someone_else_is_not_taken(model, tmp_path):
    mine = {**FEW, "task": "country_capital", "model": "given:mine"}
    config = config_of("accuracy", mine, out_dir=str(tmp_path / "out"))
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
    config = config_of()
    first = edge_configs.run(config, model, tmp_path)
    assert edge_configs.run(config, MISSING, tmp_path)["results"] == first["results"]
    assert {file.suffix for file in tmp_path.rglob("*") if file.is_file()} <= {".pickle", ".lock"}


def test_a_run_that_was_interrupted_goes_on(model, tmp_path, monkeypatch):
    config, measured = config_of("probes", {**FEW, "corruptions": [0, 1]}), runs.outcomes
    done = []

    def breaks(*arguments, **options):
        done.append(1)
        if len(done) == 4:
            raise KeyboardInterrupt
        return measured(*arguments, **options)

    monkeypatch.setattr(runs, "outcomes", breaks)
    with pytest.raises(KeyboardInterrupt):
        edge_configs.run(config, model, tmp_path)
    done.clear()
    monkeypatch.setattr(runs, "outcomes", lambda *a, **o: done.append(1) or measured(*a, **o))
    assert len(edge_configs.run(config, model, tmp_path)["results"]) == 7 and len(done) == 7 - 3


OF_ABLATION = {"action": "ablation"}
PRUNE = {"action": "prune_heads"}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"action": "search"}, "action = 'search': input should be 'accuracy', 'ablation', 'probes', 'scores'"),
        ({}, "action is missing; give it"),
        ({"action": "accuracy", "tsk": "copying"}, "Config has no argument 'tsk'; it has action, request, donor_seeds"),
        ({"action": "accuracy", "request": {"task": "copyin"}}, "unknown word-pair task 'copyin'; there are copying"),
        ({"action": "accuracy", "request": {"shots": 3}}, "Draw has no argument 'shots'; it has task, k, prompts"),
        ({"action": "accuracy", "request": {"donor_seed": 7}}, "request.donor_seed: leave it out; `donor_seeds`"),
        ({"action": "accuracy", "request": "x"}, "request = 'x': input should be a valid dictionary"),
        ({"action": "accuracy", "request": {"k": 2.5}}, "k = 2.5: input should be a valid integer"),
        ({"action": "accuracy", "request": {"two_pass": "maybe"}}, "two_pass = 'maybe': input should be a valid bo"),
        ({"action": "accuracy", "request": {"prompts": 1}}, "prompts = 1: two or more have intervals"),
        ({"action": "accuracy", "request": {"token_budget": 0}}, "token_budget = 0"),
        ({"action": "accuracy", "request": {"model": ""}}, "name = ''"),
        ({"action": "accuracy", "request": {"model": __file__, "revision": "main"}}, "revision = 'main'"),
        ({"action": "accuracy", "request": {"layout": {"sep": ":"}}}, "it has the fields separator"),
        ({"action": "ablation"}, "ablation says what"),
        ({"action": "accuracy", "ablation": {"removed": ["AGG"]}}, "give it there, and for no other action"),
        (OF_ABLATION | {"ablation": {"removed": ["y->last_seperator"]}}, "did you mean 'last_separator'"),
        (OF_ABLATION | {"ablation": {"probed": [["x->y", 0]]}}, "corruption 0 removes"),
        (OF_ABLATION | {"ablation": {"mode": "zero"}}, "unknown mode"),
        (OF_ABLATION | {"ablation": {"channel": "q"}}, "unknown channel 'q'"),
        (OF_ABLATION | {"ablation": {"removed": ["AGG"], "layers": [0.5]}}, "layers.0 = 0.5: input"),
        (OF_ABLATION | {"ablation": {"removed": ["AGG"], "heads": [[0, True]]}}, "heads.0.1 = True"),
        (OF_ABLATION | {"ablation": {"remove": ["AGG"]}}, "edits has no argument 'remove'; it has removed, kept, "),
        (OF_ABLATION | {"ablation": {"removed": 5}}, "removed.0 = 5: input should be a valid string"),
        (OF_ABLATION | {"ablation": {"removed": ["AGG"]}, "pruning": {"keep": [1]}}, "pruning: leave it out; it goes"),
        ({"action": "accuracy", "random": 5}, "random, share: leave them out; they go with prune_heads, prune_edges"),
        (PRUNE | {"random": -1}, "random = -1: input should be greater than or equal to 0"),
        (PRUNE | {"share": 1.5}, "share = 1.5: input should be less than or equal to 1"),
        (PRUNE | {"share": True}, "share = True: give a number"),
        (PRUNE | {"pruning": {"per_rond": 1}}, "pruning has no argument 'per_rond'; it has after_heads, start"),
        (PRUNE | {"pruning": {"start": {"remove": []}}}, "edits has no argument 'remove'"),
        (PRUNE | {"pruning": {"keep": [-1]}}, "keep.0 = -1"),
        (PRUNE | {"pruning": {"keep": [3, 4]}}, "keep = [3, 4]: no round keeps more units than"),
        (PRUNE | {"pruning": {"keep": [3], "score_files": ["a", "b"]}}, "2 files for 1 entries"),
        (PRUNE | {"pruning": {"keep": [3], "score_files": ["/none/a"]}}, "there is no file '/none/a'"),
        (PRUNE | {"pruning": {"start": {"removed": ["AGG"], "mode": "knockout"}}}, "nothing else goes with pruning"),
        (PRUNE | {"request": {"split": "all"}}, 'leave split at "test"'),
        ({"action": "prune_edges", "request": {"corruptions": [1]}}, "read from corruption 0"),
        ({"action": "accuracy", "donor_seeds": [1, 1]}, "donor_seeds = [1, 1]: give one or more, none of them twice"),
        ({"action": "accuracy", "donor_seeds": []}, "donor_seeds = []: give one or more"),
        ({"action": "accuracy", "donor_seeds": [-1]}, "donor_seeds.0 = -1: input should be greater than or equal to 0"),
        ({"action": "accuracy", "out_dir": __file__}, "is a file; name a folder"),
        ({"action": "accuracy", "out_dir": ""}, "out_dir = ''"),
        ({"action": "probes"}, "request.corruptions: probes are read from corruptions; give some from 1 on"),
        (
            [{"action": "accuracy", "out_dir": "a"}, {"action": "scores", "out_dir": "a"}],
            "two configs have one out_dir",
        ),
        ([{"action": "accuracy"}, {"action": "x"}], "config.json, config 1: action = 'x'"),
        ([["accuracy"]], "config.json, config 0: ['accuracy'] is no object"),
        ('{"action": "accuracy", "action": "scores"}', "'action' stands twice"),
        ('{"action": "accuracy", "request": {"k": 1, "k": 2}}', "'k' stands twice"),
        ("{", "is no JSON"),
    ],
    ids=str,
)
def test_a_config_that_cannot_be_run_is_refused_in_one_sentence_before_any_work(given, words, tmp_path):
    (tmp_path / "config.json").write_text(given if isinstance(given, str) else json.dumps(given))
    with pytest.raises(ValueError, match="cannot run .*config.json") as caught:
        edge_configs.load(tmp_path / "config.json")
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(exports.os, "access", lambda *_: False)
    with pytest.raises(ValueError, match=f"out_dir = '{tmp_path}/out': {tmp_path} cannot be written to"):
        config_of(out_dir=str(tmp_path / "out"))


def test_another_model_than_the_configs_is_refused(tmp_path):
    with pytest.raises(ValueError, match="model = 'given:other': the config asks for"):
        edge_configs.run(config_of(), Model("given:other", loader=never), tmp_path)


def test_every_wrong_field_has_a_line(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"action": "accuracy", "request": {"k": "x", "prompts": 0}}))
    with pytest.raises(ValueError) as caught:
        edge_configs.load(tmp_path / "config.json")
    assert [line.split(": ")[1] for line in str(caught.value).splitlines()] == ["k = 'x'", "prompts = 0"]


def test_the_command_line(tmp_path):
    """Two configs in one file; the second time nothing is measured; bad input ends with one line and status 1."""

    def call(*arguments):
        command = [sys.executable, "-m", "util", "edges", *arguments]
        return subprocess.run(command, capture_output=True, text=True)

    assert json.loads(call("--examples").stdout) == list(edge_configs.EXAMPLES)
    file, out = tmp_path / "configs.json", tmp_path / "out"
    one = {"action": "accuracy", "request": FEW, "donor_seeds": [0], "out_dir": str(out)}
    twin = {"action": "accuracy", "request": {**FEW, "untrained_seed": 0}, "donor_seeds": [0]}
    file.write_text(json.dumps([one, twin]))
    done = call(str(file))
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("  FULL")]
    assert [line[2] for line in lines] == ["1.000", "0.000"]
    assert (out / "result.json").exists()
    file.write_text(json.dumps({**one, "action": "scores"}))
    refused = call(str(file))
    assert refused.returncode == 1 and "of another config (action)" in refused.stderr
    assert "Traceback" not in refused.stderr


# ------------------------------------------------------------------------------------------------ pruning


def test_keep_lists_and_files_of_scores_replace_what_is_measured(model, tmp_path, monkeypatch):
    study = pruner_in(tmp_path, model)
    found = study.pruned("head", study.first, 0.9, 0.4)
    files = [str(file) for file in edge_configs.save_scores(tmp_path / "files", study, found)]
    keep = found.units_left[1:]
    assert len(files) == len(keep)
    by_list = study.pruned("head", study.first, 0.9, 0.4, keep)
    assert [one.circuit.digest for one in by_list.rounds] == [one.circuit.digest for one in found.rounds]
    monkeypatch.setattr(pruning.token_types, "scores", None)  # nothing is scored
    given = pruner_in(tmp_path / "other", model)
    rounds = given.pruned("head", given.first, 0.9, 0.4, keep, files).rounds
    assert [one.circuit.digest for one in rounds] == [one.circuit.digest for one in found.rounds]
    assert [one.accuracy for one in rounds] == [one.accuracy for one in found.rounds]
    with pytest.raises(ValueError, match="measured in the circuit"):
        given.pruned("head", given.first, 0.9, 0.4, keep[:2], files[1:3])
    with pytest.raises(ValueError, match="192 head units; the circuit has 992 edge units"):
        given.pruned("edge", given.first, 0.9, 0.4, keep, files)


def test_a_config_writes_score_files_that_the_next_one_takes(model, tmp_path):
    pruning = {"per_round": 0.5, "start": {"removed": ["TOQUERY"]}}
    given = {"action": "prune_heads", "request": FEW, "random": 2, "donor_seeds": [0, 1]}
    config = config_of(**{**given, "pruning": pruning, "out_dir": str(tmp_path / "a")})
    found = edge_configs.run(config, model, tmp_path)
    left, said = found["pruning"]["left"], found["pruning"]
    assert left[0] == 192 and len(said["kept"]["head"]) in left and len(said["kept"]["edge"]) == 992 - 4 * 32
    assert [*found["results"]] == ["FULL", "pruned", "random 1", "random 2"]
    files = [str(tmp_path / "a" / f"head_scores_{number}.json") for number in range(len(left) - 1)]
    keep = {**pruning, "keep": left[1:]}
    other = config_of(**{**given, "pruning": {**keep, "score_files": files}, "out_dir": str(tmp_path / "b")})
    again = edge_configs.run(other, model, tmp_path)
    shutil.copytree(tmp_path / "a", tmp_path / "moved")
    moved = [str(tmp_path / "moved" / f"head_scores_{number}.json") for number in range(len(files))]
    assert config_of(**{**given, "pruning": {**keep, "score_files": moved}}).plain() == other.plain()
    assert again["pruning"]["left"] == left and again["pruning"]["accuracy"] == said["accuracy"]
    scored = edge_configs.run(config_of("scores", pruning={"start": pruning["start"]}), model, tmp_path)
    of_file = json.loads((tmp_path / "a" / "head_scores_0.json").read_text())
    assert scored["scores"]["head"] == of_file["scores"] and of_file["method"] == "local_exact"
    values = [*scored["scores"]["edge"].values()]
    assert len(values) == 992 - 4 * 32 and values == sorted(values, reverse=True)
