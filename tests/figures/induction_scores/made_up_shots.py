"""Made-up answers to tasks with several numbers of demonstrations."""

from types import SimpleNamespace

import numpy as np

from util.figures.edits import WHOLE
from util.figures.induction_scores import numbers
from util.figures.induction_scores.numbers import KNOCKED_OUT, TaskShots
from util.stats.answers import TaskCheck
from util.stats.intervals import Interval

ABLATED = "top 3 ablated"
SETUP = {"prompts": 200, "mode": "mean", "primary": 3, "control_sets": 2, "other_sets": 2}
CHOSEN = [(0, 0), (0, 1), (0, 2)]
GAIN = Interval(1.0, 0.5, 1.5)
CONTROLS = ("layer-matched 1", "layer-matched 2")


def first(n, share):
    """Of n queries the first are answered right."""
    return (np.arange(n) < round(share * n))[None]


def task(name, shots, *, n=200, unrelated=False, does=True, bare=False, chance=0.5):
    """shots: by the number of demonstrations, the shares that whole, ablated, knocked out, controls answer right.

    One number is the share of all four.
    """
    right = {}
    for k, given in shots.items():
        shares = np.broadcast_to(given, 4)
        rows = dict(zip((WHOLE, ABLATED, KNOCKED_OUT), (first(n, share) for share in shares), strict=False))
        right[k] = rows | dict.fromkeys(CONTROLS, first(n, shares[3])) if does else {WHOLE: first(n, shares[0])}
        if not k:
            right[k].pop(KNOCKED_OUT, None)
    check = TaskCheck(name, 10, 0.9, 0.8, chance, GAIN, GAIN, 0.001 if does else 0.5, n)
    return TaskShots(name, unrelated, right, ABLATED, CONTROLS, chance, check, 512, bare)


def arrays(*tasks):
    """What `measure.shots` gives."""
    return {"setup": SETUP, "tasks": tasks, "left out": {}}


def values(*tasks, model="a model"):
    """What the part "shots" needs of a values file."""
    about = {"request": {"k": 10}, "model": model, "setup": SETUP, "chosen": CHOSEN}
    return about | numbers.shots(arrays(*tasks), SimpleNamespace(primary_task="wordseq1"))


# as the paper has it: whole, ablated, pattern knocked out, control sets
UNDONE = task("repetition", {0: 0.5, 10: 0.5}, does=False)
PATTERN = task("wordseq1", {0: 0.5, 10: (0.95, 0.5, 0.52, 0.94)})
