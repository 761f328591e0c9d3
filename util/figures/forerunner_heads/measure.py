"""What is measured of forerunner token heads: copy magnitudes, and cuts of attention (Cho et al. 2025)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from util.engine import batches, memory
from util.engine.attention import input_device
from util.engine.batches import (
    TOKEN_BUDGET,
    Batch,
    Row,
    TooLong,
    array_type,
    check_context,
    forward,
    may_branch,
    run_rows,
)
from util.engine.handshake import prepare
from util.engine.instruments import CaptureRows
from util.engine.label_scores import Attach, Scoring, knockouts, label_log_probs, label_reads, nothing, scoring
from util.figures.controls import first_tokens, planted_control
from util.figures.forerunner_heads.numbers import (
    CUTS,
    EVERYWHERE,
    WHOLE,
    Condition,
    cells,
    conditions,
    control_cells,
    layer_range,
)
from util.load_model_and_data import staicc_prompts, staicc_request
from util.models import planted as circuits
from util.prompts.prompt import (
    Appended,
    LabelledTokens,
    Prompt,
    check_first_tokens,
    labelled_tokens,
    with_bos,
)
from util.roles import label_roles
from util.stats.answers import chosen
from util.study.records import Fields, chunks, joined
from util.study.study import Study

ENDINGS: dict[str, Appended] = {"correct": 0, "wrong": 1, "other word": "the"}  # what is appended, see `Prompt.label`
CONTROL_TOKENS = 32  # of a prompt: so many others of its tokens are compared with the label
BLOCK = 64  # prompts computed, and saved, at a time: what an interruption can cost at most


class Data(NamedTuple):
    """Prompts of a StaICC data set, k demonstrations each."""

    dataset: str
    k: int
    prompts: int
    seed: int

    @property
    def items(self) -> Sequence[Prompt]:
        """The prompts themselves."""
        return staicc_prompts(self.dataset, self.k, self.seed)[: self.prompts]

    def texts(self) -> list[str]:
        """The prompts with their correct labels."""
        return [prompt.with_label() for prompt in self.items]

    @property
    def request(self) -> Fields:
        """What of a request they decide."""
        return staicc_request(*self)

    @property
    def labels(self) -> Fields:
        """The numbers of the labels: gold [N], and demonstrations [N, k]."""
        return {
            "gold": np.array([prompt.gold for prompt in self.items]),
            "demonstrations": np.array([prompt.demonstrations for prompt in self.items], np.int64),
        }


def check(study: Study) -> None:
    """Raises ValueError where a data set has not as many demonstrations as the settings want."""
    s = study.settings
    for k, names in ((s.k, (s.dataset, *s.grid_datasets)), (max(s.causal_k), s.causal_datasets)):
        for name in names:
            label_roles.check_pool(name, k)


# ------------------------------------------------------------------------------------------------ copy magnitudes


# Prompts with labels: by what is appended, the tokens of each prompt; and rows, each with the number of its prompt, and
# of the condition of each of its branches
LabelRun = tuple[dict[Appended, list[LabelledTokens]], list[tuple[Row, int, list[int]]]]


def label_run(
    model: PreTrainedModel, tokenizer: Any, prompts: Sequence[Prompt], appended: Sequence[Appended] = (0, 1)
) -> LabelRun:
    """Plan one pass over prompts with each of `appended` after them (0 correct label, 1 wrong one, or a word).

    All that the pass will do is checked before it starts.
    Labels of one prompt share a row where the model supports branches, the window is long enough and the tokenizer
    splits the prompt in the same way for each; otherwise they get rows of their own, with the same result.
    Raises ValueError for bad input of any prompt: see `labelled_tokens`, `check_first_tokens`, `check_context`.
    """
    support = prepare(model)
    tokens = {what: labelled_tokens(prompts, tokenizer, what) for what in appended}
    check_first_tokens(prompts, tokens)
    check_context(model, [len(labelled.ids) for of_condition in tokens.values() for labelled in of_condition])
    rows = []
    for number, endings in enumerate(zip(*tokens.values(), strict=True)):
        groups: dict[tuple[int, ...], list[int]] = {}
        for place, labelled in enumerate(endings):
            groups.setdefault(labelled.ids[:-1], []).append(place)
        for ids, places in groups.items():
            together = may_branch(support, len(ids) + len(places))
            for served in [places] if together else [[place] for place in places]:
                row = Row(ids, tuple(endings[place].ids[-1] for place in served))
                rows.append((row, number, served))
    return tokens, rows


def copy_magnitudes(
    model: PreTrainedModel,
    run: LabelRun,
    control_tokens: int = 32,
    seed: int = 0,
    numbers: Sequence[int] | None = None,
    token_budget: int = TOKEN_BUDGET,
) -> Fields:
    """Attention from an appended label to its forerunner, A[y_q, s_q], of every head (Cho et al. 2025, Fig. 5 middle).

    The control is A[t, t-1], averaged over up to `control_tokens` other tokens t of the same prompt, drawn by seed and
    prompt; label tokens and the token after the first one (which would read an attention sink) are never drawn.

    Returns magnitude [n, C, L, H] and control [n, L, H], float32 or, with a float64 model, float64; n prompts of
    `numbers`, default all; C conditions; and oom_backoff (bool). One pass serves all conditions, because no label can
    change what stands before it. Raises MemoryError before it where memory is too short for it.
    """
    support, (tokens, rows) = prepare(model), run
    first = next(iter(tokens.values()))
    places = {number: place for place, number in enumerate(range(len(first)) if numbers is None else numbers)}
    planned = []  # rows, each with its prompt, the conditions of its branches, and the cells that are read of it
    for row, owner, served in rows:
        if owner in places:
            others = draw_control_tokens(first[owner], control_tokens, (seed, owner)) if 0 in served else []
            cells_read = [(branch, len(row.ids) - 1) for branch in range(len(row.ids), len(row))]
            planned.append((row, owner, served, cells_read + [(t, t - 1) for t in others]))
    # a batch too large for a GPU is halved; on the CPU the system would end the process, so all of it must fit
    budget = token_budget if input_device(model).type == "cpu" else 1
    most = max(len(cells_read) for *_, cells_read in planned)
    memory.check(memory.estimate(model, [len(row) for row, *_ in planned], budget, captured=most))
    heads, dtype = (len(support.layers), support.heads), array_type(model)
    magnitude: np.ndarray = np.full((len(places), len(tokens), *heads), np.nan, dtype)
    control: np.ndarray = np.full((len(places), *heads), np.nan, dtype)

    def visit(batch: Batch) -> None:
        here = [planned[i] for i in batch.numbers]
        together = pad_sequence([torch.tensor(cells_read) for *_, cells_read in here], batch_first=True)  # [B, R, 2]
        attention = CaptureRows(together[:, :, 0], together[:, :, 1:])
        forward(model, batch, attention)
        weights = np.stack([attention.weights[layer][..., 0].cpu().numpy() for layer in support.layers], axis=1)
        for (_, owner, served, cells_read), read in zip(here, weights, strict=True):  # read: [L, H, R]
            magnitude[places[owner], served] = np.moveaxis(read[..., : len(served)], -1, 0)
            if len(cells_read) > len(served):
                control[places[owner]] = read[..., len(served) : len(cells_read)].mean(-1)

    branched, owners, *_ = zip(*planned, strict=True)
    halved = run_rows(model, branched, visit, token_budget, prompts=owners)
    return {"magnitude": magnitude, "control": control, "oom_backoff": halved}


def draw_control_tokens(labelled: LabelledTokens, count: int, seed: Sequence[int]) -> list[int]:
    """Up to `count` positions t of a prompt, sorted, that are no label tokens and have 1 <= t - 1."""
    eligible = labelled.others
    drawn = np.random.default_rng(seed).permutation(len(eligible))[:count]
    return sorted(eligible[drawn].tolist())


def readings(study: Study, data: Data) -> dict[str, Fields]:
    """What all heads read of the previous token, by what is appended (ENDINGS).

    Of each: magnitude and control [N, L, H], of the ending to its forerunner and of other tokens, see
    `copy_magnitudes`; n_t and label_lengths [N]: tokens of the prompt with its ending, and of that. Raises what
    `label_run` and `Study.blocks` raise.
    """
    appended = [*ENDINGS.values()]
    plan = cache(lambda: label_run(*study.pair, data.items, appended))

    def join(blocks: list[Fields]) -> Fields:
        tokens = plan()[0].values()
        return {
            **joined("magnitude", "control")(blocks),
            "n_t": np.array([[labelled.n_t for labelled in of_ending] for of_ending in tokens]).T,
            "label_lengths": np.array(
                [[labelled.label_lengths[-1] for labelled in of_ending] for of_ending in tokens]
            ).T,
            **data.labels,
            "provenance": {"oom_backoff": any(block["oom_backoff"] for block in blocks)},
        }

    record = study.blocks(
        "copy magnitudes",
        lambda: chunks(range(data.prompts), BLOCK),
        lambda block: copy_magnitudes(
            study.pair[0], plan(), CONTROL_TOKENS, data.seed, block, token_budget=batches.TOKEN_BUDGET
        ),
        join,
        lambda: [prompt.with_label(what) for what in appended for prompt in data.items],
        **data.request,
        appended=appended,
        control_tokens=CONTROL_TOKENS,
    ).data
    by_ending = {name: record[name] for name in ("magnitude", "n_t", "label_lengths")}
    return {
        ending: {"control": record["control"], **{name: array[:, place] for name, array in by_ending.items()}}
        for place, ending in enumerate(ENDINGS)
    }


def counts(study: Study) -> dict[str, Fields]:
    """The `readings` of the study's data set, and as "untrained" those of the twin behind the correct label."""
    s = study.settings
    data = Data(s.dataset, s.k, s.prompts, s.seed)
    read = readings(study, data)
    if s.untrained_control:
        fewer = data._replace(prompts=min(s.grid_prompts, s.prompts))
        read["untrained"] = readings(study.twin(), fewer)["correct"]
    return read


