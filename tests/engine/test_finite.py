"""What is not finite stops a run, and is named: no accuracy of 0 comes of a NaN, and nothing of it is stored."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from tests import device_runs, toys
from tests.unloaded import no_pass
from util.edges.edge import WHOLE
from util.edges.splicing import continuations, outcomes
from util.engine import batches, label_scores, means
from util.engine.batches import Row
from util.engine.components import direct_effects
from util.engine.finite import NotFinite, all_finite, check_finite, check_record
from util.engine.handshake import check_ids, prepare
from util.engine.instruments import PatchHeads
from util.engine.replay import Edit, replay
from util.roles.sequences_study import SequenceStudy
from util.study.model import Model

NAN, WORD, PLACE = float("nan"), 977, 5  # a token of one prompt alone, and which


def texts(count=8, length=12):
    """Prompts of several lengths; WORD stands in one of them."""
    generator = torch.Generator().manual_seed(3)
    rows = torch.randint(1, 900, (count, length + count), generator=generator).tolist()
    rows = [tuple(row[: length + place]) for place, row in enumerate(rows)]
    rows[PLACE] = (*rows[PLACE][:4], WORD, *rows[PLACE][5:])
    return rows


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


def reads(model, rows):
    """Every way in which the experiments run rows of tokens, by name."""

    prompts = [Row(row) for row in rows]

    def batch(visit):
        batches.run_rows(model, prompts, visit, 64)

    return {
        "forward": lambda: batch(lambda b: batches.forward(model, b)),
        "next_token_logits": lambda: label_scores.next_token_logits(model, rows),
        "text_losses": lambda: label_scores.text_losses(model, rows),
        "mean_outputs": lambda: means.mean_outputs(model, prompts),
        "position_means": lambda: means.position_means(model, prompts, [0]),
        "outputs_of_mean_inputs": lambda: means.outputs_of_mean_inputs(model, prompts, [0]),
    }


names = pytest.mark.parametrize("name", sorted(reads(None, [])))


@names
def test_a_damaged_embedding_is_named_where_a_prompt_has_it(name):
    model, rows = damaged("model.embed_tokens.weight", WORD), texts()
    cause = r"The checkpoint is damaged: model.embed_tokens.weight is not finite"
    with pytest.raises(NotFinite, match=rf"prompt {PLACE} \({len(rows[PLACE])} tokens\) are NaN. {cause}"):
        reads(model, rows)[name]()
    reads(model, [row for row in rows if WORD not in row])[name]()  # the others are as they were


def test_edited_runs_are_checked_too():
    model, rows = toys.model(), torch.tensor([row[:12] for row in texts()[:4]])
    answers = torch.tensor([[3, 4]]).repeat(4, 1)
    prepare(model)

    def patch(place):
        value = torch.full((1, 1, 1, 1), NAN)
        return [PatchHeads(1, 2, value, examples=place.examples)]

    with pytest.raises(NotFinite, match="edited runs of prompt 0 .* an edit or a measure divides by zero"):
        replay(model, rows, [Edit(1, patch)], answers)
    change = torch.zeros(4, 1, 4, 16)
    change[2] = NAN
    with pytest.raises(NotFinite, match="direct effects on the logits of prompt 2"):
        direct_effects(model, rows, {1: change}, answers)
    model.model.embed_tokens.weight[WORD] = NAN
    rows[3, 4] = WORD
    with pytest.raises(NotFinite, match="logits of prompt 3 .*embed_tokens.weight is not finite"):
        replay(model, rows, [], answers)
    with pytest.raises(NotFinite, match="logits of prompt 3 .*embed_tokens.weight is not finite"):
        direct_effects(model, rows, {1: torch.zeros(4, 1, 4, 16)}, answers)


def test_word_pairs_are_checked():
    model, groups = toys.model(), device_runs.groups(1000)
    prepare(model)
    alone = {*groups[1].base.ids} - {*groups[0].base.ids}
    model.model.embed_tokens.weight[[*alone]] = NAN
    for work in (partial(outcomes, model), partial(continuations, model, device_runs.Letters())):
        with pytest.raises(NotFinite, match="logits of prompt 1 .*embed_tokens.weight is not finite"):
            work(groups, WHOLE)


@pytest.mark.parametrize("name, value", [("scores", NAN), ("scores", np.inf), ("direct", np.inf)])
def test_a_record_holds_nan_only_where_it_is_declared(name, value):
    data: dict[str, Any] = {"direct": np.array([[1.0, NAN]]), "layers": [0], "scores": np.ones((1, 2), "f4")}
    assert check_record(data, toys.model()) == data
    data[name][0, 1] = value
    with pytest.raises(NotFinite, match=rf"'{name}' is {value} at \[0, 1\] .*nothing was stored"):
        check_record(data, toys.model())


def test_an_experiment_that_overlooks_it_stores_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(batches, "check_finite", lambda *_: None)
    model = damaged("model.embed_tokens.weight", slice(300, 900), before=False)
    study = SequenceStudy(Model.given(model, toys.tokenizer(), "given:damaged"), 6, 3, folder=tmp_path)
    with pytest.raises(NotFinite, match="'prefix_matching' is nan"):
        study.scores()
    assert not list(tmp_path.rglob("*.pickle"))


def test_what_only_padding_overflows_into_is_no_fault():
    """An overflow names the types that hold it."""
    model, rows = toys.model("gpt2"), texts()
    model.transformer.wte.weight[0] = 0.0  # the token that fills rows up
    model.transformer.wte.weight[0, 0] = 65472.0
    model.transformer.h[2].mlp.c_proj.bias[0] = 300.0  # behind the last attention, which would spread it
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone(), requires_grad=False)
    model.lm_head.weight[0] = 0.0
    prepare(model.half())
    assert not any(0 in row for row in rows)
    with pytest.raises(NotFinite, match="prompt 1 .* float16 ends at 65504.*bfloat16"):
        reads(model, [rows[0], (5, 0, *rows[1])])["forward"]()

    def visit(batch):
        states = batches.forward(model, batch)[0]
        assert len({*batch.lengths.tolist()}) > 1 and not all_finite(states)

    batches.run_rows(model, [Row(row) for row in rows[:3]], visit)


def test_only_what_is_not_finite_is_refused():
    """Neither a sum that overflows nor one that cancels out decides."""
    model, prompts = toys.model(), [[1], [2]]
    check_finite(torch.full((2, 3), 3e38), "the logits", model, prompts)
    check_finite(torch.full((2, 300), 60000.0, dtype=torch.float16), "the logits", model, prompts)
    for value in (NAN, np.inf, -np.inf):
        with pytest.raises(NotFinite, match=r"prompt 9 \(1 tokens\)"):
            check_finite(torch.tensor([[0.0, 1.0], [2.0, value]]), "the logits", model, prompts, [8, 9])
    assert not all_finite(torch.tensor([np.inf, -np.inf]))


@names
def test_a_token_without_an_embedding_is_named_before_the_first_pass(name):
    model = toys.model()
    prepare(model)
    with no_pass():
        with pytest.raises(ValueError, match=r"the token 1000, LlamaForCausalLM has embeddings of 1000 \(0 to 999\)"):
            reads(model, [*texts(), (1,) * 11 + (1000,)])[name]()
        with pytest.raises(ValueError, match="the token 1000"):
            replay(model, torch.tensor([[5, 1000]]), [], torch.tensor([[1]]))
    check_ids(model, [])


def test_a_budget_of_no_token_is_refused():
    with pytest.raises(ValueError, match="token_budget = 0: a batch has at least one token"):
        batches.plan([3], 0)
