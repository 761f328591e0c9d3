"""What values say: parts with and without pictures; singular and plural, lists, intervals."""

import pytest

from util.show.part import Figure, Part, drawn, findings, say


@pytest.mark.parametrize(
    "sentence, values, text",
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
def test_values_are_put_into_words(sentence, values, text):
    assert say(sentence, **values) == text


def test_a_part_without_a_picture_and_what_a_figure_finds():
    part = Part(lambda arrays, settings: {}, "measure", lambda values: ["a title"], panels=lambda values: None)
    assert drawn(part, {}) is None and drawn(Part(part.numbers), {}) is None
    other = Part(part.numbers, says=lambda values: ["B.", "Primary endpoint: 3."])
    figure = Figure("stem", object, {"part": part, "other": other}, ["part"])
    assert findings(figure, {}) == ["a title."]
    assert findings(figure, {}, figure.parts) == ["Primary endpoint: 3.", "a title."]
