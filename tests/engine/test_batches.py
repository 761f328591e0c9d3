"""Checks B of the forerunner spec: what inference reads is what eager attention has."""

from itertools import product

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from tests import eager_runs, toys
from tests.tiers import quick
from util.engine import batches
from util.engine.handshake import prepare
from util.figures.forerunner_heads import measure as magnitudes
from util.load_model_and_data import staicc_prompts
from util.prompts.prompt import labelled_tokens
from util.roles.sequences_study import SequenceStudy
from util.study.model import Model


def eager_rows(model, ids):
    """Attention by the oracle, [L, H, T, T]."""
    return torch.cat([*eager_runs.read(model, ids).weights.values()]).numpy()


QUICK = [("gpt2", "bpe"), ("llama", "unigram"), ("mistral-window", "bpe-no-bos")]
OTHERS = [
    *product(["gpt_neox", "llama", "llama-mqa", "qwen2", "mistral-window"], ["bpe"]),
    *product(["llama"], toys.KINDS),
]


@pytest.mark.parametrize("family, kind", quick(QUICK, OTHERS))
def test_copy_magnitude_equals_eager_attention(family, kind):
    model, tokenizer = toys.model(family).double(), toys.tokenizer(kind)
    prompts = staicc_prompts(0, 2)[:6]
    run = tokens, _ = magnitudes.label_run(model, tokenizer, prompts)
    order, budget = ([3, 0, 5, 4, 1, 2], 300) if kind == "bpe" else (range(6), 1)  # in several batches, or one by one
    result = magnitudes.copy_magnitudes(model, run, control_tokens=5, numbers=order, token_budget=budget)
    for place, number in enumerate(order):
        prompt = prompts[number]
        for condition, offset in enumerate((0, 1)):
            [labelled] = labelled_tokens([prompt], tokenizer, offset)
            attention = eager_rows(model, labelled.ids)
            expected = attention[:, :, -1, -2]
            assert_allclose(result["magnitude"][place, condition], expected, atol=1e-6)
        others = magnitudes.draw_control_tokens(tokens[0][number], 5, (0, number))
        attention = eager_rows(model, tokens[0][number].ids)
        expected = np.mean([attention[:, :, t, t - 1] for t in others], axis=0)
        assert_allclose(result["control"][place], expected, atol=1e-6)
    shortest = min(labelled.n_t for labelled in tokens[0])
    assert result["magnitude"].max() > 3 / shortest  # far from uniform: the comparison is not vacuous


def test_out_of_memory_halves_the_batch_and_loses_nothing():
    model, rows, seen = toys.model(), [batches.Row((1, 2, 3))] * 8, []

    def visit(batch):
        if len(batch.numbers) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory (simulated)")
        seen.extend(batch.numbers.tolist())

    assert batches.run_rows(model, rows, visit) is True
    assert sorted(seen) == list(range(8))

    def never(batch):
        raise torch.OutOfMemoryError("CUDA out of memory (simulated)")

    with pytest.raises(MemoryError, match="one prompt of 3 tokens"):
        batches.run_rows(model, rows, never)

    def broken(batch):
        raise RuntimeError("another fault")

    with pytest.raises(RuntimeError, match="another fault"):
        batches.run_rows(model, rows, broken)


def test_a_prompt_longer_than_the_context_is_refused_before_any_forward(monkeypatch):
    model = toys.model("gpt2")
    prepare(model)
    model.config.n_positions = model.config.max_position_embeddings = 30
    monkeypatch.setattr(magnitudes, "forward", None)
    with pytest.raises(ValueError, match=r"the longest prompt has \d+ tokens, this model places 30; use a smaller k,"):
        magnitudes.label_run(model, toys.tokenizer(), staicc_prompts(2, 4)[:3])
    with pytest.raises(ValueError, match="use a smaller length or fewer copies"):
        SequenceStudy(Model.given(model, toys.tokenizer(), "given:toy"), 20, 2, 1).scores()


def test_control_tokens_are_seeded_and_never_labels():
    [labelled] = labelled_tokens(staicc_prompts(2, 4)[:1], toys.tokenizer())
    drawn, again, other = (magnitudes.draw_control_tokens(labelled, 32, (0, seed)) for seed in (5, 5, 6))
    assert drawn == again != other
    assert len(set(drawn) - {0, 1, *labelled.labels}) == 32 and max(drawn) < labelled.labels[-1]
