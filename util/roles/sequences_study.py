"""Heads on repeated random sequences: their scores, and previous-token and induction heads by score and effect.

Both work for the same end (Olsson et al. 2022): at a token that occurred before, the model expects what followed it. So
the effect of both is the log-probability of the tokens of the second copy that is lost when just their cells of
attention are cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY
from functools import cache, cached_property
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from transformers import PreTrainedModel

from util.engine.attention import support
from util.engine.batches import Batch, Row, all_logits, check_context, forward, logits_at, run_rows
from util.engine.finite import check_finite
from util.engine.handshake import prepare
from util.engine.instruments import CaptureRows, Knockout
from util.engine.replay import BaseRuns
from util.prompts.sequences import EXCLUDE, Sequences, repeated_sequences
from util.roles import attention_scores
from util.roles.effects import Cells, Heads, Numbers, chunks, evidence, other_cells
from util.roles.head_scores import HeadScores, head_scores, heads_by_layer, silenced
from util.roles.heads import checked_heads, plain
from util.roles.rules import FACTOR, Evidence, Floats, Role, Score
from util.stats.heads import Head
from util.study.checked import AtLeastFour, Count, Int, Natural, Number, checked
from util.study.records import Fields, Measurement, Records, joined

AtLeastTwo = Annotated[Int, Field(ge=2)]


def measured_scores(model: PreTrainedModel, sequences: Sequences, ablated: Heads = ()) -> Fields:
    """Returns attention scores [N, L, H] by name, see `attention_scores.cells`; ids [N, T], ranking, layers.

    ablated: heads whose outputs are zero meanwhile.
    """
    prepared = prepare(model)
    scores = head_scores(model, sequences, *silenced(prepared, ablated))
    return {**scores, "ids": sequences.ids, "ranking": sequences.ranking, "layers": list(prepared.layers)}


def _record(
    study: Records,
    name: str,
    compute: Callable[[PreTrainedModel, Sequences], Fields],
    length: int,
    copies: int,
    seeds: Numbers,
    **more: Any,
) -> Fields:
    @cache
    def drawn() -> Sequences:
        return repeated_sequences(study.pair[1], length, copies, list(seeds), bos=True)

    request = {"length": length, "copies": copies, "seeds": list(seeds), "bos": True, **more}
    return study.record(
        name, lambda: compute(study.pair[0], drawn()), lambda: map(str, drawn().ids.tolist()), **request
    ).data


def scores(study: Records, length: int, copies: int, seeds: Numbers) -> Fields:
    """The `measured_scores` of all heads, a record of a figure.

    length: tokens of a copy; copies: how often they come; seeds: one for each sequence. Raises what
    `repeated_sequences` raises.
    """
    return _record(study, "sequence scores", measured_scores, length, copies, seeds, ablated=[])


def patterns(study: Records, heads: Heads, length: int, copies: int, seeds: Numbers) -> Fields:
    """The whole attention [heads, T, T], query by key, of some heads on the last sequence, ids [T].

    Raises ValueError, before any forward pass, for heads that there are not.
    """

    def compute(model: PreTrainedModel, sequences: Sequences) -> Fields:
        ids, layers = sequences.ids[-1], prepare(model).layers
        heads_by_layer(support(model), heads)
        check_context(model, [len(ids)], "a smaller length or fewer copies")
        rows = CaptureRows(torch.arange(len(ids)), layers={layers[layer] for layer, _ in heads})
        forward(model, Batch.of([Row(tuple(ids.tolist()))], [0], [len(seeds) - 1]), rows)
        attention = [rows.weights[layers[layer]][0, head].float().cpu().numpy() for layer, head in heads]
        return {"attention": np.stack(attention), "ids": ids}

    return _record(study, "sequence patterns", compute, length, copies, seeds, heads=plain(heads))


@checked
class SequenceStudy(Measurement):
    """Heads of a model on random tokens that repeat, see `prompts.sequences`.

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
        layout = self.length, self.copies, self.seeds, self.bos
        return repeated_sequences(self.pair[1], *layout, exclude=self.frequent_exclude)

    @property
    def texts(self) -> list[str]:
        return list(map(str, self.drawn.ids.tolist()))

    def scores(self, ablated: Iterable[Head] = ()) -> HeadScores:
        """Returns the attention scores of all heads.

        ablated: heads whose outputs are zero meanwhile. Raises ValueError for heads that there are not, and what
        `repeated_sequences` raises.
        """
        removed = checked_heads(ablated, "ablated")

        def compute() -> Fields:
            return measured_scores(self.pair[0], self.drawn, removed)

        record = self.measured(compute, part="scores", ablated=plain(removed))
        scores = dict(record.data)
        ids, layers, ranking = (scores.pop(name) for name in ("ids", "layers", "ranking"))
        title, description = self.model.title, record.provenance["model"]
        return HeadScores(scores, ids, layers, ranking, self.length, self.copies, self.bos, title, description)


