"""What is measured of forerunner token heads: copy magnitudes, cuts of attention, single heads (Cho et al. 2025)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch

from util.engine import batches
from util.engine.attention import support
from util.engine.batches import too_long
from util.engine.call import UnsupportedModel
from util.engine.label_scores import Attach, Scoring, knockouts, label_log_probs, label_reads, nothing, scoring
from util.engine.replay import replay
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
    other_keys,
)
from util.figures.forerunner_heads.numbers import SINGLE
from util.figures.planted_controls import planted_control
from util.load_model_and_data import demonstration_pool, staicc_prompts, staicc_version
from util.models import planted as circuits
from util.prompts.prompt import Appended, Prompt, labelled_tokens, with_bos
from util.roles import label_task
from util.roles.cuts import head_cut
from util.roles.head_scores import heads_by_layer
from util.roles.heads import checked_head
from util.stats.heads import Head, top
from util.stats.task_check import chosen
from util.study.study import Study

Arrays = dict[str, Any]
ENDINGS: dict[str, Appended] = {"correct": 0, "wrong": 1, "other word": "the"}  # what is appended, see `Prompt.label`
CONTROL_TOKENS = 32  # of a prompt: so many others of its tokens are compared with the label
BLOCK = 64  # prompts computed, and saved, at a time: what an interruption can cost at most
HEADS_CUT = 16  # one at a time: those that move most
NOISES, SEEDS = (0.5, 1.0, 2.0), (0, 1)  # of planted heads
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
    settings = study.settings
    most = dict.fromkeys((settings.dataset, *settings.grid_datasets), settings.k)
    most |= {name: max(most.get(name, 0), *settings.causal_k) for name in settings.causal_datasets}
    most[K_DATASET] = max(most.get(K_DATASET, 0), *settings.grid_k)
    for name, k in most.items():
        if k > (pool := demonstration_pool(name)):
            raise ValueError(f"k = {k}: {name} has a pool of {pool} demonstrations; choose a smaller k")


def _data(study: Study, prompts: int) -> Data:
    """The first prompts of the study's data set."""
    settings = study.settings
    return Data(settings.dataset, settings.k, min(prompts, settings.prompts), settings.seed)


# ------------------------------------------------------------------------------------------------ copy magnitudes


