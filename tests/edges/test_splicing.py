"""Prompts with ablated edges against a stock model that is fed token by token, on states that are put together by hand.

The models are random ones in float64, the prompts real ones: of several lengths, with words of several tokens.
"""

from contextlib import contextmanager
from functools import cache, partial
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from transformers import DynamicCache

from tests import eager_runs
from tests.architectures import ADAPTED, SUPPORTED, prepared
from tests.tiers import quick
from tests.tiny_models import KINDS, tiny_model
from tests.toys import words
from tests.unloaded import no_pass
from util.edges.edge import WHOLE, Ablation, removed_by, together
from util.edges.splicing import NEW_TOKENS, Ablated, Group, continuations, groups_of, outcomes
from util.edges.states import Store, takes_some_tokens
from util.engine.batches import Batch, Row
from util.engine.handshake import prepare
from util.engine.label_scores import all_logits, next_token_logits
from util.prompts.prompt import Misaligned
from util.prompts.word_pair_prompts import prompts

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("wide_softmax")]

NAMES = ("gpt2", "llama", "phi", "gemma2")
MORE = ("mistral", "gpt_neox", "falcon_7b", "bloom")  # other ways to compute attention
names = pytest.mark.parametrize("name", NAMES)
# a window shorter than the prompts, a softcap that binds; tied to its embeddings, it would repeat one token for ever
CHANGES = {"gemma2": {"sliding_window": 8, "attn_logit_softcapping": 2.0, "tie_word_embeddings": False}}
CIRCUIT = ("WITHIN", "AGG", "ANCHOR", "x->x:earlier")  # takes out much, so that donors inside it differ
PROBED = {"y->last_separator": 1, "x->y:same": 3}
HALVES = ((0, 0), (0, 1), (2, 2), (2, 3))  # heads that share their keys, where any do
ABLATIONS = {
    "family": Ablation(removed=("CONTEXT", "x->n:same")),
    "circuit": Ablation(kept=CIRCUIT),
    "probed": Ablation(probed=PROBED),
    "inside": Ablation(kept=CIRCUIT, probed=PROBED),
    "layers": Ablation(kept=CIRCUIT, probed=PROBED, layers=(0, 2)),
    "heads": Ablation(kept=CIRCUIT, probed=PROBED, heads=HALVES),
    "none": Ablation(kept=("NONE",)),
}


@cache
def groups():
    """Six prompts, long and short ones in turn, with donors of three corruptions."""
    tasks = ("person_sport", "country_capital")
    found = [groups_of(prompts(task, words(), 3, k=3, corruptions=(0, 1, 3)).items, words()) for task in tasks]
    mixed = [group for pair in zip(*found, strict=True) for group in pair]
    assert len({group.length for group in mixed}) > 2 and max(len(group.target) for group in mixed) > 1
    return mixed


@cache
def toy(name, **changes):
    return prepared(name, torch.float64, **{"vocab_size": len(words()), **CHANGES.get(name, {}), **changes})


stock = cache(eager_runs.reference)


def few():
    """A long prompt and a short one: enough for what is slow."""
    return groups()[:2]


# ------------------------------------------------------------------------------------------------ ours and theirs


def ours(model, chosen, ablation=WHOLE):
    """The logits of each prompt and its answer in one batch, [T, V] each."""
    run, numbers = Ablated(model, chosen, ablation), range(len(chosen))
    batch = Batch.of([*map(Row, run.ids(numbers))], numbers)
    logits = all_logits(model, batch, *run.instruments(numbers))
    return [own[:length] for own, length in zip(logits, run.lengths, strict=True)]


