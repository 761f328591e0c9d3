"""The figure of induction in the small: settings, sentences and pictures, made of its numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated, Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure as Picture
from matplotlib.patches import Rectangle
from pydantic import Field

from util.figures.toy_induction_head import numbers
from util.figures.toy_induction_head.numbers import COPY, DIMENSIONS, SEQUENCE, SLOTS, TOKENS, VISIBLE, VOCABULARY
from util.roles.attention_scores import ROLES
from util.show.draw import Grid, Panel, matrix
from util.show.panels import colour_bar, level
from util.show.part import Figure, Part, Values
from util.show.style import BLUE, GREY, ORANGE
from util.show.style import ROLES as LOOKS
from util.show.words import say, written
from util.study.checked import AsList, Count, Int, Natural, Number, Text, checked

AtLeastTwo = Annotated[Int, Field(ge=2)]
MOVES = ((0, 0), (0, -1), (0, -2), (1, 0), (1, 1))  # by how many places the queries and the keys move down
LETTERS = "abcdef"  # tokens of the construction that is drawn
DOTS = LinearSegmentedColormap.from_list("dots", mpl.colormaps["Blues"](np.linspace(0.45, 1, 64)))  # no white end
TOP = 6.0  # nats: losses above it are cut off


@checked
class Settings:
    """What is measured, see notebook 00.

    length, copies: of a repeated sequence; sequences: of random tokens, half to choose a head on, half to measure it
    on; seed: of the first sequence. beta: how sharp attention by hand is, of `vocabulary` tokens; texts: what it
    continues. untrained_control: whether the untrained twin is measured too, a second model in memory.
    """

    length: AtLeastTwo = 50
    copies: AtLeastTwo = 4
    sequences: Annotated[Int, Field(ge=4)] = 10
    seed: Natural = 0
    beta: Number = 60.0
    vocabulary: Count = 200
    texts: Annotated[tuple[Text, ...], AsList] = ("the cat and the c", "abcdef", "abaca", "p=f r=i p=")
    untrained_control: bool = True

    def __post_init__(self) -> None:
        if self.vocabulary < self.length:
            raise ValueError(f"vocabulary = {self.vocabulary}: {self.length} distinct tokens are drawn from it")


# ------------------------------------------------------------------------------------------------ one head by hand


def _shifted(values: Values) -> dict[tuple[int, int], numbers.Floats]:
    places = np.eye(8)
    beta = values["request"]["beta"]
    return {
        (queries, keys): numbers.attention(np.roll(places, queries, axis=0), np.roll(places, keys, axis=0), beta)
        for queries, keys in MOVES
    }


def _reads_back(pattern: numbers.Floats) -> int:
    """How many tokens back the last query of a pattern [T, T] reads."""
    return len(pattern) - 1 - int(pattern[-1].argmax())


def shifts_say(values: Values) -> Iterator[str]:
    by_offset = all(_reads_back(pattern) == moved[0] - moved[1] for moved, pattern in _shifted(values).items())
    yield "Attention reads as far back as queries are moved against keys: only the offset counts" if by_offset else ""


def shifts(values: Values) -> Grid:
    panels = []
    for (queries, keys), pattern in _shifted(values).items():
        title = f"queries by {queries}\nkeys by {keys}\nreads {_reads_back(pattern)} back"
        panels.append(partial(matrix, values=pattern, title=title))
    return Grid(panels, least=1.0, height=1.7, share="y", x="key position", y="query position")


def _stream(values: Values) -> tuple[numbers.Floats, numbers.Floats]:
    copied = np.array(values["toy"]["copied"])
    return copied, SEQUENCE + copied


def stream_says(values: Values) -> Iterator[str]:
    said = numbers.predicted(_stream(values)[1], TOKENS, DIMENSIONS)
    yield f"Predicted through the residual stream: {', '.join(f'{name} -> {after}' for name, after in said.items())}"


def stream(values: Values) -> Grid:
    copied, logits = _stream(values)
    steps = {"tokens": SEQUENCE, "+ what the head copies": copied, "= logits": logits}
    shown = partial(matrix, rows=TOKENS, numbers=True)
    weights = np.array(values["toy"]["attention"])
    panels: list[Panel] = [partial(shown, values=weights, title="attention", columns=TOKENS, x="key", y="query")]
    panels += [
        partial(shown, values=step, title=title, columns=DIMENSIONS, x="dimension") for title, step in steps.items()
    ]
    return Grid(panels, least=1.2, height=1.7, finish=partial(_frame_largest, logits=logits))


def _frame_largest(figure: Picture, axes: Sequence[Axes], logits: numbers.Floats) -> None:
    """Frame the largest entry of each row of the last panel, several where they are equal."""
    for row, column in zip(*np.nonzero(numbers.predictions(logits)), strict=True):
        axes[-1].add_patch(Rectangle((column - 0.44, row - 0.44), 0.88, 0.88, fill=False, ec=ORANGE, lw=1.8))


# ------------------------------------------------------------------------------------------------ two layers by hand


def circuits_say(values: Values) -> Iterator[str]:
    made = numbers.construction(len(LETTERS))
    identity = all((made[name] == np.eye(len(LETTERS))).all() for name in ("qk", "ov"))
    yield "Both circuits are the identity: match what followed this token, and predict it" if identity else ""
    for layer, scores in values["construction"]["scores"].items():
        yield f"{layer.capitalize()}: {', '.join(f'{name} {score:.3f}' for name, score in scores.items())}."
    accuracy = ", ".join(f"{copy} {share:.3f}" for copy, share in values["construction"]["accuracy"].items())
    yield f"Accuracy of the next token: {accuracy}; guessing {1 / values['request']['vocabulary']:g}."


def circuits(values: Values) -> Grid:
    made, tokens = numbers.construction(len(LETTERS)), len(LETTERS)
    slots = partial(_slots, tokens=tokens)
    letters = partial(matrix, rows=LETTERS, columns=LETTERS)
    panels = [
        partial(slots, values=made["ov_0"], title="layer 0: OV", x="writes", y="reads", framed="previous"),
        partial(slots, values=made["qk_1"], title="layer 1: QK", x="key", y="query", framed="previous"),
        partial(letters, values=made["ov"], title="OV to logits", x="predicted", y="token of the key"),
        partial(matrix, values=np.eye(2 * tokens, k=-1), title="layer 0: QK", x="key position", y="query position"),
        partial(slots, values=made["ov_1"], title="layer 1: OV", x="writes", y="reads"),
        partial(letters, values=made["qk"], title="QK, both layers", x="token before the key", y="token of the query"),
    ]
    return Grid(panels, least=1.5, height=2.0, columns=3)


def _slots(ax: Axes, tokens: int, framed: str = "", **shown: Any) -> None:
    """A matrix over the residual stream, parted into slots, with a frame around the columns of one."""
    matrix(ax, **shown)
    for edge in np.arange(1, len(SLOTS)) * tokens - 0.5:
        ax.axhline(edge, color="0.7", lw=0.7)
        ax.axvline(edge, color="0.7", lw=0.7)
    centres = (np.arange(len(SLOTS)) + 0.5) * tokens - 0.5
    ax.set_xticks(centres, list(SLOTS))
    ax.set_yticks(centres, list(SLOTS), rotation=90, va="center")
    if framed:
        corner = SLOTS.index(framed) * tokens - 0.5, -0.5
        ax.add_patch(Rectangle(corner, tokens, len(SLOTS) * tokens, fill=False, ec=ORANGE, lw=1.6, zorder=4))


def texts_say(values: Values) -> Iterator[str]:
    for text, shares in values["texts"].items():
        yield f"After {text!r}: {', '.join(f'{letter!r} {share:.2f}' for letter, share in shares.items())}."


# ------------------------------------------------------------------------------------------------ heads of models

NAMES = {"previous_token": "previous-token attention", "prefix_matching": "prefix matching"}
READS = {"previous_token": "the previous token", "prefix_matching": "what followed earlier occurrences"}


def heads_say(values: Values) -> Iterator[str]:
    for role, name in NAMES.items():
        best = {title: row[role] for title, row in values["heads"].items() if title.endswith(f"best {_spaced(role)}")}
        (title, score), *twin = best.items()
        head = title.rsplit(",", 1)[1].split(":")[0].strip()
        beside = f"; that of the untrained twin has {written(twin[0][1])}" if twin else ""
        yield f"The best head by {name} is {head} with {written(score)}{beside}."
    decoys = values["planted"]["decoys, at most"]
    yield f"Planted decoys, at most: {', '.join(f'{role} {value:.3f}' for role, value in decoys.items())}."


def _spaced(role: str) -> str:
    return role.replace("_", " ")


def heads_table(values: Values) -> pd.DataFrame:
    columns = {
        role.replace("_", "-"): ["{:.3f} [{:.3f}, {:.3f}]".format(*row[role]) for row in values["heads"].values()]
        for role in ROLES
    }
    return pd.DataFrame(columns, list(values["heads"]))


def patterns_say(values: Values) -> Iterator[str]:
    best = [name.split(", ") + [row["score"]] for name, row in values["patterns"]["heads"].items() if name[0] == "L"]
    gives = [f"{head} gives {written(score)} to {READS[role]}" for head, role, score in best if score[1] > 0.5]
    if all(score[2] < 0.5 for _, _, score in best):
        yield "No head gives half of its attention to the previous token or to what followed earlier occurrences"
    else:
        yield f"Of its attention {', '.join(gives)}" if gives else ""


def patterns(values: Values) -> Grid:
    found = values["patterns"]
    panels = [partial(_dots, name=name, row=row, length=found["length"]) for name, row in found["heads"].items()]
    bar = partial(colour_bar, label=f"attention, {VISIBLE:g} or more", shrink=0.6)
    return Grid(panels, least=1.4, height=2.2, columns=2, share="xy", x="key position", y="query position", finish=bar)


def _dots(ax: Axes, name: str, row: Values, length: int) -> None:
    """Every weight of at least VISIBLE as a dot; lines part the copies."""
    whose, role = name.split(", ")
    score = row["score"] if isinstance(row["score"], float) else row["score"][0]
    owner = whose if whose == "by hand" else f"{whose} of the model"
    for edge in np.arange(row["tokens"] - length, 0, -length) - 0.5:
        ax.axhline(edge, color="0.85", lw=0.6, zorder=0)
        ax.axvline(edge, color="0.85", lw=0.6, zorder=0)
    ax.scatter(row["key"], row["query"], 2.2, c=row["weight"], cmap=DOTS, vmin=VISIBLE, vmax=1, linewidths=0)
    ax.set(xlim=(-1, row["tokens"]), ylim=(row["tokens"], -1))
    ax.set_title(f"{owner}\n{_spaced(role)} {score:.2f}", fontsize=7)
    ax.spines[:].set_visible(True)


# ------------------------------------------------------------------------------------------------ training


def training_says(values: Values) -> Iterator[str]:
    runs = numbers.training_log()["runs"]
    moments = [(numbers.fell_at(run), numbers.formed_at(run)) for run in runs.values()]
    apart = [abs(fell - formed) for fell, formed in moments if fell is not None and formed is not None]
    if len(apart) < len(moments):
        yield ""
    else:
        within = max(apart) + max(int(np.diff(run["tokens"]).max()) for run in runs.values())
        yield f"In all {len(apart)} runs the loss falls within {within:,} tokens of when induction heads form"
    formed = values["phase_change"]["tokens at a score of 0.5"]
    found = [f"{tokens:,} tokens ({seed})" for seed, tokens in formed.items() if tokens is not None]
    yield say(
        "training a model of two layers on repeated tokens finds an induction head in {n} of {of} runs: prefix "
        "matching of 0.5 after {found}.", n=len(found), of=len(formed), found=found,
    )  # fmt: skip


def training_about(values: Values) -> str:
    name, run = next(iter(numbers.training_log()["runs"].items()))
    _, layers, heads = np.shape(run["prefix_matching"])
    moments = "falls: below half of the lower dotted line; form: prefix matching above 0.5"
    return f"Llama of {layers} layers x {heads} heads on repeated random tokens; {moments}; thick: {name}"


LOSSES = {"first_copy": ("loss on the first copy", GREY), "later_copies": ("loss on later copies", BLUE)}
HEADS = {
    "prefix_matching": ("prefix matching, best head", LOOKS["induction"].colour),
    "previous_token": ("previous token, best head", LOOKS["previous-token"].colour),
}


def training(values: Values) -> Grid:
    """The losses and the best head of each score; all but the first run are thin."""
    runs = list(numbers.training_log()["runs"].values())
    return Grid([partial(_losses, runs=runs), partial(_scores, runs=runs)], height=1.65, columns=1, share="x")


def _losses(ax: Axes, runs: Sequence[Values]) -> None:
    for number, run in enumerate(runs):
        for key, (name, colour) in LOSSES.items():
            _run(ax, number, run, run[key], name, colour)
    for tokens in (VOCABULARY, COPY):
        level(ax, float(np.log(tokens)), f"guessing\nof {tokens}")
    ax.set(ylabel="loss,\nnats per token", ylim=(0, TOP))


def _scores(ax: Axes, runs: Sequence[Values]) -> None:
    for number, run in enumerate(runs):
        for key, (name, colour) in HEADS.items():
            heads = np.reshape(run[key], (len(run["tokens"]), -1))
            _run(ax, number, run, heads[:, heads[-1].argmax()], name, colour)
    last = max(run["tokens"][-1] for run in runs) / 1e6
    ax.set(xlabel="tokens read, millions", ylabel="score of a head", ylim=(-0.02, 1.02), xlim=(0, last))


def _run(ax: Axes, number: int, run: Values, line: Any, name: str, colour: str) -> None:
    look: dict[str, Any] = {"lw": 0.8, "alpha": 0.6} if number else {"lw": 1.6, "label": name}
    ax.plot(np.array(run["tokens"]) / 1e6, line, color=colour, **look)


FIGURE = Figure(
    "toy_induction_head",
    Settings,
    {
        "shifts": Part(
            lambda arrays, settings: {}, says=shifts_say, panels=shifts,
            about=lambda values: "one-hot positions, 8 tokens, by hand",
        ),
        "residual_stream": Part(
            numbers.lecture, says=stream_says, panels=stream,
            about=lambda values: "one head by hand; framed: the largest logits",
        ),
        "circuits": Part(
            numbers.circuits, says=circuits_say, panels=circuits,
            about=lambda values: (
                "two layers of one head, written by hand, 6 tokens; framed: what one writes, the other reads"
            ),
        ),
        "heads": Part(numbers.heads, "heads", says=heads_say, table=heads_table),
        "patterns": Part(
            numbers.patterns, "attention", says=patterns_say, panels=patterns,
            about=lambda values: (
                f"{values['patterns']['title']}, one random sequence of {values['patterns']['length']} tokens in "
                "copies; scores on held-out ones"
            ),
        ),
        "texts": Part(numbers.texts, says=texts_say),
        "phase_change": Part(numbers.phase_change, says=training_says, panels=training, about=training_about),
    },
)  # fmt: skip