def specificity(study: Study) -> Fields:
    """The `counts`, and as "planted" the reading behind the correct label of a planted model.

    roles: of planted heads, [layer, head, role].
    """
    s = study.settings
    labels = staicc_prompts(s.dataset, s.k)[0].labels
    model, truth = planted_control(circuits.forerunner, {}, partial(first_tokens, labels))
    known = study.replace(model=model, untrained_control=False)
    reading = readings(known, Data(s.dataset, s.k, min(64, s.prompts), s.seed))["correct"]
    roles = [[*head, role] for head, role in truth.names.items()]
    return {**study.arrays("counts"), "planted": {**reading, "roles": roles}}


def grid(study: Study) -> Fields:
    """The `readings` of every data set by its name, and as "left out" why others do not fit the model.

    Raises TooLong where none does.
    """
    s, left_out, measured = study.settings, dict[str, str](), Fields()
    for name in s.grid_datasets:
        try:
            measured[name] = readings(study, Data(name, s.k, s.grid_prompts, s.seed))
        except TooLong as error:
            left_out[name] = error.extent
            if len(left_out) == len(s.grid_datasets):
                raise
    return {"left out": left_out, **measured}


# ------------------------------------------------------------------------------------------------ a task, and its cuts


def task(study: Study) -> Fields:
    """The checks of data sets, tried in order until the model does one, and as "left out" why others do not fit."""
    s = study.settings
    measured = max(s.ablated, s.grid_prompts)
    tried = label_roles.candidates(study, s.causal_datasets, s.causal_k, s.choice_prompts, s.seed, measured)
    checks, left_out = label_roles.first_done(tried)
    return {"checks": checks, "left out": left_out}


