"""The colours of figures: a role has one colour everywhere, and no two can be taken for each other."""

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from util import paths
from util.roles.rules import Role
from util.show import style
from util.show.panels import ink
from util.show.style import ROLES

VISIONS = {  # of linear red, green and blue; Machado, Oliveira & Fernandes 2009, severity 1
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
}
APART = 15.0  # units of CIELAB; 2.3 are just seen


def lab(colour, vision):
    """A colour in CIELAB (D65), as somebody with this vision sees it."""
    rgb = np.array(to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    linear = np.clip(np.array(VISIONS[vision]) @ linear, 0, 1)
    to_xyz = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]]
    xyz = to_xyz @ linear / np.array([0.95047, 1, 1.08883])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("vision", VISIONS)
def test_no_two_roles_can_be_taken_for_each_other_or_for_whole_ablated_and_control(vision):
    colours = {str(role): look.colour for role, look in ROLES.items()}
    colours |= {name: getattr(style, name) for name in ("BLUE", "RED", "GREY", "ORANGE", "NO_ROLE")}
    for one, other in combinations(colours, 2):
        if {one, other} & {*Role}:
            distance = np.linalg.norm(lab(colours[one], vision) - lab(colours[other], vision))
            assert distance > APART, (one, other)


def test_every_role_has_letters_of_its_own_and_letters_on_a_colour_can_be_read():
    assert {*ROLES} == {*Role} and len({look.letters for look in ROLES.values()}) == len(Role)
    assert (ink("white"), ink("#6e2d13"), ink((1.0, 1.0, 0.0, 1.0))) == ("black", "white", "black")


@pytest.mark.parametrize("file", sorted((paths.root() / "util" / "figures").rglob("*.py")), ids=lambda file: file.name)
def test_colours_are_named_in_one_file(file: Path):
    """So no figure gives a role a colour of its own, nor a role's colour to anything else."""
    assert re.findall(r"[\"'](#[0-9a-fA-F]{6}|tab:\w+|C\d)[\"']", file.read_text(encoding="utf-8")) == []
