"""What the stored values of the toy induction head say."""

from collections.abc import Mapping

from util.figures.conclusions import Conclusions, Values, listed, told, written

SCORES = {"previous_token": "previous-token attention", "prefix_matching": "prefix matching"}


def of(model: str) -> Conclusions:
    """What was found, of the committed models and of `model`."""
    return told("toy_induction_head", sentences, model, general=by_hand)


def by_hand(values: Values) -> list[str]:
    """What the heads written by hand do, and when training finds such heads: about no model of the notebook."""
    accuracy = values["construction"]["accuracy"]
    return [
        f"Two heads written by hand predict {accuracy['later copies']:.2f} of the tokens of later copies, and "
        f"{accuracy['first copy']:.2f} of those of the first.",
        _training(values["phase_change"]),
    ]


def sentences(values: Values) -> list[str]:
    """Which heads of a model do what the heads written by hand do.

    values: of data/values/toy_induction_head.json.
    """
    return [_heads(values["heads"], score) for score in SCORES]


def _heads(heads: Mapping[str, Values], score: str) -> str:
    """The best trained head by a score, beside the best one of the untrained twin."""
    best = {name: row for name, row in heads.items() if name.endswith(f"best {score.replace('_', ' ')}")}
    (trained, row), *others = best.items()
    head = trained.split(",")[1].split(":")[0].strip()
    untrained = listed([written(other[score]) for _, other in others])
    compared = f"; that of the untrained twin has {untrained}" if untrained else ""
    return f"The best head by {SCORES[score]} is {head} with {written(row[score])}{compared}."


def _training(phase: Values) -> str:
    reached = phase["tokens at a score of 0.5"]
    found = [f"{tokens:,} tokens ({seed})" for seed, tokens in reached.items() if tokens is not None]
    if not found:
        return "A model of two layers that is trained on repeated tokens did not find such heads."
    return (
        f"Training a model of two layers on repeated tokens finds an induction head in {len(found)} of {len(reached)} "
        f"runs: prefix matching of 0.5 after {listed(found)}."
    )
