"""A model of lm-evaluation-harness with an intervention attached to every forward pass.

Interventions are ablations of heads, and knockouts of attention cells.
"""

from __future__ import annotations

import copy
import importlib.metadata
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Any, TypeVar

import numpy as np
import torch
from lm_eval.api.registry import register_model
from lm_eval.evaluator import simple_evaluate
from lm_eval.models.huggingface import HFLM
from torch import Tensor
from transformers import PreTrainedModel

from util.engine.attention import instrument
from util.engine.batches import Batch
from util.engine.call import Instrument
from util.engine.handshake import prepare
from util.engine.label_scores import knockouts
from util.extras.harness import tasks as harness_tasks
from util.figures.edits import INTACT, Edit
from util.figures.task_study import BY_POSITION, TaskStudy
from util.load_model_and_data import shown_name
from util.models.table import PACKAGED
from util.prompts import induction_pattern
from util.prompts.induction_pattern import matched_cells
from util.prompts.prompt import with_bos
from util.roles.effects import heads_by_layer
from util.study.model import Model, as_model, provenance

TAKEN = ("device", "dtype", "cache_dir")  # options of a model that the suite loads
# What the harness does with a model that is loaded already; its other options say how it is loaded.
OPTIONS = {
    "add_bos_token", "backend", "batch_size", "chat_template_args", "enable_thinking", "logits_cache", "max_batch_size",
    "max_length", "mixed_precision_dtype", "prefix_token_id", "softmax_dtype", "think_end_token", "truncation",
}  # fmt: skip

NAME = "icl"  # of the class in the harness
Answer = TypeVar("Answer")
Attached = Callable[[Tensor], Sequence[Instrument]]  # the instruments of a batch of tokens [B, T]


# ------------------------------------------------------------------------------------------------ what is read


@dataclass(frozen=True)
class Reading:
    """What the model reads for one request of the harness.

    ids: the tokens of the context and of its continuation, but for the last one, which is predicted. prompt: how many
    of them are the context's; all of them in a text whose whole log-likelihood is asked for. context: the context's
    text, None for such a text. cut: whether the harness has cut off its beginning, which the model has no room for.
    """

    ids: tuple[int, ...]
    prompt: int
    context: str | None
    cut: bool

    @classmethod
    def of(cls, request: tuple[Any, list[int], list[int]], longest: int) -> Reading:
        """Reads a request as the harness has it: (texts, tokens of the context, tokens of the continuation)."""
        texts, context, continuation = request
        whole = (*context, *continuation)[:-1]
        prompt = len(context) if texts is not None else len(whole)
        return cls(whole[-longest:], prompt, None if texts is None else texts[0], len(whole) > longest)


# ------------------------------------------------------------------------------------------------ references of means


def means_study(
    model: Model,
    task: str,
    *,
    k: int | None = None,
    prompts: int | None = None,
    seed: int = 42,
    **reference: Any,
) -> TaskStudy:
    """The study that has the means of ablations for a task of the harness.

    reference: `reference`, `reference_prompts` and `reference_data` of `TaskStudy`. k, prompts, seed: of the prompts
    that are evaluated, next to which "task" takes others; default the task's own number of demonstrations, and all of
    its rows. Raises ValueError for what there is not, and where the means are to be the task's own and it is none of
    the suite's.
    """
    if reference.get("reference", "task") != "task":
        return TaskStudy(model, **reference)
    if not task.startswith(harness_tasks.PREFIX):
        raise ValueError(
            f"reference = 'task': {task} is no task of the suite, so that it has no other prompts to take means "
            "over; give reference 'staicc' or 'mnli'"
        )
    name = task.removeprefix(harness_tasks.PREFIX)
    rows = len(harness_tasks.known(name).rows)
    k = harness_tasks.shots(name) if k is None else k
    return TaskStudy(
        model, k=k, prompts=min(prompts or rows, rows), seed=seed, **harness_tasks.study_arguments(name), **reference
    )


