"""The role atlas: its picture at every shape and width, its title, its table, and its controls."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex

from tests import toys
from tests.figures.legible import LONG_NAME, SHAPES, faults
from util.figures import planted_controls
from util.figures.role_atlas import plots
from util.figures.role_atlas.results import Atlas, Findings, found_exactly
from util.figures.role_atlas.study import Study, planted_labels, planted_names, roles_of
from util.models import planted_roles
from util.prompts import word_pair_prompts
from util.prompts.prompt import UnsupportedTokenizer
from util.records.model import Model
from util.roles.function_vectors import TASKS
from util.roles.label_roles import LabelRoles
from util.roles.rules import Effect, Evidence, Role, Score
from util.show.style import COLUMN, ROLES, WIDTH

N = 16
SETTING = f"{LONG_NAME}, untrained; prompts: 32 random sequences, 128 IOI, 32 financial_phrasebank (k = 16), 24 of each"


def evidence(role, shape, having, seed=0):
    """Evidence in which just some heads have a role."""
    rng = np.random.default_rng(seed)
    value = rng.normal(0.1, 0.01, (N, *shape))
    for head in having:
        value[(slice(None), *head)] = rng.normal(0.8, 0.02, N)
    score = Score(value, np.full(1, 0.2), "attention")
    heads = score.chosen()
    size = np.linspace(0.2, 1, len(heads))
    effect = rng.normal(0, 0.01, (len(score.halves[1]), len(heads))) + size
    return Evidence(role, score, Effect(heads, effect, np.zeros(1), "nats"))


def atlas(shape, share=0.1, seed=0):
    """Every role, on a tenth of the heads; one head has all of them."""
    rng = np.random.default_rng(seed)
    count = max(1, int(share * shape[0] * shape[1]))
    found = []
    for number, role in enumerate(Role):
        heads = {(int(rng.integers(shape[0])), int(rng.integers(shape[1]))) for _ in range(count)} | {(1, 1)}
        found.append(evidence(role, shape, heads, number))
    return Atlas(tuple(found), SETTING, "toy")


@pytest.mark.parametrize("width", [WIDTH, COLUMN])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_atlas_can_be_read(shape, width):
    assert faults(atlas(shape).figure(width)) == []


@pytest.mark.parametrize("width", [WIDTH, COLUMN])
@pytest.mark.parametrize("shape", SHAPES)
def test_an_atlas_without_roles_can_be_read(shape, width):
    empty = Atlas(tuple(evidence(role, shape, ()) for role in Role), SETTING, "toy")
    assert empty.finding == f"None of {shape[0] * shape[1]} heads has a role that its effect confirms"
    assert faults(empty.figure(width)) == []


@pytest.mark.parametrize(
    ("having", "said"),
    [
        (
            {(2, 1), (3, 0)},
            "2 of 32 heads have a role that their effect confirms; induction heads lie in layers 2-3",
        ),
        ({(2, 1), (2, 7)}, "2 of 32 heads have a role that their effect confirms; induction heads lie in layer 2"),
        ({(2, 1)}, "1 of 32 heads has a role that its effect confirms; the induction head is L2H1"),
    ],
)
def test_the_title_says_how_many_and_where(having, said):
    assert Atlas((evidence(Role.INDUCTION, (4, 8), having),), SETTING, "toy").finding == said


def test_the_title_names_no_induction_heads_where_there_are_none():
    found = Atlas((evidence(Role.MOVER, (4, 8), {(1, 1)}), evidence(Role.INDUCTION, (4, 8), ())), SETTING, "toy")
    assert found.finding == "1 of 32 heads has a role that its effect confirms"


def test_roles_are_counted_once_for_each_head():
    both = Atlas(
        (evidence(Role.MOVER, (4, 8), {(1, 1), (2, 2)}), evidence(Role.INDUCTION, (4, 8), {(1, 1)}, seed=1)),
        SETTING,
        "toy",
    )
    assert list(both.heads) == [(1, 1), (2, 2)]
    assert [one.role for one in both.heads[1, 1]] == [Role.INDUCTION, Role.MOVER]
    assert both.lines() == ["L1H1: induction, mover", "L2H2: mover"]
    written = both.values()
    assert written["mover"]["tested"] == 2 and set(written["mover"]["heads"]) == {"L1H1", "L2H2"}
    assert [written[role]["n"] for role in ("mover", "induction")] == [N // 2, N // 2]
    assert written["mover"]["not confirmed"] == {} and "not confirmed" not in written["induction"]
    table = both.table(count=1)
    assert [row[:3] for row in table.index] == [
        ("mover", "2 of 2 tested", "8 pairs of names"), ("induction", "1 of 1 tested", "8 sequences"),
    ]  # fmt: skip
    for role, (*_, seen_from) in zip(written, table.index, strict=True):
        assert seen_from == f"{written[role]['detectable']:.2f}"
    assert table["head"].tolist() == ["L2H2", "L1H1"]  # of the movers that with the larger effect


@pytest.mark.parametrize("shape", [(4, 8), (30, 9)])
def test_a_cell_has_a_tile_of_each_of_its_roles_in_full_colour_and_a_bar_of_its_effect(shape):
    """Tiles lie beside each other in wide cells, below each other in narrow ones; together they fill the cell."""
    strengths = {(0, 1): [(Role.INDUCTION, 1.0), (Role.MOVER, 0.25)]}
    figure = plots.atlas(
        shape, strengths, {Role.INDUCTION: (1, 0.1), Role.MOVER: (1, None)}, finding=None, setting="toy"
    )
    [ax] = figure.axes
    tiles, bars = ax.collections
    assert [to_hex(colour) for colour in np.atleast_2d(tiles.get_facecolor())] == [
        ROLES[role].colour for role in (Role.INDUCTION, Role.MOVER)
    ]
    boxes = [path.get_extents() for path in tiles.get_paths()]
    lengths = [path.get_extents().width for path in bars.get_paths()]
    assert sum(box.width * box.height for box in boxes) == pytest.approx(1)
    first, second = boxes
    if shape == (4, 8):
        assert first.x1 == second.x0 and first.height == second.height == 1
    else:
        assert first.y0 == second.y1 and first.width == second.width == 1
    assert lengths[1] == pytest.approx(lengths[0] / 4)
    assert [text.get_text() for text in ax.texts] == ["IN", "MV"]


def test_found_exactly_wants_no_head_more_and_none_less():
    one = [evidence(Role.MOVER, (4, 8), {(1, 1)}), evidence(Role.INDUCTION, (4, 8), ())]
    assert found_exactly(one, {Role.MOVER: {(1, 1)}})
    assert not found_exactly(one, {Role.MOVER: {(1, 1), (2, 2)}})
    assert not found_exactly(one, {})
    assert not found_exactly(one, {Role.MOVER: {(1, 1)}, Role.INDUCTION: {(1, 1)}})


def test_values_and_lines_have_the_controls():
    small = Atlas((evidence(Role.MOVER, (4, 8), {(1, 1)}),), SETTING, "toy")
    empty = Atlas((evidence(Role.MOVER, (4, 8), ()),), SETTING, "toy")
    assert empty.values()["mover"]["detectable"] is None and empty.table().index[0][-1] == ""
    found = Findings(small, empty, {"name movers": True, "label readers": False})
    assert found.values({"ks": [4]})["untrained"]["heads"] == 0 and found.values({})["heads"] == 1
    assert found.control_lines() == [
        "planted name movers: just the planted roles", "planted label readers: NOT RIGHT",
        "untrained twin: 0 heads with a role",
    ]  # fmt: skip
    assert Findings(small, None, {}).control_lines() == []


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
        Study("no such model", **wrong)


@pytest.mark.parametrize(("family", "seed"), [("gpt2", 0), ("llama", 3)])
def test_planted_heads_have_just_their_roles(family, seed, tmp_path):
    """Of all nine. The seed decides which head plays which role."""
    found = Study(folder=tmp_path).planted(family=family, seed=seed)
    assert found == {"induction circuit": True, "name movers": True, "label readers": True}


def test_planted_circuits_differ_by_seed():
    for build in (planted_names, planted_labels):
        first, second = (build({"seed": seed})[1].heads for seed in (0, 3))
        assert first != second


def test_all_roles_are_asked_of_planted_models(tmp_path):
    model, truth = planted_names({})
    evidence = Study(folder=tmp_path)._planted_evidence(model)
    assert {one.role for one in evidence} == {*Role}
    assert set(roles_of(truth)) == {Role.DUPLICATE_TOKEN, Role.INHIBITION, Role.MOVER, Role.NEGATIVE_MOVER}
    assert {Role(role) for roles in planted_roles.ROLES.values() for role in roles} < {*Role}


def test_other_code_of_a_circuit_makes_another_request(tmp_path, monkeypatch):
    before = planted_names({})[0].request
    changed = tmp_path / "planted_roles.py"
    changed.write_text(Path(planted_roles.__file__).read_text() + "\n")
    monkeypatch.setattr(planted_controls, "getsourcefile", lambda build: str(changed))
    assert planted_names({})[0].request != before


@pytest.mark.parametrize("seed", [0, 1])
def test_untrained_twins_have_no_role(seed, tmp_path):
    study = Study(datasets="trec", ks=4, folder=tmp_path, word_prompts=8, intact=8, seed=seed)
    assert study.twin(seed).atlas().heads == {}


def test_a_model_of_another_shape_is_measured_and_kept(tmp_path):
    toys.save(tmp_path / "tiny", toys.model("gpt2"))
    tokenizer = toys.tokenizer(on_tasks=True)
    model = toys.model("llama")
    model.resize_token_embeddings(len(tokenizer))
    study = Study(
        Model.given(model, tokenizer, "given:tiny"), "glue_sst2", 2, 8,
        sequences=8, pairs=8, word_prompts=4, intact=4, folder=tmp_path,
    )  # fmt: skip
    first = study.atlas()
    assert first.shape == (3, 4) and len(first.evidence) == len(Role)
    again = study.replace(model=Model("given:tiny", loader=lambda: pytest.fail("loaded again")))
    assert again.atlas().lines() == first.lines()
    assert "labels: no data set passed, what is lost is label mass (glue_sst2, k = 2)" in first.lines()
    assert "8 of glue_sst2 (k=2)" in first.setting


def test_the_untrained_twin_is_asked_the_data_set_of_the_model(tmp_path, monkeypatch):
    study = Study(folder=tmp_path)
    monkeypatch.setattr(LabelRoles, "task", SimpleNamespace(name="agnews", k=4))
    monkeypatch.setattr(Study, "atlas", lambda self: (self.datasets, self.ks, self.word_prompts))
    asked: Any = study.untrained()
    assert asked == (("agnews",), (4,), study.untrained_prompts)


@pytest.mark.parametrize("lacking", [1, 4, 5])
def test_what_does_not_fit_is_left_out_and_the_other_roles_are_tested(lacking, tmp_path, monkeypatch):
    """Tasks that the tokenizer has no prompts of, and prompts that are longer than the context."""
    tokenizer = toys.tokenizer(on_tasks=True)
    model = toys.model("llama")
    model.resize_token_embeddings(len(tokenizer))
    model.config.max_position_embeddings = 256
    whole = word_pair_prompts.prompts

    def prompts(task, *arguments, **options):
        if task.name in TASKS[-lacking:]:
            raise UnsupportedTokenizer(f"task {task.name!r}: no prompt can be made. Try another separator")
        return whole(task, *arguments, **options)

    monkeypatch.setattr(word_pair_prompts, "prompts", prompts)
    study = Study(
        Model.given(model, tokenizer, "given:toy"), "agnews", 4, 8,
        sequences=4, pairs=8, word_prompts=4, intact=2, folder=tmp_path,
    )  # fmt: skip
    found = study.atlas()
    assert "labels: no role is tested, the longest prompt has" in found.lines()[0]
    if lacking == 1:
        assert found.lines()[1] == "word pairs: left out, task 'person_sport': no prompt can be made"
    else:
        assert "word pairs: no role is tested, task" in found.lines()[1]
    missing = {Role.FORERUNNER, Role.LABEL_READER} | ({Role.FUNCTION_VECTOR} if lacking > 1 else set())
    assert {*found.roles} == {*Role} - missing
