"""What the notebook keeps of all parts: its values, its check, and what published numbers are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from util.figures.forerunner_heads import measures
from util.figures.forerunner_heads.measures import Series
from util.figures.forerunner_heads.results.ablation import Tables, Task
from util.figures.forerunner_heads.results.copy_magnitudes import Magnitudes
from util.figures.forerunner_heads.results.counts import Counts, DataSets, Growth, Layers
from util.figures.forerunner_heads.results.heads import HeadEffects
from util.figures.forerunner_heads.results.induction import InductionHeads
from util.figures.forerunner_heads.results.setting import curve
from util.figures.forerunner_heads.results.specificity import HeldOut, Planted, PlantedErrors

PUBLISHED_INDUCTION = {"dataset": "glue_sst2", "k": 16, "quantized": True}  # the setting of the published share


def check_lines(
    measured: Magnitudes,
    counts: Counts,
    held_out: HeldOut,
    planted: Planted,
    errors: PlantedErrors,
    task: Task,
    tables: Tables,
) -> list[str]:
    """What a fresh run of the notebook must reproduce."""
    layers, heads = measured.magnitude.shape[2:]
    fewest, most = measured.tokens
    lines = [f"heads {layers} x {heads}; prompts {measured.setting.prompts}; tokens {fewest}-{most}"]
    for table in (counts.table(), held_out.table().head(3), errors.table()):
        lines += table.to_string().splitlines()
    return [*lines, str(held_out), str(planted), *task.check_lines(), *tables.check_lines()]


def published(layers: Layers, counts: Counts, induction: InductionHeads) -> dict[str, tuple[float, float]]:
    """What data/published/forerunner_heads.json has a row for: our value and its standard error by the row's id.

    The row on induction heads is filled where the setting is that of the published value alone.
    """
    heads, largest = layers.counts[Series.CORRECT], layers.largest[Series.CORRECT]
    intervals = {
        "head_count_per_layer": heads[int(heads.value.argmax())],
        "max_magnitude_per_layer": largest[int(largest.value.argmax())],
        "count_maps": counts.frequent[Series.CORRECT],
    }
    here = {row: (float(interval.value), interval.error) for row, interval in intervals.items()}
    if induction.request | PUBLISHED_INDUCTION == induction.request:
        here["best_correct_induction_share"] = measures.best_correct_share(induction.correct)
    return here


Causal = Task | Tables | InductionHeads | HeadEffects


def values(
    measured: Magnitudes,
    counts: Counts,
    layers: Layers,
    held_out: HeldOut,
    planted: Planted,
    datasets: DataSets,
    growth: Growth,
    causal: Sequence[Causal],
) -> dict[str, Any]:
    """The plotted numbers, as the values file has them; causal: those of the chosen data set."""
    stored: dict[str, Any] = {
        "request": measured.request,
        "model": measured.origin,
        "counts": counts.maps,
        "frequent_heads": counts.frequent,
        "mean_head_count": {name: curve(intervals) for name, intervals in layers.counts.items()},
        "mean_max_magnitude": {name: curve(intervals) for name, intervals in layers.largest.items()},
        "specificity": held_out.values(),
        **datasets.values(),
        "by_k": growth.values(),
        "planted_verdicts": planted.verdicts,
        "moved": measured.moved,
    }
    for part in causal:
        stored |= part.values()
    return stored
