"""Labels of several tokens: their scores against a plain loop of whole passes, one for every prompt and label.

The loop is the class's own eager attention under plain hooks (`tests.eager_runs`): nothing of the engine is in it.
"""

from functools import cache, partial

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from tests import architectures, device_runs, eager_runs, toys
from tests.architectures import prepared
from tests.tiny_models import tiny_model
from util.engine.batches import may_branch
from util.engine.call import UnsupportedModel
from util.engine.handshake import prepare
from util.engine.instruments import PatchHeads
from util.engine.label_scores import (
    Scoring,
    knockouts,
    label_log_probs,
    label_reads,
    next_token_logits,
    nothing,
    scoring,
)
from util.prompts.prompt import LabelledTokens, Prompt

NAMES = ("gpt2", "llama", "gemma2", "falcon_40b", "falcon_alibi", "qwen3_next")
SHARED = ("gpt2", "llama", "falcon_40b")  # these take several continuations in one row
FLOAT32 = {"qwen3_next"}  # experts have no kernel for float64
# of one token, of several, with common beginnings
LABELS = ((11,), (12, 13), (12, 14, 15), (12, 14, 16, 11), (17, 12))


@cache
def built(name):
    dtype = torch.float32 if name in FLOAT32 else torch.float64
    return prepared(name, dtype), eager_runs.reference(architectures.build(name, dtype))


def planned(labels=LABELS, lengths=(9, 12, 7, 12)):
    rng = np.random.default_rng(0)
    ids = [tuple(rng.integers(20, architectures.VOCABULARY, length).tolist()) for length in lengths]
    return Scoring([], ids, [tuple(labels)] * len(ids), np.zeros(len(ids), int))


def by_whole_passes(reference, plan, writes=None, cuts=()):
    """The sum over a label's tokens of what a whole pass over prompt and label gives each, [N, C].

    writes(prompt, position): by (layer, head), what replaces z there; cuts: by prompt, (layer, head, query, key).
    """
    scores = np.empty((len(plan.ids), len(plan.labels[0])))
    for n, (ids, labels) in enumerate(zip(plan.ids, plan.labels, strict=True)):
        for c, label in enumerate(labels):
            whole = [*ids, *label]
            own = {
                (la, 0, t, h): v for t in range(len(whole)) for (la, h), v in (writes(n, t) if writes else {}).items()
            }
            closed = {(la, h, 0, q, k) for la, h, q, k in (cuts[n] if cuts else ())}
            with torch.no_grad():
                given = eager_runs.run(reference, {"input_ids": torch.tensor([whole])}, own, closed).logits[0]
            places = torch.arange(len(ids) - 1, len(whole) - 1)
            scores[n, c] = given.log_softmax(-1)[places, torch.tensor(label)].sum()
    return scores


