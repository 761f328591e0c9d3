"""Words that the embedded models' tokenizer keeps whole, and the categories of the word classification task."""

from __future__ import annotations

from string import ascii_lowercase, ascii_uppercase

LABEL_WORDS: tuple[str, ...] = tuple(
    "negative positive neutral poor bad good great short entity description person location number world sports"
    " business science false true anger joy sad normal hate skip relation".split()
)
"""The label words of StaICC's ten data sets, each once."""

TOY_LABELS: tuple[str, ...] = ("Foo", "Bar", "Mur", "Res")
LETTERS: tuple[str, ...] = tuple(ascii_uppercase + ascii_lowercase)

CATEGORIES: dict[str, tuple[str, ...]] = {
    name: tuple(words.split())
    for name, words in {
        "fruit": "apple banana cherry date fig grape kiwi lemon mango nectarine papaya peach pear plum raspberry"
        " strawberry",
        "animal": "cat dog elephant fox giraffe horse kangaroo lion monkey panda penguin rabbit shark tiger whale"
        " zebra",
        "furniture": "bed bench bookcase cabinet chair couch desk dresser nightstand ottoman recliner shelf sofa stool"
        " table wardrobe",
        "profession": "actor artist carpenter chef doctor electrician engineer farmer lawyer nurse pilot plumber"
        " scientist soldier teacher writer",
        "vegetable": "beet broccoli carrot celery cucumber eggplant garlic lettuce onion pea pepper potato pumpkin"
        " radish spinach tomato",
        "vehicle": "bicycle boat bus car helicopter minivan motorcycle plane scooter skateboard submarine tractor train"
        " trolley truck yacht",
        "body part": "ankle arm ear elbow eye finger foot hand knee leg mouth neck nose shoulder toe wrist",
        "instrument": "accordion banjo cello clarinet drum flute guitar harmonica harp oboe piano saxophone trombone"
        " trumpet ukulele violin",
    }.items()
}
"""Eight categories of sixteen words."""


def promised() -> list[str]:
    """Strings that are one token each: labels and category words with and without leading space, spaced letters."""
    category_words = [word for words in CATEGORIES.values() for word in words]
    bare = [*TOY_LABELS, *category_words]
    return [*(f" {word}" for word in [*LABEL_WORDS, *LETTERS, *bare]), *bare]