def _of_task(study: Study, prompts: int) -> Data:
    check = chosen(study.arrays("task")["checks"])
    return Data(check.name, check.k, prompts, study.settings.seed)


def answers(study: Study, data: Data, wanted: Iterable[Condition]) -> dict[Condition, Fields]:
    """What the model says under conditions, each kept on its own.

    log_prob [N, C]: of the labels behind the query; gold [N]; text_loss [N]: of all of the prompt but its labels, where
    nothing but a cut in all layers is measured. Raises what `scoring` raises.
    """
    plan = cache(lambda: scoring(*study.pair, data.items))

    def measured(condition: Condition) -> Fields:
        attach = _attached(study, data, plan(), condition)
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
            cut=condition.cut,
            part=list(condition.part),
            draw=condition.draw,
        ).data
        for condition in study.progress(wanted, f"{data.dataset}: cuts")
    }


def _attached(study: Study, data: Data, plan: Scoring, condition: Condition) -> Attach:
    """Nothing, or the knockout of the cells of a cut in each prompt, or of as many random ones."""
    cut, part, draw = condition
    if cut is None:
        return nothing
    special = with_bos(data.items[0].text, study.pair[1]).spans.count(None)  # tokens in front of a prompt
    knocked_out = [cells(cut, tokens, special) for tokens in plan.tokens]
    if draw is not None:
        seed, both = (data.seed, CUTS.index(cut)), enumerate(zip(knocked_out, plan.ids, strict=True))
        knocked_out = [control_cells(which, len(ids), (*seed, number)) for number, (which, ids) in both]
    layers = layer_range(prepare(study.pair[0]).layers, part)  # the model's own numbers
    return knockouts(knocked_out, dict.fromkeys(layers))


def ablation(study: Study) -> Fields:
    """The `answers` under all cuts, as "alone" those without demonstrations; done: whether the model does the task."""
    data = _of_task(study, study.settings.ablated)
    return {
        "alone": answers(study, data._replace(k=0), [WHOLE])[WHOLE],
        "cut": answers(study, data, conditions()),
        "done": chosen(study.arrays("task")["checks"]).done,
    }


def induction(study: Study) -> Fields:
    """What the query's forerunner reads of the labels (Fig. 6 left, middle).

    reads [N, L, H, k]: A[s_q, y_i]; similarity [N, L, k]: of the forerunners' states; gold, n_t [N]; demonstrations
    [N, k]; classes: number of labels.
    """
    data = _of_task(study, study.settings.grid_prompts)

    def measured() -> Fields:
        plan = scoring(*study.pair, data.items)
        n_t = np.array([tokens.n_t for tokens in plan.tokens])
        reads = label_reads(study.pair[0], plan, batches.TOKEN_BUDGET)
        return {**reads, **data.labels, "n_t": n_t, "classes": len(data.items[0].labels)}

    return study.record("reads of labels", measured, data.texts, **data.request).data
