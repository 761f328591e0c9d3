"""Induction heads in models: scores, means, ablation and knockout, each against a naive computation of the same.

And planted heads: what is known of them is found, and what they do goes when they do.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from functools import cache
from itertools import product
from typing import get_args

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from torch.nn.functional import cross_entropy

from tests import architectures, eager_runs
from tests.architectures import prepared
from tests.eager_runs import read, twin
from tests.engine.test_label_scores import by_whole_passes
from tests.roles.test_attention_scores import by_definition
from tests.tiers import quick
from tests.toys import words
from tests.unloaded import NEVER, no_pass, unloaded
from util.engine import call
from util.engine.batches import Row
from util.engine.handshake import prepare
from util.engine.label_scores import scoring
from util.engine.means import mean_outputs, outputs_of_mean_inputs, position_means
from util.engine.replay import BaseRuns
from util.figures import task_study
from util.figures.controls import planted_control
from util.figures.edits import INTACT, Edit, Mode
from util.figures.induction_scores import measure
from util.figures.induction_scores.measure import answered_right, check_task
from util.figures.induction_scores.numbers import TASKS, by_shots, planned
from util.figures.task_study import TaskStudy, task_studies
from util.load_model_and_data import staicc_prompts
from util.models import planted
from util.prompts import classification, induction_pattern
from util.prompts.induction_pattern import Sequences
from util.roles import attention_scores, sequences_study
from util.roles.effects import heads_by_layer
from util.roles.sequences_study import SequenceStudy, head_scores
from util.show import files
from util.stats.heads import heads_where, top
from util.study.checked import capped
from util.study.model import Model
from util.study.study import Study

F64 = torch.float64
BOUNDS = {"gpt2": 1e-10, "llama": 2e-5}  # some classes' own eager softmax and norms are in float32
NO_F64 = {"gpt_oss", "qwen3_next"}  # experts have no kernel for it
CLASSES = ("gpt2", "llama", "gemma2", "gpt_oss", "qwen3_next")


@cache
def toy(name, dtype=None):
    """A prepared random model of one architecture, float64 where there are kernels for it."""
    return prepared(name, dtype or (torch.float32 if name in NO_F64 else F64))


def drawn(length=8, copies=3, sequences=2, bos=True):
    """Repeated sequences over the vocabulary of the toys."""
    rng = np.random.default_rng(length)
    base = [rng.choice(np.arange(3, architectures.VOCABULARY), length, replace=False) for _ in range(sequences)]
    ids = np.stack([np.concatenate([[1] * bos, *[tokens] * copies]) for tokens in base]).astype(np.int64)
    return Sequences(ids, length, copies, bos, "none")


def rows(*lengths, seed=0):
    """Random prompts of these lengths."""
    rng = np.random.default_rng(seed)
    return [Row(tuple(rng.integers(3, architectures.VOCABULARY, length).tolist())) for length in lengths]


# ------------------------------------------------------------------------------------------------ scores


@pytest.mark.parametrize("name, bos", [("gpt2", False), *((name, True) for name in CLASSES)])
def test_head_scores_are_their_definition_on_eager_attention(name, bos, monkeypatch):
    """Under softcaps, windows and sinks; of all sequences, or one by one and row by row."""
    model, sequences = toy(name), drawn(sequences=3, bos=bos)
    found = head_scores(model, sequences)
    monkeypatch.setattr(call, "EAGER_CHUNK", 300)
    monkeypatch.setattr(sequences_study, "TOKEN_BUDGET", 1)
    one_by_one = head_scores(model, sequences)
    weights = read(model, sequences.ids).weights
    expected = {layer: by_definition(own.double().numpy(), 8, 3, int(bos)) for layer, own in sorted(weights.items())}
    for score, values in found.items():
        assert values.shape == (3, len(expected), 4)
        assert_allclose(values, one_by_one[score], atol=1e-6 if name in NO_F64 else 1e-12)
        if score != "bansal":
            stacked = np.stack([own[score] for own in expected.values()], axis=1)
            assert_allclose(values, stacked, atol=BOUNDS.get(name, 1e-5))
    if not bos:
        assert_array_equal(found["bansal"], found["prefix_matching"])
    else:
        assert (found["bansal"] >= found["prefix_matching"]).all() and (found["bansal"] > 0).any()


# ------------------------------------------------------------------------------------------------ planted heads


def figure(model="embedded", **settings):
    """The study of the figure."""
    return Study("induction_scores", model, **settings)


@pytest.mark.parametrize("family", quick(["gpt2"], planted.FAMILIES))
def test_planted_heads_are_found_exactly(family, tmp_path):
    """What the model does with them: tests/figures/role_atlas."""
    model, truth = planted_control(planted.induction, {"family": family})
    measured = SequenceStudy(model, length=25, copies=3, sequences=2, folder=tmp_path).scores()
    matching, [head] = measured.mean(), truth.heads["induction"]
    assert top(matching, 1) == [head] and matching[head] >= 0.999
    assert truth.found_exactly("induction", matching, attention_scores.INDUCTION_HEAD)
    assert heads_where(measured.scores["previous_token"].mean(0) >= 0.5) == [*truth.heads["previous token"]]


# ------------------------------------------------------------------------------------------------ means


def naive_heads(model, prompts):
    """z [T, H, dv] of every prompt alone, by layer."""
    return [{layer: z[0].double() for layer, z in read(model, row.ids).z.items()} for row in prompts]


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen3_next"])
def test_the_mean_output_is_that_of_all_tokens_together(name):
    model, prompts, loose = toy(name), rows(12, 9, 21, 4, 9, 15), 1e-5 if name in NO_F64 else 1e-12
    z = naive_heads(model, prompts)
    for skip in (0, 8):
        found, other = mean_outputs(model, prompts, skip), mean_outputs(model, prompts, skip, 21)
        for place, layer in enumerate(architectures.attention_layers(name)):
            together = torch.cat([own[layer][skip:] for own in z])
            assert_allclose(found["mean"][place], together.mean(0), atol=BOUNDS.get(name, 1e-5))
        assert (found["tokens"], found["prompts"]) == (sum(max(0, len(row.ids) - skip) for row in prompts), 6)
        assert found["mean"].dtype == (np.float32 if name in NO_F64 else np.float64)
        for part in ("mean", "norms"):
            assert_allclose(found[part], other[part], atol=loose)
    with pytest.raises(ValueError, match="no prompt of the reference"):
        mean_outputs(model, rows(8, 5), 8)
    for place, (layer, module) in enumerate(eager_runs.attention_modules(model).items()):
        writes = torch.stack([own[layer][-1] for own in z])  # [N, H, dv]
        if name != "qwen3_next":  # between these heads and their projection there is a gate
            weight = eager_runs.output_projection(module).weight
            writes = torch.einsum(
                "nhv,hvd->nhd", writes, (weight if name == "gpt2" else weight.T).unflatten(0, (4, -1))
            )
        assert_allclose(found["norms"][place], writes.norm(dim=-1).mean(0).detach(), atol=1e-4)


@contextmanager
def watched(model, see):
    """Inside it the attention of every layer gets see(layer, its hidden states [1, T, d]) in place of these."""

    def hook_of(layer):
        def hook(_, arguments, keywords):
            if "hidden_states" in keywords:
                return arguments, keywords | {"hidden_states": see(layer, keywords["hidden_states"])}
            return (see(layer, arguments[0]), *arguments[1:]), keywords

        return hook

    with ExitStack() as stack:
        for layer, module in eager_runs.attention_modules(twin(model)).items():
            stack.enter_context(module.register_forward_pre_hook(hook_of(layer), with_kwargs=True))
        yield


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "opt"])
def test_means_by_position_equal_hooks_on_the_attention(name, wide_softmax):
    """Of z, and of what the mean input gives, whatever the tokens; each position over the prompts that have it."""
    model, prompts, atol = toy(name), rows(12, 9, 21, 4, 9), 1e-10 if name in ("gpt2", "opt") else 1e-5
    inputs: list[dict] = []
    for row in prompts:
        inputs.append({})
        with watched(model, lambda layer, hidden: inputs[-1].setdefault(layer, hidden)):
            read(model, row.ids)

    def means(of_rows, layer):
        alike = ([row[layer][0, t] for row in of_rows if row[layer].shape[1] > t] for t in range(21))
        return torch.stack([torch.stack(values).mean(0) for values in alike])

    z = [read(model, row.ids).z for row in prompts]
    mean_inputs = {layer: means(inputs, layer) for layer in (0, 2)}
    other = rows(21, seed=9)[0].ids
    with watched(model, lambda layer, hidden: mean_inputs[layer][None] if layer in mean_inputs else hidden):
        expected = read(model, other).z
    for budget, layer in product((1, 2048), (2, 0)):
        found = position_means(model, prompts, [2, 0], budget)
        assert_allclose(found[layer], means(z, layer), atol=atol)
        of_inputs = outputs_of_mean_inputs(model, prompts, [2, 0], budget)
        assert_allclose(of_inputs[layer], expected[layer][0], atol=atol)
        assert {*found} == {*of_inputs} == {0, 2}
        assert not layer or np.abs(found[layer] - of_inputs[layer]).max() > 1e-3  # softmax: another mean


# ------------------------------------------------------------------------------------------------ ablation

LETTERS = ("A", "B")  # one token each in the toy tokenizer, which splits Foo
HEADS = [(0, 1), (2, 0), (2, 3)]  # of Llama's, (2, 3) and not (2, 0) shares keys and values with (2, 2)


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def pair(request):
    return prepared(request.param, F64, vocab_size=len(words()), max_position_embeddings=1024), words()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("material")


def given(pair, name=None):
    model, tokenizer = pair
    return Model.given(model, tokenizer, name or f"given:{model.config.model_type}")


def study_of(pair, folder, **options):
    return TaskStudy(
        given(pair), folder=folder, **{"task": "wordseq2", "k": 2, "prompts": 5, "labels": LETTERS} | options
    )


def bound(pair):
    return BOUNDS[pair[0].config.model_type]


def prompts_of(study):
    task = classification.relabelled(classification.task(study.task), study.labels)
    return classification.prompts(task, study.k, study.seed, study.prompts)


def test_labels_of_several_tokens_under_every_edit(pair, tmp_path):
    """An ablation acts on the label's tokens too, position by position; a knockout on the prompt's alone."""
    model, tokenizer = pair
    study = study_of(pair, tmp_path, prompts=2, labels=None, reference_prompts=20)
    edits = {mode: Edit.ablate(HEADS[::-1], mode) for mode in get_args(Mode)}
    edits |= {"knockout": Edit.knock_out(HEADS), "whole": INTACT}
    found = {name: answers["log_prob"] for name, answers in study.answers(edits).items()}
    named = study.replace(labels=("Foo", "Bar"))
    references = reference_rows(pair, named)
    means = position_means(model, references, [0, 2])
    inputs, mean = outputs_of_mean_inputs(model, references, [0, 2]), mean_outputs(model, references, 8)["mean"]
    plan = scoring(model, tokenizer, prompts_of(named))
    assert {len(label) for labels in plan.labels for label in labels} == {2}
    values = {
        "zero": lambda la, h, t: np.zeros(16),
        "mean": lambda la, h, t: mean[la, h],
        "mean_pos": lambda la, h, t: means[la][t, h],
        "input_mean": lambda la, h, t: inputs[la][t, h],
    }

    def written(value):
        """The label's last token changes nothing, and means by position may not reach it."""
        return lambda n, t: {(la, h): torch.from_numpy(value(la, h, t)) for la, h in HEADS if t <= len(plan.ids[n])}

    expected = {name: by_whole_passes(twin(model), plan, written(value)) for name, value in values.items()}
    cells = [induction_pattern.cells(prompt, tokenizer).tolist() for prompt in prompts_of(named)]
    cuts = [[(*head, *cell) for head, cell in product(HEADS, of_prompt)] for of_prompt in cells]
    expected |= {"whole": by_whole_passes(twin(model), plan)}
    expected |= {"knockout": by_whole_passes(twin(model), plan, cuts=cuts)}
    for name, scores in expected.items():
        assert_allclose(found[name], scores, atol=20 * bound(pair), err_msg=name)
    assert all(np.abs(found[name] - found["whole"]).max() > 1e-4 for name in edits if name != "whole")


