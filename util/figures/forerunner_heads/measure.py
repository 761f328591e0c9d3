"""What is measured of forerunner token heads: copy magnitudes, and cuts of attention (Cho et al. 2025)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from util.engine import batches
from util.engine.attention import support
from util.engine.batches import too_long
from util.engine.call import UnsupportedModel
from util.engine.label_scores import Attach, Scoring, knockouts, label_log_probs, label_reads, nothing, scoring
from util.figures.forerunner_heads import magnitudes
from util.figures.forerunner_heads.cuts import (
    CUTS,
    EVERYWHERE,
    WHOLE,
    Condition,
    cells,
    conditions,
    control_cells,
    layer_range,
)
from util.figures.planted_controls import first_tokens, planted_control
from util.load_model_and_data import demonstration_pool, staicc_prompts, staicc_version
from util.models import planted as circuits
from util.prompts.prompt import Appended, Prompt, with_bos
from util.roles import label_task
from util.stats.answers import chosen
from util.study.study import Study

Arrays = dict[str, Any]
ENDINGS: dict[str, Appended] = {"correct": 0, "wrong": 1, "other word": "the"}  # what is appended, see `Prompt.label`
CONTROL_TOKENS = 32  # of a prompt: so many others of its tokens are compared with the label
BLOCK = 64  # prompts computed, and saved, at a time: what an interruption can cost at most
K_DATASET = "trec"  # on which the paper's numbers of demonstrations are measured


class Data(NamedTuple):
    """Prompts of a StaICC data set, k demonstrations each."""

    dataset: str
    k: int
    prompts: int
    seed: int

    @property
    def items(self) -> list[Prompt]:
        """The prompts themselves."""
        return _prompts(self.dataset, self.k, self.seed)[: self.prompts]

    def texts(self) -> list[str]:
        """The prompts with their correct labels."""
        return [prompt.with_label() for prompt in self.items]

    @property
    def request(self) -> Arrays:
        """What of a request they decide. The batches decide the last bits of numbers."""
        return {**self._asdict(), "data_version": f"StaICC {staicc_version()}", "token_budget": batches.TOKEN_BUDGET}

    @property
    def labels(self) -> Arrays:
        """The numbers of the labels: gold [N], and demonstrations [N, k]."""
        shown = np.array([prompt.demonstrations for prompt in self.items], np.int64)
        return {
            "gold": np.array([prompt.gold for prompt in self.items]),
            "demonstrations": shown.reshape(self.prompts, -1),
        }


@lru_cache(4)
def _prompts(*place: Any) -> list[Prompt]:
    return staicc_prompts(*place)


def check(study: Study) -> None:
    """Raises ValueError where a data set has not as many demonstrations as the settings want."""
    s = study.settings
    wanted = [(s.k, name) for name in (s.dataset, *s.grid_datasets)]
    wanted += [(max(s.causal_k), name) for name in s.causal_datasets] + [(max(s.grid_k), K_DATASET)]
    for k, name in wanted:
        if k > (pool := demonstration_pool(name)):
            raise ValueError(f"k = {k}: {name} has a pool of {pool} demonstrations; choose a smaller k")


# ------------------------------------------------------------------------------------------------ copy magnitudes


def readings(study: Study, data: Data) -> dict[str, Arrays]:
    """What all heads read of the previous token, by what is appended (ENDINGS).

    Of each: magnitude and control [N, L, H], of the ending to its forerunner and of other tokens, see
    `magnitudes.copy_magnitudes`; n_t and label_lengths [N]: tokens of the prompt with its ending, and of that. Raises
    what `magnitudes.label_run` and `Study.blocks` raise.
    """
    appended = tuple(ENDINGS.values())
    plan = cache(lambda: magnitudes.label_run(*study.pair, data.items, appended))

    def measured(numbers: Sequence[int]) -> Arrays:
        return magnitudes.copy_magnitudes(
            study.pair[0], plan(), CONTROL_TOKENS, data.seed, numbers, token_budget=batches.TOKEN_BUDGET
        )

    def joined(blocks: Sequence[Arrays]) -> Arrays:
        return {
            **{name: np.concatenate([block[name] for block in blocks]) for name in ("magnitude", "control")},
            **{"n_t": plan().n_t, "label_lengths": plan().label_lengths, **data.labels},
            "provenance": {"oom_backoff": any(block["oom_backoff"] for block in blocks)},
        }

    found = study.blocks(
        "copy magnitudes",
        lambda: [range(start, min(start + BLOCK, data.prompts)) for start in range(0, data.prompts, BLOCK)],
        measured,
        joined,
        lambda: [prompt.with_label(what) for what in appended for prompt in data.items],
        **data.request,
        appended=list(appended),
        control_tokens=CONTROL_TOKENS,
    ).data
    return {
        name: {
            "control": found["control"],
            **{array: found[array][:, place] for array in ("magnitude", "n_t", "label_lengths")},
        }
        for place, name in enumerate(ENDINGS)
    }


def counts(study: Study) -> dict[str, Arrays]:
    """The `readings` of the study's data set, and as "untrained" those of the twin behind the correct label."""
    s = study.settings
    data = Data(s.dataset, s.k, s.prompts, s.seed)
    found = readings(study, data)
    if s.untrained_control:
        fewer = data._replace(prompts=min(s.grid_prompts, s.prompts))
        found["untrained"] = readings(study.twin(), fewer)["correct"]
    return found


