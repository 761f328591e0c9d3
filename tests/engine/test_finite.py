"""What is not finite stops a run, and is named: no accuracy of 0 comes of a NaN, and nothing of it is stored."""

from typing import Any

import numpy as np
import pytest
import torch

from tests import toys
from util import inference
from util.edges.ablation import WHOLE
from util.edges.splicing import groups_of, outcomes
from util.edges.writing import continuations
from util.engine import batches, finite, label_scores, means
from util.engine.attention import instrument
from util.engine.batches import Batch, Row
from util.engine.direct_effects import bare_writes, direct_effects
from util.engine.finite import NotFinite, all_finite, check_finite, check_record
from util.engine.handshake import check_ids, check_tokenizer, prepare
from util.engine.instruments import PatchHeads
from util.engine.replay import Edit, replay
from util.figures.forerunner_heads import measure as magnitudes
from util.load_model_and_data import load_ICL_model, staicc_prompts
from util.prompts import word_pair_prompts
from util.prompts.sequences import repeated_sequences
from util.roles.head_scores import head_scores
from util.roles.sequences_study import SequenceStudy
from util.study.model import Model
from util.study.study import Study

NAN, WORD, PLACE = float("nan"), 977, 5  # a token of one prompt alone, and which
DAMAGED = r"checkpoint is damaged: {} is not finite"


def texts(count=8, length=12):
    """Prompts of several lengths; WORD stands in one of them."""
    generator = torch.Generator().manual_seed(3)
    rows = torch.randint(1, 900, (count, length + count), generator=generator).tolist()
    rows = [tuple(row[: length + place]) for place, row in enumerate(rows)]
    rows[PLACE] = (*rows[PLACE][:4], WORD, *rows[PLACE][5:])
    return rows


@torch.no_grad()
def damaged(name, row=None, family="llama", before=True):
    """A toy model with NaN in a parameter (one row of it), put there before the handshake or after it."""
    model = toys.model(family)
    if not before:
        prepare(model)
    parameter = model.get_parameter(name)
    parameter[... if row is None else row] = NAN
    if before:
        prepare(model)
    return model


@torch.no_grad()
def overflowing():
    """A model in float16 that overflows where WORD is read, in its first MLP, and nowhere else."""
    model = toys.model("gpt2")
    model.transformer.wte.weight[WORD] = 0.0
    model.transformer.wte.weight[WORD, 0] = 65472.0
    model.transformer.h[0].mlp.c_proj.bias[0] = 300.0
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())  # untied, or all logits overflowed
    model.lm_head.weight[WORD] = 0.0
    return model


def reads(model, rows):
    """Every way in which the experiments run rows of tokens, by name."""

    def batch(visit):
        batches.run_rows(model, [Row(row) for row in rows], visit, 64)

    return {
        "forward": lambda: batch(lambda b: batches.forward(model, b)),
        "next_logits": lambda: batch(lambda b: label_scores.next_logits(model, b)),
        "next_token_logits": lambda: label_scores.next_token_logits(model, rows),
        "text_losses": lambda: label_scores.text_losses(model, rows),
        "mean_outputs": lambda: means.mean_outputs(model, [Row(row) for row in rows]),
        "position_means": lambda: means.position_means(model, [Row(row) for row in rows], [0]),
        "outputs_of_mean_inputs": lambda: means.outputs_of_mean_inputs(model, [Row(row) for row in rows], [0]),
    }


NAMES = sorted(reads(None, []))


@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_embedding_is_named_where_a_prompt_has_it(name):
    model, rows = damaged("model.embed_tokens.weight", WORD), texts()
    match = (
        rf"prompt {PLACE} \({len(rows[PLACE])} tokens, .*\) are NaN: first in the embeddings, computed in float32. "
        "The " + DAMAGED.format("model.embed_tokens.weight")
    )
    with pytest.raises(NotFinite, match=match):
        reads(model, rows)[name]()
    reads(model, [row for row in rows if WORD not in row])[name]()  # the others are as they were


