"""What the stored values of the role atlas say."""

from collections import defaultdict

from util.roles.rules import units_of
from util.show.conclusions import Conclusions, Values, counted, in_words, listed, none_or, told, written

UNITS = {  # of effects; all others are in nats
    "function vector": "as a probability that is gained",
    **dict.fromkeys(("duplicate-token", "inhibition", "mover", "negative mover"), "in nats of the logit difference"),
}
NAMED = 3  # heads of a role that are named with their effects


def of(model: str) -> Conclusions:
    """What was found, of the committed models and of `model`."""
    return told("role_atlas", sentences, model)


def sentences(values: Values) -> list[str]:
    """How many heads have a role, which have each, which have several, and what the untrained twin has.

    values: of data/values/role_atlas.json.
    """
    said = [f"{values['finding']}."]
    by_head = defaultdict(list)
    without = []
    for role, found in values["roles"].items():
        for name in found["heads"]:
            by_head[name].append(role)
        if not found["heads"]:
            without.append(f"{role} ({beside(role, found, 'seen from {:.2f} on')})")
            continue
        heads = counted(len(found["heads"]), f"{role} head").capitalize()
        unit = UNITS.get(role, "in nats")
        said.append(f"{heads} ({beside(role, found)}): {_heads(found['heads'])}, {unit}.")
    if without:
        said.append(f"Not detected: {listed(without)}.")
    said += [f"{line[0].upper()}{line[1:]}." for line in values.get("left out", [])]
    several = [f"{name} ({listed(roles)})" for name, roles in sorted(by_head.items()) if len(roles) > 1]
    if several:
        said.append(f"Heads with several roles: {listed(several)}.")
    if values["untrained"]:
        count, *roles = values["untrained"].values()
        tested = sum(role["tested"] for role in roles)
        has = f"{none_or(count)} {'have' if count > 1 else 'has'} a role"
        said.append(
            f"Of {counted(tested, 'head')} of the untrained twin whose score passes {has}."
            if tested
            else "In the untrained twin no score passes, so that no head is tested."
        )
    return said


def beside(role: str, found: Values, seen: str = "effects from {:.2f} on would be seen") -> str:
    """What stands beside the count of a role: tested heads, the units that confirm them, and `seen`, of which effects.

    Values that were stored before the last two were have the first alone.
    """
    units = [units_of(role, found["n"])] if "n" in found else []
    last = [seen.format(found["detectable"])] if found.get("detectable") else []
    return "; ".join([", ".join([f"{found['tested']} tested", *units]), *last])


def _heads(heads: Values) -> str:
    """The strongest heads of a role with their effects, and how many more there are."""
    named = [f"{name} {written(found['effect'])}" for name, found in list(heads.items())[:NAMED]]
    more = len(heads) - len(named)
    return f"{listed(named)}{f', and {in_words(more)} more' if more else ''}"
