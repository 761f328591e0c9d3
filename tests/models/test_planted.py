"""The planted circuits do what their truth says: behaviour, attention as eager attention gives it, what they need."""

import numpy as np
import pytest
import torch

from tests import eager_runs, toys
from tests.roles.test_attention_scores import by_the_definition
from util.engine.attention import instrument
from util.engine.handshake import prepare
from util.engine.instruments import Knockout, PatchHeads
from util.load_model_and_data import load_ICL_model, staicc_prompts
from util.models import planted
from util.prompts.classification import associative_map_prompts
from util.prompts.ioi import ioi_prompts, ioi_tokens
from util.prompts.prompt import Layout
from util.prompts.row_files import column
from util.prompts.sequences import repeated_sequences
from util.prompts.token_types import type_tokens
from util.roles.attention_scores import uniform_prefix_matching

families = pytest.mark.parametrize("family", planted.FAMILIES)


def forward(model, ids, *instruments):
    """Logits [B, T, V] with instruments attached, the way every experiment runs a model."""
    with torch.no_grad(), instrument(model, *instruments):
        return model(torch.as_tensor(ids), use_cache=False).logits.numpy()


@torch.no_grad()
def eager(model, ids):
    """Attention of every head by transformers alone, [B, L, H, T, T]."""
    weights = eager_runs.run(eager_runs.reference(model), {"input_ids": torch.as_tensor(ids)}).weights
    return torch.stack([*weights.values()], 1).double().numpy()


def removal(heads):
    return [PatchHeads(layer, head, 0.0) for layer, head in heads]


def check_expected(plant, found, **expected):
    """`found` [L, H] is what is expected of a role's heads."""
    for role, value in expected.items():
        for head in {**plant.heads, **plant.passive}[role.replace("_", " ")]:
            assert abs(found[head] - value) <= 1e-3, (role, head, found[head])


def check_parts(plant, behaviour):
    """behaviour(*instruments) is 1 with the circuit whole, and hangs on every role but on no other head."""
    assert behaviour() == 1
    for role, heads in plant.heads.items():
        assert behaviour(*removal(heads)) <= 0.25, role
    others = [head for heads in plant.passive.values() for head in heads] + list(plant.decoys)
    for head in others[::3]:
        assert behaviour(*removal([head])) == 1, head
    assert behaviour(*removal(others)) == 1


def check_decoys(plant, ids):
    """Decoys attend nearly uniformly, and what they write does not reach the output but through the norms."""
    uniform = 1 / (1 + np.arange(ids.shape[1]))[:, None]
    for head in plant.decoys:
        off = np.abs(eager(plant.model, ids)[:, head[0], head[1]] / uniform - 1)[:, np.tri(ids.shape[1]) > 0]
        assert off.mean() < 0.5, head
    whole, without = forward(plant.model, ids), forward(plant.model, ids, *removal(plant.decoys))
    assert not np.array_equal(whole, without)
    assert np.abs(whole - without).max() < 0.05 * np.abs(whole).max()


# ------------------------------------------------------------------------------------------------ induction


def continues(plant, ids, length):
    """Share of the tokens after the first copy that the model predicts."""
    return lambda *instruments: float(
        (forward(plant.model, ids, *instruments).argmax(-1)[:, length + 1 : -1] == ids[:, length + 2 :]).mean()
    )


@families
def test_induction(family):
    tokenizer = toys.tokenizer("bpe")
    plant = planted.induction(len(tokenizer), family=family)
    model, _ = load_ICL_model((plant.model, tokenizer), verbose=False)
    sequences = repeated_sequences(tokenizer, length=25, copies=3, seeds=range(2))
    attention = eager(model, sequences.ids)
    positions = np.arange(1, sequences.ids.shape[1])
    scores = by_the_definition(attention, 25, 3).mean(0)
    check_expected(plant, scores, previous_token=0, induction=1)
    assert plant.found_exactly("induction", scores, 0.5)
    check_expected(plant, attention[..., positions, positions - 1].mean((0, -1)), previous_token=1)
    for head in plant.decoys:
        assert scores[head] == pytest.approx(uniform_prefix_matching(25, 3), rel=0.3)
    check_parts(plant, continues(plant, sequences.ids, 25))
    check_decoys(plant, sequences.ids)
    first = (forward(model, sequences.ids).argmax(-1)[:, :24] == sequences.ids[:, 1:25]).mean()
    assert first < 0.1  # nothing to induce in the first copy


# ------------------------------------------------------------------------------------------------ forerunner heads


@families
def test_forerunner(family):
    tokenizer = load_ICL_model("embedded", verbose=False)[1]
    prompts = staicc_prompts("financial_phrasebank", 4)[:6]
    labels = [tokenizer.encode(f" {label}", add_special_tokens=False)[0] for label in prompts[0].labels]
    plant = planted.forerunner(len(tokenizer), labels, family=family)
    load_ICL_model((plant.model, tokenizer), verbose=False)
    rows = [np.array([tokenizer(prompt.with_label())["input_ids"]]) for prompt in prompts]
    at_label, elsewhere = [], []
    for ids in rows:
        attention = eager(plant.model, ids)[0]
        queries = np.arange(2, ids.shape[1])
        before = attention[..., queries, queries - 1]
        at_label.append(before[..., -1])
        elsewhere.append(before[..., ~np.isin(ids[0, queries], labels)].mean(-1))
    check_expected(plant, np.mean(at_label, 0), labels_only=1, any_token=1, never=0)
    check_expected(plant, np.mean(elsewhere, 0), labels_only=0, any_token=1, never=0)

    def names_the_forerunner(*instruments):
        return np.mean([forward(plant.model, ids, *instruments)[0, -1].argmax() == ids[0, -2] for ids in rows])

    check_parts(plant, names_the_forerunner)
    check_decoys(plant, rows[0])