@pytest.mark.parametrize("name", NAMES)
def test_an_overflow_in_16_bits_names_the_types_that_hold_it(name):
    model, rows = overflowing().half(), texts()
    prepare(model)
    with pytest.raises(NotFinite, match=rf"prompt {PLACE} .* in layer 0, .*float16.*float16 ends at 65504.*bfloat16"):
        reads(model, rows)[name]()
    reads(model, [row for row in rows if WORD not in row])[name]()
    for dtype in (torch.bfloat16, torch.float32):  # what the message says is true
        cured = overflowing().to(dtype)
        prepare(cured)
        reads(cured, rows)[name]()


@pytest.mark.parametrize(
    ("parameter", "row", "place"),
    [
        ("model.layers.1.self_attn.q_proj.weight", slice(32, 48), "the attention of layer 1"),  # one head's rows
        ("model.layers.1.self_attn.o_proj.weight", 7, "the attention of layer 1"),
        ("model.layers.2.mlp.up_proj.weight", 3, "layer 2, behind its attention"),
        ("model.norm.weight", 0, "the final norm"),
    ],
)
def test_the_first_place_that_is_not_finite_is_named(parameter, row, place):
    model = damaged(parameter, row, before=False)
    for read in reads(model, texts()).values():
        with pytest.raises(NotFinite, match=f"first in {place}, .*{DAMAGED.format(parameter)}"):
            read()
    with pytest.raises(NotFinite, match=f"logits of prompt 0 .*{DAMAGED.format(parameter)}"):
        damaged(parameter, row)  # the handshake sees it, and does not blame the class
    assert not any(module._forward_hooks for module in model.modules())


def test_an_attention_row_of_nan_is_never_handed_on():
    model, prompts = (
        damaged("model.layers.1.self_attn.q_proj.weight", slice(32, 48), before=False),
        staicc_prompts(0, 2),
    )
    run = magnitudes.label_run(model, toys.tokenizer(), prompts[:4])
    plan = label_scores.scoring(model, toys.tokenizer(), prompts[:4])
    begins = " ".join(prompts[0].text.split()[:1])
    for read in (
        lambda: magnitudes.copy_magnitudes(model, run, numbers=range(2, 4)),
        lambda: label_scores.label_reads(model, plan),
        lambda: label_scores.label_log_probs(model, plan),
        lambda: label_scores.label_log_probs(model, plan, text=True),
        lambda: inference.step2_get_fl_feature_and_lastftol_attention(model, toys.tokenizer(), [prompts[0].text]),
        lambda: head_scores(model, repeated_sequences(toys.tokenizer(), 6, 3, [0, 1], True)),
    ):
        with pytest.raises(NotFinite, match="the attention of layer 1") as caught:
            read()
    with pytest.raises(NotFinite, match=r"prompt [23] \(") as caught:  # prompts are counted as the run counts them
        magnitudes.copy_magnitudes(model, run, numbers=range(2, 4))
    assert begins in str(_of_one(model, prompts[0])) and "tokens [" not in str(caught.value)  # in words


def _of_one(model, prompt):
    with pytest.raises(NotFinite) as caught:
        label_scores.label_log_probs(model, label_scores.scoring(model, toys.tokenizer(), [prompt]))
    return caught.value


def test_a_label_that_no_prompt_may_be_followed_by_is_named():
    model = damaged("lm_head.weight", WORD, before=False)
    plan = label_scores.scoring(model, toys.tokenizer(), staicc_prompts(0, 1)[:2])
    for text in (False, True):
        with pytest.raises(NotFinite, match=r"first in the unembedding, .*lm_head.weight"):
            label_scores.label_log_probs(model, plan, text=text)


