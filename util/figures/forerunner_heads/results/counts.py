"""How many heads read the token before a label: by layer, data set and number of demonstrations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray

from util.figures.forerunner_heads import measures, plots
from util.figures.forerunner_heads.measures import Series
from util.figures.forerunner_heads.results.copy_magnitudes import Reading
from util.figures.forerunner_heads.results.setting import Setting
from util.show.style import WIDTH
from util.stats.intervals import Interval, Intervals, mean_interval


@dataclass(frozen=True)
class Counts:
    """On how many of its prompts each head exceeds the threshold, by series.

    about: what it was measured on; prompts: of each series; maps: [L, H]; frequent: how many heads are frequent, that
    is, exceed it on three of four prompts.
    """

    about: Setting
    prompts: Mapping[Series, int]
    maps: Mapping[Series, NDArray[np.int64]]
    frequent: Mapping[Series, Interval]

    @classmethod
    def of(cls, about: Setting, series: Mapping[Series, Reading], c: float) -> Counts:
        return cls(
            about,
            prompts={name: len(reading.n_t) for name, reading in series.items()},
            maps={name: reading.counts(c) for name, reading in series.items()},
            frequent={name: reading.frequent(c) for name, reading in series.items()},
        )

    def table(self) -> pd.DataFrame:
        """One row for each series."""
        rows = {
            name.label: {
                "prompts": self.prompts[name],
                "frequent heads": f"{number.value} [{number.low}, {number.high}]",
                "heads on any prompt": int((self.maps[name] > 0).sum()),
            }
            for name, number in self.frequent.items()
        }
        return pd.DataFrame.from_dict(rows, orient="index")

    @property
    def finding(self) -> str | None:
        """How many heads are frequent, and whether that is more than with untrained weights.

        None without the correct label.
        """
        if Series.CORRECT not in self.frequent:
            return None
        heads = next(iter(self.maps.values())).size
        value, low, high = self.frequent[Series.CORRECT]
        untrained = self.frequent.get(Series.UNTRAINED, Interval(0, 0, 0))
        if low <= untrained.high:
            return (
                f"No more heads are shown to be frequent than with untrained weights: {value} [{low}, {high}] and "
                f"{untrained.value} [{untrained.low}, {untrained.high}] of {heads}"
            )
        said = (
            f"{value} [{low}, {high}] of {heads} heads are frequent: they read the token before the correct label on "
            "three of four prompts"
        )
        others = [f"{self.frequent[name].value} before {words}" for name, words in _BEFORE.items() if name in self.maps]
        return f"{said}; {', '.join(others)}" if others else said

    @property
    def setting(self) -> str:
        """What was counted, and on what."""
        few = self.prompts.get(Series.UNTRAINED)
        untrained = "" if few is None else f" ({few} with untrained weights)"
        return f"reads: above the threshold; {self.about}{untrained}"

    def figure(self, width: float = WIDTH) -> Figure:
        """Maps of all heads."""
        return plots.count_maps(self.maps, self.prompts, self.frequent, self.finding, self.setting, width)


_BEFORE = {Series.WRONG: "a wrong one", Series.OTHER_WORD: "another word"}


@dataclass(frozen=True)
class Layers:
    """By series and layer [L]: how many heads exceed the threshold on a prompt, and the largest copy magnitude.

    about: what it was measured on; on_a_prompt: heads of all layers together; more: how many more of them behind the
    correct label than behind another ending, paired by prompt; uniform: the mean magnitude of uniform attention; c: of
    the threshold c / n_t; heads: of the model.
    """

    about: Setting
    counts: Mapping[Series, Intervals]
    largest: Mapping[Series, Intervals]
    on_a_prompt: Mapping[Series, Interval]
    more: Mapping[Series, Interval]
    uniform: float
    c: float
    heads: int

    @classmethod
    def of(cls, about: Setting, series: Mapping[Series, Reading], c: float) -> Layers:
        correct = series[Series.CORRECT]
        passing = {name: one.passing(c) for name, one in series.items()}
        return cls(
            about,
            counts={name: measures.mean_head_count(one.magnitude, one.n_t, c) for name, one in series.items()},
            largest={name: measures.mean_max_magnitude(one.magnitude) for name, one in series.items()},
            on_a_prompt={name: one.on_a_prompt(c) for name, one in series.items()},
            more={name: mean_interval(passing[Series.CORRECT] - passing[name]) for name in _BEFORE if name in series},
            uniform=measures.uniform_magnitude(correct.n_t),
            c=c,
            heads=int(np.prod(correct.magnitude.shape[1:])),
        )

    @property
    def finding(self) -> str | None:
        """How many heads read the token before the correct label, and how many more than before something else.

        None where that are no more than with untrained weights.
        """
        heads, untrained = self.on_a_prompt[Series.CORRECT], self.on_a_prompt.get(Series.UNTRAINED)
        if untrained is not None and heads.low <= untrained.high:
            return None
        said = f"On a prompt {heads.value:.1f} of {self.heads} heads read the token before the correct label"
        return ", ".join([said, *(_compared(one, _BEFORE[name]) for name, one in self.more.items())])

    @property
    def setting(self) -> str:
        """What was counted, and on what."""
        return f"above the threshold, mean over prompts; {self.about}"

    def figure(self, width: float = WIDTH) -> Figure:
        """Curves over the layers."""
        levels = self.c * self.uniform, self.uniform
        curves = self.counts, self.largest, self.on_a_prompt
        return plots.layer_curves(*curves, *levels, self.finding, self.setting, width)


def _compared(more: Interval, what: str) -> str:
    """How many more heads there are than before something else; neither more nor fewer where the interval holds 0."""
    if more.low > 0:
        return f"{more.value:.1f} [{more.low:.1f}, {more.high:.1f}] more than before {what}"
    if more.high < 0:
        return f"{-more.value:.1f} [{-more.high:.1f}, {-more.low:.1f}] fewer than before {what}"
    return f"not clearly more or fewer before {what} ({more.value:+.1f} [{more.low:+.1f}, {more.high:+.1f}])"


@dataclass(frozen=True)
class DataSets:
    """On how many prompts each head exceeds the threshold, by data set and series [L, H].

    about: what it was measured on, but for the data set; on_a_prompt: how many heads exceed it on a prompt, by series
    and data set; left_out: why data sets were not measured.
    """

    about: Setting
    maps: Mapping[str, Mapping[Series, NDArray[np.int64]]]
    on_a_prompt: Mapping[Series, Mapping[str, Interval]]
    left_out: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, about: Setting, by_set: Mapping[str, Mapping[Series, Reading]], c: float) -> DataSets:
        """by_set: the readings of the same series on every data set, the correct label among them."""
        names = list(next(iter(by_set.values())))
        return cls(
            about,
            maps={dataset: {name: one.counts(c) for name, one in series.items()} for dataset, series in by_set.items()},
            on_a_prompt={
                name: {dataset: series[name].on_a_prompt(c) for dataset, series in by_set.items()} for name in names
            },
        )

    @property
    def shared(self) -> NDArray[np.int64]:
        """On how many data sets each head exceeds the threshold on three of four prompts, [L, H]; correct label."""
        least = measures.SHARE * self.about.prompts
        return np.sum([maps[Series.CORRECT] >= least for maps in self.maps.values()], axis=0)

    @property
    def finding(self) -> str | None:
        """How many heads are frequent on every data set; None where there is one data set only."""
        sets = len(self.maps)
        if sets < 2:
            return None
        everywhere, anywhere = int((self.shared == sets).sum()), int((self.shared > 0).sum())
        if not anywhere:
            return f"No head is frequent on any of {sets} data sets"
        heads = "heads are" if everywhere > 1 else "head is"
        return (
            f"{everywhere or 'No'} {heads} frequent on each of {sets} data sets, "
            f"{anywhere - everywhere} on some of them only"
        )

    @property
    def setting(self) -> str:
        """What was counted, and on what."""
        s = self.about
        frequent = "frequent: above the threshold on three of four prompts"
        left_out = "".join(f"; {dataset}: {why}" for dataset, why in self.left_out.items())
        return f"{frequent}; {s.model}, k = {s.k}, {s.prompts} prompts per data set{left_out}"

    def figure(self, width: float = WIDTH) -> Figure:
        """Which heads data sets share."""
        by_layer = {
            name: {dataset: maps[name].sum(axis=1) / self.about.prompts for dataset, maps in self.maps.items()}
            for name in self.on_a_prompt
        }
        return plots.data_set_rows(self.shared, by_layer, self.on_a_prompt, self.finding, self.setting, width)

    def values(self) -> dict[str, Any]:
        return {"grid_counts": self.maps, "grid_heads_on_a_prompt": self.on_a_prompt}


@dataclass(frozen=True)
class Growth:
    """How many heads exceed the threshold on a prompt, by the number of demonstrations k.

    about: what it was measured on, but for k; counts[series][k]: with c / n_t, which falls as prompts grow; fixed[k]:
    of the correct label, with one threshold for all k, that of the middle one; maps[k]: counts [L, H] of the correct
    label; left_out[k]: why it was not measured.
    """

    about: Setting
    counts: Mapping[Series, Mapping[int, Interval]]
    fixed: Mapping[int, Interval]
    maps: Mapping[int, NDArray[np.int64]]
    left_out: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, about: Setting, by_k: Mapping[int, Mapping[Series, Reading]], c: float) -> Growth:
        """by_k: in the order of k, the readings of the same series, the correct label among them."""
        correct = {k: series[Series.CORRECT] for k, series in by_k.items()}
        tokens = round(list(correct.values())[len(correct) // 2].n_t.mean())  # they decide the one threshold of all k
        one_threshold = {k: replace(reading, n_t=np.full_like(reading.n_t, tokens)) for k, reading in correct.items()}
        return cls(
            about,
            counts={name: {k: series[name].on_a_prompt(c) for k, series in by_k.items()} for name in by_k[min(by_k)]},
            fixed={k: reading.on_a_prompt(c) for k, reading in one_threshold.items()},
            maps={k: reading.counts(c) for k, reading in correct.items()},
        )

    def table(self) -> pd.DataFrame:
        """One row for each k, that of prompts that do not fit the model says so."""
        columns = {f"{name.label}, c / n_t": values for name, values in self.counts.items()}
        columns["correct label, one threshold"] = self.fixed
        texts = {
            name: {k: str(value) for k, value in values.items()} | dict(self.left_out)
            for name, values in columns.items()
        }
        return pd.DataFrame(texts).rename_axis("k")

    @property
    def finding(self) -> str | None:
        """What more demonstrations change, from the fewest to the most; None where no change is shown."""
        first, last = min(self.fixed), max(self.fixed)
        correct = self.counts[Series.CORRECT]
        ends = [(one[first], one[last]) for one in (correct, self.fixed)]
        words = [_more(*pair) for pair in ends]
        if words == [_NOT_SHOWN, _NOT_SHOWN]:
            return None
        numbers = [f"({start.value:.1f} to {end.value:.1f})" for start, end in ends]
        return (
            f"From k = {first} to {last} {words[0]} heads exceed c / n_t on a prompt {numbers[0]}, "
            f"{words[1]} one fixed threshold {numbers[1]}"
        )

    @property
    def setting(self) -> str:
        """What it was measured on."""
        return f"{self.about.model}, {self.about.dataset}, {self.about.prompts} prompts for each k"

    def figure(self, width: float = WIDTH) -> Figure:
        maps, n = self.maps, self.about.prompts
        return plots.by_demonstrations(self.counts, self.fixed, maps, n, self.finding, self.setting, width)

    def values(self) -> dict[str, Any]:
        return {"counts": self.counts, "fixed": self.fixed, "maps": self.maps}


_NOT_SHOWN = "not clearly more or fewer"


def _more(first: Interval, last: Interval) -> str:
    """Whether the last number of heads is shown to be more or fewer than the first: their intervals lie apart."""
    if last.low > first.high:
        return "more"
    return "fewer" if last.high < first.low else _NOT_SHOWN
