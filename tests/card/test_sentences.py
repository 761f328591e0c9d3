"""The sentences of a card: each says what its values support, and no more."""

import copy
import json
from typing import Any

import pytest

from util import paths
from util.card.results import PARTS
from util.card.sentences import Told, advice, sentences

INDUCTION, OTHERS, IOI, PATHS, WORD_PAIRS, WITHOUT = range(6)
HEAD = {"score": [0.8, 0.7, 0.9], "null": 0.1, "effect": [1.5, 1.2, 1.8], "p": 0.001}
NONE: dict[str, Any] = {"tested": 0, "n": 16, "detectable": None, "heads": {}, "closest": None}
FOUND: dict[str, Any] = {"n": 16, "detectable": 0.04, "closest": None}
ROLES = ["previous-token", "duplicate-token", "induction", "forerunner", "label reader", "function vector",
         "inhibition", "mover", "negative mover"]  # fmt: skip


def task(full, without, *, needed=(), loss=(0.0, -0.02, 0.05), done=True):
    circuits = {"FULL": full, "CTX+AGG": full, "AGG-ONLY": full, "QUERY-ONLY": without}
    losses = {
        part: [0.5, 0.3, 0.7] if part in needed else list(loss) for part in ("contextualisation", "demonstrations")
    }
    check = {"done": done, "bound": full[1], "baseline": 0.05}
    return {
        "queries": 32, "chance": 0.05, "check": check, "accuracy": circuits, "loss": losses,
        "surely needed": list(needed),
    }  # fmt: skip


def values():
    """Of a model that has all circuits."""
    roles = {role: copy.deepcopy(NONE) for role in ROLES}
    roles["induction"] = {"tested": 4, "heads": {"L2H1": HEAD, "L3H0": HEAD}, **FOUND}
    roles["mover"] = {"tested": 2, "heads": {"L3H1": HEAD, "L3H2": HEAD}, **FOUND}
    roles["previous-token"] = {"tested": 2, "heads": {"L1H1": HEAD}, **FOUND}
    outcomes = {"copies": [0.4, 0.3, 0.5], "plain text": [0.01, -0.02, 0.04]}
    return {
        "schema": 2,
        "model": "toy",
        "layers": 4,
        "heads": 8,
        "settings": {name: {} for name in PARTS},
        "refused": {},
        "roles": {"heads": 3, "of": 32, "setting": "toy", "roles": roles},
        "IOI": {
            "pairs": 128,
            "accuracy": [0.95, 0.9, 0.98],
            "logit difference": [3.0, 2.5, 3.5],
            "carriers": {"L2H1": [0.4, 0.3, 0.5], "L3H3": [-0.2, -0.3, -0.1]},
            "strongest": {"L2H1": [0.4, 0.3, 0.5], "L3H3": [-0.2, -0.3, -0.1], "L0H0": [0.0, -0.1, 0.1]},
            "circuit": {
                "heads": 32, "enough": 2, "level": 0.9, "random": {},
                "kept": {"1": [0.5, 0.4, 0.6], "2": [0.95, 0.9, 1.0], "16": [0.97, 0.9, 1.0], "32": [1.0, 1.0, 1.0]},
            },
            "paths": {
                "refused": "",
                "between": 6,
                "tested": 20,
                "certain": 1,
                "strongest": [{"path": "L0H1 to L2H1", "share": [0.3, 0.2, 0.4], "channel": "query"}],
            },
        },
        "word pairs": {
            "tasks": {
                "copying": task([1.0, 0.9, 1.0], [0.2, 0.1, 0.3], needed=["demonstrations"]),
                "present_past": task([0.9, 0.8, 1.0], [0.9, 0.8, 1.0], loss=(0.02, -0.2, 0.3)),
            },
            "edges": {"task": "copying", "tested": 21, "certain": [], "dearest": {}},
        },
        "knocked out": {
            "whole": {},
            "losses": [
                {
                    "ablated": "all heads with a role", "heads": 3, "outcome": outcome, "whole": 0.9, "lost": 0.5,
                    "controls": [0.1], "matched": "of the same layers", "beyond": beyond,
                }
                for outcome, beyond in outcomes.items()
            ],
        },
    }  # fmt: skip