def checked_reference(
    k: int | None = None, prompts: int | None = None, seed: int = 42, **reference: Any
) -> dict[str, Any]:
    """All that decides the means in plain JSON, premises by a digest. Raises ValueError for what there is not."""
    request = TaskStudy(Model("embedded"), **reference).own_request
    given = {name: value for name, value in request.items() if name.startswith("reference")}
    drawn = {"k": k, "prompts": prompts, "seed": seed} if given["reference"] == "task" else {}
    return given | drawn


def takes_means(edit: Edit) -> bool:
    """Whether an edit replaces what heads write by means."""
    return bool(edit.heads) and edit.mode not in (None, "zero")


def edit_of(plain: Mapping[str, Any]) -> Edit:
    """The edit that `Edit.plain` writes so. Raises ValueError for anything else."""
    given = dict(plain)
    heads = given.pop("ablate", None) or given.pop("knock_out", ())
    return Edit(heads, **given)


# ------------------------------------------------------------------------------------------------ interventions


def _batch(inps: Tensor, numbers: Sequence[int]) -> Batch:
    """The batch of the suite that tokens [B, T] of the harness are. The lengths of its rows are not known."""
    lengths = torch.full((len(inps),), inps.shape[1])
    return Batch([], np.array(numbers), lengths, lengths, {"input_ids": inps}, None, np.array(numbers))


class Intervention:
    """What an edit does inside the harness, whose tokenizer may differ from the model's; without heads nothing.

    An ablation replaces what heads write, at all positions. A knockout forbids heads the cells of a pattern in each
    prompt, and in the prompt alone: the tokens of a continuation still read everything before them. There a row of a
    batch is recognised by its tokens, since the harness sorts its requests, merges those that read the same tokens, and
    pads at the right with zeros.

    reference: see `means_study`. knows_rows: whether what is done depends on the rows of a batch, or on positions.
    Raises ValueError for what is no `Edit`, and for heads that there are not.
    """

    def __init__(self, model: Model, tokenizer: Any, edit: Edit, reference: Mapping[str, Any]) -> None:
        if not isinstance(edit, Edit):
            raise ValueError(
                f"edit = {edit!r:.200}: give an Edit (Edit.ablate, Edit.knock_out, WHOLE). Edges cannot be ablated "
                "here: they are read from donor prompts, which the harness's tasks do not have; see `python -m util "
                "edges`"
            )
        self.edit, self.tokenizer = edit, tokenizer
        self.heads = heads_by_layer(prepare(model.pair[0]), edit.heads)
        self.knocks_out = edit.pattern is not None and bool(edit.heads)
        self.knows_rows = self.knocks_out or edit.mode in BY_POSITION
        self.study = cache(
            partial(means_study, model, **reference) if takes_means(edit) else lambda _: TaskStudy(model)
        )
        self.cells: dict[tuple[int, ...], np.ndarray] = {}  # by the tokens of a prompt, kept once they are found

    def attach(self, task: str, readings: Sequence[Reading]) -> Attached:
        """What is attached to the requests of one task; see `ablation` and `knockout`, which say what they refuse."""
        return self.knockout(task, readings) if self.knocks_out else self.ablation(task, readings)

    def ablation(self, task: str, readings: Sequence[Reading]) -> Attached:
        """The ablation of one task. The first batch measures the means of its reference, or loads them.

        Raises ValueError for a task that the reference has no means for; before the first batch, for texts that are
        longer than the reference of their positions.
        """
        study, lengths = self.study(task), [len(reading.ids) for reading in readings]
        instruments = cache(lambda: study.instruments(self.edit, lengths))
        return lambda inps: instruments()(_batch(inps, range(len(inps))))

    def knockout(self, task: str, readings: Sequence[Reading]) -> Attached:
        """The knockout in the rows of one task.

        Raises ValueError for a prompt that is longer than the model's context; where the pattern needs the parts of a
        prompt, for one that no known layout explains and for one whose tokens are not those of its text; and for two
        prompts that cannot be told apart by their rows.
        """
        numbers: dict[tuple[int, ...], int] = {}  # of prompts, by their tokens
        rows: dict[tuple[int, ...], int] = {}  # which prompt each has, by its tokens without zeros at the end
        for reading in readings:
            if reading.cut:
                raise ValueError(
                    f"{task}: a prompt is longer than the model's context, so that the harness cuts off its beginning, "
                    f"and the cells of {self.edit.pattern!r} cannot be placed; give fewer demonstrations"
                )
            prompt = reading.ids[: reading.prompt]
            if prompt not in self.cells:
                self.cells[prompt] = self._cells_of(task, reading.context, prompt)
            number = numbers.setdefault(prompt, len(numbers))
            if rows.setdefault(_without_padding(reading.ids), number) != number:
                raise ValueError(
                    f"{task}: two prompts with their continuations are the same tokens, {reading.context!r:.200} is in "
                    "one of them, so that the cells to knock out cannot be told apart; evaluate them separately"
                )
        knock_out = knockouts([self.cells[prompt] for prompt in numbers], self.heads)
        return lambda inps: knock_out(_batch(inps, [rows[_without_padding(row)] for row in inps.tolist()]))

    def _cells_of(self, task: str, context: str | None, prompt: tuple[int, ...]) -> np.ndarray:
        """The cells [C, 2] of one prompt."""
        pattern = self.edit.pattern
        assert pattern is not None
        if pattern == "exact tokens":
            return matched_cells(np.array(prompt))
        parsed = None if context is None else harness_tasks.prompt_of(context)
        if parsed is None:
            raise ValueError(
                f"{task}: pattern {pattern!r} needs the parts of a prompt, and no layout of the suite's tasks explains "
                f"{(context or '')[-80:]!r}; evaluate a task of the suite, or take pattern 'exact tokens'"
            )
        if with_bos(parsed.text, self.tokenizer).ids != prompt:
            raise ValueError(
                f"{task}: the harness reads other tokens than those of the prompt's text, so that the cells of "
                f"{pattern!r} cannot be placed; leave out add_bos_token, and take a separator that ends in no space"
            )
        return induction_pattern.cells(parsed, self.tokenizer, pattern, self.edit.seed)


