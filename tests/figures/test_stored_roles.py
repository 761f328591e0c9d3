"""The roles of heads that figures show: those that the role atlas has stored of just this model."""

import json

import pytest

from tests.stored import FOLDERS, values
from util import paths
from util.figures.stored_roles import MODEL, stored_roles, why_no_role
from util.roles.rules import Role
from util.stats.heads import head_name
from util.study.model import Model

REQUEST = Model("embedded").request
TESTED = {"score": [0.9, 0.8, 1.0], "null": 0.2, "effect": [-3.0, -4.0, -2.0], "p": 1.0}
UNSURE = TESTED | {"score": [0.3, 0.1, 0.5]}


@pytest.fixture(autouse=True)
def output(tmp_path, monkeypatch):
    monkeypatch.setenv("ICL_OUTPUT", str(tmp_path))


def store(**roles):
    """This run's atlas of the embedded model: the heads of roles, and those that were tested in vain."""
    entries = {role: {"heads": dict.fromkeys(heads, {}), "not confirmed": no} for role, (heads, no) in roles.items()}
    (paths.output("values") / "role_atlas.json").write_text(json.dumps({"request": REQUEST, "roles": entries}))


@pytest.mark.parametrize("model", FOLDERS)
def test_roles_are_those_of_the_stored_atlas(model):
    atlas = values("role_atlas", model)
    roles = stored_roles(Model(model).request)
    assert roles is not None and len(roles) == atlas["heads"]
    assert stored_roles(values("ioi_patching", model)["request"]) == roles  # as figures that are drawn of values ask
    assert {(str(role), head_name(head)) for head, those in roles.items() for role in those} == {
        (role, name) for role, entry in atlas["roles"].items() for name in entry["heads"]
    }


@pytest.mark.parametrize("other", [{"model": "gpt2"}, {"quantized": True}, {"untrained_seed": 0}])
def test_a_model_of_another_kind_or_without_an_atlas_has_no_roles(other):
    assert {*MODEL} <= {*REQUEST} and stored_roles(REQUEST | other) is None
    assert why_no_role({"L2H5": (1.1, 0.9)}, REQUEST | other) == []


def test_what_this_run_has_written_comes_first():
    store(mover=(["L11H10"], {}), induction=(["L11H10", "L0H2"], {}))
    assert stored_roles(REQUEST) == {(11, 10): [Role.INDUCTION, Role.MOVER], (0, 2): [Role.INDUCTION]}


def test_heads_without_a_role_are_named_with_the_test_that_fails():
    heads = {"L1H1": (0.5, 0.4), "L2H5": (1.1, 0.9), "L0H0": (0.3, 0.0)}
    attention = "L2H5 puts 0.90 [0.80, 1.00] of its attention at the end of the prompt on the repeated name (S2)."
    effect = (
        "It is not an inhibition head: its effect through others minus its direct effect is -3.00 [-4.00, -2.00] nats."
    )
    for vain, more in (
        ({}, ["It is not a mover: its attention to the answer (IO) does not pass."]),
        ({"L2H5": TESTED}, []),
    ):
        store(inhibition=([], {"L2H5": TESTED}), mover=(["L1H1"], vain))
        assert why_no_role(heads, REQUEST) == [
            "Of the heads that carry most, L2H5 and L0H0 have none of two roles (notebook 05).", attention, effect,
            *more,
        ]  # fmt: skip


@pytest.mark.parametrize("vain", [{}, {"L2H5": UNSURE}])
def test_without_stored_attention_only_the_direct_part_is_told(vain):
    store(inhibition=([], vain), mover=(["L1H1"], {}))
    _, direct, rule = why_no_role({"L2H5": (1.1, 0.9), "L0H0": (-0.3, -0.2), "L0H1": (0.3, None)}, REQUEST)
    assert direct == "The direct part, all else frozen, is most of the effect of L2H5 (0.90) and L0H0 (-0.20)."
    assert rule == "The rule for inhibition heads asks for more through other heads."
    assert why_no_role({"L1H1": (0.5, 0.4)}, REQUEST) == []
