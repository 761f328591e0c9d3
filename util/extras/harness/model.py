"""A model of lm-evaluation-harness with an intervention attached to every forward pass."""

from __future__ import annotations

import copy
import importlib.metadata
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any, TypeVar

import torch
from lm_eval.api.registry import register_model
from lm_eval.evaluator import simple_evaluate
from lm_eval.models.huggingface import HFLM
from torch import Tensor
from transformers import PreTrainedModel

from util.engine.attention import instrument
from util.extras.harness import tasks as harness_tasks
from util.extras.harness.interventions import Attached, Intervention, Reading, checked_reference, edit_of, takes_means
from util.figures.edits import INTACT, Edit
from util.load_model_and_data import shown_name
from util.models.table import PACKAGED
from util.study.model import Model, as_model, provenance

TAKEN = ("device", "dtype", "cache_dir")  # options of a model that the suite loads
# What the harness does with a model that is loaded already; its other options say how it is loaded.
OPTIONS = {
    "add_bos_token", "backend", "batch_size", "chat_template_args", "enable_thinking", "logits_cache", "max_batch_size",
    "max_length", "mixed_precision_dtype", "prefix_token_id", "softmax_dtype", "think_end_token", "truncation",
}  # fmt: skip

NAME = "icl"  # of the class in the harness
Answer = TypeVar("Answer")


@register_model(NAME)
class InterventionLM(HFLM):
    """The harness's own model class, with an edit of the suite attached.

    pretrained: a model of the suite ("smollm2", "embedded", a GGUF file), which `load_ICL_model` loads; any other name,
    which the harness loads in its own way, with its own options; a `Model`; or a model that is built already, with its
    tokenizer. edit: an ablation, a knockout, or INTACT; or what `Edit.plain` makes of one. reference: what the means of
    an ablation are taken over, the arguments of `interventions.means_study`.

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
        edit: Edit | Mapping[str, Any] = INTACT,
        reference: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        means = dict(reference or {})
        of_means = checked_reference(**means)
        named = pretrained if isinstance(pretrained, str) else ""
        if named in PACKAGED or named.partition("/")[0] == "embedded" or named.endswith(".gguf"):  # the suite's alone
            loading = {name: options.pop(name, None) for name in TAKEN}
            if foreign := sorted({*options} - OPTIONS):
                taken = f"{named} is loaded by the suite, which takes {', '.join(TAKEN)} alone"
                raise ValueError(f"{', '.join(foreign)}: {taken}")
            pretrained = _suites_model(named, **loading)
        model: Any = pretrained
        if isinstance(pretrained, Model):
            model, tokenizer = pretrained.pair
        elif not isinstance(pretrained, str) and tokenizer is None:
            raise TypeError("an already built model comes with its tokenizer: InterventionLM(model, tokenizer=...)")
        # the harness may give its tokenizer a token for padding
        super().__init__(model, tokenizer=copy.deepcopy(tokenizer), **options)
        if isinstance(pretrained, Model):
            self.source = pretrained
        elif isinstance(pretrained, str):
            self.source = Model.given(self.model, copy.deepcopy(self.tokenizer), f"given:{shown_name(pretrained)}")
        else:
            self.source = Model.given(pretrained, tokenizer, f"given:{type(pretrained).__name__}")
        self.edit = edit_of(edit) if isinstance(edit, Mapping) else edit
        self.intervention = Intervention(self.source, self.tokenizer, self.edit, means)
        self.reference = of_means if takes_means(self.edit) else None  # in plain JSON
        if str(self.batch_size).startswith("auto") and self.intervention.knows_rows:
            raise ValueError(
                f"batch_size = {self.batch_size!r}: the harness tries batch sizes with rows that are no prompts, and "
                f"{self.edit.mode or self.edit.pattern!r} depends on the rows; give a number"
            )
        self._attached: Attached = lambda inps: ()
        self._task_names: list[str] = [""]  # of the requests that are being answered; one stands for all

    def loglikelihood(self, requests: list[Any], **options: Any) -> list[tuple[float, bool]]:
        """The log-probability of each continuation in nats, and whether it is what the model would write.

        Raises ValueError, before the first forward pass, for what the intervention refuses.
        """
        with self._having(_task_names=_tasks(requests)):
            return super().loglikelihood(requests, **options)

    def loglikelihood_rolling(self, requests: list[Any], **options: Any) -> list[float]:
        """The log-probability of each text in nats. Raises what `loglikelihood` raises."""
        roll, tasks = partial(super().loglikelihood_rolling, **options), _tasks(requests)
        one = {task: [task] for task in tasks}  # the task of all windows
        return self._by_task(tasks, requests, roll, _task_names=one)

    def generate_until(self, requests: list[Any], **options: Any) -> list[str]:
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
        write, tasks = partial(super().generate_until, **options), _tasks(requests)
        attached = {task: self.intervention.attach(task, []) for task in {*tasks}}
        return self._by_task(tasks, requests, write, _attached=attached)

    def _loglikelihood_tokens(self, requests: list[Any], **options: Any) -> list[tuple[float, bool]]:
        names = self._task_names * len(requests) if len(self._task_names) == 1 else self._task_names
        readings: dict[str, list[Reading]] = {}
        for name, request in zip(names, requests, strict=True):
            readings.setdefault(name, []).append(Reading.of(request, self.max_length))
        attached = {task: self.intervention.attach(task, of_task) for task, of_task in readings.items()}
        score = partial(super()._loglikelihood_tokens, **options)
        return self._by_task(names, requests, score, _attached=attached)

    def _model_call(self, inps: Tensor, *arguments: Any, **options: Any) -> Tensor:
        with instrument(self.model, *self._attached(inps)):
            return super()._model_call(inps, *arguments, **options)

    def _model_generate(self, context: Tensor, *arguments: Any, **options: Any) -> Tensor:
        with torch.no_grad(), instrument(self.model, *self._attached(context)):
            return super()._model_generate(context, *arguments, **options)

    def _by_task(
        self,
        names: Sequence[str],
        requests: Sequence[Any],
        answer: Callable[[list[Any]], list[Answer]],
        **attributes: Mapping[str, Any],
    ) -> list[Answer]:
        """The answers to requests of tasks with these names, in their order. attributes: ours meanwhile, by task."""
        answers: dict[int, Answer] = {}
        for task in dict.fromkeys(names):
            numbers = [number for number, name in enumerate(names) if name == task]
            with self._having(**{attribute: by_task[task] for attribute, by_task in attributes.items()}):
                answers |= dict(zip(numbers, answer([requests[number] for number in numbers]), strict=True))
        return [answers[number] for number in range(len(names))]

    @contextmanager
    def _having(self, **attributes: Any) -> Iterator[None]:
        before = {name: getattr(self, name) for name in attributes}
        self.__dict__.update(attributes)
        try:
            yield
        finally:
            self.__dict__.update(before)

    def set_cache_hook(self, cache_hook: Any) -> None:
        """Refuses the harness's cache of answers: it goes by the texts alone, and would mix up edits.

        Raises ValueError while an edit is attached.
        """
        if self.edit != INTACT:
            raise ValueError(
                "use_cache: the harness's cache does not know of interventions, so that it gives the answers of "
                "another run; leave it out"
            )
        super().set_cache_hook(cache_hook)

    def get_model_info(self) -> dict[str, Any]:
        """What the harness writes about the model into its results.

        Under "intervention" are the model, the edit and the reference of its means, and the provenance: the weights,
        the tokenizer, package versions, the code and the device.
        """
        origin = provenance(self.source.request, self.source.pair)
        origin["versions"]["lm_eval"] = importlib.metadata.version("lm_eval")
        request = {**self.source.request, "edit": self.edit.plain(), "reference": self.reference}
        return {**super().get_model_info(), "intervention": {**request, "provenance": origin}}


def _tasks(requests: Sequence[Any]) -> list[str]:
    return [request.task_name or "" for request in requests]


@lru_cache(maxsize=1)  # runs with other seeds follow each other
def _suites_model(name: str, **loading: Any) -> Model:
    given: Any = {option: str(value) for option, value in loading.items() if value is not None}
    return Model(name, **given, verbose=False)


# ------------------------------------------------------------------------------------------------ the way in


def refuse_caches(settings: Mapping[str, Any]) -> None:
    """Raises ValueError for the harness's own caches: of answers, and of requests."""
    for name in ("use_cache", "cache_requests"):
        if settings.get(name):
            raise ValueError(
                f"{name}: the harness's cache does not know of interventions or seeds, so that it gives what belongs "
                "to another run; leave it out"
            )


