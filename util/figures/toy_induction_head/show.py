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

from util.figures.edits import WHOLE
from util.figures.toy_induction_head import numbers
from util.figures.toy_induction_head.numbers import (
    COPY,
    DIMENSIONS,
    SEQUENCE,
    SLOTS,
    TOKENS,
    VISIBLE,
    VOCABULARY,
    WITHOUT,
)
from util.show.draw import BLUE, GREY, ORANGE, Grid, Panel, matrix
from util.show.draw import ROLES as LOOKS
from util.show.panels import colour_bar, level
from util.show.part import Figure, Part, Values, listed, say, title, written
from util.study.checked import AsList, AtLeastFour, AtLeastTwo, Count, Natural, Number, Text, checked

MOVES = ((0, 0), (0, -1), (0, -2), (1, 0), (1, 1))  # by how many places the queries and the keys move down
LETTERS = "abcdef"  # tokens of the construction that is drawn
DOTS = LinearSegmentedColormap.from_list("dots", mpl.colormaps["Blues"](np.linspace(0.45, 1, 64)))  # no white end
TOP = 6.0  # nats: losses above it are cut off


@checked
class Settings:
    """What is measured, see notebook 00.

    length, copies: of a repeated sequence; sequences: of random tokens, half to choose a head on, half to measure it
    on; seed: of the first sequence. beta: how sharp attention by hand is, of `vocabulary` tokens; texts: what it
    continues. excerpts: of a novel, whose losses are measured. untrained_control: whether the untrained twin is
    measured too, a second model in memory.
    """

    length: AtLeastTwo = 50
    copies: AtLeastTwo = 4
    sequences: AtLeastFour = 10
    seed: Natural = 0
    beta: Number = 60.0
    vocabulary: Count = 200
    texts: Annotated[tuple[Text, ...], AsList] = ("the cat and the c", "abcdef", "abaca", "p=f r=i p=")
    excerpts: AtLeastTwo = 64
    untrained_control: bool = True

    def __post_init__(self) -> None:
        if self.vocabulary < self.length:
            raise ValueError(f"vocabulary = {self.vocabulary}: {self.length} distinct tokens are drawn from it")


# ------------------------------------------------------------------------------------------------ one head by hand


def shifts(values: Values) -> Grid:
    panels: list[Panel] = []
    for moved in MOVES:
        queries, keys = (np.roll(np.eye(8), by, axis=0) for by in moved)
        pattern = numbers.attention(queries, keys, values["request"]["beta"])
        back = len(pattern) - 1 - pattern[-1].argmax()
        title = "queries by {}\nkeys by {}\nreads {} back".format(*moved, back)
        panels.append(partial(matrix, values=pattern, title=title))
    return Grid(panels, least=1.0, height=1.7, share="y", x="key position", y="query position")


def stream(values: Values) -> Grid:
    weights = numbers.before(len(SEQUENCE))
    copied = weights @ SEQUENCE
    steps = {"tokens": SEQUENCE, "+ what the head copies": copied, "= logits": SEQUENCE + copied}
    shown = partial(matrix, rows=TOKENS, numbers=True)
    panels = [
        partial(shown, values=weights, title="attention", columns=TOKENS, x="key", y="query"),
        *(partial(shown, values=step, title=name, columns=DIMENSIONS, x="dimension") for name, step in steps.items()),
    ]
    return Grid(panels, least=1.2, height=1.7)


# ------------------------------------------------------------------------------------------------ two layers by hand


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

READS = {"previous_token": "the previous token", "prefix_matching": "what followed earlier occurrences"}


def heads_say(values: Values) -> Iterator[str]:
    decoys = values["planted"]["decoys, at most"]
    yield f"Planted decoys, at most: {', '.join(f'{role} {value:.3f}' for role, value in decoys.items())}."


def heads_table(values: Values) -> pd.DataFrame:
    return pd.DataFrame.from_dict(values["heads"], orient="index").map(written)


def patterns_say(values: Values) -> Iterator[str]:
    reads = []
    for name, row in values["patterns"]["heads"].items():
        head, role = name.split(", ")
        if head != "by hand" and row["score"][1] > 0.5:
            reads.append(f"{head} reads {READS[role]} ({written(row['score'])} of its attention)")
    yield listed(reads) or "No head is seen to give half of its attention to either"


