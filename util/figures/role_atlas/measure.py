"""The role atlas: which roles every head of a model has, tested on four kinds of prompts, see `roles.rules`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from tqdm import tqdm

from util.engine.call import UnsupportedModel
from util.figures.planted_controls import first_tokens, name_tokens, planted_control
from util.load_model_and_data import staicc_prompts
from util.models import planted as circuits
from util.models import planted_roles
from util.prompts.prompt import UnsupportedTokenizer
from util.roles.label_roles import LabelRoles
from util.roles.name_roles import NameRoles
from util.roles.rules import Evidence, Role
from util.roles.sequences_study import SequenceRoles
from util.roles.vector_roles import VectorRoles
from util.study.model import Model
from util.study.records import Fields
from util.study.study import Study

PLANTED_TASK = "glue_sst2"  # two labels, so that of ten demonstrations some show the right one
UNTRAINED_PROMPTS = 8  # of each word-pair task: no answer is probable, so that the effects are next to nothing
Kind = SequenceRoles | NameRoles | LabelRoles | VectorRoles


def kinds(study: Study) -> tuple[SequenceRoles, NameRoles, LabelRoles, VectorRoles]:
    """The studies of the four kinds of prompts. Raises ValueError for settings that one of them refuses."""
    s, places = study.settings, _places(study)
    return (
        SequenceRoles(study.model, sequences=s.sequences, seed=s.seed, **places),
        NameRoles(study.model, prompts=s.pairs, seed=s.seed, **places),
        LabelRoles(study.model, s.datasets, s.ks, s.prompts, s.seed, **places),
        VectorRoles(study.model, prompts=s.word_prompts, intact=s.intact, seed=s.seed, **places),
    )


def _places(study: Study) -> Fields:
    return {"folder": study.folder, "redo": study.redo}


check = kinds  # before anything is loaded


def atlas(study: Study) -> Fields:
    """The evidence on the roles of all heads, in the order of roles, and what is left out, a line for each.

    Word-pair tasks that the tokenizer has no prompts of, and prompts that do not fit the model, are left out; random
    sequences have to fit. label task: the data set and k of the roles about labels; None where none fits the model.
    """
    evidence: list[Evidence] = []
    left_out: list[str] = []
    sequences, names, labels, words = kinds(study)
    named: dict[str, Kind] = {"sequences": sequences, "IOI": names, "labels": labels, "word pairs": words}
    for name, kind in tqdm(named.items(), desc="roles", unit="kind of prompts", leave=False):
        try:
            found, lines = _evidence(kind)
        except (UnsupportedModel, UnsupportedTokenizer) as error:
            if name == "sequences":
                raise
            found, lines = (), [f"no role is tested, {error}"]
        evidence += found
        left_out += [f"{name}: {line}" for line in lines]
    task = None
    with suppress(UnsupportedModel, UnsupportedTokenizer):
        task = {"dataset": labels.task.name, "k": labels.task.k}
    return {
        "evidence": sorted(evidence, key=lambda one: list(Role).index(one.role)),
        "left out": left_out,
        "label task": task,
        "description": sequences.scores().description,
    }


def _evidence(kind: Kind) -> tuple[Sequence[Evidence], list[str]]:
    """The evidence on a kind of prompts, and what is left out of it, in words."""
    try:
        return kind.evidence(), kind.notes if isinstance(kind, LabelRoles) else []
    except UnsupportedTokenizer:
        if not isinstance(kind, VectorRoles):
            raise
        rest, left_out = kind.with_prompts()
        return rest.evidence(), left_out


def untrained(study: Study) -> Fields:
    """The atlas of the untrained twin, the negative control, on the data set of this model's; {} if it is off."""
    if not study.settings.untrained_control:
        return {}
    changes: Fields = {"word_prompts": min(UNTRAINED_PROMPTS, study.settings.word_prompts)}
    if task := study.arrays("atlas")["label task"]:
        changes |= {"datasets": task["dataset"], "ks": task["k"]}
    return dict(study.twin(**changes).arrays("atlas"))


# ------------------------------------------------------------------------------------------------ planted circuits


def planted(study: Study, **options: Any) -> Fields:
    """The evidence on all nine roles in three models with planted circuits, and their heads' roles.

    The models have the embedded model's tokenizer, which reads all prompts. options: of the circuits (family,
    seed), see `models.planted`.
    """
    shown = staicc_prompts(PLANTED_TASK, 1)[0].labels
    models = {
        "induction circuit": planted_control(circuits.induction, options),
        "name movers": planted_control(planted_roles.names, options, name_tokens),
        "label readers": planted_control(
            planted_roles.labels, options, lambda tokenizer: sorted({*first_tokens(shown, tokenizer)})
        ),
    }
    planted = {}
    for name, (model, truth) in models.items():
        roles = {Role(role): {*heads} for kind, heads in truth.heads.items() for role in planted_roles.ROLES[kind]}
        planted[name] = {"evidence": planted_evidence(study, model), "roles": roles}
    return planted


def planted_evidence(study: Study, model: Model) -> list[Evidence]:
    """The evidence on a planted model, of all roles."""
    places = _places(study)
    of: Sequence[Kind] = (
        SequenceRoles(model, **places),
        NameRoles(model, prompts=64, held_out=True, **places),
        LabelRoles(model, (PLANTED_TASK,), (10,), 32, **places),
        VectorRoles(model, prompts=8, intact=8, **places),
    )
    return [one for kind in of for one in kind.evidence()]
