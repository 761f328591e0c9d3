"""Heads of indirect object identification by score and effect (Wang et al. 2022, section 3).

All effects are on the logit difference IO - S, in nats. What heads write at the end of the prompt (END) is replaced by
what they write after a prompt with three unrelated names (p_ABC in the paper).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from util.engine.batches import TOKEN_BUDGET, Batch, Row, forward, run_rows
from util.engine.components import direct_effects
from util.engine.handshake import prepare
from util.engine.instruments import CaptureHeads, CaptureRows
from util.engine.replay import Edit, replay
from util.prompts.ioi import Corruption, other_answers
from util.roles.cuts import head_cut, last_write, other_cells
from util.roles.heads import plain
from util.roles.name_pairs import NamePairs
from util.roles.rules import FACTOR, Effect, Evidence, Role, Score
from util.stats.heads import Head
from util.study.checked import AtLeastFour, checked
from util.study.records import joined

PATTERNS = {  # by role: query and key, as roles of tokens
    Role.DUPLICATE_TOKEN: ("S2", "S1"),
    Role.INHIBITION: ("END", "S2"),
    Role.MOVER: ("END", "IO"),
    Role.NEGATIVE_MOVER: ("END", "IO"),
}
BLOCK = 16  # prompts that are measured before what was measured is kept
UNIT = "nats of the logit difference"


@checked
class NameRoles(NamePairs):
    """Which heads of a model do what in indirect object identification.

    duplicate-token: the score is the attention S2 -> S1; the effect is what is lost when this cell is cut, and the
    control another earlier key of S2. mover and negative mover: the score is the attention END -> IO; the effect is
    what the head tells the output directly, for the answer or against it; and the control is the size of what it tells
    of two other names, which neither prompt holds: a head that moves logits of all names is none. inhibition: the score
    is the attention END -> S2; the effect is what is lost when what the head writes at END is replaced, without what it
    tells the output directly, so that only what comes later at END, the queries of movers above all, can have lost it;
    and the control is the size of the direct part: a head that reads S2 and tells the output most of it by itself does
    not work through others. (Wang et al. patch the paths to the movers' queries, which the paths through a third head
    are no part of.)
    The null of a score is `rules.FACTOR` times that of uniform attention. Where layers of a class cannot be taken apart
    there is no direct effect, and of the four roles there is the first alone.
    """

    corruption: Corruption = "abc"
    prompts: AtLeastFour = 128

    stem = "role_atlas"

    @property
    def own_request(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "method_version": 2,
            "data": "ioi",
            "prompts": self.prompts,
            "corruption": self.corruption,
            "held_out": self.holds_out,
            "seed": self.seed,
            "token_budget": TOKEN_BUDGET,
        }

    def evidence(self) -> tuple[Evidence, ...]:
        """Returns score and effect of each role that can be measured."""
        duplicate = Role.DUPLICATE_TOKEN
        found = [Evidence(duplicate, self._scores[duplicate], self._cut_effect())]
        told = self._direct()
        if told is None:
            return tuple(found)
        direct, control = told
        found.append(Evidence(Role.INHIBITION, self._scores[Role.INHIBITION], self._indirect_effect(direct)))
        for role, sign in ((Role.MOVER, 1), (Role.NEGATIVE_MOVER, -1)):
            heads = self._scores[role].chosen()
            effect = Effect(heads, sign * _of_heads(direct, heads), np.abs(_of_heads(control, heads)), UNIT)
            found.append(Evidence(role, self._scores[role], effect))
        return tuple(found)

    # -------------------------------------------------------------------------------------------- scores

    @cached_property
    def _scores(self) -> dict[Role, Score]:
        data = self.measured(self._measure_scores, part="scores").data
        return {
            role: Score(data[str(role)], FACTOR / (data[query][:, None, None] + 1), "attention", data["clusters"])
            for role, (query, _) in PATTERNS.items()
        }

    def _measure_scores(self) -> dict[str, Any]:
        self.check()
        model, support = self.pair[0], prepare(self.pair[0])
        place = {name: torch.tensor([t.positions[name] for t in self.tokens]) for name in ("END", "S2", "S1", "IO")}
        shape = len(self.tokens), len(support.layers), support.heads
        scores = {str(role): np.empty(shape, np.float32) for role in PATTERNS}

        def visit(batch: Batch) -> None:
            for role, (query, key) in PATTERNS.items():
                rows = CaptureRows(place[query][batch.numbers, None], place[key][batch.numbers, None, None])
                forward(model, batch, rows)
                for at, layer in enumerate(support.layers):
                    scores[str(role)][batch.numbers, at] = rows.weights[layer][:, :, 0, 0].float().cpu().numpy()

        run_rows(model, [Row(tokens.base) for tokens in self.tokens], visit, TOKEN_BUDGET)
        queries = {name: place[name].numpy() for name in ("END", "S2")}
        return {**scores, **queries, "clusters": self.clusters}

    # -------------------------------------------------------------------------------------------- effects

    @property
    def _second(self) -> NDArray[np.int64]:
        """The prompts that confirm heads [M]; they are the same for all roles."""
        return self._scores[Role.MOVER].halves[1]

    def _cut_effect(self) -> Effect:
        score = self._scores[Role.DUPLICATE_TOKEN]
        if not (heads := score.chosen()):
            return score.no_effect(UNIT)

        def measure(numbers: Sequence[int]) -> dict[str, Any]:
            layers = prepare(self.pair[0]).layers
            chosen = [self.tokens[number] for number in numbers]
            cut = [np.array([[tokens.positions["S2"], tokens.positions["S1"]]]) for tokens in chosen]
            special = [self._special(number) for number in numbers]
            seeds = [(self.seed, number) for number in numbers]
            control = [other_cells(*given) for given in zip(cut, special, seeds, strict=True)]
            edits = [head_cut(layers[at], head, cells) for cells in (cut, control) for at, head in heads]
            lost = self._lost(numbers, edits, min(tokens.positions["S2"] for tokens in chosen))
            return {"cut": lost[:, : len(heads)], "control": lost[:, len(heads) :], "numbers": list(numbers)}

        part = {"part": "effects", "role": str(Role.DUPLICATE_TOKEN), "heads": plain(heads)}
        data = self.measured_in_blocks(self._blocks, measure, joined("cut", "control", by="numbers"), **part).data
        return Effect(heads, data["cut"], data["control"], UNIT)

    def _indirect_effect(self, direct: NDArray[np.floating]) -> Effect:
        """What is lost by what heads write at END, without what they tell the output directly [M, L, H]."""
        score = self._scores[Role.INHIBITION]
        if not (heads := score.chosen()):
            return score.no_effect(UNIT)

        def measure(numbers: Sequence[int]) -> dict[str, Any]:
            layers, source = prepare(self.pair[0]).layers, self._at_end(self.batch(numbers)[1])
            edits = [last_write(layers[at], head, source[layers[at]][:, 0, head]) for at, head in heads]
            end = len(self.tokens[numbers[0]].base) - 1
            return {"total": self._lost(numbers, edits, end), "numbers": list(numbers)}

        part = {"part": "effects", "role": str(Role.INHIBITION), "heads": plain(heads)}
        total = self.measured_in_blocks(self._blocks, measure, joined("total", by="numbers"), **part).data["total"]
        told = _of_heads(direct, heads)
        return Effect(heads, total - told, np.abs(told), UNIT)

    def _direct(self) -> tuple[NDArray[np.floating], NDArray[np.floating]] | None:
        """What every head tells the output directly at END, of IO - S and of two other names, [M, L, H] each.

        None where that is not known of the class.
        """

        def measure(numbers: Sequence[int]) -> dict[str, Any]:
            base, source, answers = self.batch(numbers)
            others = torch.tensor([self._other_answers(number) for number in numbers])
            old, new = self._at_end(base), self._at_end(source)
            changes = {layer: new[layer] - old[layer] for layer in old}
            found = direct_effects(self.pair[0], base, changes, torch.cat([answers, others], dim=1))
            if found is None:
                nothing = np.empty((len(numbers), 0, 0))
                return {"direct": nothing, "control": nothing, "numbers": list(numbers)}
            changed, plain_run = (logits[..., 0, :].double() for logits in found)
            told = (plain_run - changed).permute(2, 0, 1, 3).numpy()  # [N, L, H, 4]: of IO, S and the other two
            return {
                "direct": told[..., 0] - told[..., 1],
                "control": told[..., 2] - told[..., 3],
                "numbers": list(numbers),
            }

        join = joined("direct", "control", by="numbers")
        data = self.measured_in_blocks(self._blocks, measure, join, part="direct effects").data
        return (data["direct"], data["control"]) if data["direct"].size else None

    def _other_answers(self, number: int) -> tuple[int, int]:
        """The ids of two names that are in neither prompt of a pair."""
        return other_answers(self.drawn.pairs[number], self.drawn.words.names, self.pair[1], self.seed)

    # -------------------------------------------------------------------------------------------- runs

    def _blocks(self) -> list[list[int]]:
        """The prompts of the second half, those of one length together."""
        by_length = defaultdict[int, list[int]](list)
        for number in self._second.tolist():
            by_length[len(self.tokens[number].base)].append(number)
        return [some[start : start + BLOCK] for some in by_length.values() for start in range(0, len(some), BLOCK)]

    def _special(self, number: int) -> int:
        """How many special tokens stand in front of a prompt."""
        special = set(self.pair[1].all_special_ids)
        return next(place for place, token in enumerate(self.tokens[number].base) if token not in special)

    def _lost(self, numbers: Sequence[int], edits: Sequence[Edit], first: int) -> NDArray[np.float64]:
        """What prompts [N] lose of the logit difference under each edit [N, E]."""
        base, _, answers = self.batch(numbers)
        runs = replay(self.pair[0], base, edits, answers, first)
        edited, whole = (logits[..., 0] - logits[..., 1] for logits in (runs.logits, runs.base))
        return (whole - edited).T.double().numpy()

    def _at_end(self, ids: Tensor) -> Mapping[int, Tensor]:
        """The outputs of all heads at the last of tokens [N, T]: by the model's own layer number, [N, 1, H, dv]."""
        heads = CaptureHeads(torch.tensor([ids.shape[1] - 1]))
        forward(self.pair[0], Batch.of([Row(tuple(tokens)) for tokens in ids.tolist()], range(len(ids))), heads)
        return heads.z


def _of_heads(values: NDArray[np.floating], heads: Sequence[Head]) -> NDArray[np.floating]:
    """Of values [M, L, H] those of some heads, [M, C]."""
    layers, places = (np.array([head[i] for head in heads], dtype=int) for i in (0, 1))
    return values[:, layers, places]
