"""The colours of figures: a role has one colour everywhere."""

import re

import pytest

from tests.clone import ROOT
from util.roles.rules import Role
from util.show.draw import ROLES
from util.show.panels import ink


def test_every_role_has_letters_of_its_own_and_letters_on_a_colour_can_be_read():
    assert {*ROLES} == {*Role} and {len({*column}) for column in zip(*ROLES.values(), strict=True)} == {len(Role)}
    assert (ink("white"), ink("#6e2d13"), ink((1.0, 1.0, 0.0, 1.0))) == ("black", "white", "black")


@pytest.mark.parametrize("file", sorted((ROOT / "util/figures").rglob("*.py")), ids=lambda file: file.name)
def test_colours_are_named_in_one_file(file):
    """So no figure gives a role a colour of its own, nor a role's colour to anything else."""
    assert re.findall(r"[\"'](#[0-9a-fA-F]{6}|tab:\w+|C\d)[\"']", file.read_text(encoding="utf-8")) == []
