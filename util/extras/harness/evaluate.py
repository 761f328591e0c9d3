"""Evaluate a model in lm-evaluation-harness with heads ablated, or with a pattern of attention knocked out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from util.figures.edits import INTACT, Edit
from util.study.model import Model, as_model

SEEDS = (42, 43, 44)  # of demonstrations, those of Crosbie & Shutova's Table 2


def check_installed() -> None:
    """Raises ValueError where lm-evaluation-harness is missing; the message names the cure."""
    try:
        import lm_eval  # noqa: F401
    except ImportError as error:
        cure = 'pip install -e ".[harness]" in the clone'
        raise ValueError(f"lm-evaluation-harness is not installed ({error}): {cure}") from None


def refuse_caches(settings: Mapping[str, Any]) -> None:
    """Raises ValueError for the harness's own caches: of answers, and of requests."""
    for name in ("use_cache", "cache_requests"):
        if settings.get(name):
            raise ValueError(
                f"{name}: the harness's cache does not know of interventions or seeds, so that it gives what belongs "
                "to another run; leave it out"
            )


def evaluate(
    model: str | Model,
    tasks: Sequence[str | Mapping[str, Any]],
    edit: Edit = INTACT,
    *,
    k: int | None = None,
    limit: int | None = None,
    seeds: Sequence[int] = SEEDS,
    batch_size: int = 8,
    include_path: str | Path | None = None,
    reference: Mapping[str, Any] | None = None,
    **options: Any,
) -> dict[int, dict[str, Any]]:
    """Runs the harness once for each seed of demonstrations, and returns its dictionaries by seed, as they are.

    tasks: names such as "icl_wordseq1", or the harness's configurations. k: demonstrations, default each task's
    own number; limit: how many queries of each task, default all. include_path: a folder of more task configurations;
    the harness's own are found too where a name does not begin with "icl_". reference: what the means of an ablation
    are taken over, see `interventions.means_study`. options: of the harness's `simple_evaluate`.

    Raises ValueError where the harness is missing, for its own caches (`use_cache`, `cache_requests`), and for what
    `InterventionLM` refuses, before the first forward pass.
    """
    check_installed()
    refuse_caches(options)
    from lm_eval.evaluator import simple_evaluate

    from util.extras.harness import tasks as harness_tasks
    from util.extras.harness.model import InterventionLM

    foreign = any(isinstance(task, str) and not task.startswith(harness_tasks.PREFIX) for task in tasks)
    source = as_model(model)
    by_seed = {}
    for seed in seeds:
        means = {"k": k, "prompts": limit, "seed": seed, **(reference or {})}
        by_seed[seed] = simple_evaluate(
            InterventionLM(source, edit=edit, reference=means, batch_size=batch_size),
            tasks=list(tasks),
            num_fewshot=k,
            limit=limit,
            fewshot_random_seed=seed,
            task_manager=harness_tasks.manager(include_path, defaults=foreign),
            **{"bootstrap_iters": 0, **options},
        )
    return by_seed


def table(by_seed: Mapping[int, Mapping[str, Any]]) -> pd.DataFrame:
    """The accuracy in each task and group of what the harness gave: a column for each seed, and their mean."""
    columns = {}
    for seed, results in by_seed.items():
        rows = {**results["results"], **results.get("groups", {})}
        columns[f"seed {seed}"] = {
            task: value for task, row in rows.items() for name, value in row.items() if name.split(",")[0] == "acc"
        }
    made = pd.DataFrame(columns).astype(float)
    return made.assign(mean=made.mean(axis=1))
