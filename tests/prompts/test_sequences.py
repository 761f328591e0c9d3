"""Random repeated sequences: what is drawn, from which ranks, and that a sequence depends on its own seed alone."""

import copy
import json
from types import SimpleNamespace

import numpy as np
import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from tests import toys
from util.prompts.induction_pattern import matched_cells, ranked_tokens, repeated_sequences
from util.roles.sequences_study import SequenceStudy


def small(model, special=("<s>",)):
    """A tokenizer around a model of the tokenizers library, its first words special."""
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model), bos_token=special[0])


def word_level(words=40):
    return small(models.WordLevel({"<s>": 0, **{f"w{i}": i for i in range(1, words)}}, unk_token="<s>"))


def allowed(tokenizer, exclude=0.04):
    """The ids that may be drawn, found another way: the rank of every token by itself, then the bounds on ranks."""
    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    never = {0, 1}  # <s> and <unk> of the toys
    if model["type"] == "BPE":
        rank: dict[str, int] = {}
        for number, (left, right) in enumerate(model["merges"]):
            rank.setdefault(left + right, number)
        order = sorted(rank, key=rank.__getitem__)
        ids = [tokenizer.convert_tokens_to_ids(token) for token in order]
    else:
        score = dict(model["vocab"])
        ids = [tokenizer.convert_tokens_to_ids(token) for token in sorted(score, key=lambda token: -score[token])]
    ids = [i for i in ids if i not in never]
    low, high = int(exclude * len(ids)), len(ids) - int(exclude * len(ids))
    return {token for place, token in enumerate(ids) if low <= place < high}, len(ids)


@pytest.mark.parametrize("kind", toys.KINDS)
@pytest.mark.parametrize("exclude", [0.04, 0.2, 0.0])
def test_drawn_are_all_and_only_the_middle_ranks(kind, exclude):
    tokenizer = toys.tokenizer(kind)
    expected, ranked = allowed(tokenizer, exclude)
    assert len(expected) == ranked - 2 * int(exclude * ranked)
    made = repeated_sequences(tokenizer, len(expected), 1, [0], bos=False, exclude=exclude)
    assert set(made.ids[0].tolist()) == expected
    with pytest.raises(ValueError, match="take a smaller length or exclude"):
        repeated_sequences(tokenizer, len(expected) + 1, 1, [0], exclude=exclude)


def test_merges_as_strings_and_repeated_results():
    fast = toys.tokenizer()
    state = json.loads(fast.backend_tokenizer.to_str())
    merges = [" ".join(pair) for pair in state["model"]["merges"]]
    state["model"]["merges"] = merges + merges[:5]  # a token's first merge is its rank
    older = SimpleNamespace(
        backend_tokenizer=SimpleNamespace(to_str=lambda: json.dumps(state)),
        all_special_ids=[0, 1],
        bos_token_id=0,
        eos_token_id=None,
    )
    assert ranked_tokens(older)[0] == ranked_tokens(fast)[0]
    assert (repeated_sequences(older).ids == repeated_sequences(fast).ids).all()


def test_a_sequence_depends_on_its_own_seed_alone():
    tokenizer = toys.tokenizer()
    five = repeated_sequences(tokenizer).ids
    assert (five[:, 0] == tokenizer.bos_token_id).all() and tokenizer.bos_token_id not in five[:, 1:]
    assert (five == repeated_sequences(tokenizer).ids).all()
    assert (repeated_sequences(tokenizer, seeds=[7, 3, 1]).ids[1:] == five[[3, 1]]).all()
    assert (repeated_sequences(tokenizer, seeds=np.arange(5)).ids == five).all()
    assert len({tuple(row) for row in repeated_sequences(tokenizer, seeds=range(20)).ids.tolist()}) == 20
    once = repeated_sequences(tokenizer, copies=1, bos=False).ids
    assert (repeated_sequences(tokenizer, copies=2).ids[:, 1:] == np.tile(once, 2)).all()


def test_matched_cells_by_hand():
    """No token reads itself: of four alike the last looks at the second."""
    for ids, cells in (([7, 4, 5, 4, 5, 5], [[3, 2], [4, 3], [5, 3]]), ([7, 4, 4, 4], [[3, 2]])):
        assert matched_cells(np.array(ids)).tolist() == cells


def test_ranks_of_small_vocabularies():
    """Continuing pieces with a prefix; Unigram pieces without a probability; tokens that were added or are special."""
    vocabulary = {"<s>": 0, "a": 1, "##b": 2, "##c": 3, "ab": 4, "abc": 5}
    model = models.BPE(vocabulary, [("a", "##b"), ("ab", "##c")], continuing_subword_prefix="##", unk_token="<s>")
    pieces = [("<s>", 0.0), ("<0x0A>", 0.0), ("b", -3.0), ("a", -1.0), ("c", -3.0)]
    plain = copy.deepcopy(word_level(12))
    plain.add_tokens(["w3", "brand new"])
    plain.add_special_tokens({"pad_token": "w5"})
    for tokenizer, ids, ranking in (
        (small(model), [4, 5], "merges"),
        (small(models.Unigram(pieces, unk_id=0)), [3, 2, 4], "Unigram scores"),
        (plain, [1, 2, 4, 6, 7, 8, 9, 10, 11], "token ids"),
    ):
        found, how = ranked_tokens(tokenizer)
        assert found == ids and ranking in how


@pytest.mark.parametrize(
    "bad",
    [
        {"length": 1},
        {"copies": 0},
        {"exclude": 0.5},
        {"exclude": -0.1},
        {"seeds": []},
        {"seeds": [1, 1]},
    ],
)
def test_bad_numbers_are_refused(bad):
    with pytest.raises(ValueError, match=f"{next(iter(bad))} = "):
        repeated_sequences(toys.tokenizer(), **bad)


def test_tokenizers_that_cannot_serve_are_refused():
    with pytest.raises(ValueError, match="load the fast tokenizer"):
        repeated_sequences(toys.Slow())
    nameless = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({f"w{i}": i for i in range(9)})))
    with pytest.raises(ValueError, match="set tokenizer.bos_token"):
        repeated_sequences(nameless, 4)
    assert repeated_sequences(nameless, 4, bos=False).ids.shape == (5, 16)


def test_a_study_excludes_the_share_that_it_is_given():
    usual, wider = (SequenceStudy("embedded", sequences=2, frequent_exclude=share) for share in (0.04, 0.45))
    assert usual.own_request == SequenceStudy("embedded", sequences=2).own_request
    assert wider.own_request == {**usual.own_request, "frequent_exclude": 0.45}
    ranked = ranked_tokens(wider.pair[1])[0]
    drop = int(0.45 * len(ranked))
    assert {*wider.drawn.ids[:, 1:].ravel()} <= {*ranked[drop : len(ranked) - drop]}
    assert not {*usual.drawn.ids[:, 1:].ravel()} <= {*ranked[drop : len(ranked) - drop]}
