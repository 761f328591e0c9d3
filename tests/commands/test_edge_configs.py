"""Runs of edge ablation from JSON: what a config may say, what is exported, and that nothing is overwritten."""

import json
import re
import shutil

import numpy as np
import pandas as pd
import pytest

from tests.unloaded import never
from util.commands import edge_configs
from util.commands.edge_configs import CONFIGS
from util.commands.frame import main
from util.figures.edge_ablation import runs
from util.study.model import Model
from util.study.study import Study

FEW = {"task": "capitalization", "prompts": 4, "k": 3}
MISSING = Model("embedded", loader=never)


def config_of(action="accuracy", request=FEW, donor_seeds=(0,), **fields):
    given = {"action": action, "request": request, "donor_seeds": donor_seeds, **fields}
    return CONFIGS.validate_python([given])[0]


def result(folder):
    return json.loads((folder / "result.json").read_text())


def contents(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def run(config, model, folder):
    """The result, as it is written."""
    study, out, request = edge_configs.prepared(config, model, folder=folder)
    edge_configs.write(config, study, out, request)
    return result(out)


@pytest.mark.parametrize("example", edge_configs.EXAMPLES, ids=lambda config: config["action"])
def test_every_example_runs_and_says_what_the_records_say(example, embedded, tmp_path):
    request = {**example["request"], "prompts": 4}
    config = config_of(**{**example, "request": request, "out_dir": str(tmp_path / "out")})
    found = run(config, embedded, tmp_path)
    rows = pd.read_csv(tmp_path / "out" / "rows.csv")
    measured = {name: one for name, one in found["results"].items() if name not in ("left_out", "pruning")}
    assert len(rows) == 4 * len(measured) == 4 * {"accuracy": 1, "ablation": 2}.get(config.action, 4)
    for name, right in rows.groupby("ablation")["right"].mean().items():
        assert measured[name]["right"][0] == pytest.approx(right)
    assert measured["FULL"]["kl"][0] == pytest.approx(0, abs=1e-6) and {*rows["donor_seed"]} == {0}
    assert found["provenance"]["weights"] and found["results"]["left_out"]["rejected"] is not None
    if config.action == "accuracy":
        assert {*rows["written"].str.strip()} <= {*rows["answers"]} and measured["FULL"]["line_right"][0] == 1
    files = contents(tmp_path / "out")
    run(config, MISSING, tmp_path)  # from the cache
    assert contents(tmp_path / "out") == files


def test_edges_are_read_from_the_donors_that_a_config_names(embedded, tmp_path):
    """What the reference code calls ablating edges differently: some removed, others read from another corruption."""
    edges = {"removed": ["TOQUERY"], "probed": [["x->y:same", 2], ["y->last_separator", 1]]}
    config = config_of("ablation", {**FEW, "corruptions": [0, 1, 2]}, (3, 1), **edges, out_dir=str(tmp_path / "out"))
    study = Study("edge_ablation", embedded, folder=tmp_path, untrained_control=False)
    answers = [runs.Run(study, draw).answers({"one": config.ablation})["one"]["right"] for draw in config.draws]
    found = run(config, embedded, tmp_path)["results"]["ablated"]
    assert found["right"][0] == np.mean(answers)
    assert found["log_prob"][2] <= 0 <= found["kl"][1]  # as far as they can reach
    assert config.ablation.corruptions == (0, 1, 2) and [draw.donor_seed for draw in config.draws] == [3, 1]


def test_null_is_the_default_of_every_field_but_prompts():
    [draw] = config_of(request={"model": "gpt2", "task": "capitalization", "layout": None}).draws
    assert (draw.prompts, draw.in_turn) == (200, False)


REQUESTS = {  # what is said of a draw's fields
    "unknown word-pair task 'copyin'; there are copying": {"task": "copyin"},
    "Draw has no argument 'shots'; it has task, k, prompts": {"shots": 3},
    "split = 'train'": {"split": "train"},
    "choose a smaller k": {"k": 1000},
    "corruptions = [0, 0]": {"corruptions": [0, 0]},
    "ambiguous": {"ambiguous": 4},
    "prompts = 1: two or more have intervals": {"prompts": 1},
    "revision = 'main'": {"model": __file__, "revision": "main"},
    "'sep': input should be 'separator', 'join'": {"layout": {"sep": ":"}},
}
FIELDS: dict[str, dict] = {  # what is said of an action's
    "accuracy": {
        "config 0.accuracy.tsk: Extra inputs are not permitted": {"tsk": "copying"},
        "give edges to ablate, and for no other action": {"removed": ["AGG"]},
        "donor_seeds: give one or more, none of them twice": {"donor_seeds": [1, 1]},
        **{words: {"request": request} for words, request in REQUESTS.items()},
    },
    "ablation": {
        "give edges to ablate": {},
        "did you mean 'last_separator'": {"removed": ["y->last_seperator"]},
        "give either the edges that are removed or those": {"removed": ["AGG"], "kept": ["AGG"]},
        "corruption 0 removes": {"probed": [["x->y", 0]]},
        "probed.0.1: give a number, not True or False": {"probed": [["x->y", True]]},
    },
    "prune_heads": {
        "share: give a number": {"share": True},
        "keep = [3, 4]: no round keeps more units than": {"keep": [3, 4]},
        "2 files for 1 entries": {"keep": [3], "score_files": ["a", "b"]},
        "none.json holds no scores of units": {"keep": [3], "score_files": ["none.json"]},
        'leave split at "test"': {"request": {"split": "all"}},
    },
    "prune_edges": {"read from corruption 0": {"request": {"corruptions": [1]}}},
    "search": {"config 0: Input tag 'search' found using 'action' does not match any of the expected": {}},
}
ACTIONS = [({"action": action, **one}, words) for action, given in FIELDS.items() for words, one in given.items()]


@pytest.mark.parametrize(
    "given, words",
    [
        *ACTIONS,
        ({"model_name": "gemma2_prune"}, "model_name = 'gemma2_prune': write MODEL_ACTION with an action of calc_acc"),
        ({"model_name": "embedded_calc_accuracy", "task": "Copyin"}, "unknown word-pair task 'Copyin'"),
        ([{"action": "accuracy"}, {"action": "x"}], "config.json, config 1: Input tag 'x'"),
        ([], "List should have at least 1 item"),
        ("{", "is no JSON"),
    ],
    ids=str,
)
def test_a_config_that_cannot_be_run_is_refused_in_one_sentence_before_any_work(given, words, tmp_path):
    (tmp_path / "config.json").write_text(given if isinstance(given, str) else json.dumps(given))
    with pytest.raises(ValueError, match="cannot run .*config.json") as caught:
        edge_configs.load(tmp_path / "config.json")
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_a_folder_that_cannot_be_made_is_refused():
    with pytest.raises(ValueError, match="name a folder that can be written to"):
        edge_configs.prepared(config_of(out_dir=__file__), MISSING)


def test_the_command_line(material, tmp_path, capsys):
    """Two configs in one file; bad input ends with one line and status 1."""
    main(["edges", "--examples"])
    assert json.loads(capsys.readouterr().out) == list(edge_configs.EXAMPLES)
    file, one = tmp_path / "configs.json", {"action": "accuracy", "request": FEW, "donor_seeds": [0]}
    twin = one | {"request": {**FEW, "untrained_seed": 0}, "out_dir": f"{tmp_path}/out"}
    file.write_text(json.dumps([one, twin]))
    main(["edges", str(file)])
    shown = re.findall(r"^FULL +(\S+)", capsys.readouterr().out, flags=re.MULTILINE)
    assert shown == ["1.00", "0.00"] and (tmp_path / "out" / "result.json").exists()
    file.write_text(json.dumps([one, one]))
    with pytest.raises(SystemExit, match="1"):
        main(["edges", str(file)])
    assert "two configs write into one folder" in capsys.readouterr().err


def test_a_config_writes_score_files_that_the_next_one_takes(embedded, tmp_path, monkeypatch):
    few = {"request": FEW, "random": 2, "donor_seeds": [0, 1], "per_round": 0.5, "removed": ["TOQUERY"]}
    first = run(config_of("prune_heads", **few, out_dir=str(tmp_path / "a")), embedded, tmp_path)["results"]
    assert [*first] == ["FULL", "pruned", "random 1", "random 2", "left_out", "pruning"]
    left, kept = first["pruning"]["left"], first["pruning"]["kept"]
    assert left[0] == 192 and len(kept["head"]) in left and len(kept["edge"]) == 992 - 4 * 32
    files = [tmp_path / "a" / f"head_scores_{number}.json" for number in range(len(left) - 1)]
    scores = json.loads(files[0].read_text())
    assert scores["method"] == "local_exact" and len(scores["scores"]) == 192
    shutil.copytree(tmp_path / "a", tmp_path / "moved")
    given, moved = (
        config_of("prune_heads", **few, keep=left[1:], score_files=[str(folder / file.name) for file in files])
        for folder in (tmp_path / "a", tmp_path / "moved")
    )
    assert given.plain() == moved.plain()
    monkeypatch.setattr(runs.token_types, "scores", None)  # nothing is scored
    again = run(given, embedded, tmp_path)["results"]["pruning"]
    assert again["left"] == left and again["accuracy"] == first["pruning"]["accuracy"]
