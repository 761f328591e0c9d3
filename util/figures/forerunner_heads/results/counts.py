"""How many heads read the token before a label: by layer, data set and number of demonstrations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray

from util.figures.forerunner_heads import measures, plots
from util.figures.forerunner_heads.measures import Series
from util.figures.forerunner_heads.results.copy_magnitudes import Reading
from util.figures.forerunner_heads.results.setting import Setting
from util.stats.intervals import Interval, Intervals


@dataclass(frozen=True)
class Counts:
    """On how many of its prompts each head exceeds the threshold, by series.

    prompts: of each series; maps: [L, H]; frequent: how many heads exceed it on three of four prompts.
    """

    setting: Setting
    prompts: Mapping[Series, int]
    maps: Mapping[Series, NDArray[np.int64]]
    frequent: Mapping[Series, Interval]

    @classmethod
    def of(cls, setting: Setting, series: Mapping[Series, Reading], c: float) -> Counts:
        return cls(
            setting,
            prompts={name: len(reading.n_t) for name, reading in series.items()},
            maps={name: reading.counts(c) for name, reading in series.items()},
            frequent={name: reading.frequent(c) for name, reading in series.items()},
        )

    def table(self) -> pd.DataFrame:
        """One row for each series."""
        rows = {
            name.label: {
                "prompts": self.prompts[name],
                "heads on three quarters of the prompts": f"{number.value} [{number.low}, {number.high}]",
                "heads on any prompt": int((self.maps[name] > 0).sum()),
            }
            for name, number in self.frequent.items()
        }
        return pd.DataFrame.from_dict(rows, orient="index")

    def figure(self) -> Figure:
        heads = next(iter(self.maps.values())).size
        title = f"Heads above the threshold on three of four prompts, of {heads}\n{self.setting}"
        return plots.count_maps(self.maps, self.prompts, self.frequent, title)


@dataclass(frozen=True)
class Layers:
    """By series and layer [L]: how many heads exceed the threshold on a prompt, and the largest copy magnitude.

    on_a_prompt: heads of all layers together; uniform: the mean magnitude of uniform attention; c: of the threshold
    c / n_t; heads: of the model.
    """

    setting: Setting
    counts: Mapping[Series, Intervals]
    largest: Mapping[Series, Intervals]
    on_a_prompt: Mapping[Series, Interval]
    uniform: float
    c: float
    heads: int

    @classmethod
    def of(cls, setting: Setting, series: Mapping[Series, Reading], c: float) -> Layers:
        correct = series[Series.CORRECT]
        return cls(
            setting,
            counts={name: measures.mean_head_count(one.magnitude, one.n_t, c) for name, one in series.items()},
            largest={name: measures.mean_max_magnitude(one.magnitude) for name, one in series.items()},
            on_a_prompt={name: one.on_a_prompt(c) for name, one in series.items()},
            uniform=measures.uniform_magnitude(correct.n_t),
            c=c,
            heads=int(np.prod(correct.magnitude.shape[1:])),
        )

    def figure(self) -> Figure:
        texts = [f"{name.label} {v:.1f} [{low:.1f}, {high:.1f}]" for name, (v, low, high) in self.on_a_prompt.items()]
        title = (
            f"Of {self.heads} heads, above threshold on a prompt:\n{', '.join(texts[:2])},\n{', '.join(texts[2:])}"
            f"\n{self.setting}"
        )
        return plots.layer_curves(self.counts, self.largest, self.c * self.uniform, self.uniform, title)


@dataclass(frozen=True)
class DataSets:
    """On how many prompts each head exceeds the threshold, by data set and series [L, H]."""

    setting: Setting
    maps: Mapping[str, Mapping[Series, NDArray[np.int64]]]

    def figure(self) -> Figure:
        s = self.setting
        title = (
            "On how many prompts each head reads the token before the label"
            f"\n{s.model}, k = {s.k}, {s.prompts} prompts per data set"
        )
        return plots.count_grid(self.maps, dict.fromkeys(self.maps, s.prompts), title)


@dataclass(frozen=True)
class Growth:
    """How many heads exceed the threshold on a prompt, by the number of demonstrations k.

    counts[series][k]: with c / n_t, which falls as prompts grow; fixed[k]: of the correct label, with one threshold for
    all k, that of the middle one; maps[k]: counts [L, H] of the correct label.
    """

    setting: Setting
    counts: Mapping[Series, Mapping[int, Interval]]
    fixed: Mapping[int, Interval]
    maps: Mapping[int, NDArray[np.int64]]

    @classmethod
    def of(cls, setting: Setting, by_k: Mapping[int, Mapping[Series, Reading]], c: float) -> Growth:
        """by_k: in the order of k, the readings of the same series, the correct label among them."""
        correct = {k: series[Series.CORRECT] for k, series in by_k.items()}
        tokens = round(list(correct.values())[len(correct) // 2].n_t.mean())  # they decide the one threshold of all k
        one_threshold = {k: replace(reading, n_t=np.full_like(reading.n_t, tokens)) for k, reading in correct.items()}
        return cls(
            setting,
            counts={name: {k: series[name].on_a_prompt(c) for k, series in by_k.items()} for name in by_k[min(by_k)]},
            fixed={k: reading.on_a_prompt(c) for k, reading in one_threshold.items()},
            maps={k: reading.counts(c) for k, reading in correct.items()},
        )

    def table(self) -> pd.DataFrame:
        """One row for each k."""
        columns = {f"{name.label}, c / n_t": values for name, values in self.counts.items()}
        columns["correct label, one threshold"] = self.fixed
        texts = {name: {k: str(value) for k, value in values.items()} for name, values in columns.items()}
        return pd.DataFrame(texts).rename_axis("k")

    def figure(self) -> Figure:
        correct, fixed, s = self.counts[Series.CORRECT], self.fixed, self.setting
        first, last = min(fixed), max(fixed)
        title = (
            f"Heads above c / n_t on a prompt, k = {first} to {last}: {correct[first].value:.1f} to "
            f"{correct[last].value:.1f}; above one threshold {fixed[first].value:.1f} to {fixed[last].value:.1f}"
            f"\n{s.model}, {s.dataset}, {s.prompts} prompts for each k"
        )
        return plots.by_demonstrations(self.counts, fixed, self.maps, s.prompts, title)

    def values(self) -> dict[str, Any]:
        return {"counts": self.counts, "fixed": self.fixed, "maps": self.maps}