def test_edited_runs_are_checked_too():
    model, rows = toys.model(), torch.tensor([row[:12] for row in texts()[:4]])
    answers = torch.tensor([[3, 4]]).repeat(4, 1)
    prepare(model)

    def patch(place):
        value = torch.full((1, 1, 1, 1), NAN)
        return [PatchHeads(1, 2, value, examples=place.examples)] if place.layer == 1 else []

    with pytest.raises(NotFinite, match="edited runs of prompt 0 .* not so where it runs alone"):
        replay(model, rows, [Edit(1, patch)], answers)
    change = torch.zeros(4, 1, 4, 16)
    change[2] = NAN
    with pytest.raises(NotFinite, match="direct effects on the logits of prompt 2"):
        direct_effects(model, rows, {1: change}, answers)
    with torch.no_grad():
        model.model.embed_tokens.weight[WORD] = NAN
    rows[3, 4] = WORD
    with pytest.raises(NotFinite, match="logits of prompt 3 .*first in the embeddings"):
        replay(model, rows, [], answers)
    with pytest.raises(NotFinite, match="logits of prompt 3 .*first in the embeddings"):
        direct_effects(model, rows, {1: torch.zeros(4, 1, 4, 16)}, answers)
    with pytest.raises(NotFinite, match=r"prompt 1 \(1 tokens"):
        bare_writes(model, torch.tensor([5, WORD, 7]))


def test_word_pairs_are_checked():
    tokenizer = toys.tokenizer(on_tasks=True)
    torch.manual_seed(0)
    shape = toys.SHAPE | {"vocab_size": len(tokenizer)}
    model = toys.LlamaForCausalLM(toys.LlamaConfig(**shape, **toys.MLP)).eval()
    prepare(model)
    groups = groups_of(word_pair_prompts.prompts("copying", tokenizer, n=3, k=2, corruptions=(0,)).items, tokenizer)
    others = {token for group in groups[:2] for token in group.base.ids}
    with torch.no_grad():
        model.model.embed_tokens.weight[next(token for token in groups[2].base.ids if token not in others)] = NAN
    with pytest.raises(NotFinite, match="logits of prompt 2 .*first in the embeddings"):
        outcomes(model, groups)
    with pytest.raises(NotFinite, match="logits of prompt 2 .*first in the embeddings"):
        continuations(model, tokenizer, groups, WHOLE)


def test_nothing_is_stored(tmp_path):
    pair = load_ICL_model(
        (damaged("model.embed_tokens.weight", slice(300, 900), before=False), toys.tokenizer()), verbose=False
    )
    with pytest.raises(NotFinite, match="first in the embeddings"):
        SequenceStudy(Model.given(*pair, "given:damaged"), 6, 3, folder=tmp_path).scores()
    few: dict = {"dataset": "glue_sst2", "k": 1, "prompts": 4, "untrained_control": False}
    with pytest.raises(NotFinite, match="first in the embeddings"):
        Study("forerunner_heads", Model.given(*pair, "given:damaged"), folder=tmp_path, **few).arrays("counts")
    assert not list(tmp_path.rglob("*.pickle"))


def test_a_record_holds_nan_only_where_it_is_declared():
    model = toys.model()
    data: dict[str, Any] = {
        "ids": np.arange(3),
        "direct": np.array([[1.0, NAN]]),
        "layers": [0],
        "scores": np.ones((2, 2), "f4"),
    }
    assert check_record(data, model) == data
    for name, value in (("scores", NAN), ("scores", np.inf), ("direct", np.inf)):
        wrong = data | {name: data[name].copy()}
        wrong[name][-1, 1] = value
        with pytest.raises(
            NotFinite, match=rf"'{name}' is {value} at \[{len(data[name]) - 1}, 1\] .*nothing was stored"
        ):
            check_record(wrong, model)


def test_an_experiment_that_overlooks_it_stores_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(batches, "check_finite", lambda *_: None)
    pair = load_ICL_model(
        (damaged("model.embed_tokens.weight", slice(300, 900), before=False), toys.tokenizer()), verbose=False
    )
    with pytest.raises(NotFinite, match="'prefix_matching' is nan"):
        SequenceStudy(Model.given(*pair, "given:damaged"), 6, 3, folder=tmp_path).scores()
    assert not list(tmp_path.rglob("*.pickle"))


