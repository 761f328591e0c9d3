"""The roles that figures show heads with: those that the role atlas has stored of just this model."""

import json
from typing import Any

import pytest

from tests.stored import FOLDERS, values
from util.figures.stored_roles import MODEL, stored_roles, why_no_role
from util.roles.rules import Role
from util.stats.heads import head_name
from util.study.model import Model
from util.study.study import Study


@pytest.mark.parametrize("model", FOLDERS)
def test_roles_are_those_of_the_stored_atlas(model, tmp_path, monkeypatch):
    monkeypatch.setenv("ICL_OUTPUT", str(tmp_path))
    atlas = values("role_atlas", model)
    asked = values("ioi_patching", model)["request"]  # as figures that are drawn of their values ask
    roles = stored_roles(Study("role_atlas", model).request)
    assert stored_roles(asked) == roles
    assert roles is not None and len(roles) == atlas["heads"]
    assert {(str(role), head_name(head)) for head, those in roles.items() for role in those} == {
        (role, name) for role, entry in atlas["roles"].items() for name in entry["heads"]
    }


def test_a_model_of_another_kind_or_without_an_atlas_has_no_roles(tmp_path, monkeypatch):
    monkeypatch.setenv("ICL_OUTPUT", str(tmp_path))
    request = Study("role_atlas", "embedded").request
    assert all(name in request for name in MODEL)
    assert stored_roles({**request, "model": "gpt2"}) is None
    assert stored_roles({**request, "quantized": True}) is None
    assert stored_roles(Study("role_atlas", Model("embedded").twin(), untrained_control=False).request) is None


def test_what_this_run_has_written_comes_first(tmp_path, monkeypatch):
    monkeypatch.setenv("ICL_OUTPUT", str(tmp_path))
    request = Study("role_atlas", "embedded").request
    folder = tmp_path / "data" / "values"
    folder.mkdir(parents=True)
    heads: dict[str, Any] = {"mover": {"heads": {"L11H10": {}}}, "induction": {"heads": {"L11H10": {}, "L0H2": {}}}}
    (folder / "role_atlas.json").write_text(json.dumps({"request": {**request}, "roles": heads}))
    assert stored_roles(request) == {(11, 10): [Role.INDUCTION, Role.MOVER], (0, 2): [Role.INDUCTION]}


def told(tmp_path, monkeypatch, heads, **not_confirmed):
    """What is said of heads beside an atlas in which L1H1 is a mover, and others were tested in vain."""
    monkeypatch.setenv("ICL_OUTPUT", str(tmp_path))
    request = Study("role_atlas", "embedded").request
    folder = tmp_path / "data" / "values"
    folder.mkdir(parents=True, exist_ok=True)
    roles = {
        role: {"heads": {"L1H1": {}} if role == "mover" else {}, "not confirmed": not_confirmed.get(role, {})}
        for role in ("inhibition", "mover")
    }
    (folder / "role_atlas.json").write_text(json.dumps({"request": {**request}, "roles": roles}))
    return why_no_role(heads, request)


def test_heads_without_a_role_are_named_with_the_test_that_fails(tmp_path, monkeypatch):
    tested = {"score": [0.9, 0.8, 1.0], "null": 0.2, "effect": [-3.0, -4.0, -2.0], "p": 1.0}
    heads = {"L1H1": (0.5, 0.4), "L2H5": (1.1, 0.9), "L0H0": (0.3, 0.0)}
    first, *rest = told(tmp_path, monkeypatch, heads, inhibition={"L2H5": tested})
    assert first == "Of the heads that carry most, L2H5 and L0H0 have none of two roles (notebook 05)."
    assert rest == [
        "L2H5 puts 0.90 [0.80, 1.00] of its attention at the end of the prompt on the repeated name (S2).",
        "It is not an inhibition head: its effect through others minus its direct effect is -3.00 [-4.00, -2.00] nats.",
        "It is not a mover: its attention to the answer (IO) does not pass.",
    ]
    assert rest[:2] == told(tmp_path, monkeypatch, heads, inhibition={"L2H5": tested}, mover={"L2H5": tested})[1:]


def test_without_stored_attention_only_the_direct_part_is_told(tmp_path, monkeypatch):
    unsure = {"score": [0.3, 0.1, 0.5], "null": 0.2, "effect": [-3.0, -4.0, -2.0], "p": 1.0}
    heads = {"L2H5": (1.1, 0.9), "L0H0": (-0.3, -0.2), "L0H1": (0.3, None)}
    for not_confirmed in ({}, {"inhibition": {"L2H5": unsure}}):
        _, direct, rule = told(tmp_path, monkeypatch, heads, **not_confirmed)
        assert direct == "The direct part, all else frozen, is most of the effect of L2H5 (0.90) and L0H0 (-0.20)."
        assert rule == "The rule for inhibition heads asks for more through other heads."
    assert told(tmp_path, monkeypatch, {"L1H1": (0.5, 0.4)}) == []
    assert why_no_role(heads, {**Study("role_atlas", "embedded").request, "model": "gpt2"}) == []
