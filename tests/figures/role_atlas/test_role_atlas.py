"""The role atlas: its picture, its title, its table, and its controls."""

from pathlib import Path

import numpy as np
import pytest

from tests import toys
from tests.figures.legible import faults
from util.figures.controls import name_tokens, planted_control
from util.figures.role_atlas import numbers, show
from util.figures.role_atlas.measure import planted
from util.models import planted as circuits
from util.roles.function_vectors import TASKS
from util.roles.rules import Evidence, Role, Score
from util.show.part import drawn
from util.study.model import Model
from util.study.study import Study

N = 16
ASKED = {"prompts": 32, "sequences": 32, "pairs": 128, "word_prompts": 24}


def evidence(role, having=(), seed=0):
    """Evidence in which just some of four layers of eight heads have a role."""
    rng = np.random.default_rng(seed)
    value = rng.normal(0.1, 0.01, (N, 4, 8))
    for head in having:
        value[(slice(None), *head)] = rng.normal(0.8, 0.02, N)
    score = Score(value, np.full(1, 0.2))
    heads = len(score.chosen)
    effect = rng.normal(0, 0.01, (len(score.halves[1]), heads)) + np.linspace(0.2, 1, heads)
    return Evidence(role, score, effect, np.zeros(1))


def values(*found, left_out=()):
    arrays = {"evidence": found, "left out": left_out, "label task": {"dataset": "financial_phrasebank", "k": 16}}
    return {"request": ASKED, "model": "toy", **numbers.atlas(arrays, None)}


def picture(found):
    return drawn(show.FIGURE.parts["atlas"], found)


def test_an_atlas_without_roles_can_be_read():
    assert faults(picture(values(*(evidence(role) for role in Role)))) == []


def test_the_title_says_how_many_and_where():
    """Of one head, and of no induction head; of several: the stored cards."""
    one, none = evidence(Role.INDUCTION, {(2, 1)}), evidence(Role.INDUCTION)
    finding = "1 of 32 heads has a role that its effect confirms"
    assert numbers.finding([one]) == f"{finding}; the induction head is L2H1"
    assert numbers.finding([evidence(Role.MOVER, {(2, 1)}), none]) == finding