def _without_padding(row: Sequence[int]) -> tuple[int, ...]:
    """A row without the zeros at its end, with which the harness pads."""
    return tuple(np.trim_zeros(np.array(row), "b").tolist())


# ------------------------------------------------------------------------------------------------ the model


@register_model(NAME)
class InterventionLM(HFLM):
    """The harness's own model class, with an edit of the suite attached.

    pretrained: a model of the suite ("smollm2", "embedded", a GGUF file), which `load_ICL_model` loads; any other name,
    which the harness loads in its own way, with its own options; a `Model`; or a model that is built already, with its
    tokenizer. edit: an ablation, a knockout, or INTACT; or what `Edit.plain` makes of one. reference: what the means of
    an ablation are taken over, the arguments of `means_study`.

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
        if not isinstance(pretrained, str | Model):
            if tokenizer is None:
                raise TypeError("an already built model comes with its tokenizer: InterventionLM(model, tokenizer=...)")
            pretrained = Model.given(pretrained, tokenizer, f"given:{type(pretrained).__name__}")
        model, tokenizer = pretrained.pair if isinstance(pretrained, Model) else (pretrained, tokenizer)
        # the harness may give its tokenizer a token for padding
        super().__init__(model, tokenizer=copy.deepcopy(tokenizer), **options)
        if isinstance(pretrained, str):
            pretrained = Model.given(self.model, copy.deepcopy(self.tokenizer), f"given:{shown_name(pretrained)}")
        self.source = pretrained
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
    ablation are taken over, see `means_study`. options: of the harness's `simple_evaluate`, such as a
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
