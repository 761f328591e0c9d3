"""Cards of models with planted circuits: each shows just its circuit, in roles, in IOI and in its sentences."""

from typing import Any

import pytest

from util.card import atlas, measure
from util.figures.planted_controls import first_tokens, planted_control
from util.models import planted, planted_roles
from util.prompts.ioi import word_lists
from util.stats.heads import head_name

SMALL: dict[str, dict[str, Any]] = {
    "role_atlas": {
        "datasets": ["trec"], "ks": [4], "prompts": 64, "sequences": 16, "pairs": 64, "word_prompts": 8, "intact": 8,
    },
    "ioi_patching": {"prompts": 48, "path_heads": 8, "random_sets": 1},
    "edge_ablation": {"tasks": ("capitalization",), "prompts": 4, "donor_seeds": (0,)},
    "induction_scores": {"tasks": ("wordseq1",), "text_tasks": (), "prompts": 4, "control_sets": 1},
}  # fmt: skip


def all_names(tokenizer):
    """The tokens of all names of IOI prompts."""
    return first_tokens(word_lists()["names"], tokenizer)


IOI = "Indirect objects (IOI)"

# For each circuit: who makes it; the roles of its planted heads on a card; the effects of the heads that count in IOI;
# what its sentences have, by topic, with the first head of each name in braces.
CIRCUITS = {
    "induction": (
        lambda: planted_control(planted.induction, {}),
        {"previous token": ["previous-token"], "induction": ["induction", "label reader"]},
        {},
        {"Induction heads removed": "The best is {induction}: 1.00 [1.00, 1.00]", IOI: "does not do the task"},
    ),
    "names": (
        lambda: planted_control(planted_roles.names, {}, all_names),
        {
            "duplicate token": ["duplicate-token"],
            "inhibition": ["inhibition"],
            "mover": ["mover"],
            "negative mover": ["negative mover"],
        },
        {"inhibition": 1.0, "mover": 1.5, "negative mover": -0.5},
        {
            "Roles of heads": "One negative mover head",
            IOI: "{inhibition} to {mover}'s query 1.50",
            "Induction heads removed": "None of 18 heads",
        },
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("circuit", CIRCUITS)
def test_a_card_shows_just_the_planted_circuit(circuit, tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "SIZES", {"full": SMALL})
    make, roles, effects, said = CIRCUITS[circuit]
    model, truth = make()
    card = measure.card(model, folder=tmp_path)
    assert not card["refused"]
    placed = {name: list(map(head_name, truth.heads[name])) for name in roles}
    expected = {(role, head) for name, several in roles.items() for role in several for head in placed[name]}
    assert {(role, name) for role, heads in atlas.depths(card).items() for name in heads} == expected
    counting = {head: effects[name] for name in effects for head in truth.heads[name]}
    assert atlas.in_ioi(card) == {*map(head_name, counting)}
    noised = card["values"]["ioi_patching"]["population"]["noised"]["value"]
    for (layer, head), effect in counting.items():
        assert noised[layer][head] == pytest.approx(effect, abs=0.02)
    for topic, text in said.items():
        assert text.format(**{name: heads[0] for name, heads in placed.items()}) in " ".join(card["sentences"][topic])