def missed(effect):
    """A role that none of three tested heads has."""
    return FOUND | {"tested": 3, "heads": {}, "closest": {"head": "L2H1", "effect": effect, "p": 0.3}}


def test_of_other_roles_what_may_be_there_cannot_be_told():
    given = values()
    roles = given["roles"]["roles"]
    roles["mover"] = missed([0.0, -0.1, 0.5])
    roles["forerunner"] = missed([0.0, -0.1, 0.05])
    state, text = said(given, OTHERS)
    assert state is Told.OPEN and text.endswith("Cannot be told: mover.")
    assert "Not detected: forerunner (3 tested, 16 prompts; effects from 0.04 on would be seen). No head has" in text
    roles["mover"] = NONE
    assert said(given, OTHERS)[0] is Told.NOT_FOUND and "Cannot" not in said(given, OTHERS)[1]


def test_roles_that_could_not_be_tested_are_said_and_the_others_stand():
    given = values()
    del given["roles"]["roles"]["function vector"]
    given["roles"]["left out"] = ["word pairs: no role is tested, task 'copying': no prompt can be made"]
    state, text = said(given, OTHERS)
    assert state is Told.FOUND and "two mover heads (2 tested" in text
    assert text.endswith(
        "Not measured: function vector. Word pairs: no role is tested, task 'copying': no prompt can be made."
    )
    given["roles"]["roles"] = {role: given["roles"]["roles"][role] for role in ("induction", "previous-token")}
    assert said(given, OTHERS)[0] is Told.NOT_MEASURED and said(given, INDUCTION)[0] is Told.FOUND


def said(given, which):
    found = sentences(given)[which]
    return found.told, found.text


def test_a_model_with_all_circuits_has_six_sentences():
    found = sentences(values())
    assert [one.told for one in found] == [Told.FOUND] * 6
    induction, others, ioi, paths, pairs, without = (one.text for one in found)
    power = "16 sequences; effects from 0.04 on would be seen"
    assert induction.startswith(f"Two of 32 heads are induction heads (4 tested, {power}).")
    assert "L2H1 1.50 [1.20, 1.80]" in induction
    assert f"what one previous-token head (2 tested, {power}) reads: L1H1 1.50 [1.20, 1.80]." in induction
    assert "two mover heads (2 tested, 16 pairs of names; effects from 0.04 on would be seen): L3H1 1.50" in others
    assert "No head has the score that these roles ask: duplicate-token, forerunner" in others
    assert "One of 32 heads carries more than a hundredth of the effect for certain, most L2H1 0.40" in ioi
    assert "one works against it, L3H3 -0.20 [-0.30, -0.10]" in ioi and "L0H0" not in ioi
    assert ioi.endswith("The strongest two heads alone keep 0.95 [0.90, 1.00] of the logit difference.")
    assert paths.startswith("One path of 20 between the six strongest heads counts")
    assert "L0H1 to L2H1 0.30 [0.20, 0.40] (mostly by L2H1's query)" in paths
    assert pairs.startswith("Solves two of two word-pair tasks from demonstrations. ")
    assert "(QUERY-ONLY) copying falls, by 0.50 [0.30, 0.70]" in pairs
    assert (
        "No loss was detected in present past (32 queries of each or more; losses from 0.29 on would be seen)" in pairs
    )
    assert without.startswith(
        "Without the three heads that have a role (controls: one set of as many of the same layers)"
    )
    assert "copied tokens from 0.90 to 0.40 (0.40 [0.30, 0.50] beyond controls)" in without
    assert "plain text" not in without  # whose interval has 0


def test_where_only_many_heads_are_enough_no_small_set_is():
    given = values()
    given["IOI"]["circuit"]["enough"] = 32
    assert said(given, IOI)[1].endswith("the strongest 16 alone keep 0.97 [0.90, 1.00] of the logit difference.")
    assert "No small set is enough" in said(given, IOI)[1]