# ------------------------------------------------------------------------------------------------ look-up


def edges(typed):
    """Every (query, key) cell between different slots, by (source type, destination type, same example or not)."""
    found: dict[tuple[str, str, str], list[tuple[int, int]]] = {}
    for q in range(len(typed.ids)):
        for k in range(q):
            if typed.slots[q] != typed.slots[k]:
                rel = "same" if typed.examples[q] == typed.examples[k] else "other"
                found.setdefault((typed.types[k], typed.types[q], rel), []).append((q, k))
    return found


@families
def test_look_up(family):
    tokenizer = toys.tokenizer("bpe", on_tasks=True)
    plant = planted.lookup(len(tokenizer), family=family)
    whole = [
        word
        for word in column("categories", "word")
        if {*type_tokens(Layout().prompt([(word, word)], word, word), tokenizer).sizes} == {1}
    ]
    prompts = associative_map_prompts(whole[:40], whole[40:60], keys=6, count=12)
    load_ICL_model((plant.model, tokenizer), verbose=False)
    typed = [type_tokens(prompt, tokenizer) for prompt in prompts]
    rows = np.array([t.ids for t in typed])
    gold = [tokenizer.encode(prompt.label(), add_special_tokens=False)[0] for prompt in prompts]

    def behaviour(*instruments):
        return float((forward(plant.model, rows, *instruments)[:, -1].argmax(-1) == gold).mean())

    check_parts(plant, behaviour)
    check_decoys(plant, rows)

    cells = edges(typed[0])  # all prompts share one layout
    assert all(edges(t) == cells for t in typed)
    relations = {"same": ("same",), "any": ("same", "other")}
    needed = [[(s, d, r) for r in relations[rel] if (s, d, r) in cells] for s, d, rel in plant.edges]
    assert all(needed)
    for group in needed:
        assert behaviour(Knockout(torch.tensor([c for edge in group for c in cells[edge]]))) <= 0.25, group
    kept = {edge for group in needed for edge in group}
    rest = [cell for edge, found in cells.items() if edge not in kept for cell in found]
    assert behaviour(Knockout(torch.tensor(rest))) == 1  # they are the only routes


# ------------------------------------------------------------------------------------------------ IOI


class IOI:
    """Prompts as right-padded rows, and what is asked of the planted circuit on them."""

    def __init__(self, count=12, **options):
        self.tokenizer = toys.tokenizer("bpe", on_tasks=True)
        found = ioi_prompts(self.tokenizer, count)
        tokens = [ioi_tokens(pair, self.tokenizer) for pair in found.pairs]
        self.names = [self.tokenizer.encode(f" {name}", add_special_tokens=False)[-1] for name in found.words.names]
        self.ends = np.array([len(t.base) - 1 for t in tokens])
        self.base = np.zeros((len(tokens), self.ends.max() + 1), int)
        for row, t in enumerate(tokens):
            self.base[row, : len(t.base)] = t.base
        self.answers = np.array([t.answers for t in tokens])
        self.plant = planted.ioi(len(self.tokenizer), self.names, **options)
        load_ICL_model((self.plant.model, self.tokenizer), verbose=False)

    def at_the_end(self, *instruments):
        return forward(self.plant.model, self.base, *instruments)[np.arange(len(self.base)), self.ends]

    def names_io(self, *instruments):
        """Share of the prompts on which IO is the likeliest of all names, and not by a hair."""
        logits = self.at_the_end(*instruments)[:, self.names]
        io = np.array(self.names) == self.answers[:, [0]]
        return float((logits[io] > np.where(io, -np.inf, logits).max(-1) + 1).mean())


@families
def test_ioi(family):
    ioi = IOI(family=family)
    assert (ioi.at_the_end().argmax(-1) == ioi.answers[:, 0]).all()  # of all tokens
    check_parts(ioi.plant, ioi.names_io)
    check_decoys(ioi.plant, ioi.base)


@families
def test_a_name_is_marked_however_far_back_it_occurred(family):
    plant = planted.ioi(500, range(100, 110), family=family, bos=7)
    prepare(plant.model)
    (layer, head), filler = plant.heads["duplicate token"][0], np.random.default_rng(0).integers(200, 500, 900)
    for distance in (2, 3, 20, 50, 131, 500):
        ids = np.array([[7, *filler[:3], 100, *filler[3 : 2 + distance], 100]])
        weights = eager(plant.model, ids)[0, layer, head]
        assert weights[4 + distance, 4] > 0.999, distance
        assert weights[4, 0] > 0.999  # nothing before: BOS
    assert plant.model.config.bos_token_id == 7


@families
def test_a_backup_head_takes_over_from_the_mover(family):
    ioi = IOI(family=family, backup=True)
    mover, backup = ioi.plant.heads["mover"]
    assert mover[0] < backup[0]
    assert ioi.names_io(*removal([mover])) == ioi.names_io(*removal([backup])) == 1  # self-repair
    check_parts(ioi.plant, ioi.names_io)


# ------------------------------------------------------------------------------------------------ all of them


def test_the_seed_decides_which_head_is_which():
    places = {planted.induction(300, seed=seed).heads["induction"] for seed in range(6)}
    assert len(places) > 1
    one, two = (planted.induction(300, seed=3).model.state_dict() for _ in range(2))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_bad_plans_are_refused():
    with pytest.raises(ValueError, match="family"):
        planted.induction(300, family="falcon")
    with pytest.raises(ValueError, match="outside"):
        planted.forerunner(300, [3, 300])