def readings(study: Study, data: Data) -> dict[str, Arrays]:
    """What all heads read of the previous token, by what is appended (ENDINGS).

    Of each: magnitude and control [N, L, H], of the ending to its forerunner and of other tokens, see
    `magnitudes.copy_magnitudes`; value_norm [N, L, H]; n_t and label_lengths [N]: tokens of the prompt with its ending,
    and of that. Raises what `magnitudes.label_run` and `Study.blocks` raise.
    """
    appended = tuple(ENDINGS.values())
    plan = cache(lambda: magnitudes.label_run(*study.pair, data.items, appended))

    def measured(numbers: Sequence[int]) -> Arrays:
        return magnitudes.copy_magnitudes(
            study.pair[0], plan(), CONTROL_TOKENS, data.seed, numbers, token_budget=batches.TOKEN_BUDGET
        )

    def joined(blocks: Sequence[Arrays]) -> Arrays:
        names = ("magnitude", "control", "control_count", "value_norm")
        return {
            **{name: np.concatenate([block[name] for block in blocks]) for name in names},
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
    shared = {name: found[name] for name in ("control", "value_norm")}
    return {
        name: {**shared, **{array: found[array][:, place] for array in ("magnitude", "n_t", "label_lengths")}}
        for place, name in enumerate(ENDINGS)
    }


def counts(study: Study) -> dict[str, Arrays]:
    """The `readings` of the study's data set, and as "untrained" those of the twin behind the correct label."""
    settings = study.settings
    found = readings(study, _data(study, settings.prompts))
    if settings.untrained_control:
        found["untrained"] = readings(study.twin(), _data(study, settings.grid_prompts))["correct"]
    return found


def planted(study: Study, prompts: int = 64, **options: Any) -> Arrays:
    """The reading behind the correct label of a planted model; roles: of its heads, [layer, head, role]; decoys.

    options: those of the planted circuit (family, copies, noise, seed).
    """
    prompt = staicc_prompts(study.settings.dataset, study.settings.k)[0]

    def labels(tokenizer: Any) -> list[int]:
        return [labelled_tokens([prompt], tokenizer, label)[0].ids[-1] for label in prompt.labels]

    model, truth = planted_control(circuits.forerunner, options, labels)
    known = study.replace(model=model, untrained_control=False)
    roles = [[*head, role] for head, role in truth.names.items()]
    reading = readings(known, _data(study, prompts))["correct"]
    return {**reading, "roles": roles, "decoys": [list(head) for head in truth.decoys]}


def specificity(study: Study) -> Arrays:
    """The `counts`, and the `planted` heads."""
    return {**study.arrays("counts"), "planted": planted(study)}


def planted_errors(study: Study) -> dict[str, list[Arrays]]:
    """Planted heads with noise on their weights, by noise, of each seed, on few prompts."""
    return {str(noise): [planted(study, 16, noise=noise, seed=seed) for seed in SEEDS] for noise in NOISES}


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
    s, measured = study.settings, max(study.settings.ablated, study.settings.grid_prompts, SINGLE)
    places = {"folder": study.folder, "redo": study.redo}
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
    nothing but a cut in all layers is measured. Raises what `scoring`, `cells` and `control_cells` raise.
    """
    plan, lists = cache(lambda: scoring(*study.pair, data.items)), study.settings.cell_lists

    def measured(condition: Condition) -> Arrays:
        layers = list(support(study.pair[0]).layers)  # the model's own numbers
        attach: Attach = nothing
        if condition.cut is not None:
            cut = _cells(study, data, plan(), condition, lists)
            attach = knockouts(cut, dict.fromkeys(layer_range(layers, condition.part)))
        text = condition.part == EVERYWHERE and condition.draw is None
        scores = label_log_probs(study.pair[0], plan(), attach, token_budget=batches.TOKEN_BUDGET, text=text)
        return {**scores, **data.labels}

    return {
        condition: study.record(
            "answers under cuts",
            partial(measured, condition),
            data.texts,
            **data.request,
            cells=lists,
            **{**condition._asdict(), "part": list(condition.part)},
        ).data
        for condition in study.progress(asked, f"{data.dataset}: cuts")
    }


def _special(study: Study, data: Data) -> int:
    """How many special tokens stand in front of a prompt."""
    return with_bos(data.items[0].text, study.pair[1]).spans.count(None)


def _cells(study: Study, data: Data, plan: Scoring, condition: Condition, lists: str) -> list[np.ndarray]:
    """What is cut of each prompt, or the control that it is: [C, 2]."""
    assert condition.cut is not None
    special, draw = _special(study, data), condition.draw
    cut = [cells(condition.cut, tokens, lists, special) for tokens in plan.tokens]
    if draw is None:
        return cut
    seed = (data.seed, CUTS.index(condition.cut))
    both = enumerate(zip(cut, plan.ids, strict=True))
    return [control_cells(which, len(ids), draw + 1, (*seed, number))[draw] for number, (which, ids) in both]


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


# ------------------------------------------------------------------------------------------------ head by head


def head_cuts(study: Study, data: Data, heads: Sequence[Head]) -> Arrays:
    """What labels lose where in one head alone none of the demonstrations' labels may read its forerunner.

    heads: places (layer, head) in the stack of layers with attention. Log-probabilities of all labels, in nats, of a
    label of several tokens its first: whole [N, C]: of the whole model; cut [N, M, C]: of each head; control [N, M, C]:
    where each label may not read another token, drawn at random; gold [N]. Raises ValueError for a head twice or none,
    and, before anything is measured, for one that the model does not have.
    """
    places = [checked_head(head, "heads") for head in heads]
    if len(set(places)) != len(places) or not places:
        raise ValueError(f"give each head once, and at least one: {list(heads)}")
    ordered = sorted(map(list, places))  # so that their order does not matter for the record

    def measured() -> Arrays:
        heads_by_layer(support(study.pair[0]), ordered)
        plan = scoring(*study.pair, data.items)
        results = [_replay(study, data, plan, ordered, number) for number in range(data.prompts)]
        both = torch.cat([result.logits for result in results], 1)  # [2 M, N, C]
        cut, control = both.reshape(2, len(ordered), *both.shape[1:]).transpose(1, 2).numpy()
        return {"whole": torch.cat([result.base for result in results]).numpy(), "cut": cut, "control": control}

    found = study.record("heads cut alone", measured, data.texts, **data.request, heads=ordered).data
    order = [ordered.index([layer, head]) for layer, head in places]
    cut, control = found["cut"][:, order], found["control"][:, order]
    return {"heads": places, "whole": found["whole"], "cut": cut, "control": control, "gold": data.labels["gold"]}


def _replay(study: Study, data: Data, plan: Scoring, heads: list[list[int]], number: int) -> Any:
    """One prompt with the cells of each head cut in turn, then with the control's."""
    layers = support(study.pair[0]).layers  # from places in the stack to the model's own numbers
    special = _special(study, data)
    cut = cells("si_to_yi", plan.tokens[number], special=special)
    control = other_keys(cut, special, (data.seed, number))
    edits = [head_cut(layers[layer], head, [which]) for which in (cut, control) for layer, head in heads]
    first = min((int(which[:, 0].min()) for which in (cut, control) if len(which)), default=0)
    labels = torch.from_numpy(plan.first_tokens[number])
    return replay(study.pair[0], torch.tensor([plan.ids[number]]), edits, labels[None], first, True)


def effects(study: Study) -> Arrays:
    """The `head_cuts` of the heads that move most; moved [L, H]; done: whether the model does the task."""
    correct = study.arrays("counts")["correct"]
    moved = (correct["magnitude"] * correct["value_norm"]).mean(axis=0)
    cut = head_cuts(study, _of_task(study, SINGLE), top(moved, min(HEADS_CUT, moved.size)))
    return {**cut, "moved": moved, "done": chosen(study.arrays("task")["checks"]).done}