def test_roles_are_counted_once_for_each_head():
    both = values(
        evidence(Role.MOVER, {(1, 1), (2, 2)}), evidence(Role.INDUCTION, {(1, 1)}, seed=1),
        left_out=["labels: left out"],
    )  # fmt: skip
    assert both["heads"] == 2 and both["shape"] == [4, 8]
    said = " ".join(show.atlas_say(both | {"untrained": None}))
    assert "Labels: left out. Heads with several roles: L1H1 (mover and induction)." in said
    mover = both["roles"]["mover"]
    assert (mover["tested"], mover["n"], mover["not confirmed"]) == (2, N // 2, {})
    assert "not confirmed" not in both["roles"]["induction"]
    # of the movers that with the larger effect first
    mover, induction = "2 of 2 tested", "1 of 1 tested"
    assert [*show.atlas_table(both).index] == [
        ("mover", mover, "L2H2"), ("mover", mover, "L1H1"), ("induction", induction, "L1H1")
    ]  # fmt: skip


def test_heads_are_judged_in_every_role_by_the_rule_of_the_atlas():
    found = [evidence(Role.INDUCTION, {(2, 1), (3, 0)}), evidence(Role.MOVER, seed=1)]
    found.append(Evidence(Role.INHIBITION, found[0].score, -found[0].effect, np.zeros(1)))
    rows = numbers.of_heads(found, [(2, 1), (0, 0)])
    verdicts = rows.set_index(["head", "role"])["verdict"].str.split(":").str[0]
    assert verdicts[("L2H1", "induction")] == numbers.HAS and (verdicts == numbers.HAS).sum() == 1 and len(rows) == 6
    measured = ["score", "null", "effect", "p"]
    assert {**rows.loc[0, measured]} == found[0].tested[2, 1] and [*found[0].tested[2, 1]] == measured
    assert rows.loc[2, "effect"].high < 0 and rows.loc[2, "p"] == 1  # chosen by its score, not confirmed
    second = found[0].score.halves[1]
    assert rows.loc[3, "score"] == found[0].score.value[second, 0, 0].mean() and np.isnan(rows.loc[3, "p"])


def test_what_controls_say():
    one, none = evidence(Role.MOVER, {(1, 1)}), evidence(Role.MOVER)
    assert numbers.roles([none])["mover"]["detectable"] is None and not len(show.atlas_table(values(none)))
    truths = {"right": {(1, 1)}, "one more": {(1, 1), (2, 2)}, "none": set()}
    circuits = {name: {"evidence": [one], "roles": {Role.MOVER: truth}} for name, truth in truths.items()}
    assert list(show.planted_say(numbers.planted(circuits, None))) == [
        "planted right: just the planted roles; planted one more: NOT RIGHT; planted none: NOT RIGHT"
    ]


# ------------------------------------------------------------------------------------------------ the study


@pytest.mark.slow
@pytest.mark.parametrize("family, seed", [("gpt2", 0), ("llama", 3)])
def test_planted_heads_have_just_their_roles(family, seed, tmp_path):
    """Of all nine. The seed decides which head plays which role."""
    arrays = planted(Study("role_atlas", folder=tmp_path), family=family, seed=seed)
    found = numbers.planted(arrays, None)["planted"]
    assert found == {"induction circuit": True, "name movers": True, "label readers": True}


def test_other_code_of_a_circuit_makes_another_request(tmp_path, monkeypatch):
    before = planted_control(circuits.names, {}, name_tokens)[0].request
    changed = tmp_path / "planted.py"
    changed.write_text(Path(circuits.__file__).read_text() + "\n")
    monkeypatch.setattr(circuits, "__file__", str(changed))
    assert planted_control(circuits.names, {}, name_tokens)[0].request != before


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_untrained_twins_have_no_role(seed, tmp_path):
    sizes = {"sequences": 16, "pairs": 48, "word_prompts": 4, "intact": 4}
    study = Study("role_atlas", datasets="trec", ks=4, folder=tmp_path, seed=seed, **sizes)
    assert study.twin(seed).numbers("atlas")["heads"] == 0


def small(folder, **more):
    """A study of a model of another shape."""
    model, tokenizer = toys.pair_with_words()
    sizes = {"prompts": 8, "sequences": 4, "pairs": 8, "word_prompts": 4, "intact": 2, **more}
    return model, Study("role_atlas", Model.given(model, tokenizer, "given:tiny"), folder=folder, **sizes)


def test_the_untrained_twin_is_asked_the_data_set_of_the_model(tmp_path, monkeypatch):
    study = Study("role_atlas", folder=tmp_path)
    twins: list = []
    monkeypatch.setitem(study._arrays, "atlas", {"label task": {"dataset": "agnews", "k": 4}})
    monkeypatch.setattr(Study, "twin", lambda self, **changes: twins.append(changes) or study)
    study.arrays("untrained")
    assert twins == [{"word_prompts": 8, "datasets": "agnews", "ks": 4}]


@pytest.mark.slow
@pytest.mark.parametrize("lacking", [1, 4])
def test_what_does_not_fit_is_left_out_and_the_other_roles_are_tested(lacking, tmp_path, monkeypatch):
    """Tasks that the tokenizer has no prompts of, and prompts that are longer than the context."""
    model, study = small(tmp_path, datasets="agnews", ks=4)
    model.config.max_position_embeddings = 256
    toys.refuse_tasks(monkeypatch, TASKS[-lacking:])
    found = study.numbers("atlas")
    labels, words = found["left out"]
    assert labels.startswith("labels: no role is tested, the longest prompt has")
    one = "word pairs: left out, task 'person_sport': no prompt can be made"
    assert words == one if lacking == 1 else words.startswith("word pairs: no role is tested, task")
    missing = {Role.FORERUNNER, Role.LABEL_READER} | ({Role.FUNCTION_VECTOR} if lacking > 1 else set())
    assert {*found["roles"]} == {*map(str, {*Role} - missing)}