def test_a_head_that_is_no_carrier_on_all_pairs_is_not_named():
    given = values()
    carriers = {"L2H1": [0.4, 0.3, 0.5], "L3H3": [-0.2, -0.3, -0.1], "L3H4": [-0.1, -0.2, -0.05]}
    given["IOI"]["carriers"] = carriers
    given["IOI"]["strongest"] = {"L1H3": [-0.41, -0.67, -0.15], "L1H5": [0.5, 0.1, 0.9], **carriers}
    text = said(given, IOI)[1]
    assert "most L2H1 0.40 [0.30, 0.50] of it; two work against it, most L3H3 -0.20 [-0.30, -0.10]." in text
    del given["IOI"]["strongest"]["L3H3"], given["IOI"]["strongest"]["L3H4"]
    assert "; two work against it. The strongest" in said(given, IOI)[1]


def test_heads_that_all_work_against_the_answer_are_no_missing_carriers():
    given = values()
    given["IOI"]["carriers"] = {"L3H3": [-0.2, -0.3, -0.1]}
    state, text = said(given, IOI)
    assert state is Told.FOUND and "None of 32 heads carries" in text and "one works against it" in text


def test_without_heads_that_attend_there_is_no_induction():
    given = values()
    given["roles"]["roles"]["induction"] = NONE
    assert said(given, INDUCTION) == (Told.NOT_FOUND, "Not detected: an induction head (0 tested, 16 sequences).")


@pytest.mark.parametrize(("effect", "told"), [([0.2, -0.1, 0.5], Told.OPEN), ([0.0, -0.01, 0.02], Told.NOT_FOUND)])
def test_heads_that_attend_but_are_not_confirmed_leave_it_open_only_where_they_may_matter(effect, told):
    given = values()
    given["roles"]["roles"]["induction"] = missed(effect)
    state, text = said(given, INDUCTION)
    assert state is told
    if told is Told.OPEN:
        assert text.startswith("Cannot be told: three heads attend") and "L2H1" in text
    else:
        assert text.startswith("Not detected: an induction head (3 tested, 16 sequences; effects from 0.04 on")


def test_a_loss_that_may_be_large_leaves_word_pairs_open_and_without_any_none_is_said_to_fall():
    given = values()
    given["word pairs"]["tasks"] = {"copying": task([1.0, 0.9, 1.0], [0.9, 0.8, 1.0])}
    state, text = said(given, WORD_PAIRS)
    assert state is Told.NOT_FOUND and "No loss was detected in any of them without reading the dem" in text
    given["word pairs"]["tasks"]["copying"]["loss"]["contextualisation"] = [0.02, -0.2, 0.3]
    assert said(given, WORD_PAIRS)[0] is Told.OPEN


@pytest.mark.parametrize(
    ("accuracy", "told"),
    [([0.5, 0.45, 0.55], Told.NOT_DONE), ([0.5, 0.3, 0.7], Told.OPEN), ([0.2, 0.1, 0.3], Told.NOT_DONE)],
)
def test_a_task_that_is_not_done_has_no_circuit(accuracy, told):
    given = values()
    given["IOI"]["accuracy"] = accuracy
    for which in (IOI, PATHS):
        state, text = said(given, which)
        assert state is told and "L2H1" not in text


def test_an_answer_that_wins_without_a_logit_difference_is_open():
    given = values()
    given["IOI"]["logit difference"] = [0.1, -0.1, 0.3]
    assert said(given, IOI)[0] is Told.OPEN


def test_paths_that_are_refused_or_none_are_said():
    given = values()
    given["IOI"]["paths"] |= {"certain": 0, "strongest": []}
    assert said(given, PATHS)[0] is Told.NOT_FOUND
    given["IOI"]["paths"]["refused"] = "layers of this class cannot be taken apart"
    assert said(given, PATHS) == (Told.NOT_MEASURED, "Not measured: layers of this class cannot be taken apart")


