"""What each token of a prompt is: its type, the example it belongs to, and its slot."""

from dataclasses import dataclass
from typing import Any

from util.prompts.prompt import Misaligned, Prompt, with_bos


@dataclass(frozen=True)
class TypedTokens:
    """A prompt of `Layout` as tokens with their types, each [T] (Bakalova et al. 2025, token types).

    types: bos, header, x, t (separator), y, n (end of a demonstration), query, last_separator, target; the x and y of a
    marked demonstration have its mark behind. examples: 1 to k, k + 1 for query, last separator and target, 0 in front.
    slots numbers the parts of the prompt from left to right, BOS 0: the tokens of one input share a number.
    """

    ids: tuple[int, ...]
    types: tuple[str, ...]
    examples: tuple[int, ...]
    slots: tuple[int, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Tokens of each slot: prompts of equal sizes lie on top of each other."""
        return tuple(self.slots.count(slot) for slot in range(self.slots[-1] + 1))


def check_aligned(clean: TypedTokens, donor: TypedTokens) -> None:
    """Raises Misaligned (reason "unequal sizes") unless the tokens of two prompts lie in the same slots and types."""
    if (clean.slots, clean.types) != (donor.slots, donor.types):
        both = enumerate(zip(clean.sizes, donor.sizes, strict=False))
        slots = [f"slot {slot} has {a} tokens in the clean prompt, {b} in its donor" for slot, (a, b) in both if a != b]
        raise Misaligned("unequal sizes", slots[0] if slots else "the prompts differ in their slots or marks")


def type_tokens(prompt: Prompt, tokenizer: Any, target: bool = False) -> TypedTokens:
    """The tokens of a prompt with their types; BOS always stands first (see `with_bos`), with `target` the answer last.

    Every token lies in exactly one slot, what joins separator and output counted with the output, and separators and
    ends are one token each; otherwise Misaligned is raised, a ValueError that says what is not so and where. (Parts of
    a prompt that has other ends, such as blank lines, are found by `with_bos(...).under(span)`.)
    """
    text = prompt.with_label() if target else prompt.text
    tokens = with_bos(text, tokenizer, bos=True)
    front = tokens.spans.count(None)
    types, examples, slots = ["bos"] * front, [0] * front, [0] * front
    token, start = front, 0
    for number, (stop, name, example) in enumerate(_slots(prompt, len(text) if target else None), 1):
        first = token
        while token < len(tokens.ids) and tokens.spans[token][1] <= stop:  # type: ignore[index]
            token += 1
        around = repr(text[max(0, start - 12) : stop + 12])
        crossing = token < len(tokens.ids) and tokens.spans[token][0] < stop  # type: ignore[index]
        if crossing or token == first:
            raise Misaligned("merged", f"no token boundary at an end of {text[start:stop]!r} in {around}")
        if name in ("t", "last_separator", "n") and token - first > 1:
            raise Misaligned("split", f"the separator {text[start:stop]!r} is {token - first} tokens in {around}")
        types += [name] * (token - first)
        examples += [example] * (token - first)
        slots += [number] * (token - first)
        start = stop
    return TypedTokens(tokens.ids, tuple(types), tuple(examples), tuple(slots))


def _slots(prompt: Prompt, end: int | None) -> list[tuple[int, str, int]]:
    """(end, type, example) of the parts of a prompt from left to right; each begins where the one before it ends."""
    k = len(prompt.demonstrations)
    last = {"x": "query", "s": "last_separator"}
    names = {"s": "t"}
    found = []
    for role, spans in prompt.spans.items():
        for i, (_, stop) in enumerate(spans):
            name = last[role] if i == k and role in last else names.get(role, role)
            mark = prompt.marks[i] if prompt.marks and i < k and role in ("x", "y") else ""
            found.append((stop, name + mark, 0 if role == "header" else i + 1))
    return sorted(found) + ([(end, "target", k + 1)] if end is not None else [])
