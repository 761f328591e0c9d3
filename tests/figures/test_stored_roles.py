"""The roles of heads that figures show: those that the role atlas has stored of just this model."""

import json

import pytest

from tests.stored import FOLDERS, values
from util import paths
from util.figures import MODEL, by_head, stored_atlas, why_no_role
from util.show import files
from util.study.model import Model

pytestmark = pytest.mark.usefixtures("output")

REQUEST = Model("embedded").request


def store(**roles):
    """This run's atlas of the embedded model: the heads of roles, and those that were tested in vain."""
    entries = {role: {"heads": dict.fromkeys(heads, {}), "not confirmed": no} for role, (heads, no) in roles.items()}
    (paths.output("values") / "role_atlas.json").write_text(json.dumps({"request": REQUEST, "roles": entries}))


@pytest.mark.parametrize("model", FOLDERS)
def test_roles_are_those_of_the_stored_atlas(model):
    atlas = values("role_atlas", model)
    assert stored_atlas(Model(model).request) == atlas["roles"]
    assert stored_atlas(values("ioi_patching", model)["request"]) == atlas["roles"]  # as figures drawn of values ask
    roles = by_head(atlas["roles"])
    assert len(roles) == atlas["heads"]
    assert {(role, name) for name, those in roles.items() for role in those} == {
        (role, name) for role, entry in atlas["roles"].items() for name in entry["heads"]
    }


def test_a_folder_that_has_the_name_of_another_model_has_not_its_roles(tmp_path):
    (tmp_path / "smollm2").mkdir()
    (tmp_path / "smollm2" / "config.json").touch()
    model = Model(str(tmp_path / "smollm2"))
    request = model.request | model.stored
    assert request["model"] == "smollm2" and stored_atlas(request) is None
    files.save_values({"request": request, "roles": {"mine": {}}}, "role_atlas", model.name)
    assert stored_atlas(request) == {"mine": {}} and stored_atlas(Model("smollm2").request) != {"mine": {}}


@pytest.mark.parametrize("other", [{"model": "gpt2"}, {"quantized": True}, {"untrained_seed": 0}])
def test_a_model_of_another_kind_or_without_an_atlas_has_no_roles(other):
    assert {*MODEL} - {"folder"} <= {*REQUEST} and stored_atlas(REQUEST | other) is None
    assert why_no_role({"L2H5": (1.1, 0.9)}, REQUEST | other) == []


def test_what_this_run_has_written_comes_first():
    store(induction=(["L11H10", "L0H2"], {}), mover=(["L11H10"], {}))
    assert by_head(stored_atlas(REQUEST)) == {"L0H2": ["induction"], "L11H10": ["induction", "mover"]}


def test_heads_without_a_role_are_named_and_what_is_direct_of_them():
    store(inhibition=([], {}), mover=(["L1H1"], {}))
    heads = {"L2H5": (1.1, 0.9), "L0H0": (-0.3, -0.2), "L0H1": (0.3, None), "L1H1": (0.5, 0.4)}
    assert why_no_role(heads, REQUEST) == [
        "Of the strongest heads, L2H5, L0H0 and L0H1 have none of two roles (notebook 05).",
        "The direct effect, all else frozen, is more than half of the whole one: "
        "L2H5 (0.90 of 1.10) and L0H0 (-0.20 of -0.30).",
        "The rule for inhibition heads asks for more through other heads.",
    ]
    assert why_no_role({"L1H1": (0.5, 0.4)}, REQUEST) == []
