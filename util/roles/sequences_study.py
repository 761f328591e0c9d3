"""Heads on repeated random sequences: their scores, and previous-token and induction heads by score and effect.

Both work for the same end (Olsson et al. 2022): at a token that occurred before, the model expects what followed it. So
the effect of both is the log-probability of the tokens of the second copy that is lost when just their cells of
attention are cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from functools import cached_property, partial
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from tqdm import tqdm
from transformers import PreTrainedModel

from util.engine.attention import support
from util.engine.batches import TOKEN_BUDGET, Batch, Row, all_logits, check_context, forward, logits_at, run_rows
from util.engine.finite import check_finite
from util.engine.handshake import prepare
from util.engine.instruments import Knockout, ScoreRows
from util.engine.replay import BaseRuns
from util.prompts.induction_pattern import EXCLUDE, Sequences, repeated_sequences
from util.roles import attention_scores
from util.roles.effects import Cells, Numbers, evidence, other_cells, shape_of_scores, stacked
from util.roles.rules import FACTOR, Evidence, Role, Score
from util.stats.heads import Floats, Ints
from util.stats.intervals import Intervals, mean_intervals
from util.study.checked import AtLeastFour, AtLeastTwo, Count, Natural, Number, checked
from util.study.records import Fields, Measurement, chunks, joined


@dataclass(frozen=True)
class HeadScores:
    """Attention scores of all heads on repeated random sequences.

    scores: [N, L, H] by name, see `attention_scores.cells`. uniform: the prefix-matching score of uniform attention on
    these sequences. description: what the model is, in words.
    """

    scores: Mapping[str, Floats]
    uniform: float
    description: str

    def mean(self) -> Floats:
        """Returns the prefix-matching score [L, H], the mean of the sequences."""
        return self.scores["prefix_matching"].mean(0)

    def intervals(self, name: str = "prefix_matching") -> Intervals:
        """Returns one score [L, H] with its 95 % interval over sequences."""
        return mean_intervals(self.scores[name], within=(0, 1))


def head_scores(model: PreTrainedModel, sequences: Sequences) -> dict[str, NDArray[np.float64]]:
    """Returns every score of `attention_scores.cells`, [N, L, H] by name, of N sequences."""
    layout = (sequences.length, sequences.copies, sequences.bos)
    rows = torch.from_numpy(attention_scores.queries(*layout))
    cells = {name: torch.from_numpy(cell) for name, cell in attention_scores.cells(*layout).items()}
    check_context(model, [sequences.ids.shape[1]], "a smaller length or fewer copies")
    scores = {name: np.empty(shape_of_scores(model, len(sequences.ids))) for name in cells}

    def visit(batch: Batch) -> None:
        read = ScoreRows(rows, cells)
        forward(model, batch, read)
        for name, by_layer in read.scores.items():
            scores[name][batch.numbers] = stacked(by_layer).astype(np.float64) / len(rows)

    with tqdm(total=len(sequences.ids), desc="scores", unit="sequence", leave=False, delay=5) as bar:
        run_rows(model, [Row(tuple(ids)) for ids in sequences.ids.tolist()], visit, TOKEN_BUDGET, bar)
    return scores


def measured_scores(model: PreTrainedModel, sequences: Sequences) -> Fields:
    """Returns `head_scores`; ids [N, T], ranking of tokens by frequency, the model's own numbers of the L layers."""
    kept = {"ids": sequences.ids, "ranking": sequences.ranking, "layers": list(prepare(model).layers)}
    return {**head_scores(model, sequences), **kept}


@checked
class SequenceStudy(Measurement):
    """Heads of a model on random tokens that repeat, see `prompts.induction_pattern`.

    length: tokens of a copy; copies: how often they come; sequences: how many are drawn, by seed, seed + 1, ...; bos:
    whether BOS stands first. frequent_exclude: see `repeated_sequences`.
    """

    length: AtLeastTwo = 50
    copies: AtLeastTwo = 4
    sequences: Count = 5
    seed: Natural = 0
    _: KW_ONLY
    bos: bool = True
    frequent_exclude: Annotated[Number, Field(ge=0, lt=0.5)] = EXCLUDE

    stem = "induction_scores"

    @property
    def own_request(self) -> Fields:
        return {
            "schema": 1,
            "method_version": 1,
            "length": self.length,
            "copies": self.copies,
            "seeds": list(self.seeds),
            "bos": self.bos,
            **({} if self.frequent_exclude == EXCLUDE else {"frequent_exclude": self.frequent_exclude}),
        }

    @property
    def seeds(self) -> range:
        """The seed of each sequence."""
        return range(self.seed, self.seed + self.sequences)

    @cached_property
    def drawn(self) -> Sequences:
        """The sequences. Raises what `repeated_sequences` raises."""
        drawn = self.length, self.copies, self.seeds, self.bos
        return repeated_sequences(self.pair[1], *drawn, exclude=self.frequent_exclude)

    @property
    def texts(self) -> list[str]:
        return list(map(str, self.drawn.ids.tolist()))

    @property
    def layout(self) -> tuple[int, int, bool]:
        """What `attention_scores` asks of sequences: length, copies, bos."""
        return self.length, self.copies, self.bos

    def scores(self) -> HeadScores:
        """Returns the attention scores of all heads. Raises what `repeated_sequences` raises."""
        record = self.measured(lambda: measured_scores(self.pair[0], self.drawn), part="scores", ablated=[])
        scores = {name: of_heads for name, of_heads in record.data.items() if name not in ("ids", "ranking", "layers")}
        uniform = attention_scores.uniform_prefix_matching(*self.layout)
        return HeadScores(scores, uniform, record.provenance["model"])


