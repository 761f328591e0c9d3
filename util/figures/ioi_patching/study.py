"""Indirect object identification: what each head carries, by patching it (Cohen, project 41; Wang et al. 2022)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from util.figures.ioi_patching import measures, results
from util.figures.ioi_patching.edge_results import BANDS, EdgeScores, NoEdges
from util.figures.ioi_patching.edges import EdgePairs, Edges
from util.figures.ioi_patching.example import EXAMPLE, NAMES, TWO_TEXTS, ExamplePair, check_texts
from util.figures.ioi_patching.pairs import Pairs
from util.figures.ioi_patching.results import Setting
from util.figures.planted_controls import name_tokens, planted_control
from util.models import planted
from util.prompts.ioi import Corruption
from util.records import study
from util.records.checked import Count, Natural, checked
from util.roles.heads import checked_head
from util.show import files
from util.stats.heads import Head

FEWEST = 8  # pairs of prompts: a half of them chooses heads, the other half needs intervals
UNTRAINED = 16  # pairs for the untrained twin
CIRCUIT = 128  # pairs for sets of heads
PATHS = 32  # pairs for path patching
PLANTED = 32  # pairs for the planted circuit
WHOLE = "whole"  # the run of all heads: no name for a set of heads
TUTORIAL = "When Mary and John went to the store, {} gave a drink to"


@checked
class Study(study.Study):
    """Which heads of a model carry what in indirect object identification.

    corruption: how a source differs from its base, one of `prompts.ioi.CORRUPTIONS`. prompts: how many pairs are drawn,
    at least 8, by `seed`. Sets of heads and paths are measured on fresh pairs, of `seed` + 1.
    texts: base and source of the project's example. names: the answer of the base, and the name that it repeats.
    shown_layer: the layer whose activations are shown, by default that of the strongest head. layer_skip: every how
    many layers one is shown, by default so that at most 12 are. random_sets: of each size, which the strongest heads
    are compared with. path_heads: between how many heads paths are patched, at most. edge_pairs: on how many pairs
    edges of the component graph are scored, and on how many fresh ones they are judged. exact_edges: of how many edges
    exact effects are measured, at most. untrained_control: whether `untrained` measures anything. held_out: whether
    frames and names are those that the embedded model was not trained on; None: for the embedded model.
    """

    corruption: Corruption = "s2_swap"
    prompts: Count = 128
    seed: Natural = 0
    _: KW_ONLY
    texts: TWO_TEXTS = EXAMPLE
    names: TWO_TEXTS = NAMES
    shown_layer: Natural | None = None
    layer_skip: Count | None = None
    random_sets: Count = measures.RANDOM_SETS
    path_heads: Count = 16
    edge_pairs: Annotated[Count, Field(ge=2)] = 32
    exact_edges: Annotated[Count, Field(ge=BANDS)] = 2000
    untrained_control: bool = True
    held_out: bool | None = None

    stem = measures.STEM

    def __post_init__(self) -> None:
        check_texts(self.texts, self.names)
        if self.prompts < FEWEST:
            raise ValueError(
                f"prompts = {self.prompts}: at least {FEWEST} pairs are needed, heads are chosen on half of them"
            )
        self.pairs  # noqa: B018  # it checks the number of prompts
        if self.untrained_control:
            self.model.expect_twin()

    @property
    def own_request(self) -> dict[str, Any]:
        return {**self.pairs.own_request, **self.example_pair.own_request}

    @property
    def setting(self) -> Setting:
        """What titles say."""
        return Setting(self.model.name, self.model.title, self.corruption)

    # -------------------------------------------------------------------------------------------- what has records

    @cached_property
    def example_pair(self) -> ExamplePair:
        """The project's pair of prompts."""
        return ExamplePair(
            self.model, self.texts, self.names, self.seed,
            shown_layer=self.shown_layer, folder=self.folder, redo=self.redo,
        )  # fmt: skip

    @cached_property
    def pairs(self) -> Pairs:
        """The generated pairs."""
        return Pairs(
            self.model, self.corruption, self.prompts, self.seed,
            held_out=self.held_out, folder=self.folder, redo=self.redo,
        )  # fmt: skip

    @cached_property
    def fresh(self) -> Pairs:
        """Other pairs, on which heads that `pairs` chose are put to the test; at most 32."""
        return self.pairs.replace(seed=self.seed + 1, prompts=min(PATHS, self.prompts))

    @cached_property
    def ablated(self) -> Pairs:
        """Other pairs, at most 128, whose sources have three unrelated names: their means replace ablated heads."""
        return self.pairs.replace(seed=self.seed + 1, prompts=min(CIRCUIT, self.prompts), corruption="abc")

    def check(self) -> None:
        """Raises what the tokenizer and the model's shape make of the settings, before anything is measured.

        Such are words that the tokenizer splits, and a shown layer that the model does not have. The model is loaded
        only where a record is missing.
        """
        self.example_pair.check()
        if self.pairs.stored_maps is None:
            self.pairs.check()

    # -------------------------------------------------------------------------------------------- the parts

    def example(self) -> results.Example:
        """Returns the project's pair of prompts: predictions, permutation, activations, differences, patching."""
        record = self.example_pair.measured()
        described = record.provenance["model"]
        shown = (self.shown_layer, self.layer_skip)
        return results.Example.of(record.data, self.setting, described, self.texts, self.names, *shown)

    def next_words(self, count: int = 5) -> results.NextWords:
        """Returns the most probable next tokens after both prompts of the example, at most as many as there are.

        Raises ValueError for a count below 1.
        """
        if count < 1:
            raise ValueError(f"count = {count}: give a number of tokens from 1 on")
        data = self.example_pair.next_words(count).data
        return results.NextWords(self.setting, data["words"], np.exp(data["log_softmax"]))

    def population(self) -> results.Population:
        """Returns the effects of all heads over all pairs, with intervals."""
        return self._population

    @cached_property
    def _population(self) -> results.Population:
        return results.Population.of(self.pairs.maps().data, self.setting, self.seed)

    def untrained(self) -> results.Untrained | None:
        """Returns the negative control, the model's untrained twin on 16 pairs at most; None if it is switched off."""
        if not self.untrained_control:
            return None
        twin = self.pairs.twin(prompts=min(UNTRAINED, self.prompts))
        return results.Untrained.of(twin.maps().data, self.setting)

    def circuit(self, sets: Mapping[Any, Sequence[Head]]) -> results.Circuit:
        """Returns the logit differences on fresh pairs, 128 at most, where each set of heads works alone.

        sets: positions of heads in arrays [L, H], by any name but "whole". Every head outside of a set is ablated at
        all positions: its outputs become their mean over prompts of one frame with three unrelated names. Each set has
        a record of its own. Raises ValueError for a set called "whole", and before the first forward pass for a head
        that the model does not have or that comes twice. Source: Wang et al. 2022, section 2.1, p_ABC; there a head
        counts at some positions only.
        """
        if WHOLE in sets:
            raise ValueError(f"sets: {WHOLE!r} is the run of all heads; call this set of heads something else")
        kept = [sorted(plain_heads(heads)) for heads in sets.values()]
        whole, *alone = self.ablated.working_alone([None, *kept])
        clusters = self.ablated.recorded_clusters()
        return results.Circuit(self.setting, whole, dict(zip(sets, alone, strict=True)), clusters)

    def curve(self) -> results.Curve:
        """Returns faithfulness against size: the strongest heads of `population`, all but these, and random sets."""
        chosen = self.population().chosen
        sets = measures.curve_sets(chosen, self.random_sets, self.seed)
        return results.Curve.of(self.circuit(sets), chosen.size)

    def paths(self, heads: Sequence[Head] | None = None) -> results.Paths:
        """Returns what heads tell each other, through query, key or value, and the output, on fresh pairs, 32 at most.

        heads: positions in arrays [L, H]; by default the `path_heads` strongest of `population`. The method, and for
        which classes there are no paths: see `patching.all_paths`. Raises ValueError for no head at all, and before the
        first forward pass for a head that the model does not have or that comes twice.
        """
        if heads is None:
            heads = sorted(self.population().strongest(self.path_heads))
        if not heads:
            raise ValueError("heads = []: name at least one head, (layer, head)")
        return results.Paths.of(self.fresh.paths(plain_heads(heads)).data, heads, self.setting)

    def edges(self) -> EdgeScores | NoEdges:
        """Returns scores of all edges of the component graph, exact effects of some, and circuits, on fresh pairs.

        For a class of models whose layers cannot be taken apart, the reason.
        """
        count = min(self.edge_pairs, self.prompts)
        scored = EdgePairs(
            self.model, self.corruption, count, self.seed, held_out=self.held_out, folder=self.folder, redo=self.redo
        )
        judged = scored.replace(seed=self.seed + 1)
        return Edges(scored, judged, setting=self.setting, exact=self.exact_edges, seed=self.seed).measured()

    def planted(self, **options: Any) -> results.Planted:
        """Returns the positive control: swapped pairs, 32 at most, put to heads that are known.

        options: of the planted circuit (backup, family, copies, noise, seed), see `models.planted.ioi`.
        """
        model, truth = planted_control(planted.ioi, options, name_tokens)
        prompts = min(PLANTED, self.prompts)
        data = self.pairs.replace(model=model, prompts=prompts, corruption="s2_swap", held_out=True).maps().data
        effect = measures.normalised(data["noised"], data["base"], data["source"], data["clusters"])
        return results.Planted(effect, truth.names)

    def tutorial(self) -> dict[str, tuple[float, float]]:
        """Returns the numbers of the nnsight tutorial on its pair of prompts, (value, 0) by id of data/published.

        There are none for a model that the tutorial does not measure.
        """
        measured_there = files.published(self.stem)["circuit"]["model"]
        return self.tutorial_study.tutorial_values() if self.model.name == measured_there else {}

    @property
    def tutorial_study(self) -> "Study":
        """The same study with the tutorial's pair of prompts as its example."""
        john, mary = "John", "Mary"
        texts = (TUTORIAL.format(mary), TUTORIAL.format(john))
        return self.replace(texts=texts, names=(john, mary), shown_layer=None)

    def tutorial_values(self) -> dict[str, tuple[float, float]]:
        """Returns what the tutorial says, measured on this study's example, which has to be that of the tutorial."""
        ids = [row["id"] for row in files.published(self.stem)["values"]]
        return measures.tutorial_values(self.example_pair.measured().data, ids)


def plain_heads(heads: Iterable[Head]) -> list[list[int]]:
    """Returns heads as a request has them, in their order. Raises ValueError for what is no (layer, head)."""
    return [list(checked_head(head, "heads")) for head in heads]