def reference_rows(pair, study):
    """The prompts that means are taken over: those of the task that are not asked for."""
    others = prompts_of(study.replace(seed=study.seed + 1000, prompts=study.prompts + study.reference_prompts))
    return [Row(tuple(pair[1](prompt.text)["input_ids"])) for prompt in others[study.prompts :]]


def test_means_are_those_of_other_prompts_or_texts(pair, tmp_path):
    study = study_of(pair, tmp_path, reference_prompts=8)
    found, direct = study.means(), mean_outputs(pair[0], reference_rows(pair, study), 8)
    assert (found["prompts"], found["tokens"]) == (8, direct["tokens"])
    for part in ("mean", "norms"):
        assert_array_equal(found[part], direct[part])
    texts = study.replace(reference="staicc").means()
    assert texts["tokens"] > 2 * found["tokens"] and np.abs(texts["mean"] - found["mean"]).max() > 1e-3


def test_a_prompt_that_is_longer_than_the_reference_of_its_positions_is_refused(pair, tmp_path):
    study = study_of(pair, tmp_path, prompts=60, reference_prompts=1)
    for mode in ("mean_pos", "input_mean"):
        with pytest.raises(ValueError, match="take mode 'mean', or a reference of longer prompts"):
            study.answers({mode: Edit.ablate(HEADS, mode)})
    study.answers({"mean": Edit.ablate(HEADS, "mean")})


