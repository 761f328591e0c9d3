"""The role atlas: which roles every head of a model has, tested on four kinds of prompts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY
from functools import cached_property
from typing import Any

from tqdm import tqdm

from util.engine.call import UnsupportedModel
from util.figures.planted_controls import first_tokens, name_tokens, planted_control
from util.figures.role_atlas.results import Atlas, Findings, found_exactly
from util.load_model_and_data import staicc_prompts
from util.models import planted, planted_roles
from util.prompts.prompt import UnsupportedTokenizer
from util.records import study
from util.records.checked import AtLeastFour, Count, Counts, Datasets, Natural, TwoHalves, checked
from util.records.model import Model
from util.roles.label_roles import LabelRoles
from util.roles.label_task import DATASETS, KS
from util.roles.name_roles import NameRoles
from util.roles.rules import Evidence, Role
from util.roles.sequence_roles import SequenceRoles
from util.roles.vector_roles import VectorRoles
from util.stats.heads import Head

PLANTED_TASK = "glue_sst2"  # two labels, so that of ten demonstrations some show the right one
Part = SequenceRoles | NameRoles | LabelRoles | VectorRoles
KINDS: Mapping[type, str] = {NameRoles: "IOI", LabelRoles: "labels", VectorRoles: "word pairs"}  # that can be left out


@checked
class Study(study.Study):
    """The roles of all heads of a model, see `roles.rules`.

    datasets, ks, prompts: of the roles about labels, see `roles.label_roles`. sequences: random ones, for
    previous-token and induction heads, see `roles.sequence_roles`. pairs: of IOI prompts, see `roles.name_roles`.
    word_prompts: of each word-pair task, and intact: those that mean outputs are taken over, see `roles.vector_roles`.
    untrained_control: whether `untrained` measures anything; its word pairs are `untrained_prompts` of each task, at
    most `word_prompts`: no answer is probable, so that their effects are next to nothing.
    """

    datasets: Datasets = DATASETS
    ks: Counts = KS
    prompts: TwoHalves = 64
    seed: Natural = 0
    _: KW_ONLY
    sequences: AtLeastFour = 32
    pairs: AtLeastFour = 128
    word_prompts: AtLeastFour = 24
    intact: Count = 32
    untrained_control: bool = True
    untrained_prompts: AtLeastFour = 8

    stem = "role_atlas"

    def __post_init__(self) -> None:
        self._parts  # noqa: B018  # it checks all arguments
        if self.untrained_control:
            self.model.expect_twin()

    @cached_property
    def _parts(self) -> tuple[SequenceRoles, NameRoles, LabelRoles, VectorRoles]:
        places: dict[str, Any] = {"folder": self.folder, "redo": self.redo}
        return (
            SequenceRoles(self.model, sequences=self.sequences, seed=self.seed, **places),
            NameRoles(self.model, prompts=self.pairs, seed=self.seed, **places),
            LabelRoles(self.model, self.datasets, self.ks, self.prompts, self.seed, **places),
            VectorRoles(self.model, prompts=self.word_prompts, intact=self.intact, seed=self.seed, **places),
        )

    @property
    def own_request(self) -> Mapping[str, Any]:
        return {
            "schema": 1,
            "method_version": 3,
            "datasets": list(self.datasets),
            "ks": list(self.ks),
            "prompts": self.prompts,
            "seed": self.seed,
            "sequences": self.sequences,
            "pairs": self.pairs,
            "word_prompts": self.word_prompts,
            "intact": self.intact,
        }

    def atlas(self) -> Atlas:
        """Returns the roles of all heads. What was measured is kept in records of every part.

        Word-pair tasks that the tokenizer has no prompts of, and prompts that do not fit the model, are left out;
        random sequences have to fit.
        """
        bar: Iterable[Part] = tqdm(self._parts, desc="roles", unit="kind of prompts", leave=False)
        parts = list(map(_evidence, bar))
        evidence, left_out = ([one for part in found for one in part] for found in zip(*parts, strict=True))
        order, chosen = list(Role), self._chosen
        of_labels = f"{self.prompts} of {chosen['datasets']} (k={chosen['ks']}), " if chosen else ""
        setting = (
            f"{self.model.title}; {self.sequences} random sequences, {self.pairs} IOI prompts, {of_labels}"
            f"{self.word_prompts} of each word-pair task"
        )
        described = self._parts[0].scores().description
        in_order = tuple(sorted(evidence, key=lambda one: order.index(one.role)))
        return Atlas(in_order, setting, described, tuple(left_out))

    @property
    def _chosen(self) -> dict[str, Any]:
        """The data set and k of the roles about labels; empty where none fits the model."""
        with suppress(UnsupportedModel, UnsupportedTokenizer):
            task = self._parts[2].task
            return {"datasets": task.name, "ks": task.k}
        return {}

    def untrained(self) -> Atlas | None:
        """Returns the atlas of the untrained twin, the negative control, on the data set of this model's.

        None if it is switched off.
        """
        if not self.untrained_control:
            return None
        return self.twin(word_prompts=min(self.untrained_prompts, self.word_prompts), **self._chosen).atlas()

    def planted(self, **options: Any) -> dict[str, bool]:
        """Returns, for each of three planted circuits, whether just its heads have just their roles, of all nine.

        options: of the circuits (family, copies, noise, seed), see `models.planted`.
        """
        circuits = {
            "induction circuit": planted_control(planted.induction, options),
            "name movers": planted_names(options),
            "label readers": planted_labels(options),
        }

        def found(circuit: tuple[Model, planted.Planted]) -> bool:
            return found_exactly(self._planted_evidence(circuit[0]), roles_of(circuit[1]))

        return {name: found(circuit) for name, circuit in circuits.items()}

    def _planted_evidence(self, model: Model) -> list[Evidence]:
        """The evidence on a planted model of all roles.

        It has the embedded model's tokenizer, which reads all prompts.
        """
        places: dict[str, Any] = {"folder": self.folder, "redo": self.redo}
        parts: tuple[Part, ...] = (
            SequenceRoles(model, **places),
            NameRoles(model, prompts=64, held_out=True, **places),
            LabelRoles(model, (PLANTED_TASK,), (10,), 32, **places),
            VectorRoles(model, prompts=8, intact=8, **places),
        )
        return [one for part in parts for one in part.evidence()]

    def findings(self, atlas: Atlas, untrained: Atlas | None) -> Findings:
        """Returns the atlas with its controls."""
        return Findings(atlas, untrained, self.planted())


def _evidence(part: Part) -> tuple[tuple[Evidence, ...], list[str]]:
    """The evidence on a kind of prompts, and what is left out of it, in words."""
    try:
        evidence = part.evidence()
        return evidence, [f"{KINDS[LabelRoles]}: {line}" for line in part.notes] if isinstance(part, LabelRoles) else []
    except (UnsupportedModel, UnsupportedTokenizer) as error:
        if isinstance(part, SequenceRoles):
            raise
        without = part.tasks_left_out() if isinstance(part, VectorRoles) else {}
        if isinstance(part, VectorRoles) and without and len(part.tasks) - len(without) >= 2:
            evidence, more = _evidence(part.replace(tasks=[task for task in part.tasks if task not in without]))
            return evidence, [*(f"{KINDS[type(part)]}: left out, {why}" for why in without.values()), *more]
        return (), [f"{KINDS[type(part)]}: no role is tested, {error}"]


def planted_names(options: Mapping[str, Any]) -> tuple[Model, planted.Planted]:
    """Returns the model with planted name movers, and the truth about it. options: see `models.planted`."""
    return planted_control(planted_roles.names, options, name_tokens)


def planted_labels(options: Mapping[str, Any]) -> tuple[Model, planted.Planted]:
    """Returns the model with planted label readers, and the truth about it. options: see `models.planted`."""

    shown = staicc_prompts(PLANTED_TASK, 1)[0].labels
    return planted_control(planted_roles.labels, options, lambda tokenizer: sorted({*first_tokens(shown, tokenizer)}))


def roles_of(truth: planted.Planted) -> dict[Role, set[Head]]:
    """Returns which heads of a planted circuit have which role."""
    return {Role(role): set(heads) for name, heads in truth.heads.items() for role in planted_roles.ROLES[name]}
