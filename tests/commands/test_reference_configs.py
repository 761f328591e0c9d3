"""Configs of edge ablation in the reference code's own names (Bakalova et al. 2025), as its users write them."""

import json

import pandas as pd
import pytest

from tests.commands.test_edge_configs import run
from tests.commands.test_table import PAGE
from util.commands import edge_configs

EDGES = [["y", "last_separator"], ["x_1", "y_2"]]
FEW = {"task": "Capitalization", "batch_size": 2, "limit": 4}
FASTER = {"request": {"k": 3}, "donor_seeds": [0], "random": 2, "per_round": 0.5}


def loaded(folder, *configs):
    file = folder / "config.json"
    file.write_text(json.dumps(configs))
    return edge_configs.load(file)


def test_the_fields_of_their_readme(tmp_path):
    """Nothing is loaded: what each of their models, and each of their fields, is here."""
    common = {"task": "Country-Capital", "batch_size": 8, "output_path": str(tmp_path / "out")}
    probed = {"curcuit": {"x->query": 0}, "ablate": {"y->last_separator": 2}}
    accuracy, ablation, differently, heads, edges = loaded(
        tmp_path,
        {**common, "model_name": "gemma2_calc_accuracy"},
        {**common, "model_name": "phi2_ablate_edges", "affect_whom": EDGES, "limit": 20},
        {**common, "model_name": "gemma2_ablate_edges_differently_for_different_tokens", "affect_whom": probed},
        {**common, "model_name": "gemma2_prune_heads_in_circuits", "affect_whom": EDGES, "prune_k": None},
        {**common, "model_name": "gemma2_prune_edges_in_circuits", "prune_using_imp_scores": [], "prune_k": []},
    )
    names = [config.model.name for config in (accuracy, ablation, differently)]
    assert names == ["google/gemma-2-2b", "microsoft/phi-2", "google/gemma-2-2b"]
    draw = accuracy.draws[0]
    assert (draw.task, draw.in_turn) == ("country_capital", True) and accuracy.out_dir == common["output_path"]
    assert [*map(str, ablation.ablation.removed)] == ["y->last_separator", "x_1->y_2"]
    assert (ablation.draws[0].prompts, ablation.draws[0].in_turn) == (20, False)
    assert differently.ablation.corruptions == differently.draws[0].corruptions == (0, 2)
    assert [*map(str, differently.ablation.removed)] == ["x->query"]
    assert heads.sort == "head" and heads.ablation == ablation.ablation and heads.keep is None
    assert edges.sort == "edge" and not edges.after_heads and edges.keep == ()


def test_the_page_shows_configs_that_are_understood(tmp_path):
    shown = json.loads(PAGE[PAGE.index('[{"model_name"') :].partition("\n\n")[0])
    accuracy, ablation = loaded(tmp_path, *shown[:2])
    assert accuracy.action == "accuracy" and len(ablation.ablation.removed) == 2
    with pytest.raises(ValueError, match="out/first/head_scores_0.json holds no scores"):
        loaded(tmp_path, shown[2])


def test_no_more_prompts_than_there_are_queries(tmp_path, capsys):
    whole, many, few = loaded(
        tmp_path,
        {"model_name": "embedded_calc_accuracy", "task": "Capitalization", "limit": None},
        {"action": "accuracy", "request": {"task": "capitalization", "prompts": 100_000}},
        {"action": "accuracy", "request": {"task": "capitalization", "prompts": 3}},
    )
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and "prompts = 100000: capitalization has" in told
    assert whole.draws == many.draws and whole.draws[0].in_turn
    assert f"has {whole.draws[0].prompts} to ask, all are taken" in told
    assert (few.draws[0].prompts, few.draws[0].in_turn) == (3, False)


def test_edges_are_ablated_and_the_first_prompts_are_logged(embedded, tmp_path):
    (config,) = loaded(
        tmp_path,
        {**FEW, "model_name": "embedded_ablate_edges", "affect_whom": EDGES, "output_path": f"{tmp_path}/out"}
        | {"limit": 8, "request": {"k": 3}, "donor_seeds": [0]},
    )
    result, log = run(config, embedded, tmp_path), json.loads((tmp_path / "out" / "model_logs.json").read_text())
    rows = pd.read_csv(tmp_path / "out" / "rows.csv")
    assert result["results"]["ablated"]["right"][0] == log["accuracy"]["ablated"] < log["accuracy"]["FULL"] == 1
    assert len(log["examples"]) == edge_configs.LOGGED
    for number, example in enumerate(log["examples"]):
        query, answer = rows.loc[number, ["queries", "answers"]]
        assert query in example["prompt"] and query not in example["corrupted"]["0"]
        assert example["token_types"].count("x") >= 3 and example["token_types"][-1] == "target"
        assert [(row["ablation"], row["answers"]) for row in example["answers"]] == [
            ("FULL", answer),
            ("ablated", answer),
        ]


def test_heads_are_pruned_by_score_files_and_then_edges_in_one_list(embedded, tmp_path):
    """Their way: a run leaves scores, which the next run prunes by before it leaves those of what is left."""
    heads = {**FEW, **FASTER, "model_name": "embedded_prune_heads_in_circuits", "affect_whom": [["x", "query"]]}
    run(loaded(tmp_path, {**heads, "output_path": f"{tmp_path}/1", "prune_k": []})[0], embedded, tmp_path)
    edges = {**heads, "model_name": "embedded_prune_edges_in_circuits", "output_path": f"{tmp_path}/2", "prune_k": [60]}
    files = [str(tmp_path / "1" / "head_scores_0.json")]
    result = run(loaded(tmp_path, {**edges, "prune_using_imp_scores": files})[0], embedded, tmp_path)
    pruned = result["results"]["pruning"]
    assert len(pruned["kept"]["head"]) == 60 and pruned["left"][0] < 992
    kept = {name.split(" ")[0] + " " + name.split("->")[1].split(":")[0] for name in pruned["kept"]["edge"]}
    assert kept <= {*pruned["kept"]["head"]}  # no edge into a head that is gone
    wrong = {"prune_using_imp_scores": [str(tmp_path / "2" / "edge_scores_0.json"), *files], "prune_k": [60, 40]}
    with pytest.raises(ValueError, match="scores of edge, head units: give those of heads, and of"):
        loaded(tmp_path, {**edges, **wrong})
