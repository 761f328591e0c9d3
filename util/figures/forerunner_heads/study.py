"""Forerunner token heads: what is measured, and the records of it (Cho et al. 2025, Fig. 5 middle, 22-25)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, replace
from functools import cached_property
from typing import Annotated, Any, TypeVar

import numpy as np
from pydantic import BeforeValidator, Field
from tqdm import tqdm

from util.engine import batches
from util.engine.attention import support
from util.engine.batches import too_long
from util.engine.call import UnsupportedModel
from util.figures.forerunner_heads import magnitudes as copying
from util.figures.forerunner_heads.measures import ENDINGS, THRESHOLD, Series, Verdict
from util.figures.forerunner_heads.results import (
    Counts,
    DataSets,
    Growth,
    HeldOut,
    Layers,
    Magnitudes,
    Planted,
    PlantedErrors,
    Reading,
    Setting,
)
from util.figures.planted_controls import errors_by_noise, planted_control
from util.load_model_and_data import staicc_prompts
from util.models import planted as circuits
from util.prompts.prompt import Appended, check_conditions, labelled_tokens
from util.records.checked import AsList, Count, Distinct, Natural, Number, checked
from util.records.staicc import QUERIES, Datasets, Prompts, StaiccStudy, TwoHalves
from util.stats.splits import halves

BLOCK = 64  # prompts computed, and saved, at a time: what an interruption can cost at most
METHOD_VERSION = 2


# ------------------------------------------------------------------------------------------------ arguments


def _no_text(value: Any) -> Any:
    if isinstance(value, str):
        raise ValueError("give a list of labels (0, 1, ...) and words, not one text")
    entries = tuple(value) if isinstance(value, Iterable) else (value,)
    if any(isinstance(entry, bool) for entry in entries):
        raise ValueError("give labels (0, 1, ...) and words, not True or False")
    return entries


Endings = Annotated[tuple[Appended, ...], BeforeValidator(_no_text)]


@checked
class ForerunnerStudy(StaiccStudy):
    """What all studies of this figure share.

    threshold: the c in c / n_t, which is no part of the request: it is applied to records.
    """

    _: KW_ONLY
    threshold: Annotated[Number, Field(gt=0)] = THRESHOLD

    stem = "forerunner_heads"

    @property
    def setting(self) -> Setting:
        """What titles say of the study."""
        return Setting(self.model.title, self.dataset, self.k, self.prompts)


def blocks(prompts: int, size: int) -> list[range]:
    """The numbers of the prompts that are measured and saved together."""
    return [range(start, min(start + size, prompts)) for start in range(0, prompts, size)]


# ------------------------------------------------------------------------------------------------ the study


@checked
class Study(ForerunnerStudy):
    """Forerunner token heads of one model on one data set, on four prompts at least.

    appended: what stands after each prompt in turn: a label counted from the gold one in the label space (0 is the
    correct one, 1 the reference code's wrong one), or a word that is no label, as a control. control_tokens: at how
    many other tokens of a prompt the attention to the previous token is read. untrained_control: whether `counts` and
    `layers` show the untrained twin beside the model, measured on `untrained_prompts` prompts, at most `prompts`.
    """

    prompts: TwoHalves = QUERIES
    _: KW_ONLY
    appended: Endings = (0, 1, "the")
    control_tokens: Count = 32
    untrained_control: bool = False
    untrained_prompts: Prompts = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        check_conditions(self.appended)
        if self.untrained_control:
            self.model.expect_twin()

    @property
    def own_request(self) -> dict[str, Any]:
        return {
            "schema": 2,
            "method_version": METHOD_VERSION,
            **self.data_request,
            "appended": list(self.appended),
            "control_tokens": self.control_tokens,
        }

    @property
    def texts(self) -> list[str]:
        return [prompt.with_label(appended) for appended in self.appended for prompt in self.items]

    # -------------------------------------------------------------------------------------------- copy magnitudes

    def magnitudes(self) -> Magnitudes:
        """The copy magnitudes of all heads on all prompts, measured block by block.

        An interrupted measurement, a redo too, goes on where it stopped. Raises what loading, `magnitudes.label_run`
        and `cache` raise, all before the first forward pass.
        """
        return self._magnitudes

    @cached_property
    def _magnitudes(self) -> Magnitudes:
        record = self.record_in_blocks({}, lambda: blocks(self.prompts, BLOCK), self._measure, self._joined)
        data = {name: record.data[name] for name in Magnitudes.ARRAYS}
        return Magnitudes(self.setting, self.request, record.provenance["model"], self.appended, **data)

    @cached_property
    def _plan(self) -> copying.LabelRun:
        return copying.label_run(*self.pair, self.items, self.appended)

    def _measure(self, numbers: Sequence[int]) -> dict[str, Any]:
        with tqdm(total=sum(owner in numbers for owner in self._plan.owners), unit="row", leave=False) as bar:
            return copying.copy_magnitudes(
                self.pair[0],
                self._plan,
                numbers=numbers,
                bar=bar,
                control_tokens=self.control_tokens,
                seed=self.seed,
                token_budget=batches.TOKEN_BUDGET,
            )

    def _joined(self, measured: Sequence[dict[str, Any]]) -> dict[str, Any]:
        names = ("magnitude", "control", "control_count", "value_norm")
        self.origin["oom_backoff"] = any(block["oom_backoff"] for block in measured)
        return {
            **{name: np.concatenate([block[name] for block in measured]) for name in names},
            "n_t": self._plan.n_t,
            "label_lengths": self._plan.label_lengths,
            **self.label_numbers,
            "labels": list(self.items[0].labels),
            "layers": list(support(self.pair[0]).layers),
        }

    # -------------------------------------------------------------------------------------------- parts

    @cached_property
    def untrained_twin(self) -> "Study | None":
        """The same study of fewer prompts and fresh weights, where the study has such a control."""
        if not self.untrained_control:
            return None
        return self.twin(prompts=min(self.prompts, self.untrained_prompts), untrained_control=False)

    def _series(self) -> dict[Series, Reading]:
        measured, *untrained = map(Study.magnitudes, filter(None, [self, self.untrained_twin]))
        readings = {name: measured.reading(what) for name, what in ENDINGS.items() if what in self.appended}
        if untrained:
            readings[Series.UNTRAINED] = untrained[0].reading(0)
        return readings

    def counts(self) -> Counts:
        """On how many prompts each head exceeds the threshold (Fig. 22-25)."""
        return Counts.of(self.setting, self._series(), self.threshold)

    def layers(self) -> Layers:
        """How many heads of each layer exceed the threshold on a prompt, and how far (Fig. 5 middle)."""
        return Layers.of(self.setting, self._series(), self.threshold)

    def specificity(self) -> HeldOut:
        """Whether heads read forerunners rather than any previous token: chosen on one half, measured on the other.

        Raises ValueError where correct label, wrong label and another word are not all appended.
        """
        return HeldOut.of(self.setting, self._series(), self.threshold, *halves(self.prompts, self.seed))

    def planted(self, prompts: int = 64) -> Planted:
        """The same measurement of heads whose verdicts are known, on at most this many prompts."""
        control, truth = self.replace(prompts=min(prompts, self.prompts)).planted_study()
        return Planted.of(control.magnitudes().reading(0), self.threshold, truth.names)

    def planted_study(self, **options: Any) -> "tuple[Study, circuits.Planted]":
        """The same study of a model with planted heads, on the embedded model's tokenizer, and the truth on them.

        options: those of the planted circuit (family, copies, noise, seed).
        """
        prompt = staicc_prompts(self.dataset, self.k)[0]

        def labels(tokenizer: Any) -> list[int]:
            return [labelled_tokens([prompt], tokenizer, label)[0].ids[-1] for label in prompt.labels]

        model, truth = planted_control(circuits.forerunner, options, labels)
        return self.replace(model=model), truth

    def planted_errors(
        self, prompts: int = 16, noises: Sequence[float] = (0.5, 1.0, 2.0), seeds: Sequence[int] = (0, 1)
    ) -> PlantedErrors:
        """How often planted heads are misjudged, by the noise on their weights, on at most this many prompts.

        A false alarm is a decoy, or the head that never reads the previous token, with a verdict other than "neither";
        a miss is one of the other two without the verdict it deserves. noises and seeds: see `planted.Plan`.
        """
        few = self.replace(prompts=min(prompts, self.prompts))

        def judge(noise: float, seed: int) -> list[tuple[bool, bool]]:
            control, truth = few.planted_study(noise=noise, seed=seed)
            verdicts = control.magnitudes().reading(0).verdicts(self.threshold)
            wanted = {head: DESERVED[role] for head, role in truth.names.items()}
            wanted |= dict.fromkeys(truth.decoys, Verdict.NEITHER)
            return [(verdict != Verdict.NEITHER, bool(verdicts[head] != verdict)) for head, verdict in wanted.items()]

        return PlantedErrors(errors_by_noise(judge, noises, seeds))


DESERVED = {  # the verdict on each planted head, by its role
    "labels only": Verdict.FORERUNNER,
    "any token": Verdict.PREVIOUS_TOKEN,
    "never": Verdict.NEITHER,
}


# ------------------------------------------------------------------------------------------------ several studies


@checked
class Grid:
    """One study on several data sets, which are checked before the first is measured."""

    study: Study
    datasets: Datasets

    @cached_property
    def studies(self) -> tuple[Study, ...]:
        """A study of every data set."""
        return tuple(self.study.replace(dataset=dataset) for dataset in self.datasets)

    def __post_init__(self) -> None:
        self.studies  # noqa: B018  # checks k on every data set

    def counts(self) -> DataSets:
        """On how many prompts of every data set each head exceeds the threshold, behind correct and wrong labels."""
        by_set = {}
        fitting, left_out = _magnitudes({study.dataset: study for study in self.studies})
        for dataset, measured in fitting.items():
            names = Series.CORRECT, Series.WRONG
            by_set[dataset] = {name: measured.reading(ENDINGS[name]) for name in names}
        return replace(DataSets.of(self.study.setting, by_set, self.study.threshold), left_out=left_out)


@checked
class ByDemonstrations:
    """One study with several numbers of demonstrations, which are checked before the first is measured."""

    study: Study
    ks: Annotated[tuple[Natural, ...], AsList, Distinct]

    @cached_property
    def studies(self) -> tuple[Study, ...]:
        """A study with every number of demonstrations."""
        return tuple(self.study.replace(k=k) for k in sorted(self.ks))

    def __post_init__(self) -> None:
        self.studies  # noqa: B018  # checks every k

    def growth(self) -> Growth:
        """How many heads exceed the threshold, by k."""
        fitting, left_out = _magnitudes({study.k: study for study in self.studies})
        by_k = {k: {name: measured.reading(what) for name, what in ENDINGS.items()} for k, measured in fitting.items()}
        return replace(Growth.of(self.study.setting, by_k, self.study.threshold), left_out=left_out)


Place = TypeVar("Place")


def _magnitudes(studies: Mapping[Place, Study]) -> tuple[dict[Place, Magnitudes], dict[Place, str]]:
    """What was measured by the studies whose prompts fit the model, and why others are left out.

    Raises UnsupportedModel where none fits.
    """

    def measured(study: Study) -> Magnitudes | str:
        try:
            return study.magnitudes()
        except UnsupportedModel as error:
            return too_long(error)

    found = {place: measured(study) for place, study in studies.items()}
    left_out = {place: why for place, why in found.items() if isinstance(why, str)}
    if len(left_out) == len(studies):
        next(iter(studies.values())).magnitudes()
    return {place: one for place, one in found.items() if not isinstance(one, str)}, left_out
