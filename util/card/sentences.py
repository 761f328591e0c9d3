"""The six sentences of a card, made from its values: which circuits, how sure that is, and what cannot be told.

`sentences` takes what card.json has, so that they can be made again from the file alone. Each sentence says how it
stands: found, not found, not told apart (the intervals are too wide), not done (the model does not do the task), or
not measured (the model or its tokenizer does not allow it).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from util.card.results import PARTS_OF_CIRCUITS
from util.edges import names
from util.figures.edge_ablation.show import READ_BY_OTHERS
from util.figures.ioi_patching.conclude import carry_and_oppose
from util.figures.role_atlas.show import beside
from util.roles.rules import LEAST, Role
from util.show.words import counted, in_words, listed, none_or, written
from util.stats.intervals import Interval, detectable

Values = Mapping[str, Any]
BY_CHANCE = 0.5  # of two names
UNSURE = 0.1  # nats: a role whose largest effect may reach this is not said to be absent
NAMED = 3  # heads that are named with their numbers
NEARLY = 0.1  # of accuracy: who may be so much above chance is not said not to do IOI
NONE_LOST = 0.2  # of accuracy: a loss that may be larger is not said to be none; with 32 queries 0.17 stay possible


class Told(StrEnum):
    """How a sentence stands."""

    FOUND = "found"
    NOT_FOUND = "not found"
    OPEN = "cannot be told"
    NOT_DONE = "does not do this task"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Sentence:
    """One sentence: what it is about, how it stands, and its text."""

    topic: str
    told: Told
    text: str


def sentences(values: Values) -> list[Sentence]:
    """The sentences about induction, other roles, IOI, its paths, word pairs, and what the found heads are worth.

    values: of card.json.
    """
    return [
        _induction(values),
        _other_roles(values),
        _ioi(values),
        _paths(values),
        _word_pairs(values),
        _knocked_out(values),
    ]


def _unmeasured(topic: str, values: Values, part: str) -> Sentence:
    return Sentence(topic, Told.NOT_MEASURED, f"Not measured on this model: {values['refused'][part]}")


# ------------------------------------------------------------------------------------------------ induction


def _induction(values: Values) -> Sentence:
    topic = "Induction"
    if values["roles"] is None:
        return _unmeasured(topic, values, "roles")
    roles = values["roles"]["roles"]
    found = roles[Role.INDUCTION]["heads"]
    if not found:
        return _no_heads(topic, Role.INDUCTION, roles[Role.INDUCTION])
    named = [f"{name} {written(one['effect'])}" for name, one in list(found.items())[:NAMED]]
    are, cut = ("is an induction head", "it") if len(found) == 1 else ("are induction heads", "one of them")
    said = f"{in_words(len(found)).capitalize()} of {values['roles']['of']} heads {are} "
    said += f"({beside(Role.INDUCTION, roles[Role.INDUCTION])}). "
    said += f"Cutting what {cut} copies costs a repeated token, in nats: {listed(named)}{_more(found)}. "
    before, power = roles[Role.PREVIOUS_TOKEN]["heads"], beside(Role.PREVIOUS_TOKEN, roles[Role.PREVIOUS_TOKEN])
    if before:
        named = [f"{name} {written(one['effect'])}" for name, one in list(before.items())[:NAMED]]
        heads = counted(len(before), "previous-token head")
        said += (
            f"So does cutting what {heads} ({power}) {'reads' if len(before) == 1 else 'read'}: "
            f"{listed(named)}{_more(before)}."
        )
    else:
        said += f"Not detected: a previous-token head ({power})."
    return Sentence(topic, Told.FOUND, said)


def _more(heads: Values) -> str:
    """How many heads there are beyond those that are named."""
    more = len(heads) - NAMED
    return f", and {in_words(more)} more" if more > 0 else ""


def _no_heads(topic: str, name: Role, role: Values) -> Sentence:
    """That no head was detected to have a role, or that it cannot be told."""
    closest = role["closest"]
    if closest is None or closest["effect"][2] < UNSURE:
        return Sentence(topic, Told.NOT_FOUND, f"Not detected: an {name} head ({beside(name, role)}).")
    text = (
        f"Cannot be told: {counted(role['tested'], 'head')} {'attends' if role['tested'] == 1 else 'attend'} as an "
        f"{name} head does, and what {closest['head']} does may be worth most: {written(closest['effect'])} nats."
    )
    return Sentence(topic, Told.OPEN, text)


def _other_roles(values: Values) -> Sentence:
    """How many heads have each role that no other sentence is about, which is the strongest, and what is open."""
    topic = "Other roles"
    if values["roles"] is None:
        return _unmeasured(topic, values, "roles")
    found, without, untested, unsure = list[str](), list[str](), list[str](), list[str]()
    roles = values["roles"]["roles"]
    for role in Role:
        if role in (Role.INDUCTION, Role.PREVIOUS_TOKEN) or role not in roles:
            continue
        one = roles[role]
        if one["heads"]:
            name, most = next(iter(one["heads"].items()))
            heads = counted(len(one["heads"]), f"{role} head")
            found.append(f"{heads} ({beside(role, one)}): {name} {written(most['effect'])}")
        elif one["closest"] is not None and one["closest"]["effect"][2] >= UNSURE:
            unsure.append(str(role))
        elif one["tested"]:
            without.append(f"{role} ({beside(role, one)})")
        else:
            untested.append(str(role))
    said = [f"Found, with the strongest head and its effect: {'; '.join(found)}"] if found else []
    said += [f"Not detected: {listed(without)}"] if without else []
    said += [f"No head has the score that these roles ask: {listed(untested)}"] if untested else []
    said += [f"Cannot be told: {listed(unsure)}"] if unsure else []
    absent = [role for role in Role if role not in roles]
    said += [f"Not measured: {listed(absent)}"] if absent else []
    said += [line[0].upper() + line[1:] for line in values["roles"].get("left out", [])]
    state = (
        Told.FOUND if found else Told.OPEN if unsure else Told.NOT_FOUND if without or untested else Told.NOT_MEASURED
    )
    return Sentence(topic, state, f"{'. '.join(said)}.")


# ------------------------------------------------------------------------------------------------ IOI


def _ioi_state(ioi: Values) -> Told:
    """Whether the model does IOI: FOUND, NOT_DONE, or OPEN."""
    if ioi["accuracy"][1] > BY_CHANCE and ioi["logit difference"][1] > 0:
        return Told.FOUND
    return Told.OPEN if ioi["accuracy"][2] > BY_CHANCE + NEARLY else Told.NOT_DONE


def _ioi(values: Values) -> Sentence:
    topic, ioi = "Indirect objects (IOI)", values["IOI"]
    if ioi is None:
        return _unmeasured(topic, values, "IOI")
    state, share = _ioi_state(ioi), f"the answer is above the other name in {written(ioi['accuracy'])} of the prompts"
    if state is Told.NOT_DONE:
        return Sentence(topic, state, f"Does not do this task: {share}.")
    if state is Told.OPEN:
        return Sentence(topic, state, f"Cannot be told whether it does this task: {share}.")
    said = f"In IOI {share}. "
    carry = [name for name, one in ioi["carriers"].items() if one[1] > 0]
    oppose = [name for name in ioi["carriers"] if name not in carry]
    if not ioi["carriers"]:
        said += "No single head counts for a hundredth of the effect for certain."
        return Sentence(topic, Told.NOT_FOUND, said)
    count, verb = none_or(len(carry)).capitalize(), "carries" if len(carry) < 2 else "carry"
    strongest, against = carry_and_oppose(ioi["carriers"], ioi["strongest"])
    said += f"{count} of {ioi['circuit']['heads']} heads {verb} more than a hundredth of the effect for certain"
    said += f", most {listed(strongest[:NAMED])} of it" if strongest else ""
    if oppose:
        said += f"; {in_words(len(oppose))} {'works' if len(oppose) == 1 else 'work'} against it"
        said += f", {'most ' if len(oppose) > 1 else ''}{against[0]}" if against else ""
    return Sentence(topic, Told.FOUND, f"{said}. {_circuit(ioi['circuit'])}")


def _circuit(circuit: Values) -> str:
    """Whether the strongest heads alone are enough, of the sizes that were tried: the powers of two."""
    small = [int(size) for size in circuit["kept"] if int(size) <= circuit["heads"] / 2]
    enough = circuit["enough"]
    if enough is not None and enough <= circuit["heads"] / 2:
        heads, keep = ("head", "keeps") if enough == 1 else (f"{in_words(enough)} heads", "keep")
        kept = written(circuit["kept"][str(enough)])
        return f"The strongest {heads} alone {keep} {kept} of the logit difference."
    if not small:
        return "Whether a small part of the heads is enough was not tried."
    kept = written(circuit["kept"][str(max(small))])
    return f"No small set is enough: the strongest {in_words(max(small))} alone keep {kept} of the logit difference."


def _paths(values: Values) -> Sentence:
    topic, ioi = "Who tells whom", values["IOI"]
    if ioi is None:
        return _unmeasured(topic, values, "IOI")
    state, paths = _ioi_state(ioi), ioi["paths"]
    if state is not Told.FOUND:
        return Sentence(
            topic,
            state,
            "There is no circuit of IOI to take apart."
            if state is Told.NOT_DONE
            else "Cannot be told: whether the model does IOI is open.",
        )
    if paths["refused"]:
        return Sentence(topic, Told.NOT_MEASURED, f"Not measured: {paths['refused']}")
    if not paths["certain"]:
        text = f"None of {paths['tested']} paths between the strongest heads carries a hundredth for certain."
        return Sentence(topic, Told.NOT_FOUND, text)
    strongest = [f"{one['path']} {written(one['share'])}{_through(one)}" for one in paths["strongest"][:NAMED]]
    paths_of = f"{counted(paths['certain'], 'path').capitalize()} of {paths['tested']}"
    return Sentence(
        topic,
        Told.FOUND,
        f"{paths_of} between the {in_words(paths['between'])} strongest heads "
        f"{'counts' if paths['certain'] == 1 else 'count'} for more than a hundredth of the effect for certain, for or "
        f"against it, most {listed(strongest)}.",
    )


def _through(path: Values) -> str:
    """Which of its inputs the receiver of a path hears most by."""
    return f" (mostly by {path['path'].rpartition(' ')[2]}'s {path['channel']})" if path["channel"] else ""


# ------------------------------------------------------------------------------------------------ word pairs


def _word_pairs(values: Values) -> Sentence:
    topic, found = "Word pairs", values["word pairs"]
    if found is None:
        return _unmeasured(topic, values, "word pairs")
    tasks = found["tasks"]
    checks = {task: one["check"] for task, one in tasks.items()}
    done = [task for task, check in checks.items() if check["done"]]
    said = f"Solves {none_or(len(done))} of {in_words(len(tasks))} word-pair tasks from demonstrations"
    if not done:
        if above := [task for task, check in checks.items() if check["bound"] > check["baseline"]]:
            said += f". It is above chance in {_tasks(above)}; that intact demonstrations help to tell which output is "
            said += "right, more than none and more than permuted ones, is not shown"
        else:
            best = max(tasks, key=lambda task: tasks[task]["accuracy"][names.FULL][0])
            said += f": accuracy is {written(tasks[best]['accuracy'][names.FULL])} at most "
            said += f"({best.replace('_', ' ')}, {tasks[best]['queries']} queries)"
        return Sentence(topic, Told.NOT_DONE, f"{said}.")
    said += ". "
    state = Told.NOT_FOUND
    for part, what, circuit in (
        ("demonstrations", "reading the demonstrations", names.QUERY_ONLY),
        ("contextualisation", READ_BY_OTHERS, names.AGG_ONLY),
    ):
        needed = [task for task in done if part in tasks[task]["surely needed"]]
        others = {task: tasks[task]["loss"][part] for task in done if task not in needed}
        if needed:
            state = Told.FOUND
            most = max(needed, key=lambda task: tasks[task]["loss"][part][0])
            many = f", most {most.replace('_', ' ')}" if len(needed) > 1 else ""
            said += f"Without {what} ({circuit}) {_tasks(needed)} {'falls' if len(needed) == 1 else 'fall'}{many}, by "
            said += f"{written(tasks[most]['loss'][part])}. "
        elif any(loss[2] >= NONE_LOST for loss in others.values()):
            state = Told.OPEN if state is Told.NOT_FOUND else state
        if others:
            which = f"in {_tasks([*others])}" if needed else f"in any of them without {what} ({circuit})"
            said += f"No loss was detected {which} ({_seen(tasks, others)}). "
    return Sentence(topic, state, said.strip())


def _seen(tasks: Values, losses: Values) -> str:
    """How many queries have no loss that is above 0, and the losses that would be seen in each of their tasks.

    losses: by task, of one part of the circuit; their intervals hold together for all tasks and parts.
    """
    comparisons = len(PARTS_OF_CIRCUITS) * len(tasks)
    queries = {task: tasks[task]["queries"] for task in losses}
    seen = max(detectable(Interval(*loss), queries[task], comparisons) for task, loss in losses.items())
    return f"{min(queries.values())} queries of each or more; losses from {seen:.2f} on would be seen"


def _tasks(tasks: Sequence[str]) -> str:
    return listed([task.replace("_", " ") for task in tasks])


# ------------------------------------------------------------------------------------------------ knocked out

OUTCOMES = {
    "copies": "copied tokens",
    "pattern task": "right answers to patterns",
    "word pairs": "right answers to word pairs",
}


def _loss(one: Values) -> str:
    """One loss in words: from what to what, and how much of it is beyond the controls."""
    beyond = f"{written(one['beyond'])} beyond controls"
    if one["outcome"] in OUTCOMES:
        return f"{OUTCOMES[one['outcome']]} from {one['whole']:.2f} to {one['whole'] - one['lost']:.2f} ({beyond})"
    return f"the loss on plain text from {-one['whole']:.2f} to {one['lost'] - one['whole']:.2f} nats ({beyond})"


def _with_a_role(heads: int) -> str:
    return f"the {in_words(heads)} {'head that has' if heads == 1 else 'heads that have'} a role"


def _knocked_out(values: Values) -> Sentence:
    topic, found = "Without these heads", values["knocked out"]
    if found is None:
        if values["roles"] is not None and not values["roles"]["heads"]:
            return Sentence(topic, Told.NOT_FOUND, "No head has a role, so there is none to knock out.")
        return _unmeasured(topic, values, "knocked out")
    largest = max(found["losses"], key=lambda one: one["heads"])["ablated"]
    losses = [one for one in found["losses"] if one["ablated"] == largest]
    heads = losses[0]["heads"]
    if losses[0]["beyond"] is None:
        text = f"Cannot be told: too few other heads are left to compare {_with_a_role(heads)} with."
        return Sentence(topic, Told.OPEN, text)
    told = [_loss(one) for one in losses if one["beyond"][1] > 0]
    controls = counted(len(losses[0]["controls"]), "set")
    start = f"Without {_with_a_role(heads)} (controls: {controls} of as many {losses[0]['matched']})"
    if not told:
        all_lost = listed([_loss(one) for one in losses])
        return Sentence(topic, Told.OPEN, f"Cannot be told: {start[0].lower()}{start[1:]} there remain {all_lost}.")
    return Sentence(topic, Told.FOUND, f"{start} these change: {listed(told)}.")


# ------------------------------------------------------------------------------------------------ what is next


@dataclass(frozen=True)
class Advice:
    """Something that one would do next, with the command that does it, or ""."""

    text: str
    command: str = ""


def advice(values: Values, command: str) -> list[Advice]:
    """What one would do next with what the card says. command: what made the card, as `commands.card` writes it."""
    told = {one.topic: one.told for one in sentences(values)}
    said = []
    if opened := [topic for topic, state in told.items() if state is Told.OPEN]:
        if "--size small" in command:
            said.append(
                Advice(f"{listed(opened)}: measure more prompts.", command.replace("--size small", "--size full"))
            )
        else:
            again = re.sub(r" --seed \d+", "", command) + f" --seed {values['request']['seed'] + 1}"
            said.append(Advice(f"{listed(opened)}: draw other prompts.", again))
    if "--untrained" in command:
        return said
    model = shlex.quote(shlex.split(command)[4])
    roles = {} if values["roles"] is None else values["roles"]["roles"]
    induction = list(roles.get(Role.INDUCTION, {}).get("heads", {}))[:3]
    if induction:
        ablate = f"python -m util ablate {model} --heads {','.join(induction)}"
        said.append(Advice("See what the strongest induction heads are worth in tasks:", ablate))
    if told["Indirect objects (IOI)"] is Told.FOUND:
        named = {name for role in roles.values() for name in role["heads"]}
        nameless = [name for name in values["IOI"]["strongest"] if name in {*values["IOI"]["carriers"]} - named][:NAMED]
        why = f"These count in IOI and have no role: {listed(nameless)}. " if nameless else ""
        said.append(Advice(f"{why}Patch every head, prompt by prompt:", f"python -m util ioi {model}"))
    return said


assert LEAST < UNSURE
