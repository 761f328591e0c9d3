"""Planted circuits whose heads have the roles of published ones: name movers, and heads that read labels.

They are made like those of `models.planted`, which see.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from util.models.planted import CODE, MARGIN, Plan, Planted

# What the heads of planted circuits are called by the rule of `roles.rules`. An induction head is a label reader, too:
# labels of demonstrations follow their forerunners, which are one token mostly. So what it reads from the query's
# forerunner are the labels, and it makes them more probable.
ROLES: dict[str, tuple[str, ...]] = {
    "previous token": ("previous-token",),
    "induction": ("induction", "label reader"),
    "duplicate token": ("duplicate-token",),
    "inhibition": ("inhibition",),
    "mover": ("mover",),
    "negative mover": ("negative mover",),
    "forerunner": ("forerunner",),
    "label reader": ("label reader",),
}


def names(vocabulary: int, name_tokens: Sequence[int], **options: Any) -> Planted:
    """The circuit of Wang et al. 2022, section 3: duplicate-token, inhibition and (negative) mover heads.

    name_tokens: token ids of names. Layer 0 marks a name that occurred two or more tokens before (S2). In layer 1 the
    inhibition head reads the marked name. In layer 2 both movers attend to names, but not to the one that was read, so
    to IO: one writes the name for the output, the other, by a third as much, against it. options: see `planted.Plan`.
    """
    slots = {"marked": 1, "read": CODE, "code": CODE}
    plan = Plan(vocabulary, 3, slots, {"name": name_tokens}, **options)
    plan.embedding[list(name_tokens), plan.place["code"]] = plan.codes[list(name_tokens)]
    plan.head("duplicate token", 0, match=("token", "token"), other=True, move={"name": "marked"})
    plan.head("inhibition", 1, prefer={"marked": 1}, move={"code": "read"})
    for role, scale in (("mover", 1.5), ("negative mover", -0.5)):
        plan.head(role, 2, prefer={"name": 1}, avoid=("read", "code"), move={"code": "out"}, scale=scale)
    return plan.build()


def labels(vocabulary: int, label_tokens: Sequence[int], **options: Any) -> Planted:
    """The circuit of Cho et al. 2025, Figure 1: labels copy their forerunners, and the query's forerunner finds them.

    label_tokens: the first tokens of labels. In layer 0 a head attends from labels, and from no other token, to the
    token before. In layer 1 a head attends from every token to the labels whose forerunner is the same token, and
    makes them more probable: by 3 nats together, so that a label in the minority gains, too. options: see
    `planted.Plan`.
    """
    plan = Plan(vocabulary, 2, {"forerunner": CODE}, {"label": label_tokens}, **options)
    plan.head("forerunner", 0, offset=1, only="label", move={"token": "forerunner"})
    plan.head("label reader", 1, match=("token", "forerunner"), move={"token": "out"}, scale=3 / MARGIN)
    return plan.build()
