"""What labels copy from their forerunners, on more prompts, data sets and seeds than notebook 01 asks."""

from typing import Any

from util.engine.batches import too_long
from util.engine.call import UnsupportedModel
from util.figures.forerunner_heads.ablation import AblationStudy
from util.figures.forerunner_heads.cuts import EVERYWHERE, WHOLE, Cut, conditions
from util.figures.forerunner_heads.results import Score
from util.roles.label_task import DATASETS, KS, candidates, first_done
from util.stats.intervals import Interval, mean_interval

CUTS = (Cut.SI_TO_YI, Cut.YI_TO_SQ)
MOST = 32  # demonstrations that the task is looked for with
SEEDS = 3  # of queries and demonstrations


def copying(study: AblationStudy, *, choice_prompts: int = 128) -> dict[str, Any]:
    """What demonstrations and `CUTS` change by data set, for `files.save_claims`.

    study: its prompts are those of each data set and seed; its k, how many demonstrations they have. The data set and k
    that are done from their demonstrations, if any is, are measured, too. Each change is paired by query; another seed
    has other queries, too. Each condition is a cached record.
    """
    places: dict[str, Any] = {"folder": study.folder, "redo": study.redo}
    tried = candidates(study.model, DATASETS, (MOST, *KS), choice_prompts, study.seed, study.prompts, **places)
    checks, left_out = first_done(tried)
    asked = dict.fromkeys([*((name, study.k) for name in DATASETS), *((one.name, one.k) for one in checks if one.done)])
    found = {}
    for dataset, k in asked:
        try:
            found[f"{dataset}, k = {k}"] = _changes(study.replace(dataset=dataset, k=k))
        except UnsupportedModel as error:
            left_out[f"{dataset}, k = {k}"] = too_long(error)
    return {
        "model": study.model.shown_name,
        "settings": {"prompts": study.prompts, "seeds": [study.seed + draw for draw in range(SEEDS)]},
        "checks": [{"done": check.done, **vars(check)} for check in checks],
        "left out": left_out,
        "changes": found,
        "claims": [],
    }


def _changes(study: AblationStudy) -> dict[str, dict[Score, list[Interval]]]:
    """What demonstrations, each cut and as many random cells change, by score and seed."""
    found: dict[str, dict[Score, list[Interval]]] = {}
    for draw in range(SEEDS):
        one = study.replace(seed=study.seed + draw)
        answers = one.answers(conditions(CUTS, parts=(EVERYWHERE,), draws=1))
        pairs = {"demonstrations": (answers[WHOLE], one.replace(k=0).answers([WHOLE])[WHOLE])}
        for condition, edited in answers.items():
            name = f"{condition.cut}{'' if condition.draw is None else ', random cells'}"
            pairs |= {} if condition == WHOLE else {name: (edited, answers[WHOLE])}
        for name, (after, before) in pairs.items():
            for score in (Score.WHICH_LABEL, Score.LABEL_MASS, Score.ACCURACY):
                change = mean_interval(after.scores[score] - before.scores[score])
                found.setdefault(name, {}).setdefault(score, []).append(change)
    return found
