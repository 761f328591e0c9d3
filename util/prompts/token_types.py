"""The type, the example and the slot of each token of a prompt."""

from dataclasses import dataclass
from typing import Any

from util.prompts.prompt import Misaligned, Prompt, with_bos


@dataclass(frozen=True)
class TypedTokens:
    """A prompt of `Layout` as tokens with their types, each [T] (Bakalova et al. 2025, token types).

    types: bos, header, x, t (separator), y, n (end of a demonstration), query, last_separator, target; if a
    demonstration has a mark, it is a suffix of the types of its x and y. examples: 1 to k for demonstrations, k + 1 for
    query, last separator and target, 0 for BOS and header. slots: the number of the token's part, counted from left to
    right with BOS as 0; all tokens of one input have the same slot.
    """

    ids: tuple[int, ...]
    types: tuple[str, ...]
    examples: tuple[int, ...]
    slots: tuple[int, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of tokens of each slot; prompts of equal sizes are aligned token by token."""
        return tuple(self.slots.count(slot) for slot in range(self.slots[-1] + 1))


def check_aligned(clean: TypedTokens, donor: TypedTokens) -> None:
    """Raises Misaligned (reason "unequal sizes") unless two prompts have the same slots and types, token by token."""
    if (clean.slots, clean.types) != (donor.slots, donor.types):
        raise Misaligned(
            "unequal sizes", f"slots of {clean.sizes} tokens in the clean prompt, {donor.sizes} in its donor"
        )


def type_tokens(prompt: Prompt, tokenizer: Any, target: bool = False) -> TypedTokens:
    """The tokens of a prompt with their types. BOS always stands first (see `with_bos`).

    target: append the answer. Raises Misaligned, a ValueError that names the place, unless every token lies in exactly
    one slot and every separator and end is one token. The text that joins a separator and an output counts as part of
    the output. (For prompts with other ends, such as blank lines, use `with_bos(...).under(span)`.)
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
    """(end, type, example) of the parts of a prompt, from left to right; each part begins where the last one ends."""
    k = len(prompt.demonstrations)
    slots = []
    for role, spans in prompt.spans.items():
        for i, (_, stop) in enumerate(spans):
            if i == k and role in "xs":
                name = {"x": "query", "s": "last_separator"}[role]
            else:
                name = {"s": "t"}.get(role, role) + (prompt.marks[i] if prompt.marks and role in "xy" else "")
            slots.append((stop, name, 0 if role == "header" else i + 1))
    slots.sort()
    if end is not None:
        slots.append((end, "target", k + 1))
    return slots
