"""Edge ablation: what models say when token types read others from corrupted prompts (Bakalova et al., COLM 2025).

Tasks, corruptions and families of edges are those of `prompts.word_pair_prompts` and `edges`: our own definitions where
the paper's were not available to us.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, fields
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import AfterValidator
from tqdm import tqdm

from util.edges import names
from util.edges.ablation import WHOLE, Ablation
from util.edges.edge import ALWAYS, CIRCUITS, TYPE_PAIRS, Edge, type_pairs
from util.edges.splicing import (
    Ablated,
    Group,
    Store,
    continuations,
    groups_of,
    outcomes,
    whole_logits,
    without_demonstrations,
)
from util.engine.attention import support
from util.engine.batches import TOKEN_BUDGET
from util.engine.label_scores import next_token_logits
from util.figures import planted_controls
from util.figures.edge_ablation import measures
from util.figures.edge_ablation.measures import Rows, line_right, prefix_right
from util.figures.edge_ablation.results import Circuits, PlantedSearch, Search, Setting
from util.models import planted
from util.prompts import word_pair_prompts, word_pairs
from util.prompts.classification import associative_map_prompts
from util.prompts.prompt import Layout, with_bos
from util.prompts.word_pair_prompts import typed_tokens
from util.prompts.words import column, table
from util.records import cache
from util.records import study as base
from util.records.checked import AsList, Count, Distinct, Natural, Text, checked
from util.records.provenance import digest

STEM = "edge_ablation"
DONOR_SEEDS = (0, 1, 2)

Split = Literal["all", "search", "test"]
Data = dict[str, Any]  # of a record, see `Study.records`


def known_task(name: str) -> str:
    """The name of a word-pair task. Raises ValueError, with all names, for a task that there is not."""
    word_pairs.find(name)
    return name


Seeds = Annotated[tuple[Natural, ...], AsList, Distinct]
Task = Annotated[Text, AfterValidator(known_task)]
Tasks = Annotated[tuple[Task, ...], AsList, Distinct]


@checked
class Study(base.Study):
    """Prompts of one word-pair task and their donors, see `word_pair_prompts.prompts`; each ablation is a record.

    task: by its name, or a folder with a data set of pairs, see `word_pairs.pairs_from_saved`. donor_seeds: draws of
    donors; a record is of one draw, and `request` of the first. layout: fields of `prompts.prompt.Layout` other than
    the task's, such as {"separator": ":", "join": " "}. two_pass: donors run before the prompts, not beside them, and
    once for many ablations: faster where there are many. in_turn: no query is asked again before all were asked. The
    embedded model is asked the words that it was trained on, every other model those of the longer lists.
    Raises ValueError for a task, split, order, corruption or number that there is not, before a model is loaded.
    """

    task: Task = "country_capital"
    k: Count = 10
    prompts: Count = 200
    seed: Natural = 0
    _: KW_ONLY
    donor_seeds: Seeds = DONOR_SEEDS
    split: Split = "test"
    corruptions: Seeds = (0,)
    ambiguous: Natural | None = None
    order: Literal["random", "ambiguous first", "ambiguous last"] = "random"
    layout: Mapping[str, str] | None = None
    token_budget: Count = TOKEN_BUDGET
    two_pass: bool = False
    in_turn: bool = False

    stem: ClassVar[str] = STEM

    def __post_init__(self) -> None:
        if self.ambiguous is not None and self.ambiguous > self.k:
            raise ValueError(f"ambiguous = {self.ambiguous}: give k = {self.k} or fewer")
        try:
            word_pair_prompts.marked_demonstrations(
                self._task, self.prompts, self.k, self.corruptions, self.split, self.ambiguous, self.order
            )
        except ValueError as error:
            raise ValueError(
                f"k = {self.k}, ambiguous = {self.ambiguous}, corruptions = {list(self.corruptions)}: {error}"
            ) from error
        known = [field.name for field in fields(Layout)]
        if not {*(self.layout or {})} <= {*known}:
            raise ValueError(f"layout = {dict(self.layout or {})}: it has the fields {', '.join(known)}")

    @cached_property
    def _task(self) -> word_pairs.WordPairTask:
        """The task, read once: a saved data set that is changed later changes nothing here."""
        return word_pairs.find(self.task, trained=word_pairs.is_trained(self.model.name))

    @property
    def _words(self) -> str:
        """A digest of all words that prompts and donors are made of."""
        task = self._task
        layout = task.layout if self.layout is None else Layout(**self.layout)
        rules = [task.other(pair.x) for pair in task.pairs]
        lists = [table(name) for name in task.lists]  # what corrupted prompts are made of
        # said where it can matter alone: records of other tasks are older than this rule, and as it would have them
        told = ["queries told from answers"] if word_pair_prompts.may_begin_alike(task.pairs) else []
        return digest([repr((task.pairs, rules, task.balanced, task.list_name, layout)), repr(lists), *told])

    @property
    def own_request(self) -> dict[str, Any]:
        """All that decides the answers under the first draw of donors, but for model and ablation."""
        return {
            "schema": 1,
            "method_version": 2,
            "dataset": word_pairs.shown_task(self.task),
            "words": self._words,
            "prompts": self.prompts,
            "k": self.k,
            "seed": self.seed,
            "donor_seed": self.donor_seeds[0],
            "split": self.split,
            "corruptions": list(self.corruptions),
            "ambiguous": self.ambiguous,
            "order": self.order,
            "layout": None if self.layout is None else dict(self.layout),
            "token_budget": self.token_budget,
            "two_pass": self.two_pass,
            "in_turn": self.in_turn,
            "trained_words": word_pairs.is_trained(self.model.name),
        }

    @property
    def setting(self) -> Setting:
        """What titles say of the study."""
        return Setting(self.model.title, word_pairs.shown_task(self.task), self.k, self.prompts, self.donor_seeds)

    @cached_property
    def draws(self) -> tuple[Study, ...]:
        """A study for each draw of donors, on one model: this one, of which the records have the first, and others."""
        return (self, *(self.replace(donor_seeds=(seed,)) for seed in self.donor_seeds[1:]))

    # -------------------------------------------------------------------------------------------- one draw of donors

    @cached_property
    def drawn(self) -> word_pair_prompts.WordPairPrompts:
        """The prompts, with the first draw of donors. Raises what `word_pair_prompts.prompts` raises."""
        return word_pair_prompts.prompts(
            self._task,
            self.pair[1],
            self.prompts,
            k=self.k,
            seed=self.seed,
            corruptions=self.corruptions,
            split=self.split,
            ambiguous=self.ambiguous,
            order=self.order,
            donor_seed=self.donor_seeds[0],
            layout=None if self.layout is None else Layout(**self.layout),
            in_turn=self.in_turn,
        )

    @cached_property
    def groups(self) -> list[Group]:
        """The prompts and their donors as tokens."""
        return groups_of(self.drawn.items, self.pair[1])

    @property
    def texts(self) -> Iterable[str]:
        """The text of every prompt and donor."""
        return [p.text for item in self.drawn.items for p in (item.clean, *item.donors.values())]

    @cached_property
    def about(self) -> Data:
        """What the records of all ablations have in common, see `records`."""
        drawn = self.drawn
        queries = [item.clean.text[slice(*item.clean.spans["x"][-1])] for item in drawn.items]
        copies = []
        for item, group, word in zip(drawn.items, self.groups, queries, strict=True):
            ids = with_bos(item.clean.with_label(word), self.pair[1], bos=True).ids
            continues = len(ids) > group.length and ids[: group.length] == group.base.ids[: group.length]
            copies.append(ids[group.length] if continues else -1)
        return {
            "index": np.array([item.index for item in drawn.items]),
            "target": np.array([group.target[0] for group in self.groups]),
            "copy": np.array(copies),
            "layers": len(support(self.pair[0]).layers),
            "queries": queries,
            "answers": [item.clean.label().strip() for item in drawn.items],
            "askable": drawn.askable,
            "left_out": {
                "rejected": dict(drawn.rejected),
                "resampled": dict(drawn.resampled),
                "dropped": dict(drawn.dropped),
                "coincidences": {str(c): count for c, count in drawn.coincidences.items()},
            },
        }

    def _store(self, given: Store | None) -> Store | None:
        """Keys and values of plain runs, which several ablations share; only donors that run apart leave any."""
        if not self.two_pass:
            return None
        return Store() if given is None else given

    def records(
        self, ablations: Mapping[str, Ablation], *, generate: bool = False, store: Store | None = None
    ) -> dict[str, cache.Record]:
        """The record of each ablation with the first draw of donors, by its name; each is cached on its own.

        Their data, [N] each: what `splicing.outcomes` gives; index, the numbers of the prompts; target and copy, the
        first tokens of the answer and of the query said again (-1 where that would change the prompt); queries and
        answers as text. And layers; askable, how many queries of the split there are for this tokenizer; left_out, what
        of the lists was rejected, resampled, dropped, and how often a donor has the clean output.
        generate: also written, what the model goes on to write, and whether its first line is the answer (line_right:
        acc_line), or it begins with the answer (prefix_right: acc_prefix). store: one for several studies of this
        model, which then share plain runs.
        Raises what `word_pair_prompts.prompts` and `splicing.Ablated` raise, before any forward pass.
        """
        run = _Run(self, list(ablations.values()), generate, self._store(store))
        records = list(map(run.record, self.progress(ablations.values(), f"{self.task}, {self.k} shots")))
        return dict(zip(ablations, records, strict=True))

    def answers(
        self, ablations: Mapping[str, Ablation], *, generate: bool = False, store: Store | None = None
    ) -> dict[str, Data]:
        """The data of `records`."""
        records = self.records(ablations, generate=generate, store=store)
        return {name: record.data for name, record in records.items()}

    @property
    def layers(self) -> int:
        """How many layers of the model have attention, from the record of the whole model."""
        return int(self.answers({names.FULL: WHOLE})[names.FULL]["layers"])

    # -------------------------------------------------------------------------------------------- all draws of donors

    def by_draw(self, ablations: Mapping[str, Ablation], *, store: Store | None = None) -> list[dict[str, Data]]:
        """The answers under each ablation, for each draw of donors, see `answers`."""
        store = self._store(store)
        return [draw.answers(ablations, store=store) for draw in self.draws]

    def over_donors(self, ablations: Mapping[str, Ablation], *, store: Store | None = None) -> Rows:
        """The answers under each ablation with all draws of donors, see `measures.aligned`."""
        return measures.aligned(self.by_draw(ablations, store=store))

    def compare(self, *, written: bool = True) -> Circuits:
        """The circuits of `edges.CIRCUITS`, and the model without demonstrations.

        written: also what is written out, with the first draw of donors, and the answers to the queries alone.
        """
        store = self._store(None)
        compared = {name: Ablation(kept=kept) for name, kept in CIRCUITS.items()}

        def of_draw(draw: Study) -> dict[str, cache.Record]:
            return draw.records(compared, generate=written and draw is self, store=store)

        first, *others = map(of_draw, self.draws)
        data, *more = ({name: record.data for name, record in draw.items()} for draw in (first, *others))
        alone, lines = None, {}
        if written:
            zero_shot = self.record({"ablation": names.ALONE}, self._measure_zero_shot).data
            alone = measures.aligned([{names.ALONE: zero_shot}])[names.ALONE]
            lines = {
                name: (float(answers["line_right"].mean()), float(answers["prefix_right"].mean()))
                for name, answers in data.items()
            }
        return Circuits(
            self.setting,
            measures.aligned([data, *more]),
            alone,
            lines,
            1 / len(self._task.outputs),
            first[names.FULL].provenance["model"],
            int(data[names.FULL]["layers"]),
            data[names.FULL].get("askable"),
        )

    def _measure_zero_shot(self) -> Data:
        """What the whole model says after the queries alone."""
        alone = [without_demonstrations(group) for group in self.groups]
        return {**outcomes(self.pair[0], alone, token_budget=self.token_budget), **self.about}

    def search(self, share: float = 0.9) -> Search:
        """`greedy_circuit` on the split "search", with the first draw of donors; each step is cached.

        Raises ValueError unless 0 < share <= 1.
        """
        if not isinstance(share, int | float) or not 0 < share <= 1:
            raise ValueError(f"share = {share!r}: give a number above 0, up to 1")
        return self.replace(split="search", donor_seeds=self.donor_seeds[:1])._searched(share)

    def _searched(self, share: float) -> Search:
        run = _Run(self, [], False, self._store(None))
        steps = tqdm(desc=f"{self.task}, search", total=2 * len(TYPE_PAIRS) + 1, leave=False)

        def evaluate(ablation: Ablation) -> Data:
            steps.update()
            return run.record(ablation).data

        with steps:
            return greedy_circuit(evaluate, share)


class _Run:
    """Ablations of one draw of donors, which share the whole model's logits and a store of plain runs.

    planned: those that are looked at before the first forward pass, so that a bad one stops nothing halfway.
    """

    def __init__(self, study: Study, planned: Sequence[Ablation], generate: bool, store: Store | None) -> None:
        self.study, self.planned, self.generate, self.store = study, planned, generate, store

    @cached_property
    def whole(self) -> np.ndarray:
        """The whole model's logits after every prompt, [N, V]."""
        study = self.study
        for ablation in self.planned:
            Ablated(study.pair[0], study.groups, ablation, target=not self.generate)
        if self.store is not None:
            return whole_logits(study.pair[0], study.groups, study.token_budget, self.store)
        prompts = [group.base.ids[: group.length] for group in study.groups]
        return next_token_logits(study.pair[0], prompts, token_budget=study.token_budget)

    def record(self, ablation: Ablation) -> cache.Record:
        """The record of an ablation, see `Study.records`."""
        part = {"ablation": ablation.plain(), "generate": self.generate}
        return self.study.record(part, partial(self._measured, ablation))

    def _measured(self, ablation: Ablation) -> Data:
        study, (net, tokenizer) = self.study, self.study.pair
        budget, about = study.token_budget, study.about
        data: Data = outcomes(net, study.groups, ablation, self.whole, budget, study.two_pass, self.store)
        if self.generate:
            written = continuations(net, tokenizer, study.groups, ablation, budget, self.store)
            pairs = list(zip(written, about["answers"], strict=True))
            data["line_right"] = np.array([line_right(*pair) for pair in pairs])
            data["prefix_right"] = np.array([prefix_right(*pair) for pair in pairs])
            data["written"] = written
        return {**data, **about}


