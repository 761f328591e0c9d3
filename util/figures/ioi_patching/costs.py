"""What the parts of the study cost, see `records.estimates`."""

from __future__ import annotations

from util.figures import report
from util.figures.ioi_patching.edge_results import METHODS
from util.figures.ioi_patching.measures import RANDOM_SETS, set_sizes
from util.figures.ioi_patching.pairs import BLOCK, Pairs
from util.figures.ioi_patching.study import PATHS, PLANTED, UNTRAINED, Study
from util.prompts import lengths
from util.records.estimates import (
    NOTHING,
    RECORD,
    Part,
    Shape,
    Work,
    batches,
    loading,
    plain_runs,
    with_control,
)
from util.scores.evaluation import SHARES

TUTORIALS = report.published(Study.stem)["circuit"]["model"]  # the model that the tutorial measures
PLAIN = 7  # runs of a pair in a map: of both prompts, for the gradient, for both prefixes, the direct part, the answer
STEPS = 5  # of integrated gradients
RANDOM_RANKINGS = 2
EDGES_AT_ONCE, CIRCUITS_AT_ONCE = 128, 4  # in one block
READ = 2.7  # runs that one of a circuit is worth: queries, keys and values read streams of their own
FRAMES = 4  # lengths and frames of pairs, each of which has batches of its own


def parts(study: Study, shape: Shape) -> dict[str, Part]:
    """The parts that notebook 03 asks for, by the names of the study's methods."""
    example = plain_runs(shape, 2, lengths.NAMES).times(8)
    example += Work(tokens=shape.all_heads * lengths.NAMES * 2 * shape.replayed, passes=10)
    found = {
        "example": Part(loading() + example, study.example),
        "next_words": Part(plain_runs(shape, 2, lengths.NAMES), study.next_words),
        "population": Part(maps(study.pairs, study.prompts, shape), study.population),
    }
    if study.untrained_control:
        fewer = min(UNTRAINED, study.prompts)
        found["untrained"] = Part(loading() + maps(study.pairs, fewer, shape), study.untrained)
    return found | {
        "curve": Part(curve(study, shape), study.curve),
        "paths": Part(paths(study, shape), study.paths),
        "edges": Part(edges(study, shape), study.edges),
        "planted": Part(with_control(NOTHING, 1.0 + 0.03 * min(PLANTED, study.prompts)), study.planted),
        "tutorial": Part(example if study.model.name == TUTORIALS else NOTHING, study.tutorial),
    }


def maps(pairs: Pairs, prompts: int, shape: Shape) -> Work:
    """Every head patched both ways, from the layer of the head and the first name that differs on."""
    changed = lengths.names_changed(pairs.corruption)
    patched = 2 * prompts * shape.all_heads
    together = max(1, min(prompts, BLOCK // shape.all_heads))
    blocks = max(FRAMES * min(1.0, prompts / 8), batches(prompts, 2048 / together))
    all_at_once = together * shape.all_heads
    runs = Work(
        tokens=patched * changed * shape.replayed,
        passes=4 * blocks,
        room=shape.replay(all_at_once, changed, lengths.NAMES)
        + 3 * 4 * together * lengths.NAMES * shape.layers * shape.width,
        stored=RECORD + 4 * 5 * prompts * shape.all_heads,
        seconds=0.2 + 0.01 * prompts,
    )
    plain = plain_runs(shape, prompts, lengths.NAMES).times(PLAIN)
    return runs + plain + Work(unembedded=2 * prompts * lengths.NAMES, room=shape.logits(together * lengths.NAMES, 2))


def curve(study: Study, shape: Shape) -> Work:
    """Sets of 1, 2, 4, ... heads that work alone, all but these, and random ones, on all tokens of fresh pairs."""
    prompts = min(128, study.prompts)
    sets = 1 + (2 + RANDOM_SETS) * len(set_sizes(shape.all_heads))
    frames = min(8, prompts)
    runs = plain_runs(shape, prompts, lengths.NAMES).times(sets + 1)
    tokens = prompts * lengths.NAMES
    return runs + Work(
        unembedded=sets * tokens,
        passes=sets * min(1.5, frames / 8),
        seconds=0.005 * sets * frames,
        room=runs.room + shape.logits(tokens / frames * 2, 2),
        stored=sets * RECORD,
    )


def paths(study: Study, shape: Shape) -> Work:
    """What each of some heads tells each later one, through query, key, value and all, and the output."""
    heads, prompts = min(study.path_heads, shape.all_heads), min(PATHS, study.prompts)
    changed = lengths.names_changed(study.corruption)
    told = 4 * heads * (heads - 1) / 2 * (1 - 1 / shape.layers)
    edited = Work(
        tokens=prompts * told * changed * shape.replayed * 0.8,  # it begins at the later one of two heads
        passes=8 * FRAMES,
        room=shape.replay(told * prompts / FRAMES * 1.5, changed, lengths.NAMES),
        stored=RECORD + 16 * prompts * heads**2,
        seconds=0.3 + 0.0004 * prompts * told,
    )
    frozen = plain_runs(shape, heads * prompts, lengths.NAMES, share=0.5)
    return edited + frozen + plain_runs(shape, prompts, lengths.NAMES).times(6)


def edges(study: Study, shape: Shape) -> Work:
    """Scores of all edges of the component graph; exact effects of some, or of all twice; and circuits."""
    prompts = min(study.edge_pairs, study.prompts)
    changed = lengths.names_changed(study.corruption)
    every = number_of_edges(shape)
    exact = every * 2 if every <= study.exact_edges else study.exact_edges
    rankings = len(METHODS) + RANDOM_RANKINGS + (every <= study.exact_edges)
    circuits = 2 * rankings * len(SHARES)
    tokens = prompts * lengths.NAMES
    scored = plain_runs(shape, prompts, lengths.NAMES).times(3 * (1 + STEPS) + 4)
    alone = Work(
        tokens=exact * prompts * changed * shape.replayed,
        passes=exact / EDGES_AT_ONCE * FRAMES * 2 + shape.layers * 2 * exact / EDGES_AT_ONCE,
        seconds=0.002 * exact + 0.0001 * exact * prompts,
        room=shape.replay(EDGES_AT_ONCE * prompts / FRAMES * 1.5, changed, lengths.NAMES),
        stored=RECORD + 4 * exact * prompts,
    )
    run = Work(
        tokens=READ * circuits * tokens,
        passes=4 * circuits * min(FRAMES, prompts / 3),
        room=shape.replay(tokens / 2 * shape.heads, lengths.NAMES, lengths.NAMES) * 0.15,
        stored=2 * rankings * RECORD,
    )
    return scored + alone + run + Work(stored=len(METHODS) * every * 4)


def number_of_edges(shape: Shape) -> int:
    """How many edges the component graph has: every head's query, key and value, each MLP and the logits read all
    senders before them."""
    senders = [1 + layer * (shape.heads + 1) for layer in range(shape.layers + 1)]
    return sum((3 * shape.heads + 1) * before + shape.heads for before in senders[:-1]) + senders[-1]
