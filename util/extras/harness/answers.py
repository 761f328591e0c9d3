"""The answers of a model to the harness's requests, kept as the suite's records."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, field
from typing import Any

import numpy as np

from util.figures.induction_scores.edits import WHOLE, Edit
from util.records.checked import Text, checked
from util.records.provenance import digest
from util.records.study import Study

Request = tuple[Any, list[int], list[int]]  # (context, continuation), and the tokens of each
Answer = tuple[float, bool]  # log-probability in nats, and whether the model would write the continuation


@checked
class AnswersStudy(Study):
    """What a model answers to all requests of one task under one edit: one record.

    task: its name in the harness; requests: a digest of their tokens, which depend on the demonstrations, thus on their
    number and seed; reference: that of the edit's means; settings: of the harness, which decide the last bits.
    """

    task: Text = "task"
    requests: Text = "requests"
    _: KW_ONLY
    edit: Edit = WHOLE
    reference: Mapping[str, Any] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    stem = "harness"

    @classmethod
    def digest(cls, requests: Sequence[Request]) -> str:
        """A digest of the tokens of requests, in their order."""
        return digest(json.dumps([context, continuation]) for _, context, continuation in requests)

    @property
    def own_request(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "method_version": 1,
            "dataset": self.task,
            "requests": self.requests,
            "edit": self.edit.plain(),
            "reference": None if self.reference is None else dict(self.reference),
            "settings": dict(self.settings),
            "lm_eval": importlib.metadata.version("lm_eval"),
        }

    @property
    def texts(self) -> list[str]:
        return [self.requests]

    def answers(self, measure: Callable[[], Sequence[Answer]]) -> list[Answer]:
        """The answers that were kept, or those that are measured now."""

        def compute() -> dict[str, Any]:
            log_prob, greedy = zip(*measure(), strict=True)
            return {"log_prob": np.array(log_prob), "greedy": np.array(greedy)}

        data = self.record({"part": "answers"}, compute).data
        return list(zip(data["log_prob"].tolist(), data["greedy"].tolist(), strict=True))