def greedy_circuit(
    evaluate: Callable[[Ablation], Mapping[str, np.ndarray]],
    share: float = 0.9,
    pairs: Sequence[Edge] = TYPE_PAIRS,
) -> Search:
    """Take type pairs out one by one, as long as the accuracy stays at `share` of the whole model's (our definition).

    The pair that costs least when it alone is removed goes first (accuracy, then log-probability, then by name); one
    that cannot go is put back for good. evaluate: `right` and `log_prob` [N] under an ablation.
    """
    whole, *each_alone = map(evaluate, [WHOLE, *(Ablation(removed=(edge,)) for edge in pairs)])
    costs = {}
    for edge, alone in zip(pairs, each_alone, strict=True):
        lost = whole["right"].mean() - alone["right"].mean(), whole["log_prob"].mean() - alone["log_prob"].mean()
        costs[edge] = float(lost[0]), float(lost[1])
    kept, trace = list(pairs), []
    for edge in sorted(pairs, key=lambda edge: (*costs[edge], edge)):
        fewer = [other for other in kept if other != edge]
        accuracy = float(evaluate(Ablation(kept=(*ALWAYS, *fewer)))["right"].mean())
        gone = accuracy >= share * float(whole["right"].mean())
        kept = fewer if gone else kept
        trace.append((edge, gone, accuracy))
    return Search((*ALWAYS, *kept), {edge: cost for edge, (cost, _) in costs.items()}, tuple(trace), share)


