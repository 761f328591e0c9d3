"""Sentences: singular and plural, lists, intervals."""

import pytest

from util.show.words import say


@pytest.mark.parametrize(
    ("sentence", "values", "said"),
    [
        ("{n} {n:head is|heads are} frequent", {"n": 1}, "1 head is frequent"),
        ("{n:words} {n:head is|heads are} frequent", {"n": 0}, "No heads are frequent"),
        ("of them {n:none} {n:is|are}", {"n": 0}, "Of them none are"),
        ("{n:words} of {of}", {"n": 12, "of": 123211}, "Twelve of 123,211"),
        ("{names} {names:does|do} it", {"names": ["L1H2"]}, "L1H2 does it"),
        ("{names} {names:does|do} it", {"names": ["a", "b", "c"]}, "A, b and c do it"),
        ("{share} of it", {"share": [0.444, 0.38, 0.5]}, "0.44 [0.38, 0.50] of it"),
        ("{share} of {all}", {"share": [3, 2, 4], "all": 4}, "3 [2, 4] of 4"),
        ("{p:.3f}", {"p": 0.0476}, "0.048"),
    ],
)
def test_values_are_put_into_words(sentence, values, said):
    assert say(sentence, **values) == said