def patterns(values: Values) -> Grid:
    drawn = values["patterns"]
    panels = [partial(_dots, name=name, row=row, length=drawn["length"]) for name, row in drawn["heads"].items()]
    bar = partial(colour_bar, label=f"attention, {VISIBLE:g} or more", shrink=0.6)
    return Grid(panels, least=1.4, height=2.2, columns=2, share="xy", x="key position", y="query position", finish=bar)


def _dots(ax: Axes, name: str, row: Values, length: int) -> None:
    """Every weight of at least VISIBLE as a dot; lines part the copies."""
    whose, role = name.split(", ")
    score = np.ravel(row["score"])[0]  # of heads of models with its interval
    owner = whose if whose == "by hand" else f"{whose} of the model"
    for edge in np.arange(row["tokens"] - length, 0, -length) - 0.5:
        ax.axhline(edge, color="0.85", lw=0.6, zorder=0)
        ax.axvline(edge, color="0.85", lw=0.6, zorder=0)
    ax.scatter(row["key"], row["query"], 2.2, c=row["weight"], cmap=DOTS, vmin=VISIBLE, vmax=1, linewidths=0)
    ax.set(xlim=(-1, row["tokens"]), ylim=(row["tokens"], -1))
    ax.set_title(f"{owner}\n{role.replace('_', ' ')} {score:.2f}", fontsize=7)
    ax.spines[:].set_visible(True)


# ------------------------------------------------------------------------------------------------ plain text


def in_context_says(values: Values) -> Iterator[str]:
    text = values["in context"]
    number, (early, late) = len(text["heads"]), text["tokens"]
    whole = f"(the loss at token {late} minus that at token {early}) is {written(text['score'][WHOLE])} nats"
    if text["early"] >= text["uniform"]:
        yield f"At token {early} the model is no better than equal odds, so that its score means little"
    if not number:
        yield f"The in-context-learning score {whole}; no head is an induction head"
        return
    lost, change = text["lost"][WITHOUT], text["change"][WITHOUT]
    others = {
        name: [text[name][row][0] for row in text[name] if row not in (WHOLE, WITHOUT)] for name in text["beyond"]
    }
    of = f"{number} induction head{'s' * (number > 1)}"
    controls = f", ≤ {max(others['change']):z.2f} without others" if others else ""
    if text["score"][WHOLE][2] >= 0:
        yield "The model is not shown to gain from context"
    elif change[1] > 0:
        yield f"Gain from context shrinks {change[0]:.2f} nats without induction heads{controls}"
    elif change[2] < 0 < lost[1]:
        yield f"Without induction heads loss rises {lost[0]:.2f} nats, at token {early} more"
    else:
        yield "The gain from context is not shown to shrink without induction heads"
    yield (
        f"The in-context-learning score {whole}. Without {of} it changes by {written(change)}, the loss at token "
        f"{late} alone by {written(lost)}."
    )
    if others:
        score, loss = (listed([f"{value:+.2f}" for value in some]) for some in others.values())
        yield f"Without as many other heads of the same layers the score changes by {score}, the loss by {loss}."
        score, loss = map(written, text["beyond"].values())
        yield f"Induction heads minus these, on average: the score {score}, the loss {loss}."


def in_context(values: Values) -> Grid:
    text = values["in context"]
    panels = [partial(_whole, text)] + [partial(_rises, text)] * bool(text["heads"])
    return Grid(panels, least=2.2, height=2.0)


def _whole(text: Values, ax: Axes) -> None:
    """Mean losses over spans of tokens that grow."""
    _spans(ax, text, text["curve"][WHOLE], BLUE)
    ax.set(title="A) whole model", ylabel="loss, nats per token")


def _rises(text: Values, ax: Axes) -> None:
    """By how much losses rise without heads."""
    count = len(text["heads"])
    looks = {WITHOUT: (ORANGE, f"without {count} induction head{'s' * (count > 1)}")}
    for row in [row for row in text["curve"] if row != WHOLE][::-1]:
        colour, name = looks.get(row, (GREY, "without as many others" if row.endswith(" 1") else "_"))
        _spans(ax, text, np.subtract(text["curve"][row], text["curve"][WHOLE]), colour, name)
    level(ax, 0, "")
    ax.set(title="B) without heads", ylabel="rise of the loss, nats")