def test_tasks_at_chance_are_not_done():
    given = values()
    given["word pairs"]["tasks"] = {"person_sport": task([0.05, 0.0, 0.1], [0.05, 0.0, 0.1], done=False)}
    state, text = said(given, WORD_PAIRS)
    assert state is Told.NOT_DONE and text.endswith("accuracy is 0.05 [0.00, 0.10] at most (person sport, 32 queries).")


def test_tasks_that_demonstrations_do_not_teach_are_not_done():
    given = values()
    given["word pairs"]["tasks"]["copying"]["check"]["done"] = False
    assert said(given, WORD_PAIRS)[1].startswith("Solves one of two word-pair tasks from demonstrations. ")
    given["word pairs"]["tasks"]["present_past"]["check"]["done"] = False
    state, text = said(given, WORD_PAIRS)
    assert state is Told.NOT_DONE and "It is above chance in copying and present past; that intact" in text


def test_losses_that_are_not_certain_are_not_found():
    given = values()
    for one in given["knocked out"]["losses"]:
        one["beyond"] = [0.1, -0.1, 0.3]
    assert said(given, WITHOUT)[0] is Told.OPEN
    for one in given["knocked out"]["losses"]:
        one["beyond"] = None
    state, text = said(given, WITHOUT)
    assert state is Told.OPEN and text.endswith("to compare the three heads that have a role with.")


def test_one_head_with_a_role_is_no_plural():
    given = values()
    for one in given["knocked out"]["losses"]:
        one["heads"] = 1
    assert said(given, WITHOUT)[1].startswith("Without the one head that has a role (controls: one set")


def test_without_a_role_there_is_nothing_to_knock_out():
    given = values()
    given["roles"] = {"heads": 0, "of": 32, "setting": "", "roles": {role: NONE for role in ROLES}}
    given["knocked out"] = None
    assert said(given, WITHOUT) == (Told.NOT_FOUND, "No head has a role, so there is none to knock out.")


@pytest.mark.parametrize(
    ("part", "which"),
    [("roles", [INDUCTION, OTHERS]), ("IOI", [IOI, PATHS]), ("word pairs", [WORD_PAIRS]), ("knocked out", [WITHOUT])],
)
def test_what_was_not_measured_is_said_with_the_reason(part, which):
    given = values()
    given[part] = None
    given["refused"] = {part: "names that the tokenizer splits"}
    for number in which:
        assert said(given, number) == (Told.NOT_MEASURED, "Not measured on this model: names that the tokenizer splits")


COMMAND = "python -m util card toy --size small --seed 1 --dtype bfloat16"


@pytest.mark.parametrize(
    ("command", "next_one"),
    [(COMMAND, COMMAND.replace("small", "full")),
     ("python -m util card toy --size full --seed 1", "python -m util card toy --size full --seed 2")],
)  # fmt: skip
def test_advice_is_more_prompts_and_then_others_where_something_is_open(command, next_one):
    given = values() | {"request": {"seed": 1}}
    assert not any(" card " in one.command for one in advice(given, command))
    given["IOI"]["accuracy"] = [0.5, 0.3, 0.7]
    commands = [one.command for one in advice(given, command)]
    assert next_one in commands and "python -m util ablate toy --heads L2H1,L3H0" in commands
    assert not any(" ioi " in one for one in commands)


def test_carriers_without_a_role_are_named_and_twins_get_no_advice_on_the_trained_model():
    given = values()
    assert any(one.text.startswith("These count in IOI and have no role: L3H3") for one in advice(given, COMMAND))
    assert advice(given, "python -m util card toy --untrained 0 --size full") == []


@pytest.mark.parametrize("folder", ["", "smollm2", "untrained-0", "smollm2/untrained-0"])
def test_the_committed_cards_say_what_their_values_support(folder):
    stored = json.loads((paths.root() / "data" / "cards" / folder / "card.json").read_text(encoding="utf-8"))
    made = [{"topic": one.topic, "told": str(one.told), "text": one.text} for one in sentences(stored)]
    assert made == stored["sentences"]
    assert not folder.endswith("untrained-0") or not any(one["told"] == Told.FOUND for one in made)
