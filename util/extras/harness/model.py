"""A model of lm-evaluation-harness with an intervention attached to every forward pass."""

from __future__ import annotations

import copy
import importlib.metadata
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM
from torch import Tensor
from transformers import PreTrainedModel

from util.engine.attention import instrument
from util.engine.handshake import prepare
from util.extras.harness.answers import Answer, AnswersStudy, Request
from util.extras.harness.interventions import Attached, Reading, Reference, edit_of, intervention
from util.figures.induction_scores.edits import WHOLE, Edit
from util.figures.induction_scores.task_study import TaskStudy
from util.load_model_and_data import shown_name
from util.models.table import PACKAGED
from util.records.model import Model
from util.records.provenance import provenance

# What the harness does with a model that is loaded already; its other options say how it is loaded.
OPTIONS = {
    "add_bos_token", "backend", "batch_size", "chat_template_args", "enable_thinking", "logits_cache", "max_batch_size",
    "max_length", "mixed_precision_dtype", "prefix_token_id", "softmax_dtype", "think_end_token", "truncation",
}  # fmt: skip

NAME = "icl"  # of the class in the harness


@register_model(NAME)
class InterventionLM(HFLM):
    """The harness's own model class, with an edit of the suite attached.

    pretrained: a model of the suite ("smollm2", "embedded", a GGUF file), which `load_ICL_model` loads; any other name,
    which the harness loads in its own way, with its own options; a `Model`; or a model that is built already, with its
    tokenizer. edit: an ablation, a knockout, or WHOLE; or what `Edit.plain` makes of one. reference: what the means of
    an ablation are taken over; or its fields. keep: whether answers are kept as the suite's records, so that another
    run measures only what is missing: one record for all log-likelihoods of a task with the same demonstrations, under
    one edit. folder: where, default `paths.material()`.

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
        edit: Edit | Mapping[str, Any] = WHOLE,
        reference: Reference | Mapping[str, Any] = Reference(),  # noqa: B008  # it is frozen
        keep: bool = False,
        folder: Path | None = None,
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
            self.source = Model.given(self.model, copy.deepcopy(self.tokenizer), f"given:{shown_name(pretrained)}")
        elif tokenizer is None:
            raise TypeError("an already built model comes with its tokenizer: InterventionLM(model, tokenizer=...)")
        else:
            super().__init__(pretrained, tokenizer=copy.deepcopy(tokenizer), **options)
            self.source = Model.given(pretrained, tokenizer, f"given:{type(pretrained).__name__}")
        prepare(self.model)
        self.edit = edit_of(edit) if isinstance(edit, Mapping) else edit
        self.reference = Reference(**reference) if isinstance(reference, Mapping) else reference
        self.keep, self.folder = keep, folder
        self._studies: dict[str, TaskStudy] = {}
        self.intervention = intervention(self.model, self.tokenizer, self.edit, self._study)
        if str(self.batch_size).startswith("auto") and self.intervention.knows_rows:
            raise ValueError(
                f"batch_size = {self.batch_size!r}: the harness tries batch sizes with rows that are no prompts, and "
                f"{self.edit.mode or self.edit.pattern!r} depends on the rows; give a number"
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
        the left, and the tokens that are written have no cells. Raises ValueError for a tokenizer without EOS.
        """
        if self.intervention.knows_rows:
            raise ValueError(
                f"generate_until: {self.edit.mode or self.edit.pattern!r} is not for texts that the model writes; take "
                "an ablation of mode 'zero' or 'mean', or tasks that are answered by log-likelihoods"
            )
        if self.eot_token_id is None:
            raise ValueError(
                f"generate_until: {type(self.tokenizer).__name__} has no end-of-text token, at which the harness "
                "stops; set tokenizer.eos_token, or take tasks that are answered by log-likelihoods"
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
        answers: dict[int, Answer] = {}
        for task, numbers in by_task.items():
            measure = partial(
                self._measure,
                task,
                [requests[n] for n in numbers],
                [readings[n] for n in numbers],
                disable_tqdm=disable_tqdm,
                override_bs=override_bs,
            )
            answers |= dict(zip(numbers, self._kept(task, [requests[n] for n in numbers], measure), strict=True))
        return [answers[n] for n in range(len(requests))]

    def _measure(self, task: str, requests: list[Request], readings: list[Reading], **options: Any) -> list[Answer]:
        """The answers to requests of one task, in the harness's own way."""
        with self._attaching(self.intervention.attach(task, readings)):
            return super()._loglikelihood_tokens(requests, **options)

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

    def _study(self, task: str) -> TaskStudy:
        """The study that has the means for a task."""
        if task not in self._studies:
            self._studies[task] = self.reference.study(self.source, task, self.folder)
        return self._studies[task]

    @property
    def _means_request(self) -> dict[str, Any] | None:
        """What decides the means, None for an edit that takes none."""
        return self.reference.request if self.edit.mode not in (None, "zero") and self.edit.heads else None

    def _kept(self, task: str, requests: list[Request], measure: Callable[[], list[Answer]]) -> list[Answer]:
        """The answers of a record, or those that are measured now. Windows of whole texts are never kept."""
        if not self.keep or self.world_size > 1 or any(texts is None for texts, _, _ in requests):
            return measure()
        settings = {
            "batch_size": self.batch_size,
            "longest": self.max_length,
            "softmax": str(self.softmax_dtype),
            "mixed_precision": str(self.mixed_precision_dtype),
        }
        study = AnswersStudy(
            self.source,
            task or "task",
            AnswersStudy.digest(requests),
            edit=self.edit,
            reference=self._means_request,
            settings=settings,
            folder=self.folder,
        )
        return study.answers(measure)

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
        return {**super().get_model_info(), "intervention": {**self.request, "provenance": self.provenance}}

    @property
    def request(self) -> dict[str, Any]:
        """The model, the edit, and the reference of its means, in plain JSON."""
        return {
            **self.source.request,
            "edit": self.edit.plain(),
            "reference": self._means_request,
        }

    @property
    def provenance(self) -> dict[str, Any]:
        """The weights, the tokenizer, package versions, the code and the device."""
        entries = provenance(self.source.request, self.source.pair, [])
        entries.pop("prompt_digest")
        entries["versions"]["lm_eval"] = importlib.metadata.version("lm_eval")
        return entries


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
    loading = {key: str(options[key]) for key in ("device", "dtype") if options.get(key) is not None}
    others = {key: value for key, value in options.items() if key not in ("device", "dtype")}
    foreign = sorted(set(others) - OPTIONS)
    if foreign:
        raise ValueError(f"{', '.join(foreign)}: {name} is loaded by the suite, which takes device and dtype alone")
    return _suites_model(name, **loading), others


@lru_cache(maxsize=1)  # runs with other seeds follow each other
def _suites_model(name: str, device: str = "auto", dtype: str = "auto") -> Model:
    return Model(name, dtype=dtype, device=device, verbose=False)
