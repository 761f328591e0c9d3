"""The sentences "Beside the paper" at the head of a notebook's conclusions, typed, hold of the stored values."""

import json

import numpy as np
import pytest

from tests.clone import text
from tests.stored import values
from util.figures.forerunner_heads.numbers import EVERYWHERE
from util.figures.ioi_patching.show import certain_paths
from util.show.part import judged
from util.stats.heads import head_name, top
from util.stats.verdicts import CANNOT_BE_TOLD, DOES_NOT_HOLD, HOLDS

MODELS = ("smollm2", "gemma3")


def test_what_induction_heads_are_worth_in_plain_text():
    def shares(model):  # of the gain from context: without induction heads, without others
        text = values("toy_induction_head", model)["in context"]
        gain, change = -text["score"]["whole model"][0], {row: triple[0] for row, triple in text["change"].items()}
        return change.pop("without induction heads") / gain, max(change.values()) / gain

    (gemma, few), (smollm2, half), (embedded, more) = map(shares, (*MODELS[::-1], "embedded"))
    assert gemma > 0.9 and few < 0.1, "the whole gain, and hardly any"
    assert 0.15 < smollm2 < 0.25 and smollm2 / 2 < half < 0.75 * smollm2, "a fifth, others up to two thirds of it"
    assert embedded < more


@pytest.mark.parametrize("model, learns", zip(MODELS, (False, True), strict=True))
def test_labels_depend_on_reads_of_forerunners(model, learns):
    stored = values("forerunner_heads", model)
    assert stored["frequent_heads"]["correct"][1] > stored["frequent_heads"]["untrained"][2]
    mass = stored["ablation"]["label mass"][str(EVERYWHERE)]
    assert mass["yi_to_sq"][0] < -stored["ablation"]["gained"]["label mass"][0] < mass["si_to_yi"][0], "all, and less"
    assert mass["si_to_yi"][2] < 0
    assert stored["chosen"]["ablation"] == {"dataset": "trec", "k": 16, "done": learns}
    assert stored["ablation"]["which label"][str(EVERYWHERE)]["si_to_yi"][2] > 0, "no loss is detected"


@pytest.mark.parametrize(
    "stem, model, verdicts",
    [
        ("induction_scores", "smollm2", {1: HOLDS, 2: CANNOT_BE_TOLD, 3: CANNOT_BE_TOLD, 7: HOLDS}),
        ("induction_scores", "gemma3", {1: HOLDS, 2: HOLDS, 3: HOLDS}),
        ("edge_ablation", "smollm2", {1: HOLDS, 2: HOLDS, 3: HOLDS}),
        ("edge_ablation", "gemma3", {1: HOLDS, 4: DOES_NOT_HOLD}),
    ],
)
def test_claims_that_are_told_have_these_verdicts(stem, model, verdicts):
    found = {claim.number: claim.verdict for claim in judged(values(stem, model))}
    assert found.items() >= verdicts.items()
    assert [*found.values()].count(HOLDS) == [*verdicts.values()].count(HOLDS)


def test_word_sequences_alone():
    smollm2, gemma = (values("induction_scores", model) for model in MODELS)
    first = judged(smollm2)[0]
    assert smollm2["primary"]["p"] > 0.05 and smollm2["queries"]["wordseq1"] == 40 and not gemma["tasks_done"]
    [alone] = [part for part in first.beside if part.name == "wordseq1"]
    assert alone.queries == 200 and alone.low > alone.bound
    endpoints = json.loads(text("data/benchmarks/sensitivity.json"))["numbers"]
    whole, without = (endpoints[f"02 wordseq1, {heads}"] for heads in ("whole", "without"))
    loses = {pair: whole[pair][1] > without[pair][0] for pair in whole if "/" in pair}
    assert [*loses.values()] == [True, True, False, False] and all(whole[pair][1] < 0.5 for pair in [*loses][2:])


@pytest.mark.parametrize("model, role", zip(MODELS, ({"inhibition"}, set()), strict=True))
def test_the_two_heads_that_carry_most(model, role):
    """One of SmolLM2's is an inhibition head, whose paths to movers' queries carry significant shares."""
    strongest = [*map(head_name, top(np.array(values("ioi_patching", model)["population"]["noised"]["value"]), 2))]
    roles = values("role_atlas", model)["roles"]
    paths = {
        (edge.sender, edge.reader) for edge in certain_paths(values("ioi_patching", model)["paths"]) if edge.reader
    }
    assert model == "gemma3" or {("L20H0", mover) for mover in roles["mover"]["heads"]} <= paths
    assert {name for name, one in roles.items() if {*strongest} & {*one["heads"]}} == role
    assert {name for name, one in roles.items() if not one["heads"]} == (
        {"label reader"} if model == "gemma3" else set()
    )


def test_aggregation_alone():
    alone = [
        {task: row["AGG-ONLY"][0] for task, row in values("edge_ablation", model)["scores"].items()} for model in MODELS
    ]
    smollm2, gemma = alone
    assert smollm2["country_capital"] < 0.05 and min(gemma.values()) > 0.6