# ------------------------------------------------------------------------------------------------ pattern and model


def test_the_pattern_of_one_head_for_a_figure(pair, folder):
    study = study_of(pair, folder)
    found = study.pattern((2, 3))
    ids = pair[1](prompts_of(study)[0].text)["input_ids"]
    weights = read(pair[0], ids).weights[2][0, 3]
    assert_allclose(found["attention"], weights, atol=bound(pair))
    kinds = dict(zip(found["tokens"], found["kinds"], strict=True))
    assert (kinds[":"], kinds["A"], kinds["<s>"], kinds["se"]) == ("colon", "label", "", "")
    assert found["labels"] == prompts_of(study)[0].texts("y")
    with pytest.raises(ValueError, match="3 layers of 4 heads"):
        study.pattern((2, 4))


# ------------------------------------------------------------------------------------------------ plain text


def test_the_loss_of_plain_texts(pair, tmp_path, monkeypatch):
    study, (model, tokenizer) = study_of(pair, tmp_path, reference_prompts=6), pair
    edits = {"whole": INTACT, "zero": Edit.ablate(HEADS, "zero"), "none": Edit.ablate([], "zero")}
    found = {name: data["loss"] for name, data in study.losses(edits).items()}
    assert study.losses({"whole": INTACT})["whole"]["vocabulary"] == model.config.vocab_size
    texts = [p.texts("x")[-1] for p in staicc_prompts("financial_phrasebank", 0)[:6]]
    for number, text in enumerate(texts):
        ids = torch.tensor([tokenizer(text)["input_ids"]])
        zeros = {(la, 0, t, h): torch.zeros(16, dtype=F64) for la, h in HEADS for t in range(ids.shape[1])}
        for name, writes in (("whole", {}), ("zero", zeros)):
            loss = float(cross_entropy(read(model, ids, writes=writes).logits[0, :-1], ids[0, 1:]))
            assert found[name][number] == pytest.approx(loss, abs=10 * bound(pair))
    assert_array_equal(found["none"], found["whole"])
    assert np.abs(found["zero"] - found["whole"]).min() > 1e-4
    before = len([*tmp_path.glob("*.pickle")])
    monkeypatch.setattr(task_study, "staicc_version", lambda: "another")
    study_of(pair, tmp_path, reference_prompts=6).losses({"whole": INTACT})
    assert len([*tmp_path.glob("*.pickle")]) == before + 1  # other texts, another record


