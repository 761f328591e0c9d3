"""The suite's classification tasks as tasks of lm-evaluation-harness, with the same prompts byte by byte.

They are called icl_<name>, the NLP tasks with unrelated labels icl_<name>_sul; their groups are icl_synthetic, icl_nlp
and icl_nlp_sul. The YAML files in `task_configs` declare them. The rules that keep the query out of its own
demonstrations:

- The harness tells a sampler the query only where the demonstrations' split is the task's `test_split`. With a
  `validation_split` alone, the query can be among its own demonstrations, with its label. So a `test_split` is always
  declared, and `Demonstrations` refuses to draw without a query.
- Seeds are given as the harness's few-shot seed (`--seed 0,1234,1234,42`).

The texts of NLP tasks come from StaICC (sst2, subj) or the hub; or, with `--metadata icl_data=FOLDER`, from a folder
that has a folder for each of them, see `load_text_task`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from lm_eval.api.samplers import ContextSampler
from lm_eval.tasks import TaskManager

from util.load_model_and_data import load_text_task
from util.prompts import classification
from util.prompts.classification import Task
from util.prompts.prompt import Layout, Prompt
from util.prompts.text_tasks import TEXT_TASKS
from util.stats.answers import label_mass, right, which_label

FOLDER = Path(__file__).parent / "task_configs"
PREFIX = "icl_"
UNRELATED = "_sul"  # behind the names of NLP tasks with labels that are unrelated to the classes

_TASKS: dict[str, Task] = {}  # by name: those that this process has used
_FOLDERS: dict[str, Path] = {}  # by name: where the texts of those were read, if in a folder


def known(name: str, data: str | Path | None = None) -> Task:
    """The task of that name. Raises ValueError where the suite has none.

    The texts of NLP tasks are read when they are first asked for; data: a folder that has a folder for each task.
    """
    plain = name.removesuffix(UNRELATED)
    if data is not None and plain in TEXT_TASKS and _FOLDERS.get(name) != Path(data) / plain:
        _TASKS.pop(name, None)
        _FOLDERS[name] = Path(data) / plain
    if name not in _TASKS:
        if plain in TEXT_TASKS:
            task = load_text_task(plain, _FOLDERS.get(name))[0]
            _TASKS[name] = task if plain == name else classification.relabelled(task, classification.LABELS[:2])
        else:
            _TASKS[name] = classification.task(name)
    return _TASKS[name]


def study_arguments(name: str) -> dict[str, Any]:
    """The arguments by which a `TaskStudy` has the task of that name."""
    plain = name.removesuffix(UNRELATED)
    if plain in TEXT_TASKS:
        labels = known(name).labels if plain != name else None
        return {"task": plain, "labels": labels, "data": _FOLDERS.get(name)}
    return {"task": name}


def shots(name: str) -> int:
    """How many demonstrations a task of the suite has by default: 20 in four classes, else 10, as in the paper."""
    return 20 if len(known(name).labels) == 4 else 10


def dataset(icl_task: str, icl_data: str | None = None, **settings: Any) -> dict[str, datasets.Dataset]:
    """The rows of a task in the order of `classification.prompts`, as the split "test".

    icl_task: its name here, without "icl_"; icl_data: see `known`. text: the input with its separator; gold: the index
    of the right label. settings: what else the harness passes to data sets, which changes nothing.
    """
    task = known(icl_task, icl_data)
    rows = [
        {
            "icl_task": icl_task,
            "query": prompt.texts("x")[-1],
            "text": prompt.text[prompt.spans["x"][-1][0] :],
            "labels": list(task.labels),
            "gold": prompt.gold,
        }
        for prompt in classification.prompts(task, 0)
    ]
    return {"test": datasets.Dataset.from_list(rows)}


def scores(doc: dict[str, Any], results: Sequence[tuple[float, bool]]) -> dict[str, float]:
    """The metrics of one query: acc; log P(right label | labels) and log P(any label), in nats."""
    log_prob, gold = np.array([[answer[0] for answer in results]]), np.array([doc["gold"]])
    terms = {
        "acc": right(log_prob, gold),
        "which_label": which_label(log_prob, gold),
        "label_mass": label_mass(log_prob),
    }
    return {name: float(value[0]) for name, value in terms.items()}


class Demonstrations(ContextSampler):
    """The balanced demonstrations that the suite draws for a query: it depends on the task, k, the seed and the query.

    The harness's own sampler draws from one stream for all queries, so that `limit` and the order of queries decide.
    """

    def __init__(self, *rows: Any, rnd: int | None = None, **options: Any) -> None:
        super().__init__(*rows, rnd=rnd, **options)
        self.seed = rnd

    def set_rnd(self, rnd: int | None) -> Demonstrations:
        """Takes the harness's few-shot seed."""
        self.seed = rnd
        return self

    def sample(self, n: int, eval_doc: dict[str, Any] | None = None, **options: Any) -> list[dict[str, Any]]:
        """n demonstrations for the query `eval_doc`, as rows of `dataset`.

        Raises ValueError without a query, which then could be its own demonstration, and without a seed.
        """
        if eval_doc is None:
            raise ValueError(
                "the harness names no query, so that it could be among its own demonstrations; "
                "declare the split that is evaluated as test_split and as fewshot_split"
            )
        if self.seed is None:
            raise ValueError("demonstrations are drawn by a seed; give the harness a few-shot seed")
        task = known(eval_doc["icl_task"])
        drawn = classification.demonstrations(task, n, self.seed, eval_doc["query"])
        return [
            {**eval_doc, "query": x, "text": x + task.layout.separator, "gold": task.labels.index(y)} for x, y in drawn
        ]


def manager(*, defaults: bool = False) -> TaskManager:
    """The harness's task manager with the suite's tasks. defaults: also its own, nearly all of which need the hub."""
    return TaskManager(include_path=[FOLDER], include_defaults=defaults)


def prompt_of(context: str) -> Prompt | None:
    """The prompt that a context of the harness is, with the spans of its parts; None if no known layout explains it.

    Known are the layouts of the synthetic tasks and of those that this process has used.
    """
    tasks = [known(name) for name in classification.NAMES] + list(_TASKS.values())
    for layout, labels in dict.fromkeys((task.layout, task.labels) for task in tasks):
        prompt = _parsed(context, layout, labels)
        if prompt is not None:
            return prompt
    return None


def _parsed(context: str, layout: Layout, labels: tuple[str, ...]) -> Prompt | None:
    """The prompt of a layout; no input contains the separator. The gold label is unknown and is taken as the first."""
    if not context.startswith(layout.header) or not context.endswith(layout.separator):
        return None
    first, *others, _ = context[len(layout.header) :].split(layout.separator)
    inputs, outputs = [first], []
    for piece in others:
        label = next((y for y in labels if piece.startswith(layout.join + y + layout.end)), None)
        if label is None:
            return None
        outputs.append(label)
        inputs.append(piece[len(layout.join + label + layout.end) :])
    prompt = layout.prompt(list(zip(inputs, outputs, strict=False)), inputs[-1], labels[0], labels)
    return prompt if prompt.text == context else None
