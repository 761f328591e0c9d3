"""Pruning of heads and edges by importance scores, in one word-pair task (Bakalova et al., COLM 2025).

Every round is a cached record, so that an interrupted run goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from util.edges import names
from util.edges.ablation import WHOLE, Ablation
from util.edges.edge import Edge
from util.edges.splicing import Store
from util.engine.attention import support
from util.figures.edge_ablation import measures
from util.figures.edge_ablation.measures import Row
from util.figures.edge_ablation.pruning_results import PruningCurve
from util.figures.edge_ablation.study import Data, Study
from util.records.cache import Record
from util.records.checked import AsList, Count, Natural, Share, Text, checked
from util.scores import token_types
from util.scores.pruning import Pruning, prune
from util.scores.token_types import METHOD, REDUCE
from util.scores.units import SORTS, Circuit, Floats, Sort, Units, random_living, read_scores, write_scores

SCHEMA = {"part": "token-type units", "units_version": 1}  # of the requests of all records below
SCORE = {"method": METHOD, "reduce": REDUCE}


@dataclass(frozen=True)
class Measured:
    """What a round has measured: right [N], and the scores [L, H, K], which are read only where they are needed."""

    right: NDArray[np.bool_]
    study: PruningStudy
    circuit: Circuit
    sort: Sort
    file: Path | None = None

    @property
    def scores(self) -> Floats:
        """The scores of the units of the round's circuit [L, H, K]."""
        if self.file is not None:
            return read_scores(self.file, self.circuit, self.sort)
        return self.study.scores(self.circuit, self.sort)