def planted(study: Study, **options: Any) -> Arrays:
    """The reading behind the correct label of a planted model; roles: of its heads, [layer, head, role].

    options: those of the planted circuit (family, copies, noise, seed).
    """
    s = study.settings
    labels = staicc_prompts(s.dataset, s.k)[0].labels
    model, truth = planted_control(circuits.forerunner, options, partial(first_tokens, labels))
    known = study.replace(model=model, untrained_control=False)
    reading = readings(known, Data(s.dataset, s.k, min(64, s.prompts), s.seed))["correct"]
    return {**reading, "roles": [[*head, role] for head, role in truth.names.items()]}


def specificity(study: Study) -> Arrays:
    """The `counts`, and the `planted` heads."""
    return {**study.arrays("counts"), "planted": planted(study)}


def _fitting(study: Study, by_place: dict[str, Data]) -> dict[str, Any]:
    """The `readings` by place, and as "left out" why others do not fit the model.

    Raises UnsupportedModel where none does.
    """
    found: dict[str, Any] = {"left out": {}}
    for place, data in by_place.items():
        try:
            found[place] = readings(study, data)
        except UnsupportedModel as error:
            found["left out"][place] = too_long(error)
            if len(found["left out"]) == len(by_place):
                raise
    return found


def grid(study: Study) -> dict[str, Any]:
    """The `readings` of every data set by its name, and as "left out" why others do not fit the model."""
    s = study.settings
    return _fitting(study, {name: Data(name, s.k, s.grid_prompts, s.seed) for name in s.grid_datasets})


def by_k(study: Study) -> dict[str, Any]:
    """The `readings` by number of demonstrations, and as "left out" why others do not fit the model."""
    s = study.settings
    return _fitting(study, {str(k): Data(K_DATASET, k, s.grid_prompts, s.seed) for k in sorted(s.grid_k)})


# ------------------------------------------------------------------------------------------------ a task, and its cuts


def task(study: Study) -> Arrays:
    """The checks of data sets, tried in order until the model does one, and as "left out" why others do not fit."""
    s, places = study.settings, {"folder": study.folder, "redo": study.redo}
    measured = max(s.ablated, s.grid_prompts)
    tried = label_task.candidates(
        study.model, s.causal_datasets, s.causal_k, s.choice_prompts, s.seed, measured, **places
    )
    checks, left_out = label_task.first_done(tried)
    return {"checks": checks, "left out": left_out}


def _of_task(study: Study, prompts: int) -> Data:
    check = chosen(study.arrays("task")["checks"])
    return Data(check.name, check.k, prompts, study.settings.seed)


def answers(study: Study, data: Data, asked: Iterable[Condition]) -> dict[Condition, Arrays]:
    """What the model says under conditions, each kept on its own.

    log_prob [N, C]: of the labels behind the query; gold [N]; text_loss [N]: of all of the prompt but its labels, where
    nothing but a cut in all layers is measured. Raises what `scoring` raises.
    """
    plan = cache(lambda: scoring(*study.pair, data.items))

    def measured(condition: Condition) -> Arrays:
        attach: Attach = nothing
        if condition.cut is not None:
            layers = layer_range(list(support(study.pair[0]).layers), condition.part)  # the model's own numbers
            attach = knockouts(_cells(study, data, plan(), condition), dict.fromkeys(layers))
        text = condition.part == EVERYWHERE and condition.draw is None
        scores = label_log_probs(study.pair[0], plan(), attach, token_budget=batches.TOKEN_BUDGET, text=text)
        return {**scores, **data.labels}

    return {
        condition: study.record(
            "answers under cuts",
            partial(measured, condition),
            data.texts,
            **data.request,
            cells="corrected",
            **{**condition._asdict(), "part": list(condition.part)},
        ).data
        for condition in study.progress(asked, f"{data.dataset}: cuts")
    }


def _cells(study: Study, data: Data, plan: Scoring, condition: Condition) -> list[np.ndarray]:
    """What is cut of each prompt, or the control that it is: [C, 2]."""
    assert condition.cut is not None
    special = with_bos(data.items[0].text, study.pair[1]).spans.count(None)  # tokens in front of a prompt
    cut = [cells(condition.cut, tokens, special) for tokens in plan.tokens]
    if condition.draw is None:
        return cut
    seed = (data.seed, CUTS.index(condition.cut))
    both = enumerate(zip(cut, plan.ids, strict=True))
    return [control_cells(which, len(ids), (*seed, number)) for number, (which, ids) in both]


def ablation(study: Study) -> Arrays:
    """The `answers` under all cuts, as "alone" those without demonstrations; done: whether the model does the task."""
    data = _of_task(study, study.settings.ablated)
    return {
        "alone": answers(study, data._replace(k=0), [WHOLE])[WHOLE],
        "cut": answers(study, data, conditions()),
        "done": chosen(study.arrays("task")["checks"]).done,
    }


def induction(study: Study) -> Arrays:
    """What the query's forerunner reads of the labels (Fig. 6 left, middle).

    reads [N, L, H, k]: A[s_q, y_i]; similarity [N, L, k]: of the forerunners' states; gold, n_t [N]; demonstrations
    [N, k]; classes: number of labels.
    """
    data = _of_task(study, study.settings.grid_prompts)

    def measured() -> Arrays:
        plan = scoring(*study.pair, data.items)
        n_t = np.array([tokens.n_t for tokens in plan.tokens])
        reads = label_reads(study.pair[0], plan, batches.TOKEN_BUDGET)
        return {**reads, **data.labels, "n_t": n_t, "classes": len(data.items[0].labels)}

    return study.record("reads of labels", measured, data.texts, **data.request).data