# ------------------------------------------------------------------------------------------------ the planted circuit


@checked
class LookUp(Study):
    """Look-up prompts, each with one of other words as its donor, in the place of those of a word-pair task."""

    word_lists = ("categories.csv",)

    @property
    def own_request(self) -> dict[str, Any]:
        """That of a study, with the name that the records of this control have."""
        return {**super().own_request, "dataset": "look-up", "words": "", "trained_words": True}

    @cached_property
    def groups(self) -> list[Group]:
        """The prompts and their donors as tokens: words of one token, of which a prompt and its donor share none."""
        tokenizer, layout = self.pair[1], word_pairs.TAB
        sizes = {w: typed_tokens(layout.prompt([(w, w)], w, w), tokenizer).sizes for w in column("categories", "word")}
        words = [word for word, counts in sizes.items() if set(counts) == {1}]
        keys, labels = (len(words) // 3, len(words) // 6)
        parts = []
        for start in (0, keys + labels):
            inputs, outputs = words[start : start + keys], words[start + keys : start + keys + labels]
            prompts = associative_map_prompts(inputs, outputs, 6, 6, self.prompts, layout=layout)
            parts.append([typed_tokens(prompt, tokenizer) for prompt in prompts])
        return [Group(base, {0: donor}) for base, donor in zip(*parts, strict=True)]

    @cached_property
    def about(self) -> Data:
        """The numbers of the prompts."""
        return {"index": np.arange(len(self.groups))}

    @property
    def texts(self) -> Iterable[str]:
        """The tokens of every prompt."""
        return [str(group.base.ids) for group in self.groups]


def planted_control(prompts: int = 24, folder: Path | None = None, **options: Any) -> PlantedSearch:
    """A circuit that is known, `planted.lookup` on the embedded model's tokenizer, searched.

    options: those of the planted circuit (family, copies, noise, seed).
    """
    model, truth = planted_controls.planted_control(planted.lookup, options)
    study = LookUp(model, k=6, prompts=prompts, donor_seeds=(0,), folder=folder)
    return PlantedSearch(study._searched(0.9), frozenset(type_pairs([Edge(*edge) for edge in truth.edges])))