def test_what_only_padding_overflows_into_is_no_fault():
    model, rows = toys.model("gpt2"), texts()
    with torch.no_grad():
        model.transformer.wte.weight[0] = 0.0  # the token that fills rows up
        model.transformer.wte.weight[0, 0] = 65472.0
        model.transformer.h[2].mlp.c_proj.bias[0] = 300.0  # behind the last attention, which would spread it
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())
        model.lm_head.weight[0] = 0.0
    prepare(model.half())
    assert not any(0 in row for row in rows)
    with pytest.raises(NotFinite, match="in layer 2, behind its attention"):
        reads(model, [rows[0], (5, 0, *rows[1])])["forward"]()

    def visit(batch):
        states = batches.forward(model, batch)[0]
        assert len({*batch.lengths.tolist()}) > 1 and not all_finite(states)

    batches.run_rows(model, [Row(row) for row in rows[:3]], visit)


def test_only_what_is_not_finite_is_refused():
    model = toys.model()
    huge = torch.full((2, 3), 3e38)
    assert not huge.sum().isfinite() and all_finite(huge)
    check_finite(huge, "the logits", model, [[1], [2]])
    check_finite(torch.full((2, 300), 60000.0, dtype=torch.float16), "the logits", model, [[1], [2]])
    for value in (NAN, np.inf, -np.inf):
        with pytest.raises(NotFinite, match=r"prompt 9 \(1 tokens, beginning with the tokens \[2\]\)"):
            check_finite(torch.tensor([[0.0, 1.0], [2.0, value]]), "the logits", model, [[1], [2]], [8, 9])
    assert not all_finite(torch.tensor([np.inf, -np.inf]))  # whose sum is NaN


def test_a_prompt_that_is_finite_alone_says_so_of_its_instruments():
    model, row = toys.model(), texts()[0]
    prepare(model)
    batch = Batch.of([Row(row)], [0])
    patch = PatchHeads(0, 0, float("inf"))
    with pytest.raises(
        NotFinite, match="not so where it runs alone, without instruments and padding, computed in float32"
    ):
        batches.forward(model, batch, patch)
    with (
        instrument(model, patch),
        pytest.raises(NotFinite, match="not so where it runs alone"),
    ):  # outer ones are no part of it
        batches.forward(model, batch)


def test_a_tokenizer_of_another_model_is_refused():
    small = toys.LlamaForCausalLM(toys.LlamaConfig(**toys.SHAPE | {"vocab_size": 400}, **toys.MLP)).eval()
    prepare(small)
    with pytest.raises(ValueError, match=r"tokenizer has 1000 tokens, LlamaForCausalLM has embeddings of 400"):
        check_tokenizer(small, toys.tokenizer())
    with pytest.raises(ValueError, match=r"1000 tokens.*400"):
        magnitudes.label_run(small, toys.tokenizer(), staicc_prompts(0, 1)[:1])
    assert small not in finite.TOKENIZERS
    model = toys.model()
    check_tokenizer(model, toys.tokenizer())
    assert finite.TOKENIZERS[model] is toys.tokenizer()


@pytest.mark.parametrize("name", NAMES)
def test_a_token_without_an_embedding_is_named_before_the_first_pass(name, monkeypatch):
    model = toys.model()
    prepare(model)
    monkeypatch.setattr(model, "forward", None)
    monkeypatch.setattr(model.base_model, "forward", None)
    with pytest.raises(ValueError, match=r"the token 1000, LlamaForCausalLM has embeddings of 1000 \(0 to 999\)"):
        reads(model, [*texts(), (1,) * 11 + (1000,)])[name]()
    with pytest.raises(ValueError, match="the token 1000"):
        replay(model, torch.tensor([[5, 1000]]), [], torch.tensor([[1]]))
    check_ids(model, [])


@pytest.mark.parametrize("budget", [0, -1])
def test_a_budget_of_no_token_is_refused(budget):
    model = toys.model()
    run = magnitudes.label_run(model, toys.tokenizer(), staicc_prompts(0, 1)[:2])
    with pytest.raises(ValueError, match=f"token_budget = {budget}: a batch has at least one token"):
        magnitudes.copy_magnitudes(model, run, token_budget=budget)
    with pytest.raises(ValueError, match=f"token_budget = {budget}"):
        label_scores.next_token_logits(model, texts(), token_budget=budget)
    assert batches.shared_budget(budget, 2) < 1 == batches.shared_budget(1, 2)
