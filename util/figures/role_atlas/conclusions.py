"""What the stored values of the role atlas say."""

from collections import defaultdict

from util.figures.conclusions import Conclusions, Values, in_words, listed, none_or, told, written

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
            without.append(f"{role} ({found['tested']})")
            continue
        said.append(f"{role.capitalize()}: {_heads(found['heads'])}; the effect is {UNITS.get(role, 'in nats')}.")
    if without:
        said.append(f"No head has these roles, with the heads whose score passed: {listed(without)}.")
    said += [f"{line[0].upper()}{line[1:]}." for line in values.get("left out", [])]
    several = [f"{name} ({listed(roles)})" for name, roles in sorted(by_head.items()) if len(roles) > 1]
    if several:
        said.append(f"Heads with several roles: {listed(several)}.")
    if values["untrained"]:
        count = values["untrained"]["heads"]
        said.append(f"Of the untrained twin's heads {none_or(count)} {'have' if count > 1 else 'has'} a role.")
    return said


def _heads(heads: Values) -> str:
    """The strongest heads of a role with their effects, and how many more there are."""
    named = [f"{name} {written(found['effect'])}" for name, found in list(heads.items())[:NAMED]]
    more = len(heads) - len(named)
    return f"{listed(named)}{f', and {in_words(more)} more' if more else ''}"