@pytest.mark.parametrize("edit", ["none", "knockout", "ablation"])
@pytest.mark.parametrize("name", NAMES)
def test_labels_are_scored_by_all_their_tokens(name, edit, wide_softmax):
    """Under a knockout of cells of the prompt; with one head at zero and another at a vector for each position."""
    model, reference = built(name)
    plan, layer = planned(), architectures.attention_layers(name)[-1]
    cells = [np.array([(len(ids) - 1, len(ids) - 3), (4, 2), (4, 3)]) for ids in plan.ids]
    cuts = [[(layer, head, *cell) for head in (1, 2) for cell in cut.tolist()] for cut in cells]
    width = eager_runs.run(reference, {"input_ids": torch.tensor([[20, 21]])}).z[layer].shape[-1]
    vectors = torch.randn(16, 1, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(model.dtype)

    def ablated(batch):
        return [PatchHeads(layer, [1], 0.0), PatchHeads(layer, [2], vectors[batch.positions.clamp(max=15)])]

    def writes(prompt, position):
        return {(layer, 1): torch.zeros_like(vectors[0, 0]), (layer, 2): vectors[position, 0]}

    attach, *reads = {
        "none": (nothing,),
        "knockout": (knockouts(cells, {layer: [1, 2]}), None, cuts),
        "ablation": (ablated, writes),
    }[edit]
    wanted, bound = by_whole_passes(reference, plan, *reads), 2e-5 if name in FLOAT32 else 1e-10
    for budget in (1, 2048):
        found = label_log_probs(model, plan, attach, token_budget=budget)["log_prob"]
        assert_allclose(found, wanted, atol=bound)
    assert edit == "none" or np.abs(found - label_log_probs(model, plan)["log_prob"]).max() > 1e-4


def test_the_labels_of_a_prompt_share_its_pass_where_that_is_exact(monkeypatch):
    for name in NAMES:
        model, _ = built(name)
        ran: list[torch.Tensor] = []
        handle = model.get_input_embeddings().register_forward_pre_hook(lambda _, args, ran=ran: ran.append(args[0]))
        plan = planned()
        label_log_probs(model, plan, token_budget=1)
        handle.remove()
        shared = may_branch(prepare(model), 12 + 5)
        assert shared == (name in SHARED)
        assert len(ran) == (4 if shared else 4 * 4)
        assert max(rows.shape[1] for rows in ran) == (12 + 4 if shared else 12 + 3)  # 12, 14, 16 and 17, or 12, 14, 16


def test_padding_beside_branches_has_positions_that_the_model_has():
    """A prompt as long as the context, beside one whose labels run as branches: what is padded is not one longer."""
    model = prepared("gpt2", torch.float64, max_position_embeddings=(positions := 12))
    full, branched = range(20, 20 + positions), range(40, 40 + positions - 1)
    labels = [((11,), (12,), (13,)), ((11,), (12, 13), (14, 15))]
    plan = Scoring([], [tuple(full), tuple(branched)], labels, np.zeros(2, int))
    assert plan.lengths == [positions, positions]
    together, apart = (label_log_probs(model, plan, token_budget=budget)["log_prob"] for budget in (2048, 1))
    assert_allclose(together, apart, atol=1e-10)


# ------------------------------------------------------------------------------------------------ from strings


def question(text, labels, join=" "):
    end = len(text)
    return Prompt(text, {"x": ((0, 1),), "s": ((end - 1, end),), "y": ()}, labels, 0, (), join)


@pytest.mark.parametrize("kind", toys.KINDS)
def test_the_tokens_of_labels_are_those_that_follow_the_prompt(kind):
    tokenizer = toys.tokenizer(kind, 300)
    model = architectures.build("llama", vocab_size=len(tokenizer), max_position_embeddings=256)
    prompts = [question(text, ("party", "paint", "xylophone")) for text in ("one two :", "a longer one :")]
    plan = scoring(model, tokenizer, prompts)
    for number, prompt in enumerate(prompts):
        for label, tokens in zip(prompt.labels, plan.labels[number], strict=True):
            whole = tokenizer(f"{prompt.text} {label}")["input_ids"]
            assert [*plan.ids[number], *tokens] == whole and len(tokens) > 1
        assert plan.tokens[number].rest == plan.labels[number][0][1:]
    if kind != "unigram":
        assert plan.labels[0][0][0] == plan.labels[0][1][0]  # one begins as the other does


@pytest.mark.parametrize("labels", [("party", "xylophone"), ("x", "y")])
def test_a_prompt_may_be_as_long_as_the_context(labels):
    """The last token of a label is predicted, not read, so it needs no position."""
    tokenizer, prompt = toys.tokenizer("bpe", 300), question("one two :", labels)
    longest = max(len(tokenizer(f"{prompt.text} {label}")["input_ids"]) for label in labels) - 1
    build = partial(prepared, "gpt2", torch.float64, vocab_size=len(tokenizer))
    model = build(max_position_embeddings=longest)
    plan = scoring(model, tokenizer, [prompt])
    assert plan.lengths == [longest] and np.isfinite(label_log_probs(model, plan)["log_prob"]).all()
    with pytest.raises(ValueError, match=f"has {longest} tokens, this model places {longest - 1}"):
        scoring(build(max_position_embeddings=longest - 1), tokenizer, [prompt])


def test_labels_that_cannot_be_told_apart_or_change_the_prompt_are_refused():
    tokenizer = toys.tokenizer("bpe", 300)
    model = architectures.build("llama", vocab_size=len(tokenizer), max_position_embeddings=24)
    for labels in (("paint", "paintbrush"), ("paintbrush", "paint")):
        with pytest.raises(ValueError, match="'paint' begin those of 'paintbrush'"):
            scoring(model, tokenizer, [question("x :", labels)])
    with pytest.raises(ValueError, match="the longest prompt has"):
        scoring(model, tokenizer, [question("x :", ("y", "xylophone" * 4))])
    merging = toys.by_pattern("x(?=:A)|x:|.", ("x", ":", "x:", "A", "B"))
    with pytest.raises(ValueError, match="the label 'B' changes the tokens before it in 'x:'"):
        scoring(model, merging, [question("x:", ("A", "B"), "")])


# ------------------------------------------------------------------------------------------------ classes that differ


@pytest.mark.parametrize("kind", ["whisper", "llama"])
def test_logits_are_those_of_the_tokens_that_are_asked_for(kind):
    """Whisper's decoder takes no `logits_to_keep`, and says nothing of it: it gives the logits of all tokens."""
    model = tiny_model(kind)
    prompts = [row.ids for row in device_runs.rows(3, 12)]
    wanted = torch.stack([model(torch.tensor([ids]), use_cache=False).logits[0, -1] for ids in prompts])
    assert_allclose(next_token_logits(model, prompts), wanted, atol=1e-4)


@pytest.mark.parametrize("kind", ["gemma3n_text", "longcat_flash"])
def test_hidden_states_that_are_not_those_of_attention_have_no_similarity(kind):
    """They are of several streams, or fewer than there are attentions: two are in a layer of LongCat."""
    prepare(model := tiny_model(kind))
    plan = Scoring(
        [LabelledTokens((*range(3, 12),), (2, 5), (3, 6), (1, 1), 9)], [(*range(3, 12),)], [LABELS], np.zeros(1)
    )
    with pytest.raises(UnsupportedModel, match="not one .B, T, d. before each attention"):
        label_reads(model, plan)