def _spans(ax: Axes, text: Values, curve: Any, colour: str, name: str = "") -> None:
    ax.plot(text["ends"], curve, color=colour, label=name, marker="o", ms=2.5, lw=1.0)
    for token in text["tokens"]:
        ax.axvline(token, color="0.85", lw=0.7, zorder=0)
    ticks = [5, 20, 200, *text["tokens"]]
    ax.set(xscale="log", xlabel="token of the excerpt, up to")
    ax.set_xticks(ticks, map(str, ticks))
    ax.minorticks_off()


# ------------------------------------------------------------------------------------------------ training


def training_says(values: Values) -> Iterator[str]:
    formed = values["phase_change"]["tokens at a score of 0.5"]
    moments = [f"{tokens:,} tokens ({seed})" for seed, tokens in formed.items() if tokens is not None]
    yield say("an induction head forms in {n} of {of} runs of training", n=len(moments), of=len(formed))
    yield say("prefix matching of 0.5 after {moments}." if moments else "", moments=moments)


LOSSES = {"first_copy": ("loss on the first copy", GREY), "later_copies": ("loss on later copies", BLUE)}
HEADS = {
    "prefix_matching": ("prefix matching, best head", LOOKS["induction"].colour),
    "previous_token": ("previous token, best head", LOOKS["previous-token"].colour),
}


def training(values: Values) -> Grid:
    """The losses and the best head of each score; all but the first run are thin."""
    runs = list(numbers.training_runs().values())
    last = max(run["tokens"][-1] for run in runs) / 1e6
    losses = partial(_curves, runs=runs, lines=LOSSES, ylabel="loss,\nnats per token", ylim=(0, TOP))
    heads = partial(
        _curves, runs=runs, lines=HEADS, xlabel="tokens read, millions", ylabel="score of a head", ylim=(-0.02, 1.02),
        xlim=(0, last),
    )  # fmt: skip
    return Grid([losses, heads], height=1.65, columns=1, share="x", finish=_name_guesses)


def _name_guesses(figure: Picture, axes: Sequence[Axes]) -> None:
    for tokens in (VOCABULARY, COPY):
        level(axes[0], float(np.log(tokens)), f"guessing\nof {tokens}")


def _curves(ax: Axes, runs: Sequence[Values], lines: dict[str, tuple[str, str]], **labels: Any) -> None:
    """What was measured in training; of heads, that with the highest score at the end."""
    for number, run in enumerate(runs):
        look: dict[str, Any] = {"lw": 0.8, "alpha": 0.6} if number else {"lw": 1.6}
        for key, (name, colour) in lines.items():
            columns = np.reshape(run[key], (len(run["tokens"]), -1))
            best = columns[:, columns[-1].argmax()]
            ax.plot(np.array(run["tokens"]) / 1e6, best, color=colour, label="_" if number else name, **look)
    ax.set(**labels)


def no_numbers(arrays: Any, settings: Any) -> dict[str, Any]:
    """No numbers: the settings alone decide the picture."""
    return {}


FIGURE = Figure(
    "toy_induction_head",
    Settings,
    {
        "shifts": Part(
            no_numbers, panels=shifts,
            says=lambda values: ["Attention reads as far back as queries are moved against keys"],
            about=lambda values: "one-hot positions of 8 tokens; queries and keys are moved down by so many places",
        ),
        "residual_stream": Part(
            no_numbers, panels=stream,
            says=lambda values: ["The copy is added to the token itself; the largest entry is predicted"],
            about=lambda values: "one head by hand",
        ),
        "circuits": Part(
            no_numbers, panels=circuits,
            says=lambda values: ["Layer 1 matches what layer 0 moved: both circuits are the identity"],
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
        "in_context": Part(
            numbers.in_context, "text", says=in_context_says, panels=in_context,
            about=lambda values: f"{title(values)}, {values['in context']['excerpts']} excerpts of a novel",
        ),
        "phase_change": Part(
            numbers.phase_change, says=training_says, panels=training,
            about=lambda values: (
                "Llama of 2 layers x 4 heads on repeated random tokens; forms: prefix matching above 0.5; thick: seed 0"
            ),
        ),
    },
    ("patterns", "in_context"),
)  # fmt: skip
