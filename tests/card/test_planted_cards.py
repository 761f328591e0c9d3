"""Cards of models with planted circuits: each shows just its circuit, in roles, in IOI and in its sentences."""

from typing import Any

import pytest

from util.card import study
from util.card.results import IOI, KNOCKED_OUT, ROLES, WORD_PAIRS
from util.card.sentences import Told, sentences
from util.card.study import Study
from util.figures.ioi_patching.numbers import carriers, intervals
from util.figures.planted_controls import first_tokens, planted_control
from util.load_model_and_data import staicc_prompts
from util.models import planted, planted_roles
from util.prompts.ioi import word_lists
from util.show.files import plain
from util.stats.heads import head_name, heads_where

SMALL: dict[str, dict[str, Any]] = {
    ROLES: {
        "datasets": ["trec"],
        "ks": [4],
        "prompts": 64,
        "sequences": 16,
        "pairs": 64,
        "word_prompts": 8,
        "intact": 8,
    },
    IOI: {"prompts": 48, "path_heads": 8, "random_sets": 1},
    WORD_PAIRS: {"prompts": 16, "donor_seeds": (0,)},
    KNOCKED_OUT: {"queries": 8, "sequences": 4, "texts": 4, "control_sets": 2},
}
INDUCTION, OTHERS, IN_IOI, PATHS, PAIRS, WITHOUT = (
    "Induction", "Other roles", "Indirect objects (IOI)", "Who tells whom", "Word pairs", "Without these heads"
)  # fmt: skip


def all_names(tokenizer):
    """The tokens of all names of IOI prompts."""
    return first_tokens(word_lists()["names"], tokenizer)


def all_labels(tokenizer):
    """The first tokens of the labels of the data set that roles are tested on."""
    labels = staicc_prompts(SMALL[ROLES]["datasets"][0], 1)[0].labels
    return sorted({*first_tokens(labels, tokenizer)})


# For each circuit: who makes it; the roles of its planted heads on a card; the heads that count in IOI, and against it;
# the sentences that say something was found. A head of the look-up circuit that reads the token before is a
# previous-token head, and what looks up an output looks up the next token of any sequence, labels among them. In the
# plain circuit of IOI the mover subtracts a name, so that it is no mover by the rule, which asks for a name made more
# probable.
CIRCUITS = {
    "induction": (
        lambda: planted_control(planted.induction, {}),
        {"previous token": ["previous-token"], "induction": ["induction", "label reader"]},
        {},
        {INDUCTION, OTHERS, WITHOUT},
    ),
    "lookup": (
        lambda: planted_control(planted.lookup, {}),
        {"query reader": ["previous-token"], "look-up": ["induction", "label reader"]},
        {},
        {INDUCTION, OTHERS, WITHOUT},
    ),
    "labels": (
        lambda: planted_control(planted_roles.labels, {}, all_labels),
        {"forerunner": ["forerunner"], "label reader": ["label reader"]},
        {},
        {OTHERS},
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
        {OTHERS, IN_IOI, PATHS},
    ),
    "ioi": (
        lambda: planted_control(planted.ioi, {}, all_names),
        {"duplicate token": ["duplicate-token"]},
        {"mover": 1.0},
        {OTHERS, IN_IOI},
    ),
}


@pytest.mark.parametrize("circuit", CIRCUITS)
def test_a_card_shows_just_the_planted_circuit(circuit, tmp_path, monkeypatch):
    monkeypatch.setattr(study, "SIZES", {"full": SMALL})
    make, roles, effects, sure = CIRCUITS[circuit]
    model, truth = make()
    card = Study(model, folder=tmp_path).card()
    assert card.roles is not None and card.ioi is not None
    placed = {name: list(map(head_name, truth.heads[name])) for name in roles}
    expected = {(role, head) for name, several in roles.items() for role in several for head in placed[name]}
    assert {(role, name) for role, one in card.roles["roles"].items() for name in one["heads"]} == expected
    noised = intervals(card.ioi["population"]["noised"])
    found = {head: noised.value[head] for head in heads_where(carriers(noised))}
    if effects:  # else there is no effect to have a share of, and shares are those of decoys, which differ by CPU
        assert found == {head: pytest.approx(effects[name], abs=0.02) for name in effects for head in truth.heads[name]}
    told = {one.topic: one.told for one in sentences(plain(card.values()))}
    assert {topic for topic, state in told.items() if state is Told.FOUND} == sure
    assert told[PAIRS] is Told.NOT_DONE
