"""Spliced keys and values against a stock model that is fed token by token on a cache put together for each token."""

import pytest
import torch
from transformers import DynamicCache

from tests import eager_runs
from tests.architectures import HEADS, VOCABULARY, build
from util.engine.attention import instrument, support
from util.engine.handshake import prepare
from util.engine.instruments import CaptureRows, CaptureStates, Knockout, Splice

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.filterwarnings("ignore:Knockout"),
    pytest.mark.usefixtures("wide_softmax"),
]

LENGTH = 12
FAMILIES = ("gpt2", "llama", "phi", "gemma2", "mistral", "gpt_neox", "falcon_7b", "bloom")
families = pytest.mark.parametrize("name", FAMILIES)


def prepared(name, **changes):
    model = build(name, torch.float64, **changes)
    prepare(model)
    return model


def prompts(rows, seed=0):
    return torch.randint(3, VOCABULARY, (rows, LENGTH), generator=torch.Generator().manual_seed(seed))


def keys_of(model):
    config = model.config.get_text_config()
    return getattr(config, "num_kv_heads", None) or getattr(config, "num_key_value_heads", None) or HEADS


def random_splice(model, donors, kinds=3, seed=0):
    """Codes of one prompt [T, T] and tables by layer, at random; heads that share keys choose alike."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(kinds + 1, (LENGTH, LENGTH), generator=generator).tril(-1)
    shared = 1 if name_of(model) == "falcon" else keys_of(model)
    tables = {}
    for layer in support(model).layers:
        table = torch.randint(donors + 1, (shared, kinds + 1), generator=generator)
        table[:, 0] = 0
        tables[layer] = table.repeat_interleave(HEADS // shared, 0)
    return codes, tables


def name_of(model):
    return model.config.model_type


def states_of(model, ids):
    with torch.no_grad(), instrument(model, kept := CaptureStates()):
        model(ids, use_cache=False)
    return kept.states


@torch.no_grad()
def spliced(model, ids, codes, tables, *attached):
    """The logits of the last row, whose donors are the others."""
    splice = Splice(codes[None], tables, torch.arange(len(ids) - 1)[None], states_of(model, ids[:-1]))
    with instrument(model, splice, *attached):
        return model(ids[-1:], use_cache=False).logits[0]


@torch.no_grad()
def by_token(model, ids, codes, tables):
    """The same by a stock model, one token after the other."""
    stock, layers = eager_runs.reference(model), support(model).layers
    donors = []
    for donor in ids[:-1]:
        stock(donor[None], past_key_values=(cache := DynamicCache()), use_cache=True)
        donors.append([(layer.keys, layer.values) for layer in cache.layers])
    own: dict = {}
    logits = []
    for q in range(LENGTH):
        cache = DynamicCache()
        for number, layer in enumerate(layers if q else ()):
            keys, values = (part.clone() for part in own[layer])
            for head in range(keys.shape[1]):
                choice = tables[layer][head * HEADS // keys.shape[1]][codes[q, :q]]
                for place, source in enumerate(choice.tolist()):
                    if source:
                        keys[0, head, place] = donors[source - 1][number][0][0, head, place]
                        values[0, head, place] = donors[source - 1][number][1][0, head, place]
            cache.update(keys, values, number)
        position = {} if name_of(model) == "bloom" else {"position_ids": torch.tensor([[q]])}
        out = stock(ids[-1:, q : q + 1], past_key_values=cache, use_cache=True, **position)
        logits.append(out.logits[0, -1])
        for number, layer in enumerate(layers):
            new = cache.layers[number].keys[:, :, -1:], cache.layers[number].values[:, :, -1:]
            own[layer] = new if q == 0 else tuple(torch.cat(pair, 2) for pair in zip(own[layer], new, strict=True))
    return torch.stack(logits)


@families
@pytest.mark.parametrize("donors", [1, 2])
def test_splices_equal_a_model_that_is_fed_token_by_token(name, donors):
    model, ids = prepared(name), prompts(donors + 1)
    codes, tables = random_splice(model, donors)
    found, wanted = spliced(model, ids, codes, tables), by_token(model, ids, codes, tables)
    assert (found - wanted).abs().max() < 1e-10
    with torch.no_grad():
        plain = model(ids[-1:]).logits[0]
    assert (found - plain).abs().max() > 1e-2  # not vacuous


@families
def test_no_edges_and_a_donor_that_is_the_prompt_change_nothing(name):
    model, ids = prepared(name), prompts(2)
    codes, tables = random_splice(model, 1)
    with torch.no_grad():
        plain = model(ids[-1:], use_cache=False).logits[0]
    nothing = {layer: torch.zeros_like(table) for layer, table in tables.items()}
    assert torch.equal(spliced(model, ids, codes, nothing), plain)
    assert (spliced(model, ids[1:].repeat(2, 1), codes, tables) - plain).abs().max() < 1e-10
    with torch.no_grad():
        assert torch.equal(model(ids[-1:], use_cache=False).logits[0], plain)  # restored


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_batches_of_several_prompts_and_padding_change_nothing(name):
    model, ids = prepared(name), prompts(4)
    codes, tables = random_splice(model, 1)
    alone = [spliced(model, ids[[at, at + 1]], codes, tables) for at in (0, 2)]
    padded = torch.cat([ids, torch.zeros(4, 3, dtype=torch.long)], 1)
    every = torch.zeros(3, LENGTH + 3, LENGTH + 3, dtype=torch.long)
    every[0, :LENGTH, :LENGTH] = every[2, :LENGTH, :LENGTH] = codes  # the second row reads nothing
    with (
        torch.no_grad(),
        instrument(model, Splice(every, tables, torch.tensor([[0], [1], [2]]), states_of(model, padded))),
    ):
        together = model(padded[[1, 0, 3]], use_cache=False).logits[[0, 2], :LENGTH]
    assert (together - torch.stack(alone)).abs().max() < 1e-10


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss"])
def test_rows_that_are_captured_add_up_what_is_read_of_every_place(name):
    model, ids = build(name, torch.float32), prompts(2)
    prepare(model)
    codes, tables = random_splice(model, 1)
    rows = CaptureRows(torch.arange(LENGTH))
    spliced(model, ids, codes, tables, rows)
    for layer in support(model).layers:
        weights = rows.weights[layer][-1]
        assert weights.shape == (HEADS, LENGTH, LENGTH)
        assert (weights.triu(1) == 0).all()
        if name in ("llama", "gemma2"):
            assert (weights.sum(-1) - 1).abs().max() < 1e-5


def test_a_knockout_and_a_splice_act_together():
    model, ids = prepared("llama"), prompts(2)
    codes, tables = random_splice(model, 1)
    cut, rows = Knockout(torch.tensor([[9, 3], [11, 10]])), CaptureRows(torch.tensor([9, 11]))
    found = spliced(model, ids, codes, tables, cut, rows)
    for weights in rows.weights.values():
        assert (weights[:, :, 0, 3] == 0).all() and (weights[:, :, 1, 10] == 0).all()
    assert (found - spliced(model, ids, codes, tables)).abs().max() > 1e-4


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"donors": torch.tensor([[1]])}, "out of range"),
        ({"tables": {0: torch.full((HEADS, 4), 2) * torch.tensor([0, 1, 1, 1])}}, "out of range"),
        ({"tables": {0: torch.zeros(HEADS, 2, dtype=torch.long)}}, "kinds"),
        ({"tables": {0: torch.ones(HEADS, 4, dtype=torch.long)}}, "zeros"),
        ({"codes": torch.eye(LENGTH, dtype=torch.long)[None]}, "diagonal"),
        ({"tables": {7: torch.zeros(HEADS, 4, dtype=torch.long)}}, "no attention"),
        ({"tables": {0: torch.zeros(HEADS + 1, 4, dtype=torch.long)}}, "heads in a layer"),
        ({"codes": torch.zeros(1, LENGTH, LENGTH + 1, dtype=torch.long)}, "the batch is"),
    ],
)
def test_bad_splices_are_refused(change, words):
    model, ids = prepared("gpt2"), prompts(2)
    codes, tables = random_splice(model, 1)
    donors = {"donors": torch.tensor([[0]]), "states": states_of(model, ids[:1])}
    given = {"codes": codes[None], "tables": tables, **donors} | change
    with pytest.raises(ValueError, match=words), instrument(model, Splice(**given)), torch.no_grad():
        model(ids[1:], use_cache=False)


def test_two_splices_at_once_are_refused():
    model, ids = prepared("gpt2"), prompts(2)
    codes, tables = random_splice(model, 1)
    splice = Splice(codes[None], tables, torch.tensor([[0]]), states_of(model, ids[:1]))
    with pytest.raises(ValueError, match="two splices"), instrument(model, splice, splice), torch.no_grad():
        model(ids[1:], use_cache=False)
