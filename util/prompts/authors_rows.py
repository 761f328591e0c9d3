"""Classification tasks with the rows and the instruction of Crosbie & Shutova (2024), from a clone of their repository.

github.com/JoyC177/Induction_Heads_ICL has one configuration of lm-evaluation-harness for each task
(lm_eval/tasks/synthetic/*.yaml) and its rows (synthetic/*.json). Three of the ten files of rows are in no
configuration. Demonstrations are drawn by our sampler, see `classification.demonstrations`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from util.paths import sha256
from util.prompts.classification import Task, shares_word
from util.prompts.prompt import Layout

THEIRS = {  # the names of the tasks in their configurations, by ours
    "repetition": "repetition",
    "recursion": "recursion",
    "centre_embedding": "centre_embedding",
    "wordseq1": "f_a_f_p",
    "wordseq1_4way": "f_a_f_p_4way",
    "wordseq2": "vegetable_vehicle_body-part_instrument",
    "wordseq2_4way": "v_v_b_i_4way",
}
PLACE = "lm_eval/tasks/synthetic"  # below the folder whose synthetic/ has the rows


def load(name: str, clone: Path) -> tuple[Task, str]:
    """A task by our name, one of THEIRS, and a digest of its files.

    A row that comes again is asked once: of 500 rows of repetition and recursion 450 differ, of 1,000 in four classes
    625 and 631. Raises ValueError, naming the file, for what is not as in their repository.
    """
    needs = f"give a clone of Induction_Heads_ICL, with {PLACE}/*.yaml and synthetic/*.json"
    files = {_config(file).get("task"): file for file in sorted(clone.glob(f"**/{PLACE}/*.yaml"))}
    if (file := files.get(THEIRS[name])) is None:
        raise ValueError(f"data = {str(clone)!r}: no configuration there has the task {THEIRS[name]!r}; {needs}")
    try:
        config = _config(file)
        (rows,) = config["dataset_kwargs"]["data_files"].values()
        rows = file.parents[len(PLACE.split("/"))] / rows
        column, separator = re.fullmatch(r"\{\{(\w+)\}\}(.+)", config["doc_to_text"]).groups()  # type: ignore[union-attr]
        layout = Layout(separator, config["target_delimiter"], "\n\n", config["description"])
        labelled = {row[column]: row[config["doc_to_target"]] for row in json.loads(rows.read_text(encoding="utf-8"))}
        forbids = shares_word if config["fewshot_config"]["sampler"] == "synthetic" else None
        task = Task(name, tuple(labelled.items()), tuple(config["doc_to_choice"]), layout, forbids)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"data = {str(clone)!r}, {file.name}: {error!r}; {needs}") from error
    return task, f"Induction_Heads_ICL {sha256(file)[:16]} {sha256(rows)[:16]}"


def _config(file: Path) -> Mapping[str, Any]:
    try:
        config = yaml.safe_load(file.read_text(encoding="utf-8"))
    except yaml.YAMLError:
        config = None
    return config if isinstance(config, Mapping) else {}
