"""The role atlas: its picture at every shape and width, its title, its table, and its controls."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex

from tests import toys
from tests.figures.legible import LONG_NAME, SHAPES, faults
from util.figures import planted_controls
from util.figures.planted_controls import name_tokens, planted_control
from util.figures.role_atlas import numbers, show
from util.figures.role_atlas.measure import planted
from util.models import planted_roles
from util.prompts import word_pair_prompts
from util.prompts.prompt import UnsupportedTokenizer
from util.roles.function_vectors import TASKS
from util.roles.rules import Evidence, Role, Score
from util.show.part import drawn
from util.show.style import COLUMN, ROLES, WIDTH
from util.study.model import Model
from util.study.study import Study

N = 16
ASKED = {"prompts": 32, "sequences": 32, "pairs": 128, "word_prompts": 24}


def evidence(role, shape, having, seed=0):
    """Evidence in which just some heads have a role."""
    rng = np.random.default_rng(seed)
    value = rng.normal(0.1, 0.01, (N, *shape))
    for head in having:
        value[(slice(None), *head)] = rng.normal(0.8, 0.02, N)
    score = Score(value, np.full(1, 0.2))
    heads = score.chosen()
    effect = rng.normal(0, 0.01, (len(score.halves[1]), len(heads))) + np.linspace(0.2, 1, len(heads))
    return Evidence(role, score, heads, effect, np.zeros(1))


def values(*found, left_out=()):
    arrays = {"evidence": found, "left out": left_out, "label task": {"dataset": "financial_phrasebank", "k": 16}}
    return {"request": ASKED, "model": f"{LONG_NAME}, untrained", **numbers.atlas(arrays, None)}


def atlas(shape):
    """Every role, on one head of thirty; one head has all of them."""
    rng = np.random.default_rng(0)
    count = max(1, shape[0] * shape[1] // 30)
    found = []
    for number, role in enumerate(Role):
        heads = {(int(rng.integers(shape[0])), int(rng.integers(shape[1]))) for _ in range(count)} | {(1, 1)}
        found.append(evidence(role, shape, heads, number))
    return values(*found)


def picture(found, width=WIDTH):
    return drawn(show.FIGURE.parts["atlas"], found, width)


@pytest.mark.parametrize("width", [WIDTH, COLUMN])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_atlas_can_be_read_with_roles_and_without(shape, width):
    assert faults(picture(atlas(shape), width)) == []
    empty = values(*(evidence(role, shape, ()) for role in Role))
    assert empty["finding"] == f"None of {shape[0] * shape[1]} heads has a role that its effect confirms"
    assert faults(picture(empty, width)) == []


@pytest.mark.parametrize(
    ("induction", "finding"),
    [
        ({(2, 1), (3, 0)}, "2 of 32 heads have a role that their effect confirms; induction heads lie in layers 2-3"),
        ({(2, 1), (2, 7)}, "2 of 32 heads have a role that their effect confirms; induction heads lie in layer 2"),
        ({(2, 1)}, "1 of 32 heads has a role that its effect confirms; the induction head is L2H1"),
        ((), "None of 32 heads has a role that its effect confirms"),
    ],
)
def test_the_title_says_how_many_and_where(induction, finding):
    found = [evidence(Role.INDUCTION, (4, 8), induction)]
    assert numbers.finding(found) == finding
    if len(induction) == 1:
        [other] = [evidence(Role.MOVER, (4, 8), induction)]
        assert numbers.finding([other, evidence(Role.INDUCTION, (4, 8), ())]) == finding.partition(";")[0]


def test_roles_are_counted_once_for_each_head():
    both = values(
        evidence(Role.MOVER, (4, 8), {(1, 1), (2, 2)}), evidence(Role.INDUCTION, (4, 8), {(1, 1)}, seed=1),
        left_out=["labels: left out"],
    )  # fmt: skip
    assert both["heads"] == 2 and both["shape"] == [4, 8]
    assert list(show.atlas_say(both))[1:] == ["labels: left out", "L1H1: mover, induction", "L2H2: mover"]
    mover = both["roles"]["mover"]
    assert (mover["tested"], mover["n"], mover["not confirmed"]) == (2, N // 2, {})
    assert "not confirmed" not in both["roles"]["induction"]
    # of the movers that with the larger effect first
    mover, induction = "2 of 2 tested", "1 of 1 tested"
    assert [*show.atlas_table(both).index] == [
        ("mover", mover, "L2H2"), ("mover", mover, "L1H1"), ("induction", induction, "L1H1")
    ]  # fmt: skip


def test_heads_are_judged_in_every_role_by_the_rule_of_the_atlas():
    found = [evidence(Role.INDUCTION, (4, 8), {(2, 1), (3, 0)}), evidence(Role.MOVER, (4, 8), (), 1)]
    found.append(Evidence(Role.INHIBITION, found[0].score, found[0].heads, -found[0].effect, np.zeros(1)))
    rows = numbers.of_heads(found, [(2, 1), (0, 0)])
    verdicts = rows.set_index(["head", "role"])["verdict"].str.split(":").str[0]
    assert verdicts[("L2H1", "induction")] == numbers.HAS and (verdicts == numbers.HAS).sum() == 1 and len(rows) == 6
    tested = {one.name: one for one in found[0].tested}["L2H1"]
    assert [*rows.loc[0, ["score", "null", "effect", "p"]]] == [tested.score, tested.null, tested.effect, tested.p]
    assert rows.loc[2, "effect"].high < 0 and rows.loc[2, "p"] == 1  # chosen by its score, not confirmed
    untested = rows.loc[3]
    second = found[0].score.halves[1]
    assert untested["score"] == found[0].score.value[second, 0, 0].mean() and np.isnan(untested["p"])


@pytest.mark.parametrize("shape", [(4, 8), (30, 9)])
def test_a_cell_has_a_tile_of_each_of_its_roles_in_full_colour_and_a_bar_of_its_effect(shape):
    """Tiles lie below each other; together they fill the cell."""
    role = {"tested": 1, "n": 8, "detectable": None}
    effects = {"induction": {"L0H1": 1.0, "L1H1": 0.0}, "mover": {"L0H1": 0.25, "L1H0": 1.0}}
    roles = {
        name: role | {"heads": {head: {"effect": [size, 0, 2]} for head, size in of.items()}}
        for name, of in effects.items()
    }
    found = {"request": ASKED, "model": "toy", "finding": "", "label task": None, "shape": shape, "roles": roles}
    [ax] = picture(found).axes
    patches: Any = [*ax.patches]
    tiles, bars = patches[::2], patches[1::2]
    assert [to_hex(tile.get_facecolor()) for tile in tiles[:2]] == [ROLES[name].colour for name in effects]
    (first, second), lengths = [tile.get_bbox() for tile in tiles[:2]], [bar.get_width() for bar in bars]
    assert first.height + second.height == pytest.approx(1) and first.y0 == pytest.approx(second.y1)
    assert first.width == second.width == 1 and lengths[1] == pytest.approx(lengths[0] / 4)
    assert [text.get_text() for text in ax.texts][:2] == ["IN", "MV"]


def test_what_controls_say():
    one, none = evidence(Role.MOVER, (4, 8), {(1, 1)}), evidence(Role.MOVER, (4, 8), ())
    assert numbers.roles([none])["mover"]["detectable"] is None and not len(show.atlas_table(values(none)))
    untrained = numbers.untrained({"evidence": [none]}, None)
    assert list(show.untrained_say(untrained)) == ["untrained twin: 0 heads with a role"]
    truths = {"right": {(1, 1)}, "one more": {(1, 1), (2, 2)}, "none": set()}
    circuits = {name: {"evidence": [one], "roles": {Role.MOVER: truth}} for name, truth in truths.items()}
    assert list(show.planted_say(numbers.planted(circuits, None))) == [
        "planted right: just the planted roles; planted one more: NOT RIGHT; planted none: NOT RIGHT"
    ]


# ------------------------------------------------------------------------------------------------ the study


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"ks": 0}, "ks"), ({"prompts": 3}, "prompts"), ({"sequences": 3}, "sequences"), ({"pairs": 3}, "pairs"),
        ({"word_prompts": 2}, "word_prompts"), ({"datasets": "none"}, "datasets"), ({"word_prompts": 10**6}, "prompts"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused_before_anything_is_loaded(wrong, named):
    with pytest.raises(ValueError, match=named):
        Study("role_atlas", "no such model", **wrong)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "seed"), [("gpt2", 0), ("llama", 3)])
def test_planted_heads_have_just_their_roles(family, seed, tmp_path):
    """Of all nine. The seed decides which head plays which role."""
    arrays = planted(Study("role_atlas", folder=tmp_path), family=family, seed=seed)
    found = numbers.planted(arrays, None)["planted"]
    assert found == {"induction circuit": True, "name movers": True, "label readers": True}


def test_other_code_of_a_circuit_makes_another_request(tmp_path, monkeypatch):
    before = planted_control(planted_roles.names, {}, name_tokens)[0].request
    changed = tmp_path / "planted_roles.py"
    changed.write_text(Path(planted_roles.__file__).read_text() + "\n")
    monkeypatch.setattr(planted_controls, "getsourcefile", lambda build: str(changed))
    assert planted_control(planted_roles.names, {}, name_tokens)[0].request != before


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_untrained_twins_have_no_role(seed, tmp_path):
    study = Study("role_atlas", datasets="trec", ks=4, folder=tmp_path, word_prompts=8, intact=8, seed=seed)
    assert study.twin(seed).numbers("atlas")["heads"] == 0


def small(folder, **more):
    """A study of a model of another shape."""
    tokenizer, model = toys.tokenizer(on_tasks=True), toys.model("llama")
    model.resize_token_embeddings(len(tokenizer))
    sizes = {"prompts": 8, "sequences": 4, "pairs": 8, "word_prompts": 4, "intact": 2, **more}
    return model, Study("role_atlas", Model.given(model, tokenizer, "given:tiny"), folder=folder, **sizes)


@pytest.mark.slow
def test_a_model_of_another_shape_is_measured_and_kept(tmp_path):
    _, study = small(tmp_path, datasets="glue_sst2", ks=2, untrained_control=False)
    first = study.numbers("atlas")
    assert first["shape"] == [3, 4] and len(first["roles"]) == len(Role)
    again = study.replace(model=Model("given:tiny", loader=lambda: pytest.fail("loaded again")))
    assert again.numbers("atlas") == first
    assert "labels: no data set passed, what is lost is label mass (glue_sst2, k = 2)" in first["left out"]
    assert "8 of glue_sst2 (k=2)" in show.atlas_about(study.values_of("atlas"))


def test_the_untrained_twin_is_asked_the_data_set_of_the_model(tmp_path, monkeypatch):
    study = Study("role_atlas", folder=tmp_path)
    twins: list = []
    monkeypatch.setitem(study._arrays, "atlas", {"label task": {"dataset": "agnews", "k": 4}})
    monkeypatch.setattr(Study, "twin", lambda self, **changes: twins.append(changes) or study)
    study.arrays("untrained")
    assert twins == [{"word_prompts": 8, "datasets": "agnews", "ks": 4}]


@pytest.mark.parametrize("lacking", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_what_does_not_fit_is_left_out_and_the_other_roles_are_tested(lacking, tmp_path, monkeypatch):
    """Tasks that the tokenizer has no prompts of, and prompts that are longer than the context."""
    model, study = small(tmp_path, datasets="agnews", ks=4)
    model.config.max_position_embeddings = 256
    whole = word_pair_prompts.prompts

    def prompts(task, *arguments, **options):
        if task.name in TASKS[-lacking:]:
            raise UnsupportedTokenizer(f"task {task.name!r}: no prompt can be made. Try another separator")
        return whole(task, *arguments, **options)

    monkeypatch.setattr(word_pair_prompts, "prompts", prompts)
    found = study.numbers("atlas")
    labels, words = found["left out"]
    assert labels.startswith("labels: no role is tested, the longest prompt has")
    one = "word pairs: left out, task 'person_sport': no prompt can be made"
    assert words == one if lacking == 1 else words.startswith("word pairs: no role is tested, task")
    missing = {Role.FORERUNNER, Role.LABEL_READER} | ({Role.FUNCTION_VECTOR} if lacking > 1 else set())
    assert {*found["roles"]} == {*map(str, {*Role} - missing)}
