"""Made-up answers to tasks with several numbers of demonstrations."""

import numpy as np

from util.figures.induction_scores import numbers
from util.figures.induction_scores.edits import Edit, Group, Row
from util.figures.induction_scores.plan import Plan, Setup
from util.figures.induction_scores.shots import KNOCKED_OUT, WHOLE, Labelled, TaskShots
from util.stats.answers import TaskCheck
from util.stats.intervals import Interval

ABLATED = Row(Group.ABLATED, 3)
GAIN = Interval(1.0, 0.5, 1.5)
CONTROLS = tuple(Row(Group.LAYER_MATCHED, None, draw) for draw in (1, 2))


def first(n, share):
    """Of n queries the first are answered right."""
    return (np.arange(n) < round(share * n))[None]


def task(name, shots, *, n=200, text=False, unrelated=False, does=True, bare=False, chance=0.5):
    """shots: by the number of demonstrations, the shares that whole, ablated, knocked out, controls answer right."""
    right = {}
    for k, shares in shots.items():
        rows = dict(zip((WHOLE, ABLATED, KNOCKED_OUT), (first(n, share) for share in shares), strict=False))
        right[k] = rows | dict.fromkeys(CONTROLS, first(n, shares[3])) if does else {WHOLE: first(n, shares[0])}
        if not k:
            right[k].pop(KNOCKED_OUT, None)
    check = TaskCheck(name, 10, 0.9, 0.8, chance, GAIN, GAIN, 0.001 if does else 0.5, n)
    return TaskShots(Labelled(name, unrelated), right, ABLATED, CONTROLS, chance, text, check, 512, bare)


def setup(**changes):
    made = {
        "tasks": ("wordseq1",), "primary_task": "wordseq1", "prompts": 200, "mode": "mean", "primary": 3,
        "control_sets": 2, "other_sets": 2, "all_tasks": False, "four_way": (), "text_tasks": ("sst2",),
        "shots": (0, 10),
    }  # fmt: skip
    return Setup(**made | changes)


def arrays(*tasks):
    """What `measure.shots` gives."""
    chosen = [(0, 0), (0, 1), (0, 2)]
    edits = {WHOLE: Edit(), ABLATED: Edit.ablate(chosen)}
    return {"plan": Plan(setup(), chosen, {}, edits), "tasks": tasks, "left out": {}}


def values(*tasks, model="a model"):
    """What the part "shots" needs of a values file."""
    plan = arrays()["plan"]
    about = {"request": {"k": 10}, "model": model, "setup": vars(plan.setup), "chosen": plan.chosen}
    return about | numbers.shots(arrays(*tasks), None)


# as the paper has it: whole, ablated, pattern knocked out, control sets
PATTERN = task("wordseq1", {0: (0.5, 0.5, 0.5, 0.5), 10: (0.95, 0.5, 0.52, 0.94)})
