"""What labels copy from their forerunners, on more prompts, data sets and seeds than notebook 01 asks."""

from functools import partial
from typing import Any

from util.figures.forerunner_heads.cuts import EVERYWHERE, WHOLE, conditions
from util.figures.forerunner_heads.measure import Data, answers, fitting
from util.figures.forerunner_heads.numbers import scores
from util.roles.label_task import DATASETS, KS, candidates, first_done
from util.stats.intervals import Interval, mean_interval
from util.study.study import Study

CUTS = ("si_to_yi", "yi_to_sq")
MOST = 32  # demonstrations that the task is looked for with
SEEDS = 3  # of queries and demonstrations


def copying(study: Study, prompts: int = 128, *, choice_prompts: int = 128) -> dict[str, Any]:
    """What demonstrations and `CUTS` change by data set, for `files.save_claims`.

    prompts: of each data set and seed; study: its k is how many demonstrations they have. The data set and k that are
    done from their demonstrations, if any is, are measured, too. Each change is paired by query; another seed has other
    queries, too. Each condition is a record. Raises what `candidates` raises.
    """
    seeds = [study.settings.seed + draw for draw in range(SEEDS)]
    tried = candidates(
        study.model, DATASETS, (MOST, *KS), choice_prompts, seeds[0], prompts, folder=study.folder, redo=study.redo
    )
    checks, left_out = first_done(tried)
    done = [(one.name, one.k) for one in checks if one.done]
    places = dict.fromkeys([*((name, study.settings.k) for name in DATASETS), *done])
    by_seed = {f"{name}, k = {k}": [Data(name, k, prompts, seed) for seed in seeds] for name, k in places}
    changes = fitting(by_seed, partial(_changes, study))
    return {
        "model": study.model.shown_name,
        "settings": {"prompts": prompts, "seeds": seeds},
        "checks": [{"done": check.done, **vars(check)} for check in checks],
        "left out": left_out | changes.pop("left out"),
        "changes": changes,
        "claims": [],
    }


def _changes(study: Study, by_seed: list[Data]) -> dict[str, dict[str, list[Interval]]]:
    """What demonstrations, each cut and as many random cells change, by score and seed."""
    found: dict[str, dict[str, list[Interval]]] = {}
    for data in by_seed:
        given = answers(study, data, conditions(CUTS, parts=(EVERYWHERE,)))
        whole = given.pop(WHOLE)
        pairs = {"demonstrations": (whole, answers(study, data._replace(k=0), [WHOLE])[WHOLE])}
        pairs |= {f"{one.cut}{'' if one.draw is None else ', random cells'}": (it, whole) for one, it in given.items()}
        for name, (after, before) in pairs.items():
            for score in ("which label", "label mass", "accuracy"):
                change = mean_interval(scores(after)[score] - scores(before)[score])
                found.setdefault(name, {}).setdefault(score, []).append(change)
    return found