SCORES = {Role.PREVIOUS_TOKEN: "previous_token", Role.INDUCTION: "prefix_matching"}  # of `attention_scores.cells`
ROLES = tuple(SCORES)
BLOCK = 8  # heads that are cut before what was measured is kept


@checked
class SequenceRoles(SequenceStudy):
    """Which heads of a model read the previous token, and which what followed it before, and are needed for it.

    previous-token: the score is the attention t -> t - 1; all these cells of a head are cut. induction: the score is
    the prefix-matching score; the head's cells from the second copy to what followed in the first are cut. The null of
    a score is `rules.FACTOR` times that of uniform attention; the control of an effect are as many other earlier keys
    of the same rows.
    """

    length: AtLeastTwo = 20
    copies: AtLeastTwo = 2
    sequences: AtLeastFour = 32

    stem = "role_atlas"

    def evidence(self) -> tuple[Evidence, ...]:
        """Returns score and effect of both roles."""
        return tuple(map(self._evidence, ROLES))

    def _score(self, role: Role) -> Score:
        cells, queries = attention_scores.cells(*self.layout)[SCORES[role]], attention_scores.queries(*self.layout)
        uniform = float((cells.sum(1) / (queries + 1)).mean())
        return Score(self.scores().scores[SCORES[role]], np.full(1, FACTOR * uniform))

    def _evidence(self, role: Role) -> Evidence:
        score = self._score(role)
        second = score.halves[1]

        def measure(numbers: Numbers) -> Fields:
            cut = self._cut(role)
            control = other_cells(cut, int(self.bos), (self.seed, ROLES.index(role)))
            whole, layers = self._log_probability(second), support(self.pair[0]).layers
            heads = [score.chosen[number] for number in numbers]

            def lost(cells: Cells) -> Floats:
                knockouts = [Knockout(torch.from_numpy(cells), layers[layer], head) for layer, head in heads]
                return np.stack([whole - self._log_probability(second, knockout) for knockout in knockouts], axis=1)

            return {"cut": lost(cut), "control": lost(control)}

        blocks = partial(chunks, range(len(score.chosen)), BLOCK)
        return evidence(self, role, score, measure, blocks, joined("cut", "control", axis=1))

    def _cut(self, role: Role) -> Cells:
        """The cells [C, 2] of a role, BOS never being a key."""
        if role == Role.PREVIOUS_TOKEN:
            query = np.arange(1 + self.bos, self.copies * self.length + self.bos)
            return np.stack([query, query - 1], axis=1)
        rows, keys = np.nonzero(attention_scores.cells(*self.layout)["prefix_matching"])
        return np.stack([attention_scores.queries(*self.layout)[rows], keys], axis=1)

    # -------------------------------------------------------------------------------------------- runs

    @cached_property
    def _runs(self) -> BaseRuns:
        return BaseRuns(self.pair[0])

    def _log_probability(self, numbers: Ints, *attached: Knockout) -> Floats:
        """The mean log-probability [M] of the repeated tokens of some sequences [M], in nats.

        Repeated are the tokens of later copies whose predecessor is in such a copy, too.
        """
        model, ids = self.pair[0], torch.from_numpy(self.drawn.ids[numbers])
        places = torch.arange(self.bos + self.length, ids.shape[1] - 1)
        log_probability = np.empty(len(ids))

        def visit(batch: Batch) -> None:
            with self._runs.run(tuple(batch.numbers.tolist()), attached), logits_at(model, places):
                logits = all_logits(model, batch, *attached)
            check_finite(logits, "the logits", model, batch.rows, batch.prompts)
            wanted = ids[batch.numbers][:, places + 1, None].to(logits.device)
            logs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
            log_probability[batch.numbers] = logs.gather(-1, wanted)[..., 0].double().mean(1).cpu().numpy()

        run_rows(model, [Row(tuple(tokens)) for tokens in ids.tolist()], visit)
        return log_probability
