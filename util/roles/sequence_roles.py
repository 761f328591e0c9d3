"""Previous-token heads and induction heads on repeated random sequences, by score and effect (Olsson et al. 2022).

Both work for the same end: at a token that occurred before, the model expects what followed it. So the effect of both
is the log-probability of the tokens of the second copy that is lost when just their cells of attention are cut.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from util.engine.attention import support
from util.engine.batches import Batch, Row, all_logits, check_context, logits_at, run_rows
from util.engine.finite import check_finite
from util.engine.instruments import Knockout
from util.engine.replay import BaseRuns
from util.roles import attention_scores
from util.roles.effects import Cells, Heads, Numbers, chunks, evidence, other_cells
from util.roles.rules import FACTOR, Evidence, Floats, Role, Score
from util.roles.sequences_study import AtLeastTwo, SequenceStudy
from util.study.checked import AtLeastFour, checked
from util.study.records import Fields, joined

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
            check_finite(logits, "the logits", model, batch.tokens, batch.prompts)
            wanted = ids[batch.numbers][:, places + 1, None].to(logits.device)
            logs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
            log_probability[batch.numbers] = logs.gather(-1, wanted)[..., 0].double().mean(1).cpu().numpy()

        run_rows(model, [Row(tuple(tokens)) for tokens in ids.tolist()], visit)
        return log_probability