# ------------------------------------------------------------------------------------------------ records


def test_records_are_cached_edit_by_edit(pair, tmp_path):
    study = study_of(pair, tmp_path, prompts=3)
    edits = {"mean": Edit.ablate(HEADS, "mean"), "whole": INTACT, "knockout": Edit.knock_out(HEADS)}
    first, cached = study.answers(edits), unloaded(study)
    same = {"mean": Edit.ablate([*HEADS, HEADS[0]][::-1], "mean")}  # the same set in other words
    for name, answers in cached.answers(dict(reversed(edits.items())) | same).items():
        assert_array_equal(answers["log_prob"], first[name]["log_prob"])
    for edit in (Edit.ablate(HEADS[:2], "mean"), Edit.knock_out(HEADS, "random keys")):
        with pytest.raises(AssertionError, match="must not load"):
            cached.answers({"other": edit})


def test_heads_are_counted_among_the_layers_that_have_attention():
    model = toy("qwen3_next")
    found = prepare(model)
    assert found.layers == (1,) and heads_by_layer(found, [(0, 2), (0, 0)]) == {1: [2, 0]}
    with pytest.raises(ValueError, match=r"1 layers of 4 heads, not \[\(1, 0\)\]"):
        heads_by_layer(found, [(0, 1), (1, 0)])


