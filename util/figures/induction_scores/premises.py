"""The reference of means that Crosbie & Shutova (2024, section 4.3) take: premises of MNLI.

They join premises to 500 samples of 3,000 tokens. These samples do not depend on a task, so that one study has the
means for all tasks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import KW_ONLY
from functools import cached_property
from typing import Any

from util.engine.batches import TOKEN_BUDGET, Row, context_length
from util.load_model_and_data import reference_texts
from util.prompts.prompt import with_bos
from util.study.checked import Count, Text, checked
from util.study.model import digest
from util.study.records import Measurement

SAMPLE_TOKENS = 3000
SKIPPED_POSITIONS = 8  # first tokens of a prompt or sample that no mean counts


@checked
class PremisesStudy(Measurement):
    """Means over samples of MNLI's premises.

    reference_prompts: how many samples; with too few premises there are fewer. reference_data: a folder with the
    premises, None for the hub, see `load_model_and_data.reference_texts`, which is asked when the study is built.
    """

    reference_prompts: Count = 500
    _: KW_ONLY
    reference_data: Text | None = None
    token_budget: Count = TOKEN_BUDGET

    stem = "induction_scores"

    def __post_init__(self) -> None:
        self.premises  # noqa: B018  # raises ValueError where they are missing

    @cached_property
    def premises(self) -> tuple[str, ...]:
        """All premises, each once. Raises ValueError where they cannot be read."""
        try:
            return reference_texts("mnli", self.reference_data)
        except ValueError as error:
            raise ValueError(f"reference_data = {self.reference_data!r}: {error}") from error

    @cached_property
    def samples_request(self) -> dict[str, Any]:
        """What decides the samples, but for how many there are: the premises by a digest, and the tokens of a sample.

        Of a model with a shorter context, a sample has as many tokens as the context.
        """
        return {"reference_version": digest(self.premises), "reference_tokens": SAMPLE_TOKENS}

    @property
    def own_request(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "method_version": 1,
            "dataset": "mnli",
            "reference_prompts": self.reference_prompts,
            **self.samples_request,
            "skipped_positions": SKIPPED_POSITIONS,
            "token_budget": self.token_budget,
        }

    @property
    def texts(self) -> tuple[str, ...]:
        return self.premises

    @property
    def sample_tokens(self) -> int:
        """The tokens of a sample: 3,000, or the model's context where that is shorter."""
        return min(SAMPLE_TOKENS, context_length(self.pair[0]) or SAMPLE_TOKENS)

    @cached_property
    def rows(self) -> list[Row]:
        """The samples. Raises ValueError where the premises do not fill a single one."""
        rows = samples(self.premises, self.pair[1], self.sample_tokens, self.reference_prompts)
        if not rows:
            raise ValueError(
                f"reference_data = {self.reference_data!r}: {len(self.premises)} premises do not fill one sample of "
                f"{self.sample_tokens} tokens; give all of MNLI's training split, or another reference"
            )
        return rows


def samples(premises: Iterable[str], tokenizer: Any, tokens: int, count: int) -> list[Row]:
    """Returns samples of so many tokens: premises in their order, joined by blanks, and cut at the end.

    A sample ends with the premise that fills it; the next one begins with the premise behind. There are `count` of
    them, fewer where the premises run out. No BOS is added but what the tokenizer puts in front.
    """
    rows: list[Row] = []
    joined: list[str] = []
    counted = 0  # of the premises one by one: joined texts are tokenized only when this says that they may be enough
    for premise in premises:
        joined.append(premise)
        counted += len(with_bos(premise, tokenizer).ids)
        if counted < tokens:
            continue
        ids = with_bos(" ".join(joined), tokenizer).ids
        if len(ids) >= tokens:
            rows.append(Row(ids[:tokens]))
            joined, counted = [], 0
        if len(rows) == count:
            break
    return rows
