"""Heads of indirect object identification by score and effect (Wang et al. 2022, section 3).

All effects are on the logit difference IO - S, in nats. What heads write at the end of the prompt (END) is replaced by
what they write after a prompt with three unrelated names (p_ABC in the paper).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from util.engine.batches import TOKEN_BUDGET, Batch, Row, check_context, forward, run_rows
from util.engine.components import direct_effects
from util.engine.handshake import prepare
from util.engine.instruments import CaptureHeads, CaptureRows
from util.engine.replay import Edit, replay
from util.load_model_and_data import origin
from util.prompts.ioi import (
    HELD_OUT_FRAMES,
    HELD_OUT_NAMES,
    Corruption,
    IOIPair,
    IOITokens,
    ioi_prompts,
    ioi_tokens,
    other_answers,
    usable_words,
    word_lists,
)
from util.prompts.word_pairs import is_trained
from util.roles.effects import Blocks, Heads, Numbers, cuts, evidence, last_write, other_cells, shape_of_scores, stacked
from util.roles.rules import FACTOR, Evidence, Role, Score
from util.stats.heads import Floats, Ints
from util.study.checked import AtLeastFour, Count, Natural, checked
from util.study.records import Fields, Measurement, chunks, joined


@checked
class NamePairs(Measurement):
    """Generated pairs of prompts; what a model does with them is measured by studies that build on this one.

    corruption, prompts, seed: of the data set, see `prompts.ioi.ioi_prompts`. held_out: whether frames and names are
    those that the embedded models were not trained on; None: for these.
    """

    corruption: Corruption = "s2_swap"
    prompts: Count = 128
    seed: Natural = 0
    _: KW_ONLY
    held_out: bool | None = None

    word_lists = ("ioi.json",)

    def __post_init__(self) -> None:
        # base prompts that differ: of frames, two names in either order, places and objects
        (frames, names), lists = self._words, word_lists()
        places, objects = (len(lists[name]) for name in ("places", "objects"))
        words = sum(places ** ("{PLACE}" in frame) * objects ** ("{OBJECT}" in frame) for frame in frames)
        if self.prompts > (most := 2 * len(names) * (len(names) - 1) * words):
            raise ValueError(f"prompts = {self.prompts}: the lists of words make {most} different pairs at most")

    @property
    def holds_out(self) -> bool:
        """Whether frames and names are those that the embedded model was not trained on."""
        if self.held_out is not None:
            return self.held_out
        name = self.model.name
        return is_trained(name) or Path(origin(name)).resolve() == Path(origin("embedded")).resolve()

    # -------------------------------------------------------------------------------------------- the prompts

    @property
    def _words(self) -> tuple[Sequence[str], Sequence[str]]:
        """The frames and names that prompts are made from, before the tokenizer keeps some of the names."""
        lists = {"frames": sorted(HELD_OUT_FRAMES), "names": sorted(HELD_OUT_NAMES)} if self.holds_out else word_lists()
        return lists["frames"], lists["names"]

    @cached_property
    def drawn(self) -> list[IOIPair]:
        """The pairs of prompts. Raises what `ioi_prompts` raises, such as for words that the tokenizer splits."""
        return ioi_prompts(self.pair[1], self.prompts, self.seed, self.corruption, *self._words)

    @cached_property
    def _names(self) -> Sequence[str]:
        """The names that the tokenizer keeps."""
        return usable_words(self.pair[1], *self._words)["names"]

    @cached_property
    def tokens(self) -> list[IOITokens]:
        """The pairs as tokens."""
        return [ioi_tokens(pair, self.pair[1]) for pair in self.drawn]

    @property
    def texts(self) -> list[str]:
        return [prompt.text for pair in self.drawn for prompt in (pair.base, pair.source)]

    @property
    def clusters(self) -> Ints:
        """The number [N] of every pair's frame and names: pairs that share them are no independent prompts."""
        kinds = ["\0".join([pair.frame, *sorted(pair.base.labels)]) for pair in self.drawn]
        return np.unique(kinds, return_inverse=True)[1]

    def batch(self, numbers: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the tokens [N, T] of base and source and the answers [N, 2] of some pairs, all of one length."""
        rows = [(tokens.base, tokens.source, tokens.answers) for tokens in (self.tokens[number] for number in numbers)]
        base, source, answers = map(torch.tensor, zip(*rows, strict=True))
        return base, source, answers

    def check(self) -> None:
        """Raises what the words, the tokenizer and the model's context make of the pairs, before any forward pass."""
        check_context(self.pair[0], [len(tokens.base) for tokens in self.tokens], "another model")


PATTERNS = {  # by role: query and key, as roles of tokens
    Role.DUPLICATE_TOKEN: ("S2", "S1"),
    Role.INHIBITION: ("END", "S2"),
    Role.MOVER: ("END", "IO"),
    Role.NEGATIVE_MOVER: ("END", "IO"),
}
SIGNS = {Role.MOVER: 1, Role.NEGATIVE_MOVER: -1}  # of what a head tells the output directly
BLOCK = 16  # prompts that are measured before what was measured is kept


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
    def own_request(self) -> Fields:
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
        duplicate, direct = self._duplicate(), self._direct()
        if not direct["direct"].size:
            return (duplicate,)
        return duplicate, self._inhibition(direct["direct"]), *(self._mover(role, direct) for role in SIGNS)

    # -------------------------------------------------------------------------------------------- scores

    @cached_property
    def _scores(self) -> dict[Role, Score]:
        data = self.measured(self._measure_scores, part="scores").data
        return {
            role: Score(data[str(role)], FACTOR / (data[query][:, None, None] + 1), data["clusters"])
            for role, (query, _) in PATTERNS.items()
        }

    def _measure_scores(self) -> Fields:
        self.check()
        place = {name: torch.tensor([t.positions[name] for t in self.tokens]) for name in ("END", "S2", "S1", "IO")}
        shape = shape_of_scores(self.pair[0], len(self.tokens))
        scores = {str(role): np.empty(shape, np.float32) for role in PATTERNS}

        def visit(batch: Batch) -> None:
            rows = {
                role: CaptureRows(place[query][batch.numbers, None], place[key][batch.numbers, None, None])
                for role, (query, key) in PATTERNS.items()
            }
            forward(self.pair[0], batch, *rows.values())
            for role, captured in rows.items():
                scores[str(role)][batch.numbers] = stacked(captured.weights)[..., 0, 0]

        run_rows(self.pair[0], [Row(tokens.base) for tokens in self.tokens], visit, TOKEN_BUDGET)
        queries = {name: place[name].numpy() for name in ("END", "S2")}
        return {**scores, **queries, "clusters": self.clusters}

    # -------------------------------------------------------------------------------------------- effects

    def _duplicate(self) -> Evidence:
        role, join = Role.DUPLICATE_TOKEN, joined("cut", "control", by="numbers")
        score = self._scores[role]

        def measure(numbers: Numbers) -> Fields:
            special, cut, control = set(self.pair[1].all_special_ids), [], []
            for number in numbers:
                tokens = self.tokens[number]
                cells = np.array([[tokens.positions["S2"], tokens.positions["S1"]]])
                in_front = next(at for at, token in enumerate(tokens.base) if token not in special)
                cut.append(cells)
                control.append(other_cells(cells, in_front, (self.seed, number)))
            first = min(self.tokens[number].positions["S2"] for number in numbers)
            lost = self._lost(numbers, cuts(self.pair[0], score.chosen, cut, control), first)
            of_cut, of_control = np.split(lost, 2, axis=1)
            return {"cut": of_cut, "control": of_control, "numbers": list(numbers)}

        return evidence(self, role, score, measure, self._blocks, join)

    def _inhibition(self, direct: Floats) -> Evidence:
        """What is lost by what heads write at END, without what they tell the output directly [M, L, H]."""
        role, join = Role.INHIBITION, joined("total", by="numbers")
        score = self._scores[role]

        def measure(numbers: Numbers) -> Fields:
            layers, source = prepare(self.pair[0]).layers, self._at_end(self.batch(numbers)[1])
            edits = [last_write(layers[at], head, source[layers[at]][:, 0, head]) for at, head in score.chosen]
            end = len(self.tokens[numbers[0]].base) - 1
            return {"total": self._lost(numbers, edits, end), "numbers": list(numbers)}

        def indirect(lost: Fields) -> tuple[Floats, Floats]:
            through_heads = _of_heads(direct, score.chosen)
            return lost["total"] - through_heads, np.abs(through_heads)

        return evidence(self, role, score, measure, self._blocks, join, indirect)

    def _mover(self, role: Role, direct: Fields) -> Evidence:
        score = self._scores[role]
        effect, control = (_of_heads(direct[name], score.chosen) for name in ("direct", "control"))
        return Evidence(role, score, SIGNS[role] * effect, np.abs(control))

    def _direct(self) -> Fields:
        """What every head tells the output directly at END: "direct", of IO - S, "control", of two other names.

        [M, L, H] each; [M, 0, 0] where that is not known of the class.
        """

        def measure(numbers: Numbers) -> Fields:
            base, source, answers = self.batch(numbers)
            others = torch.tensor([other_answers(self.drawn[i], self._names, self.pair[1], self.seed) for i in numbers])
            old, new = self._at_end(base), self._at_end(source)
            changes = {layer: new[layer] - old[layer] for layer in old}
            logits = direct_effects(self.pair[0], base, changes, torch.cat([answers, others], dim=1))
            lost = np.empty((len(numbers), 0, 0, 4))
            if logits is not None:
                changed, whole = (of_answers[..., 0, :].double() for of_answers in logits)
                lost = (whole - changed).permute(2, 0, 1, 3).numpy()  # [N, L, H, 4]: of IO, S and the other two
            parts = lost[..., ::2] - lost[..., 1::2]
            return {"direct": parts[..., 0], "control": parts[..., 1], "numbers": list(numbers)}

        join = joined("direct", "control", by="numbers")
        return self.measured_in_blocks(self._blocks, measure, join, part="direct effects").data

    # -------------------------------------------------------------------------------------------- runs

    def _blocks(self) -> Blocks:
        """The prompts of the second half, which are the same for all roles; those of one length together."""
        by_length = defaultdict[int, list[int]](list)
        for number in self._scores[Role.MOVER].halves[1].tolist():
            by_length[len(self.tokens[number].base)].append(number)
        return [block for numbers in by_length.values() for block in chunks(numbers, BLOCK)]

    def _lost(self, numbers: Numbers, edits: Sequence[Edit], first: int) -> Floats:
        """What prompts [N] lose of the logit difference under each edit [N, E]."""
        base, _, answers = self.batch(numbers)
        runs = replay(self.pair[0], base, edits, answers, first)
        edited, whole = (logits[..., 0] - logits[..., 1] for logits in runs)
        return (whole - edited).T.double().numpy()

    def _at_end(self, ids: Tensor) -> Mapping[int, Tensor]:
        """The outputs of all heads at the last of tokens [N, T]: by the model's own layer number, [N, 1, H, dv]."""
        heads = CaptureHeads(torch.tensor([ids.shape[1] - 1]))
        forward(self.pair[0], Batch.of([Row(tuple(tokens)) for tokens in ids.tolist()]), heads)
        return heads.z


def _of_heads(values: Floats, heads: Heads) -> Floats:
    """Of values [M, L, H] those of some heads, [M, C]."""
    return values[:, *np.array(heads, dtype=int).reshape(-1, 2).T]