@pytest.mark.parametrize("all_tasks, there", [(False, 256), (True, 512)])
def test_more_prompts_than_a_task_has_become_all_of_them(all_tasks, there, capsys):
    """Half of them, as others are asked, too; or all of them."""

    def study(prompts):
        return figure(NEVER, tasks=["wordseq1"], text_tasks=[], prompts=prompts, all_tasks=all_tasks)

    capped.cache_clear()
    assert study(100_000).request == study(there).request and study(there - 1).settings.prompts == there - 1
    assert capsys.readouterr().err.count("\n") == 1 and study(there + 1).settings.prompts == there


WRONG_EDITS = {
    r"heads = \(1.9, 0\): a head is \(layer, head\)": lambda: Edit.ablate([(1.9, 0)]),
    r"heads = \(-1, 0\): a head is ": lambda: Edit.ablate([(-1, 0)], "zero"),
    r"heads = \(True, 0\): a head is ": lambda: Edit.knock_out([(True, 0)]),
    r"heads = 'all': a head is ": lambda: Edit.ablate("all"),
    r"mode = 'median': .*'mean', 'zero', 'mean_pos' or 'input_mean'": lambda: Edit.ablate(HEADS, "median"),
    r"mode = 'zero', pattern = 'induction': an edit has one": lambda: Edit(HEADS, mode="zero", pattern="induction"),
    r"heads = \(\(0, 1\),\): give a mode": lambda: Edit([(0, 1)]),
}


@pytest.mark.parametrize("message", WRONG_EDITS)
def test_wrong_edits_are_refused_when_they_are_built(message):
    with pytest.raises(ValueError, match=f"^{message}"):
        WRONG_EDITS[message]()


def test_edits_have_the_json_of_requests():
    assert INTACT.plain() == {} and Edit() == INTACT
    assert Edit.ablate(np.array([[2, 1], [0, 3], [2, 1]]).tolist()).plain() == {
        "ablate": [[0, 3], [2, 1]],
        "mode": "mean",
    }
    cut = {"knock_out": [[1, 0]], "pattern": "random keys", "seed": 5}
    assert Edit.knock_out([(1, 0)], "random keys", 5).plain() == cut