@checked
class PruningStudy:
    """Head units or edge units of a model, pruned on the search split; what is left is measured on the study's split.

    study: model, task, prompts and draws of donors. Units are scored and pruned with the first draw of donors; where
    donors run apart (two_pass), what they leave is kept for all circuits. start:
    edges that are removed beforehand. per_round: the share of the living units that goes in a round. share: of the
    whole model's accuracy on the search split, what has to be kept; heads_share: the same for heads that are pruned
    before edges, which would else leave nothing to lose. keep: instead, so many units are left by each round;
    score_files: scores of earlier rounds, one for each entry of keep. random: prunings of the result's size, drawn by
    the study's seed. points: how many rounds are measured on the study's split. search_prompts: as many prompts of the
    search split as these instead of the study's number: units that are chosen on few of them do not do for others.
    Raises ValueError for keep and score_files that do not go together, and for a start that is more than removed edges.
    """

    study: Study
    _: KW_ONLY
    start: Ablation = WHOLE
    per_round: Share = 0.1
    share: Share = 0.9
    heads_share: Share = 0.95
    keep: Annotated[tuple[Natural, ...], AsList] | None = None
    score_files: Annotated[tuple[Text, ...], AsList] = ()
    random: Natural = 20
    points: Count = 12
    search_prompts: Count | None = None

    def __post_init__(self) -> None:
        if self.score_files and len(self.keep or ()) != len(self.score_files):
            raise ValueError(f"score_files: {len(self.score_files)} files for {len(self.keep or ())} entries of keep")
        if lacking := [file for file in self.score_files if not Path(file).is_file()]:
            raise ValueError(f"score_files: there is no file {lacking[0]!r}")
        if self.study.split != "test":
            raise ValueError(f'split = {self.study.split!r}: give "test"; units are pruned on the search split')
        if self.keep is not None and any(after > before for before, after in pairwise(self.keep)):
            raise ValueError(f"keep = {[*self.keep]}: no round keeps more units than the one before")
        if 0 not in self.study.corruptions:
            raise ValueError(f"corruptions = {list(self.study.corruptions)}: pruned units are read from corruption 0")
        Circuit.whole(1, 1, start=self.start)

    # -------------------------------------------------------------------------------------------- what is measured

    @cached_property
    def search(self) -> Study:
        """The study of the search split, with the first draw of donors."""
        prompts = self.search_prompts or self.study.prompts
        return self.study.replace(split="search", donor_seeds=self.study.donor_seeds[:1], prompts=prompts)

    @cached_property
    def _store(self) -> Store | None:
        """What donors leave."""
        return Store() if self.study.two_pass else None

    @cached_property
    def _scored(self) -> dict[str, Mapping[str, Any]]:
        """The scores of circuits by their digest."""
        return {}

    @cached_property
    def first(self) -> Circuit:
        """The circuit of all units that occur in the prompts of the search split."""
        part = {**SCHEMA, "what": "units", "start": self.start.plain()}
        data = self.search.record(part, self._measure_units).data
        heads = Units(data["layers"], data["heads"], tuple(data["types"]))
        edges = Units(data["layers"], data["heads"], tuple(map(Edge.of, data["kinds"])))
        return Circuit(heads, edges, np.ones(heads.shape, bool), data["living"].astype(bool), self.start)

    def _measure_units(self) -> Data:
        found = support(self.search.pair[0])
        prompts = [group.base for group in self.search.groups]
        circuit = Circuit.whole(len(found.layers), found.heads, prompts, self.start)
        return {
            "layers": circuit.heads.layers,
            "heads": circuit.heads.heads,
            "types": list(circuit.heads.kinds),
            "kinds": [str(edge) for edge in circuit.edges.kinds],
            "living": circuit.living_edges.astype(np.int8),
        }

    def _part(self, circuit: Circuit, what: str, **more: Any) -> dict[str, Any]:
        return {**SCHEMA, "what": what, "circuit": circuit.digest, **more}

    def scored(self, circuit: Circuit) -> Mapping[str, Any]:
        """The scores of all units of a circuit on the search split, and what it answers there.

        heads_sum_then_abs and edges_sum_then_abs [L, H, K]; right and losses [N]. Once a study, with redo too.
        """
        if circuit.digest not in self._scored:
            self._scored[circuit.digest] = self._recorded_scores(circuit)
        return self._scored[circuit.digest]

    def _recorded_scores(self, circuit: Circuit) -> Mapping[str, Any]:
        part = self._part(circuit, "scores", method=METHOD)
        return self.search.record(part, partial(self._measure_scores, circuit)).data

    def _measure_scores(self, circuit: Circuit) -> Data:
        study = self.search
        found = token_types.scores(study.pair[0], study.groups, circuit, study.token_budget, self._store)
        return {"right": found.right, "losses": found.losses} | {f"{sort}s_{REDUCE}": found.of(sort) for sort in SORTS}

    def scores(self, circuit: Circuit, sort: Sort) -> Floats:
        """The scores of the units of a sort in a circuit [L, H, K]."""
        return self.scored(circuit)[f"{sort}s_{REDUCE}"]

    def named_scores(self, circuit: Circuit) -> dict[str, dict[str, float]]:
        """The scores of the living units of a circuit by name, for each sort of units, the highest first."""
        named: dict[str, dict[str, float]] = {}
        for sort in SORTS:
            scores, units, living = self.scores(circuit, sort), circuit.units(sort), circuit.living(sort)
            pairs = [(str(unit), float(scores[units.place(unit)])) for unit in units.of(living)]
            named[sort] = dict(sorted(pairs, key=lambda pair: -pair[1]))
        return named

    def record(self, study: Study, circuit: Circuit) -> Record:
        """The record of what a circuit answers under the first draw of donors of a study, see `Study.records`."""
        part = self._part(circuit, "answers")
        return study.record(part, partial(self._measure_answers, study, circuit))

    def answers(self, study: Study, circuit: Circuit) -> Data:
        """The data of `record`."""
        return self.record(study, circuit).data

    def _measure_answers(self, study: Study, circuit: Circuit) -> Data:
        model, budget = study.pair[0], study.token_budget
        found = token_types.answers(model, study.groups, circuit, None, budget, study.two_pass, self._store)
        return {**found, **study.about}

    def row(self, circuit: Circuit, draws: Sequence[Study] | None = None) -> Row:
        """What a circuit answers on the study's split under all draws of donors, see `measures.aligned`."""
        studies = self.study.draws if draws is None else draws
        answers = [self.answers(study, circuit) for study in studies]
        return measures.aligned([{names.PRUNED: data} for data in answers])[names.PRUNED]

    @property
    def settings(self) -> dict[str, Any]:
        """What decides the pruning beside the study, for values files."""
        named = {name: getattr(self, name) for name in ("per_round", "share", "heads_share")}
        start = {"start": self.start.plain()} if self.start != WHOLE else {}
        return {**SCORE, **named, "search_prompts": self.search.prompts, **start}

    # -------------------------------------------------------------------------------------------- pruning

    def _floor(self, share: float) -> float:
        whole = self.search.answers({names.FULL: WHOLE})[names.FULL]
        return share * float(whole["right"].mean())

    def pruned(self, sort: Sort, start: Circuit, share: float) -> Pruning:
        """The rounds of pruning units of a sort, from a circuit on."""
        return self._rounds(sort, start, share, self.keep, self.score_files)

    def _rounds(
        self, sort: Sort, start: Circuit, share: float, keep: Sequence[int] | None = None, files: Sequence[str] = ()
    ) -> Pruning:
        steps = tqdm(desc=f"{self.study.setting.task}, pruning {sort} units", unit="round", leave=False)

        def measure(circuit: Circuit, number: int) -> Measured:
            steps.update()
            if files:  # the scores are there; what it answers is not
                file = Path(files[number]) if number < len(files) else None
                return Measured(self.answers(self.search, circuit)["right"], self, circuit, sort, file)
            return Measured(self.scored(circuit)["right"], self, circuit, sort)

        floor = self._floor(share)
        with steps:
            return prune(measure, start, sort, floor, self.per_round, keep)

    @cached_property
    def heads_before_edges(self) -> Circuit:
        """What is left of the heads where edges are pruned after them, by measured scores and the accuracy alone."""
        return self._rounds("head", self.first, self.heads_share).result

    def replaced(self, **changes: Any) -> PruningStudy:
        """The same study with some arguments changed, and checked again."""
        given = {name: getattr(self, name) for name in self.__dataclass_fields__ if not name.startswith("_")}
        return type(self)(**{**given, **changes})

    def begin(self, sort: Sort, *, after_heads: bool = True) -> Circuit:
        """What pruning of a sort begins with: all units, or for edges those of the heads that are left."""
        return self.heads_before_edges.without_idle_edges() if sort == "edge" and after_heads else self.first

    def heads(self) -> PruningCurve:
        """Head units pruned."""
        return self._curve("head", self.first)

    def edges(self, *, after_heads: bool = True) -> PruningCurve:
        """Edge units pruned, of the heads that are left, or of all."""
        return self._curve("edge", self.begin("edge", after_heads=after_heads))

    def both(self) -> dict[Sort, PruningCurve]:
        """Heads pruned, and then the edges of those that are left."""
        heads, edges = self.heads(), self.edges()
        return {"head": heads, "edge": edges}

    def at_random(self, sort: Sort, start: Circuit, result: Circuit) -> list[Circuit]:
        """Random prunings of a circuit, as large as the result."""
        drawn = random_living(start, result, sort, self.random, self.study.seed)
        return [start.keeping(sort, living) for living in drawn]

    def _curve(self, sort: Sort, start: Circuit) -> PruningCurve:
        pruning = self.pruned(sort, start, self.share)
        circuits = {one.circuit.count(sort): one.circuit for one in pruning.rounds}
        result = pruning.result
        last = pruning.units_left.index(result.count(sort))
        chosen = np.unique(np.linspace(0, last, min(self.points, last + 1)).round().astype(int)).tolist()
        chosen += [number for number in range(last + 1, len(pruning.rounds))][:1]  # where it falls
        left = [pruning.units_left[number] for number in chosen]
        one_draw = self.study.draws[:1]
        whole = self.study.over_donors({names.FULL: WHOLE})[names.FULL]
        random = self.at_random(sort, start, result)
        rows = [self.row(circuits[number]) for number in left]
        random_rows = [self.row(circuit, one_draw) for circuit in random]
        return PruningCurve(
            self.study.setting,
            sort,
            self.settings,
            start.heads.layers,
            start.count(sort),
            tuple(pruning.units_left),
            tuple(one.accuracy for one in pruning.rounds),
            pruning.floor,
            whole,
            dict(zip(left, rows, strict=True)),
            result.count(sort),
            result.names(sort),
            tuple(random_rows),
            tuple(circuit.names(sort) for circuit in random),
        )

    def write_scores(self, folder: Path, pruning: Pruning) -> list[Path]:
        """Write a file of scores for each round of a pruning but the last, which `score_files` takes; their paths."""
        files, sort = [], pruning.sort
        folder.mkdir(parents=True, exist_ok=True)
        for number, one in enumerate(pruning.rounds[:-1]):
            files.append(folder / f"{sort}_scores_{number}.json")
            write_scores(files[-1], one.circuit, sort, self.scores(one.circuit, sort), **SCORE)
        return files
