"""A model of lm-evaluation-harness with an intervention attached to every forward pass."""

from __future__ import annotations

import copy
import importlib.metadata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from lm_eval.models.huggingface import HFLM
from torch import Tensor
from transformers import PreTrainedModel

from util.engine.attention import instrument
from util.engine.handshake import prepare
from util.extras.harness.interventions import Attached, Reading, Reference, intervention
from util.figures.induction_scores.edits import WHOLE, Edit
from util.models.table import PACKAGED
from util.records.model import Model
from util.records.provenance import versions

# What the harness does with a model that is loaded already; its other options say how it is loaded.
OPTIONS = {
    "add_bos_token", "backend", "batch_size", "chat_template_args", "enable_thinking", "logits_cache", "max_batch_size",
    "max_length", "mixed_precision_dtype", "prefix_token_id", "softmax_dtype", "think_end_token", "truncation",
}  # fmt: skip

Request = tuple[Any, list[int], list[int]]  # (context, continuation), and the tokens of each


class InterventionLM(HFLM):
    """The harness's own model class, with an edit of the suite attached.

    pretrained: a model of the suite ("smollm2", "embedded", a GGUF file), which `load_ICL_model` loads; any other name,
    which the harness loads in its own way, with its own options; a `Model`; or a model that is built already, with its
    tokenizer. edit: an ablation, a knockout, or WHOLE. reference: what the means of an ablation are taken over.

    An ablation acts on every token that the model reads, in all requests. A knockout acts in log-likelihoods, of whole
    texts too where its pattern is "exact tokens". Raises ValueError for an edit that cannot be made so: for heads that
    there are not, for a missing reference, and for batch_size="auto" where the edit must know the rows of a batch,
    since the harness tries batch sizes with rows of its own.
    """

    def __init__(
        self,
        pretrained: str | Model | PreTrainedModel,
        *,
        tokenizer: Any = None,
        edit: Edit = WHOLE,
        reference: Reference | None = None,
        **options: Any,
    ) -> None:
        if isinstance(pretrained, str) and _is_the_suites(pretrained):
            pretrained, options = _model(pretrained, options)
        if isinstance(pretrained, Model):
            self.source = pretrained
            model, tokenizer = pretrained.pair
            # the harness may give its tokenizer a token for padding
            super().__init__(model, tokenizer=copy.deepcopy(tokenizer), **options)
        elif isinstance(pretrained, str):
            super().__init__(pretrained, tokenizer=tokenizer, **options)
            self.source = Model.given(self.model, self.tokenizer, f"given:{pretrained}")
        elif tokenizer is None:
            raise TypeError("an already built model comes with its tokenizer: InterventionLM(model, tokenizer=...)")
        else:
            super().__init__(pretrained, tokenizer=copy.deepcopy(tokenizer), **options)
            self.source = Model.given(pretrained, tokenizer, f"given:{type(pretrained).__name__}")
        prepare(self.model)
        self.edit, self.reference = edit, reference
        self.intervention = intervention(self.model, self.tokenizer, edit, reference)
        if str(self.batch_size).startswith("auto") and self.intervention.knows_rows:
            raise ValueError(
                f"batch_size = {self.batch_size!r}: the harness tries batch sizes with rows that are no prompts, and "
                f"{edit.mode or edit.pattern!r} depends on the rows; give a number"
            )
        self._attached: Attached = lambda inps: ()
        self._task_names: list[str] | None = None  # of the requests that are being answered

    # ------------------------------------------------------------------------------------------------ requests

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """The log-probability of each continuation in nats, and whether it is what the model would write.

        Raises ValueError, before the first forward pass, for what the intervention refuses.
        """
        with self._of_tasks([request.task_name or "" for request in requests]):
            return super().loglikelihood(requests, disable_tqdm=disable_tqdm)

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """The log-probability of each text in nats. Raises what `loglikelihood` raises."""
        answers: dict[int, float] = {}
        for task, numbers in _by_task([request.task_name or "" for request in requests]).items():
            with self._of_tasks([task]):  # the one task of all windows
                texts = super().loglikelihood_rolling([requests[n] for n in numbers], disable_tqdm=disable_tqdm)
            answers |= dict(zip(numbers, texts, strict=True))
        return [answers[n] for n in range(len(requests))]

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """What the model writes after each context.

        Raises ValueError for an edit that depends on the rows of a batch or on positions: the contexts are padded at
        the left, and the tokens that are written have no cells.
        """
        if self.intervention.knows_rows:
            raise ValueError(
                f"generate_until: {self.edit.mode or self.edit.pattern!r} is not for texts that the model writes; take "
                "an ablation of mode 'zero' or 'mean', or tasks that are answered by log-likelihoods"
            )
        answers: dict[int, str] = {}
        for task, numbers in _by_task([request.task_name or "" for request in requests]).items():
            with self._attaching(self.intervention.attach(task, [])):
                texts = super().generate_until([requests[n] for n in numbers], disable_tqdm=disable_tqdm)
            answers |= dict(zip(numbers, texts, strict=True))
        return [answers[n] for n in range(len(requests))]

    def _loglikelihood_tokens(
        self, requests: list[Request], disable_tqdm: bool = False, override_bs: int | None = None
    ) -> list[tuple[float, bool]]:
        names = self._task_names or [""]
        if len(names) == 1:
            names = names * len(requests)
        readings = [Reading.of(request, self.max_length) for request in requests]
        by_task = _by_task(names)
        for task, numbers in by_task.items():
            self.intervention.check(task, [readings[n] for n in numbers])
        answers: dict[int, tuple[float, bool]] = {}
        for task, numbers in by_task.items():
            with self._attaching(self.intervention.attach(task, [readings[n] for n in numbers])):
                pairs = super()._loglikelihood_tokens(
                    [requests[n] for n in numbers], disable_tqdm=disable_tqdm, override_bs=override_bs
                )
            answers |= dict(zip(numbers, pairs, strict=True))
        return [answers[n] for n in range(len(requests))]

    # ------------------------------------------------------------------------------------------------ forward passes

    def _model_call(self, inps: Tensor, attn_mask: Tensor | None = None, labels: Tensor | None = None) -> Tensor:
        with instrument(self.model, *self._attached(inps)):
            return super()._model_call(inps, attn_mask, labels)

    def _model_generate(self, context: Tensor, max_length: int, stop: list[str], **options: Any) -> Tensor:
        with torch.no_grad(), instrument(self.model, *self._attached(context)):
            return super()._model_generate(context, max_length, stop, **options)

    @contextmanager
    def _attaching(self, attached: Attached) -> Iterator[None]:
        before, self._attached = self._attached, attached
        try:
            yield
        finally:
            self._attached = before

    @contextmanager
    def _of_tasks(self, names: list[str]) -> Iterator[None]:
        before, self._task_names = self._task_names, names
        try:
            yield
        finally:
            self._task_names = before

    # ------------------------------------------------------------------------------------------------ what is kept

    def set_cache_hook(self, cache_hook: Any) -> None:
        """Refuses the harness's cache of answers: it goes by the texts alone, and would mix up edits.

        Raises ValueError while an edit is attached.
        """
        if self.edit != WHOLE:
            raise ValueError(
                "use_cache: the harness's cache does not know of interventions, so that it gives the answers of "
                "another run; leave it out"
            )
        super().set_cache_hook(cache_hook)

    def get_model_info(self) -> dict[str, Any]:
        """What the harness writes about the model into its results, with the intervention under "intervention"."""
        return {**super().get_model_info(), "intervention": self.request}

    @property
    def request(self) -> dict[str, Any]:
        """The model, the edit, the reference of its means, and package versions, in plain JSON."""
        return {
            **self.source.request,
            "edit": self.edit.plain(),
            "reference": None if self.reference is None else self.reference.request,
            "versions": {**versions(), "lm_eval": importlib.metadata.version("lm_eval")},
        }


def _by_task(names: Sequence[str]) -> dict[str, list[int]]:
    """The numbers of requests by the name of their task."""
    numbers: dict[str, list[int]] = {}
    for number, name in enumerate(names):
        numbers.setdefault(name, []).append(number)
    return numbers


def _is_the_suites(name: str) -> bool:
    """Whether a name is one that only the suite can load."""
    return name in PACKAGED or name.partition("/")[0] == "embedded" or name.endswith(".gguf")


def _model(name: str, options: dict[str, Any]) -> tuple[Model, dict[str, Any]]:
    """The suite's model of this name, and the options that are left for the harness.

    Raises ValueError for options of the harness's own loading.
    """
    loading = {key: options.pop(key) for key in ("device", "dtype") if key in options}
    foreign = sorted(set(options) - OPTIONS)
    if foreign:
        raise ValueError(f"{', '.join(foreign)}: {name} is loaded by the suite, which takes device and dtype alone")
    device, dtype = loading.get("device"), loading.get("dtype")
    return Model(name, dtype=dtype or "auto", device=device or "auto", verbose=False), options