def evaluate(
    model: str | Model,
    tasks: Sequence[str | Mapping[str, Any]],
    edit: Edit = INTACT,
    *,
    k: int | None = None,
    limit: int | None = None,
    seeds: Sequence[int] = (42, 43, 44),
    batch_size: int = 8,
    reference: Mapping[str, Any] | None = None,
    **options: Any,
) -> dict[int, dict[str, Any]]:
    """Runs the harness once for each seed of demonstrations, and returns its dictionaries by seed, as they are.

    tasks: names such as "icl_wordseq1", or the harness's configurations. k: demonstrations, default each task's
    own number; limit: how many queries of each task, default all. The harness's own tasks are found too where a name
    does not begin with "icl_". seeds: by default those of Crosbie & Shutova's Table 2. reference: what the means of an
    ablation are taken over, see `interventions.means_study`. options: of the harness's `simple_evaluate`, such as a
    `task_manager` that knows more tasks.

    Raises ValueError for the harness's own caches (`use_cache`, `cache_requests`), and for what `InterventionLM`
    refuses, before the first forward pass.
    """
    refuse_caches(options)
    foreign = any(isinstance(task, str) and not task.startswith(harness_tasks.PREFIX) for task in tasks)
    source = as_model(model)
    by_seed = {}
    for seed in seeds:
        means = {"k": k, "prompts": limit, "seed": seed, **(reference or {})}
        by_seed[seed] = simple_evaluate(
            InterventionLM(source, edit=edit, reference=means, batch_size=batch_size),
            tasks=list(tasks),
            num_fewshot=k,
            limit=limit,
            fewshot_random_seed=seed,
            **{"task_manager": harness_tasks.manager(defaults=foreign), "bootstrap_iters": 0, **options},
        )
    return by_seed