def test_what_only_the_model_tells_is_refused_before_work(pair, tmp_path):
    study = study_of(pair, tmp_path)
    BaseRuns(pair[0])  # how the class can be run is found out by running it
    sequences = SequenceStudy(given(pair, "given:toy"), copies=21, folder=tmp_path)
    bad = {"whole": INTACT, "bad": Edit.ablate([(3, 0)], "zero")}
    wrong = [
        (r"3 layers of 4 heads, not \[\(3, 0\)\]", lambda: study.answers(bad)),
        (r"3 layers of 4 heads, not \[\(3, 0\)\]", lambda: study.losses(bad)),
        ("label 'A' begin those of 'AA'", lambda: study.replace(labels=("A", "AA")).answers({"whole": INTACT})),
        ("plain texts have no induction pattern", lambda: study.losses({"cut": Edit.knock_out(HEADS)})),
        ("places 1024", lambda: study.replace(k=200).answers({"whole": INTACT})),
        ("places 1024", sequences.scores),
    ]
    with no_pass():
        for message, asked in wrong:
            with pytest.raises(ValueError, match=message):
                asked()
    assert not list(tmp_path.rglob("*.pickle"))


MODEL_REQUEST = {
    "stem": "induction_scores", "model": "embedded", "revision": None, "dtype": "auto", "quantized": False,
    "untrained_seed": None, "method_version": 1,
}  # fmt: skip


def test_requests_are_those_that_records_are_stored_under():
    sequences = {"schema": 1, "length": 50, "copies": 4, "seeds": [0, 1, 2, 3, 4], "bos": True}
    assert SequenceStudy().request == measure.on_sequences(figure()).request == {**MODEL_REQUEST, **sequences}
    assert SequenceStudy(seed=7, sequences=2).request["seeds"] == [7, 8]
    assert measure.on_sequences(figure(seed=7)).request["seeds"] == [7, 8, 9, 10, 11]
    assert [figure(seed=seed).settings.demonstration_seeds for seed in (0, 7)] == [(42,), (49,)]
    task = {
        "schema": 2, "dataset": "recursion", "task": "recursion", "hard_negatives": False, "k": 3, "items": 7,
        "start": 0, "seed": 1, "labels": ["A", "B"], "reference": "staicc", "reference_prompts": 64,
        "skipped_positions": 8, "token_budget": 2048,
    }  # fmt: skip
    made = TaskStudy("embedded", "recursion", 3, 7, 1, labels=["A", "B"], reference="staicc")
    assert made.request == {**MODEL_REQUEST, **task}


# ------------------------------------------------------------------------------------------------ published models


@pytest.mark.skipif("ICL_GPT2" not in os.environ, reason="needs GPT-2 small: set ICL_GPT2 to gpt2, or to its folder")
def test_gpt2_small_has_its_known_induction_heads(tmp_path):
    score = SequenceStudy(os.environ["ICL_GPT2"], folder=tmp_path).scores().mean()
    assert {(5, 1), (5, 5), (6, 9), (7, 2), (7, 10)} <= set(top(score, 8))


@pytest.mark.skipif("ICL_LLAMA3" not in os.environ, reason="needs Llama-3-8B: set ICL_LLAMA3 to its hub id, or folder")
def test_llama_3_has_the_published_scores_and_loses_the_published_accuracy(tmp_path):
    model, rows = Model(os.environ["ICL_LLAMA3"]), files.published("induction_scores")["values"]
    score = SequenceStudy(model, folder=tmp_path).scores().mean()
    assert top(score, 1) == [(15, 30)] and abs(score.max() - 0.98) <= 0.02
    assert 25 <= (score >= attention_scores.INDUCTION_HEAD).sum() <= 40
    edits = {"full": INTACT, "mean": Edit.ablate(top(score, 11), "input_mean")}
    studies = [TaskStudy(model, "repetition", 10, 500, seed, folder=tmp_path) for seed in (42, 43, 44)]
    right = answered_right(studies, edits)
    published = {row["id"]: row["value"] for row in rows if row["model"] == "meta-llama/Meta-Llama-3-8B"}
    where = "repetition, 10 shots"
    assert abs(100 * right["full"].mean() - published[f"{where}: full"]) <= 4
    assert abs(100 * right["mean"].mean() - published[f"{where}: mean ablation, top 1 %"]) <= 4


