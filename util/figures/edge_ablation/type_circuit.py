"""A circuit of type pairs, drawn over the token types of a prompt."""

from collections.abc import Collection, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch

from util.show.style import BLUE, GREY

Pair = tuple[str, str, str]  # source, target, relation
SHORT = {"last_separator": "last", "query": "query"}
THINNEST, WIDEST = 0.6, 4.0  # points: of arrows


def short_name(kind: str) -> str:
    """A type of tokens, as figures name it."""
    return SHORT.get(kind, kind)


def arrow(source: str, target: str | None = None, relation: str = "any") -> str:
    """An edge as it is typeset: x, an arrow and y, and its relation in brackets; an edge's name or a type alike."""
    if target is None:
        pair, _, relation = source.partition(":")
        source, _, target = pair.partition("->")
    names = (SHORT.get(name, f"${name}$" if len(name) == 1 else name) for name in (source, target) if name)
    return r" $\to$ ".join(names) + (f" ({relation})" if relation not in ("", "any") else "")


def draw_type_pairs(
    ax: Axes,
    pairs: Sequence[Pair],
    nats: Mapping[Pair, float],
    *,
    examples: int,
    missed: Collection[Pair] = (),
) -> None:
    """Demonstrations and the query, with an arrow wherever a pair is read: within an example below, others above.

    nats: what a pair costs alone, the width of its arrow. examples: how many demonstrations are drawn; one is enough
    for circuits that do not read across them. missed: pairs that are drawn grey.
    """
    slots = [(kind, example) for example in range(1, examples + 1) for kind in "xtyn"]
    place = {slot: number + 0.4 * slot[1] for number, slot in enumerate(slots)}
    end = place["n", examples]
    place |= {("query", examples + 1): end + 1.7, ("last_separator", examples + 1): end + 3.5}  # longer names
    largest = max((nats.get(pair, 0.0) for pair in pairs), default=0.0) or 1.0
    for pair in pairs:
        source, target, relation = pair
        width = THINNEST + (WIDEST - THINNEST) * max(0.0, nats.get(pair, largest / 5)) / largest
        for a in place:
            for b in place:
                lag = b[1] - a[1]
                related = {"same": lag == 0, "earlier": lag > 0, "any": True}[relation]
                if (a[0], b[0]) != (source, target) or not related or place[a] >= place[b]:
                    continue
                ax.add_patch(
                    FancyArrowPatch(
                        (place[a], 0.0),
                        (place[b], 0.0),
                        connectionstyle=f"arc3,rad={0.5 if lag == 0 else -0.33}",
                        arrowstyle=f"simple,tail_width={width},head_width={width + 3},head_length={width + 3}",
                        lw=0,
                        color=GREY if pair in missed else BLUE,
                        alpha=0.75,
                        shrinkA=8,
                        shrinkB=8,
                    )
                )
    for (kind, example), x in place.items():
        name = SHORT.get(kind, f"${kind}_{example}$")
        box = {"boxstyle": "round", "fc": "white", "ec": "0.6", "pad": 0.2}
        ax.text(x, 0, name, ha="center", va="center", fontsize=7, bbox=box)
    ax.set(xlim=(min(place.values()) - 0.5, max(place.values()) + 0.7), ylim=(-0.5, 0.85))
    ax.axis("off")