ROLES = (Role.PREVIOUS_TOKEN, Role.INDUCTION)
SCORES = {Role.PREVIOUS_TOKEN: "previous_token", Role.INDUCTION: "prefix_matching"}  # of `attention_scores.cells`
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
        layout = self.length, self.copies, self.bos
        cells, queries = attention_scores.cells(*layout)[SCORES[role]], attention_scores.queries(*layout)
        uniform = float((cells.sum(1) / (queries + 1)).mean())
        return Score(self.scores().scores[SCORES[role]], np.full(1, FACTOR * uniform))

    def _evidence(self, role: Role) -> Evidence:
        score = self._score(role)
        second = score.halves[1]

        def measure(numbers: Numbers, heads: Heads) -> Fields:
            cut = self._cut(role)
            control = other_cells(cut, int(self.bos), (self.seed, ROLES.index(role)))
            whole, layers = self._log_probability(second), support(self.pair[0]).layers

            def lost(cells: Cells) -> Floats:
                some = [(layers[layer], head) for layer, head in (heads[number] for number in numbers)]
                knockouts = [Knockout(torch.from_numpy(cells), *place) for place in some]
                return np.stack([whole - self._log_probability(second, knockout) for knockout in knockouts], axis=1)

            return {"cut": lost(cut), "control": lost(control)}

        join = joined("cut", "control", axis=1)
        return evidence(self, role, score, measure, lambda heads: chunks(range(len(heads)), BLOCK), join)

    def _cut(self, role: Role) -> Cells:
        """The cells [C, 2] of a role, BOS never being a key."""
        if role == Role.PREVIOUS_TOKEN:
            query = np.arange(1 + self.bos, self.copies * self.length + self.bos)
            return np.stack([query, query - 1], axis=1)
        layout = self.length, self.copies, self.bos
        rows, keys = np.nonzero(attention_scores.successors(*layout))
        return np.stack([attention_scores.queries(*layout)[rows], keys], axis=1)

    # -------------------------------------------------------------------------------------------- runs

    @cached_property
    def _runs(self) -> BaseRuns:
        return BaseRuns(self.pair[0])

    def _log_probability(self, numbers: NDArray[np.int64], *attached: Knockout) -> Floats:
        """The mean log-probability [M] of the repeated tokens of some sequences [M], in nats.

        Repeated are the tokens of later copies whose predecessor is in such a copy, too.
        """
        model, ids = self.pair[0], torch.from_numpy(self.drawn.ids[numbers])
        check_context(model, [ids.shape[1]], "a smaller length or fewer copies")
        places = torch.arange(self.bos + self.length, ids.shape[1] - 1)
        log_probability = np.empty(len(ids))

        def visit(batch: Batch) -> None:
            with self._runs.run(tuple(batch.numbers.tolist()), attached), logits_at(model, places) as options:
                logits = all_logits(model, batch, *attached, **options)
            check_finite(logits, "the logits", model, batch.rows, batch.prompts)
            wanted = ids[batch.numbers][:, places + 1, None].to(logits.device)
            logs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
            log_probability[batch.numbers] = logs.gather(-1, wanted)[..., 0].double().mean(1).cpu().numpy()

        run_rows(model, [Row(tuple(tokens)) for tokens in ids.tolist()], visit)
        return log_probability
