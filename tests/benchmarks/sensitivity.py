"""How far the figures' endpoints move with the seed, and with what stands in front of every prompt.

SmolLM2 on fewer prompts than the notebooks ask; a round is another seed. Variants: BOS in front of every prompt, which
its tokenizer leaves out; the chat template, in which the user asks for a list to be continued and the assistant's turn
is the prompt; pairs of labels of one token each in place of " Foo" (two) and " Bar" (one), under a sum of
log-probabilities.
"""

from itertools import product
from typing import Any

import numpy as np
from tokenizers.processors import TemplateProcessing

from util.figures.edge_ablation import runs
from util.figures.edge_ablation.measure import KEPT
from util.figures.edge_ablation.numbers import scores_of
from util.figures.edits import INTACT, Edit
from util.figures.forerunner_heads.measure import Data, answers
from util.figures.forerunner_heads.numbers import WHOLE, Condition, scores
from util.figures.ioi_patching.numbers import intervals
from util.figures.task_study import TaskStudy
from util.roles.sequences_study import SequenceStudy
from util.stats.answers import DATASETS
from util.stats.heads import head_name, top
from util.stats.intervals import Interval, accuracy, mean_interval
from util.study.model import Model
from util.study.study import Study

ROUNDS = 3
LABELS = (("A", "B"), ("alpha", "beta"), ("Yes", "No"), ("foo", "bar"))  # one token each behind a space
ASKED = [{"role": "user", "content": "Continue the list."}]
LABELS_READ = {"s_i -> y_i": Condition("si_to_yi"), "random cells": Condition("si_to_yi", draw=0)}
TASKS = ("copying", "capitalization", "present_past")


def forerunner(model, seed, prompts=64, cut=128):
    """Forerunner heads, and what the labels' reads of their forerunners, or random cells, are worth by data set."""
    study = Study("forerunner_heads", model, prompts=prompts, seed=seed, untrained_control=False)
    frequent = int(study.numbers("counts")["frequent_heads"]["correct"].value)
    confirmed = study.numbers("specificity")["specificity"]["judged"]["confirmed"]
    numbers = {"01 frequent heads": frequent, "01 forerunner heads": confirmed}
    for dataset in DATASETS:
        found = answers(study, Data(dataset, 4, cut, seed), [WHOLE, *LABELS_READ.values()])
        whole = scores(found[WHOLE])
        for score, (name, condition) in product(("label mass", "which label"), LABELS_READ.items()):
            loss = mean_interval(scores(found[condition])[score] - whole[score])
            numbers[f"01 {dataset}: change of {score} without {name}, nats"] = loss
    return numbers


def induction(model, seed, prompts=60, heads=3, **labels):
    """Accuracy with and without the best heads by prefix matching."""
    best = top(SequenceStudy(model, seed=seed).scores().mean(), heads)
    task = TaskStudy(model, "wordseq1", 10, prompts, 42 + seed, **labels)
    answers = task.answers({"whole": INTACT, "without": Edit.ablate(best)})
    return {f"02 wordseq1, {name}": accuracy(answer["right"]) for name, answer in answers.items()}


def ioi(model, seed, prompts=32):
    """The head that carries most, and what it carries."""
    study = Study("ioi_patching", model, prompts=prompts, seed=seed, untrained_control=False)
    found = study.numbers("population")["population"]
    (best,) = top(np.abs(found["chosen"]), 1)
    share = intervals(found["measured"])[best]
    return {"03 accuracy": found["accuracy"], "03 strongest head": head_name(best), "03 it carries": share}


def edges(model, seed, prompts=32):
    """The scores of two circuits on tasks that the model does."""
    numbers: dict[str, Any] = {}
    study = Study("edge_ablation", model, prompts=prompts, seed=seed, donor_seeds=(0,), untrained_control=False)
    for task in TASKS:
        scores = scores_of(runs.answers(study, KEPT, task=task))
        numbers |= {f"04 {circuit} of {task}": scores[circuit] for circuit in ("CTX+AGG", "AGG-ONLY")}
    return numbers


def variant(name, front):
    """A model with other special tokens in front of every prompt. front: "BOS" or "chat"."""
    model, tokenizer = Model(name, verbose=False).pair
    ids = [tokenizer.bos_token_id]
    if front == "chat":
        ids = tokenizer.apply_chat_template(ASKED, add_generation_prompt=True, return_dict=True)["input_ids"]
    special = {"id": "[FRONT]", "ids": ids, "tokens": tokenizer.convert_ids_to_tokens(ids)}
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="[FRONT] $A", special_tokens=[special])
    return Model.given(model, tokenizer, f"given:{name}, {front}")


def simulate(seeds, name="smollm2"):
    """The endpoints by variant."""
    plain = Model(name, verbose=False)
    asked = {"as it is": (plain, 0)} | {f"seed {seed}": (plain, 1000 * seed) for seed in range(1, seeds + 1)}
    fronts = ("BOS", "chat") if plain.pair[1].chat_template else ("BOS",)
    asked |= {front: (variant(name, front), 0) for front in fronts}
    found: dict[str, dict[str, Any]] = {}
    for title, (model, seed) in asked.items():
        for measure in (forerunner, induction, ioi, edges):
            for number, value in measure(model, seed).items():
                found.setdefault(number, {})[title] = _plain(value)
        print(title, {number: values[title] for number, values in found.items()}, flush=True)
    for labels in LABELS:
        for number, value in induction(plain, 0, labels=labels).items():
            found[number]["/".join(labels)] = _plain(value)
    return {"model": name, "numbers": found}


def _plain(value):
    return [round(end, 3) for end in value] if isinstance(value, Interval) else value