@torch.no_grad()
def fed(model, ids, reads=(), heads=None):
    """Logits [T, V] and states, by layer keys and values [1, Hkv, T, d], of a stock model fed token by token.

    reads: cells [T, T] and the states that they are read from; heads: the (layer, head) that do so, default all.
    """
    own: list = []
    logits = []
    for q, token in enumerate(ids):
        cache = DynamicCache()
        for layer, states in enumerate(own):
            composed = [part.clone() for part in states]
            shared = model.config.num_attention_heads // composed[0].shape[1]
            readers = [[head // shared] for at, head in heads or everywhere(model) if at == layer]
            for cells, there in reads if readers else ():
                at = 0, readers, cells[q, :q].nonzero()[0]
                for part in range(2):
                    composed[part][at] = there[layer][part][at]
            cache.update(*composed, layer)
        out = step(model, token, q, cache)
        new = [(layer.keys[:, :, -1:], layer.values[:, :, -1:]) for layer in cache.layers]
        own = [tuple(map(longer, *both)) for both in zip(own, new, strict=True)] if own else new
        logits.append(out.logits[0, -1])
    return torch.stack(logits), own


def step(model, token, place, states):
    """The stock model on one more token, which it adds to the states."""
    position = {} if model.config.model_type == "bloom" else {"position_ids": torch.tensor([[place]])}
    return stock(model)(torch.tensor([[token]]), past_key_values=states, use_cache=True, **position)


def longer(states, new):
    return torch.cat([states, new], 2)


def everywhere(model):
    return [*np.ndindex(model.config.num_hidden_layers, model.config.num_attention_heads)]


@cache
def alone(model, ids):
    """The states of a plain run."""
    with torch.no_grad():
        kept = stock(model)(torch.tensor([ids]), past_key_values=DynamicCache(), use_cache=True).past_key_values
    return [(layer.keys, layer.values) for layer in kept.layers]


def theirs(model, group, ablation, length=None):
    """The same of one prompt in up to four runs: corruption 0, the others that read it or not, and the prompt."""
    limits = [
        place for place in ablation.heads or everywhere(model) if ablation.layers is None or place[0] in ablation.layers
    ]
    removed = together(ablation.removed, group.base)
    if ablation.kept is not None:
        removed = removed_by(ablation.kept, group.base)
    reads = [(removed, alone(model, group.donors[0].ids))] if removed.any() else []
    first = list(reads)
    for edge, number in ablation.probed:
        ids = group.donors[number].ids
        states = fed(model, ids, first, limits)[1] if first else alone(model, ids)
        reads.append((edge.cells(group.base), states))
    return fed(model, group.base.ids[: length or -1], reads, limits)


@contextmanager
def watched(model, see):
    """Every forward pass shows its token ids first."""
    handle = model.base_model.register_forward_pre_hook(
        lambda _, given, named: see(given[0] if given else named["input_ids"]), with_kwargs=True
    )
    try:
        yield
    finally:
        handle.remove()


def near(found, wanted, atol=1e-10):
    """No number is further off, however large it is."""
    assert_allclose(found, wanted, rtol=0, atol=atol)


def gap(found, wanted):
    return float(torch.stack([(a - b).abs().max() for a, b in zip(found, wanted, strict=True)]).max())


def said(group, logits):
    """The first token after the prompt, and the log-probability of the whole answer."""
    rows = logits[group.length - 1 :].log_softmax(-1)
    return int(rows[0].argmax()), float(sum(row[token] for row, token in zip(rows, group.target, strict=True)))


def check_said(found, chosen, logits):
    top, log_prob = zip(*map(said, chosen, logits), strict=True)
    assert_array_equal(found["top"], top)
    assert_array_equal(found["right"], [t == group.target[0] for t, group in zip(top, chosen, strict=True)])
    near(found["log_prob"], log_prob)


# ------------------------------------------------------------------------------------------------ what it is


@names
def test_nothing_removed_is_the_whole_model(name):
    model = toy(name)
    logits = [stock(model)(torch.tensor([group.base.ids[:-1]])).logits[0] for group in groups()]
    whole = next_token_logits(model, [group.prompt for group in groups()])
    found = outcomes(model, groups(), WHOLE, whole)
    check_said(found, groups(), logits)
    assert np.abs(found["kl"]).max() < 1e-12 and found["agrees"].all()
    for ablation in (Ablation(kept=("FULL",)), Ablation(kept=CIRCUIT, layers=()), Ablation(kept=CIRCUIT, heads=())):
        for value, wanted in zip(outcomes(model, groups(), ablation, whole).values(), found.values(), strict=True):
            assert_array_equal(value, wanted)
    anchor = outcomes(model, groups(), Ablation(removed=("ANCHOR",)))  # the first token is that of every prompt
    near(anchor["log_prob"], found["log_prob"])
    assert outcomes(model, groups(), Ablation(kept=CIRCUIT), whole)["kl"].min() > 1e-3  # not vacuous


QUICK = [("gemma2", case) for case in ("family", "inside", "layers", "heads")] + [
    (name, "inside") for name in ("gpt2", "llama", "wide", "falcon_7b")
]


@pytest.mark.parametrize(
    "name, case", quick(QUICK, [*product((*NAMES, "wide"), ABLATIONS), *product(MORE, ["inside"])])
)
def test_ablations_equal_a_model_that_is_fed_token_by_token(name, case):
    """All tokens, and those alone that change, on the states of plain runs, whether these were there or not.

    wide: gemma2 with a window as wide as its prompts; where prompts are longer all tokens are computed.
    """
    model = toy("gemma2", sliding_window=64) if name == "wide" else toy(name)
    assert takes_some_tokens(model) or name in MORE
    ablation, kept = ABLATIONS[case], Store()
    wanted = [theirs(model, group, ablation)[0] for group in few()]
    assert gap(ours(model, few(), ablation), wanted) < 1e-10
    assert gap(ours(model, few()), wanted) > 1e-3
    outcomes(model, few(), Ablation(kept=CIRCUIT[:-1], probed=PROBED), store=kept)
    for store in (None, Store(), kept):
        check_said(outcomes(model, few(), ablation, store=store), few(), wanted)
    assert continuations(model, words(), few(), ablation, store=kept) == continuations(model, words(), few(), ablation)


def short_of_memory(ids):
    if len(ids) > 4:
        raise torch.OutOfMemoryError("out of memory")


@names
def test_batches_change_nothing(name):
    """Of one prompt, of some, of those that are left where memory is short, and beside donors that are kept."""
    model = toy(name)
    whole = next_token_logits(model, [group.prompt for group in groups()])
    for ablation in (WHOLE, ABLATIONS["inside"]):
        run = partial(outcomes, model, groups(), ablation, whole)
        wanted, found = run(token_budget=10**6), [run(token_budget=1), run(token_budget=150), run(store=Store())]
        with watched(model, short_of_memory):
            found.append(run())
        for key, value in wanted.items():
            for other in found:
                near(other[key], value)


# ------------------------------------------------------------------------------------------------ refusals


@pytest.mark.filterwarnings("ignore:the edge")
@pytest.mark.parametrize(
    "fields, message",
    [
        ({"removed": ["x->y"], "probed": {"x->y:same": 1}}, "x->y:same and what is removed"),
        ({"probed": {"x->y": 1, "x->*": 3}}, "have cells in common"),
        ({"kept": CIRCUIT, "probed": {"x->query": 1}}, "x->query and what is removed"),
        ({"probed": {"x->y": 2}}, r"no donors of corruption \[2\]"),
        ({"removed": ["x->y"], "layers": (0, 3)}, "the model has 3 layers of 4 heads"),
        ({"removed": ["x->y"], "heads": ((0, 4),)}, "4 heads"),
        ({"removed": ["x->y"], "heads": ((3, 0),)}, "3 layers"),
        ({"model": {"n_positions": 20, "max_position_embeddings": 20}}, "the longest prompt|has 2. tokens"),
    ],
)
def test_what_cannot_be_done_is_refused_before_any_forward_pass(fields, message):
    model = toy("gpt2", **fields.pop("model", {}))
    ablation = Ablation(**fields)
    with no_pass():
        for work in (partial(outcomes, model), partial(continuations, model, words())):
            with pytest.raises(ValueError, match=message):
                work(groups(), ablation)


def test_donors_that_do_not_align_are_refused_and_edges_that_are_in_no_prompt_are_named():
    long, short = groups()[:2]
    with pytest.raises(Misaligned, match="tokens in the clean prompt"):
        Group(long.base, {0: short.donors[0]})
    with pytest.warns(UserWarning, match="header->y is in none of the 2 prompts"):
        found = outcomes(toy("gpt2"), few(), Ablation(removed=("header->y",)))
    assert_array_equal(found["log_prob"], outcomes(toy("gpt2"), few())["log_prob"])


# ------------------------------------------------------------------------------------------------ continuations


def first_line(tokens):
    """What the tokens say up to the end of the first line that is not empty."""
    lines = (words().decode(tokens[:stop]) for stop in range(1, len(tokens) + 1))
    return next((text for text in lines if "\n" in text.lstrip()), words().decode(tokens))


@names
@pytest.mark.parametrize("case", ["whole", "inside"])
def test_an_ablation_acts_in_the_prompt_alone(name, case):
    """What follows is decoded by the stock model from the states that the ablation has left; each in its place."""
    model, wanted, ablation = toy(name), [], ABLATIONS.get(case, WHOLE)
    for group in few():
        logits, states = theirs(model, group, ablation, group.length)
        kept, tokens = DynamicCache(), [int(logits[-1].argmax())]
        for layer, pair in enumerate(states):
            kept.update(*pair, layer)
        for place in range(group.length, group.length + NEW_TOKENS - 1):
            tokens.append(int(step(model, tokens[-1], place, kept).logits[0, -1].argmax()))
        wanted.append(first_line(tokens))
    assert continuations(model, words(), few(), ablation) == wanted
    assert continuations(model, words(), few(), ablation, token_budget=1) == wanted
    assert (continuations(model, words(), few()) == wanted) == (case == "whole")


@pytest.mark.parametrize("kind", quick(["recurrent_gemma"], ["qwen3_next", "lfm2", "kimi_linear", "nemotron_h"]))
def test_classes_with_other_layers_write_what_they_write_without_a_cache(kind):
    if kind not in KINDS:
        pytest.skip(f"this transformers has no {kind}")
    model, wanted = tiny_model(kind, vocab_size=len(words())), []
    prepare(model)
    for group in few():
        tokens = [*group.prompt]
        for _ in range(NEW_TOKENS):
            tokens.append(int(model(torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax()))
        wanted.append(first_line(tokens[group.length :]))
    assert continuations(model, words(), few()) == wanted


def test_continuations_end_with_a_line_the_text_or_ten_tokens():
    """The text here is the numbers of the tokens, behind an empty line; a line ends after three."""
    model = toy("llama")

    def written(tokens):
        return "\n" + " ".join(map(str, tokens)) + "\n" * (len(tokens) == 3)

    def tokens(eos=None, decode=lambda ids: " ".join(map(str, ids))):
        texts = continuations(model, SimpleNamespace(eos_token_id=eos, decode=decode), groups())
        return [[int(token) for token in text.split()] for text in texts]

    every = tokens()
    assert {len(own) for own in every} == {10} and tokens(decode=written) == [own[:3] for own in every]
    eos = next(token for own in every for token in own[1:] if token not in own[:1])
    ended = [own[: own.index(eos)] if eos in own else own for own in every]
    assert ended != every and tokens(eos) == ended


# ------------------------------------------------------------------------------------------------ mutations


def test_window_and_softcap_bind():
    """Else nothing here would test them."""
    model, wide, mild = (
        toy("gemma2", **change) for change in ({}, {"sliding_window": 64}, {"attn_logit_softcapping": 50.0})
    )
    for other in (wide, mild):
        assert gap(ours(model, few()), ours(other, few())) > 1e-3


@pytest.mark.parametrize(
    "ablation, one_row",
    [
        (WHOLE, True),
        (Ablation(kept=("NONE",)), True),
        (Ablation(removed=("y->last_separator",)), True),
        (Ablation(removed=("x->query",)), False),
        (Ablation(removed=("x->t:earlier",)), False),
        (Ablation(kept=("ANCHOR", "QUERY", "x->t")), False),  # what nobody reads
    ],
)
def test_only_tokens_that_change_and_matter_are_computed(ablation, one_row):
    """For the last separator alone, one row of the prompt; for nothing, no other; else those that read and are read."""
    model, store, sizes = toy("llama"), Store(), list[int]()
    drawn = groups_of(prompts("copying", words(), 30, k=3, corruptions=(0,)).items, words())
    short = [group for group in drawn if len(group.target) == 1][:2]
    outcomes(model, short, Ablation(removed=("*->*",)), store=store)
    with watched(model, lambda ids: sizes.append(ids.shape[1])):
        found = outcomes(model, short, ablation, store=store)
    assert sizes == [1] if one_row else 1 < sizes.pop() < min(group.length for group in short)
    near(found["log_prob"], outcomes(model, short, ablation)["log_prob"])


@pytest.mark.parametrize("name", sorted({*SUPPORTED, *ADAPTED}))
def test_every_class_gives_the_same_with_a_store(name):
    """Where it does not take some tokens alone, all of them are computed. In float32, which experts need."""
    model = prepared(name, vocab_size=len(words()))
    wanted = outcomes(model, few(), ABLATIONS["inside"])["log_prob"]
    found = outcomes(model, few(), ABLATIONS["inside"], store=Store())["log_prob"]
    near(found, wanted, 1e-4)


def test_a_store_keeps_what_was_used_last():
    made: list[str] = []
    store = Store(limit=2 * 4 * 10)
    for key, size in (("a", 4), ("b", 4), ("a", 4), ("c", 4), ("a", 4), ("b", 4), ("large", 11), ("b", 4)):
        states = {0: (torch.zeros(1, 1, size, 1), torch.zeros(1, 1, size, 1))}
        found = store.get(key, lambda key=key, states=states: made.append(key) or states)  # type: ignore[misc]
        assert found[0][0].shape[2] == size
    assert made == ["a", "b", "c", "b", "large"]


def test_donors_that_are_kept_run_once(monkeypatch):
    """And give what donors that run again give; those inside a circuit are kept for that circuit alone."""
    model, passes, store = toy("llama"), list[int](), Store()
    monkeypatch.setattr(Ablated, "renewable", lambda *_: False)
    exchanged = Ablation(kept=CIRCUIT, probed=dict(zip(PROBED, list(PROBED.values())[::-1], strict=True)))
    inside, less = ABLATIONS["inside"], Ablation(kept=CIRCUIT[:-1], probed=PROBED)
    for ablation, donors in (
        (inside, 3),
        (inside, 0),
        (exchanged, 0),
        (ABLATIONS["layers"], 2),
        (less, 2),
        (inside, 0),
    ):
        again = outcomes(model, few(), ablation)
        passes.clear()
        with watched(model, lambda ids: passes.append(len(ids))):
            found = outcomes(model, few(), ablation, store=store)
        assert len(passes) == donors + 1
        assert_array_equal(found["log_prob"], again["log_prob"])