# ------------------------------------------------------------------------------------------------ what to measure


def setup_for(heads, **settings):
    return measure.setup_for(figure(**settings), heads)


def test_what_is_not_given_follows_from_the_model():
    names = ("prompts", "primary", "control_sets", "other_sets", "mode")
    sizes = [tuple(setup_for(heads)[name] for name in names) for heads in (32, 270)]
    assert sizes == [(60, 4, 20, 20, "mean"), (40, 3, 10, 5, "mean")] and figure().settings.tasks == TASKS
    study = figure(settings="paper", demonstration_seeds=[1], text_tasks=[], reference="staicc")
    paper = measure.setup_for(study, 1024)
    assert paper == {"prompts": 500, "mode": "input_mean", "primary": 11, "control_sets": 3, "other_sets": 3}
    assert study.settings.all_tasks and study.settings.tasks[-1] == "wordseq2_4way"
    assert [measure._shots_of(study, task) for task in ("wordseq1", "wordseq1_4way")] == [(0, 5, 10), (20,)]
    assert [(task.reference, task.seed) for task in task_studies(study, "wordseq1", prompts=500)] == [("staicc", 1)]
    changed = figure(seed=1).replace(seed=7, settings="paper", text_tasks=[], reference="task").settings
    assert changed.demonstration_seeds == (49, 50, 51) and changed.mode == "input_mean"


def test_a_plan_has_every_control_and_fewer_by_number_of_demonstrations():
    rng = np.random.default_rng(0)
    score, best = rng.random((12, 12)) * 0.2, [(5, 1), (7, 2), (7, 3), (9, 9), (10, 0)]
    score[tuple(np.array(best).T)] = [0.9, 0.8, 0.7, 0.6, 0.5]
    plan = planned(score, rng.random((12, 12)) + 1, setup_for(144, control_sets=3, other_sets=1))
    edits = plan["edits"]
    for draw in (1, 2, 3):
        heads = edits[f"layer-matched {draw}"].heads
        assert sorted(layer for layer, _ in heads) == [5, 7] and not {*heads} & {*best}
    assert edits["top 2 ablated"] == Edit.ablate(best[:2])
    assert edits["pattern knocked out"] == Edit.knock_out(best[:2])
    none, five = (by_shots(plan, shots) for shots in (0, 5))
    assert [*none] == [name for name in five if name != "pattern knocked out"]
    few = np.array([[0.5] * 3, [0.1] * 3])
    by_norm = planned(few, np.ones((2, 3)), setup_for(6, primary=2, control_sets=2))["edits"]
    assert "layer-matched 1" not in by_norm and "pattern in others 2" in by_norm


def test_a_task_is_done_by_queries_that_are_not_measured(pair, tmp_path, monkeypatch):
    """It is done where demonstrations help and permuted ones do not."""
    seen = []

    def answers(self, edits):
        seen.append(self)
        helped = self.k and not self.permuted
        share, gold = np.linspace(0.6, 0.9, self.prompts) if helped else np.full(self.prompts, 0.4), np.arange(20) % 2
        other = np.where(gold == 0, share, 1 - share)
        return {"": {"log_prob": np.log(np.stack([other, 1 - other], axis=1)), "gold": gold, "right": share > 0.5}}

    monkeypatch.setattr(TaskStudy, "answers", answers)
    study = study_of(pair, tmp_path, prompts=20)
    check = check_task(study.other_queries, 2)
    assert check.done and check.accuracy == 1
    assert [(one.start, one.k > 0, one.permuted) for one in seen] == [
        (20, True, False), (20, False, False), (20, True, True),
    ]  # fmt: skip
    queries = [{prompt.texts("x")[-1] for prompt in one.drawn} for one in (study, *seen)]
    assert not queries[0] & queries[1] and queries[1] == queries[2] == queries[3]
