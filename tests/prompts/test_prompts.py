"""Checks A of the forerunner spec: StaICC's strings, conditions, and where forerunners and labels lie among tokens."""

import hashlib
import json
from itertools import product

import pytest
import StaICC
from StaICC.util import hgf_dataset_loader

from tests import toys
from tests.engine.test_label_scores import question
from tests.tiers import quick
from util import load_model_and_data as loading
from util.prompts.prompt import Layout, check_first_tokens, labelled_tokens

# sha256 prefixes of the reference loader's 512 "label_words" strings at k = 4: (correct, wrong), by data set
FIXTURES = {
    0: ("c52e00ceae31a174", "91cdc0c2b95484ff"),
    1: ("1bc8f7e8dcdedd3d", "c64e2c80f9beee07"),
    2: ("e31bdf31ef08772f", "41dbcf2903cc940a"),
    3: ("36ae1a58ce92516a", "c48295061e7e0e10"),
    4: ("cc434e170dbb61be", "f838c0a6dd4de0b9"),
    5: ("77880fa2c5a4a254", "816af32a4ea041ef"),
    7: ("c214ecf36578d883", "5df05b11171b294c"),
}


def digest(strings):
    return hashlib.sha256(json.dumps(strings, ensure_ascii=False).encode()).hexdigest()[:16]


@pytest.mark.parametrize("dataset", quick([2, 4], FIXTURES))
def test_strings_are_those_of_the_reference(dataset):
    prompts = loading.staicc_prompts(dataset, 4)
    assert len(prompts) == 512
    assert tuple(digest([p.with_label(o) for p in prompts]) for o in (0, 1)) == FIXTURES[dataset]


def phrasebank(k):
    """StaICC's own experimentor of a data set."""
    return StaICC.Normal(k, datasets=[hgf_dataset_loader.financial_phrasebank])[0]


@pytest.mark.parametrize("k", [0, 4])
def test_cuts_and_door_agree_with_the_experimentor(k):
    theirs = phrasebank(k)
    raw, prompts = theirs.prompt_set()[:512], loading.staicc_prompts("financial_phrasebank", k)
    for correct in (True, False):
        cuts = {
            "none": [r.removesuffix(" ") for r in raw],
            "last_sentence_token": [r[: -len("sentiment: ") - 1] for r in raw],
            "label_words": [p.with_label(0 if correct else 1) for p in prompts],
        }
        for mode, expected in cuts.items():
            strings, queries = loading.load_data_from_StaICC_experimentor(theirs, mode, correct)
            assert strings == expected and queries == [theirs.test_set()[i][0][0] for i in range(512)]
    assert {len(p.spans["s"]) for p in prompts} == {k + 1} and {len(p.spans["y"]) for p in prompts} == {k}
    with pytest.raises(ValueError, match="unknown prompt cut"):
        loading.load_data_from_StaICC_experimentor(theirs, "labels")


def test_abstract_labels_keep_their_indices():
    theirs = phrasebank(2)
    before = loading.prompts_from_experimentor(theirs)
    theirs.prompt_former.change_label_space(["A", "B", "C"])
    after = loading.prompts_from_experimentor(theirs)
    assert [p.gold for p in after] == [p.gold for p in before] and after[0].labels == ("A", "B", "C")
    assert [p.demonstrations for p in after] == [p.demonstrations for p in before]
    theirs.prompt_former.set_label_wrong_rate(1.0)
    with pytest.raises(ValueError, match="another layout"):
        loading.prompts_from_experimentor(theirs)


def test_bad_requests_name_the_cure():
    with pytest.raises(ValueError, match="2 financial_phrasebank"):
        loading.staicc_prompts("sst-2")
    for dataset in (-1, 10, True):
        with pytest.raises(ValueError, match="choose one of"):
            loading.staicc_prompts(dataset)
    with pytest.raises(ValueError, match="cannot be negative"):
        loading.staicc_prompts(2, -1)
    with pytest.raises(ValueError, match="pool of 512"):
        loading.staicc_prompts(2, 513)


@pytest.mark.parametrize("kind, dataset", quick([("bpe", 2), ("unigram", 4)], product(toys.KINDS, [2, 4])))
def test_token_roles_by_offsets(kind, dataset):
    tokenizer, prompts = toys.tokenizer(kind), loading.staicc_prompts(dataset, 4)[:64]
    for offset in (0, 1):
        for prompt, labelled in zip(prompts, labelled_tokens(prompts, tokenizer, offset), strict=True):
            whole = tokenizer(prompt.with_label(offset))["input_ids"]
            assert list(labelled.ids) == whole[: len(labelled.ids)] and labelled.n_t == len(whole)
            assert len(labelled.forerunners) == len(labelled.labels) == 5
            words = [prompt.labels[d] for d in prompt.demonstrations] + [prompt.label(offset)]
            for s, y, length, word in zip(
                labelled.forerunners, labelled.labels, labelled.label_lengths, words, strict=True
            ):
                assert tokenizer.decode(whole[s]).endswith(":") and y == s + 1
                assert tokenizer.decode(whole[y : y + length]).strip() == word
            assert labelled.labels[-1] == len(labelled.ids) - 1


@pytest.mark.parametrize(
    "labels, appended, message",
    [
        (("party", "paint"), (0, 1), r"of the labels \['party', 'paint'\] some begin with the same token"),
        (("up", "down"), (0, 2), "append the same word"),
        (("up", "down"), (1, "down"), "append the same word"),
    ],
)
def test_conditions_that_cannot_be_told_apart_are_refused(labels, appended, message):
    tokenizer, prompts = toys.tokenizer("bpe", 300), [question("x :", labels)]
    with pytest.raises(ValueError, match=message):
        check_first_tokens(prompts, {what: labelled_tokens(prompts, tokenizer, what) for what in appended})


def test_where_no_token_is_a_forerunner():
    prompt = question("sentence", ("s", "x"), join="")  # "sentences" merges across the boundary
    with pytest.raises(ValueError, match="no token boundary between forerunner and label"):
        labelled_tokens([prompt], toys.tokenizer())
    with pytest.raises(ValueError, match="gives no character offsets"):
        labelled_tokens([prompt], toys.Slow())


def test_a_last_character_of_several_tokens_is_counted_whole():
    tokenizer = toys.tokenizer("bpe", 300)
    prompt = question("x :", ("gut\N{EURO SIGN}", "b"))  # its last character is three byte tokens
    [labelled] = labelled_tokens([prompt], tokenizer)
    assert labelled.n_t == len(tokenizer(prompt.with_label())["input_ids"])


def test_permuted_labels_change_nothing_but_labels():
    """Inputs, forerunners and format stay, the spans follow, and the label words are the same ones in another order."""
    layout, xs, ys = Layout(":", " ", "\n", "Header\n"), ["aa", "b", "ccc", "d"], ["yes", "no", "perhaps", "no"]
    prompt = layout.prompt([*zip(xs, ys, strict=True)], "e", "no", ("yes", "no", "perhaps"))
    permuted = prompt.permuted(3)
    words = [permuted.labels[number] for number in permuted.demonstrations]
    assert sorted(words) == sorted(ys) and all(map(str.__ne__, words, ys))
    assert permuted == layout.prompt([*zip(xs, words, strict=True)], "e", "no", ("yes", "no", "perhaps"))
    assert prompt.permuted(3) == permuted != prompt.permuted(4)
    bare = Layout().prompt([], "e", "no", ("yes", "no"))
    assert bare.permuted(0) == bare
