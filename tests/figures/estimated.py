"""Every figure's study measured beside its estimate: the tokens that ran, the time, and the peak of memory.

A process of its own measures one model, because the peak is that of the process:
    python -m tests.figures.estimated embedded small forerunner_heads role_atlas
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    MixtralConfig,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.pytorch_utils import Conv1D

from util.figures import estimates as of_figures
from util.figures.edge_ablation.plan import Plan as EdgePlan
from util.figures.edge_ablation.study import Study as EdgeStudy
from util.figures.forerunner_heads.ablation import AblationStudy, CausalStudy
from util.figures.forerunner_heads.study import ByDemonstrations, Grid
from util.figures.forerunner_heads.study import Study as ForerunnerStudy
from util.figures.induction_scores import costs as induction_costs
from util.figures.induction_scores.study import Study as InductionStudy
from util.figures.ioi_patching.study import Study as IOIStudy
from util.figures.role_atlas.study import Study as RoleStudy
from util.figures.toy_induction_head.study import Study as ToyStudy
from util.models import embedded
from util.records.estimates import NOTHING, Part, Shape, Speed, peak_bytes, process_bytes, together
from util.records.model import Model

# planted models cost the same whatever the model is: tests leave them out, benchmarks do not
CONTROLS = ("planted", "planted_errors", "planted_check")
TOKENS = 5120  # of the embedded tokenizer, which the random models share
# a mixture of experts in bfloat16, a wide and shallow model, a narrow and deep one
SHAPES: Mapping[str, PreTrainedConfig] = {
    "experts": MixtralConfig(
        vocab_size=TOKENS, hidden_size=192, intermediate_size=384, num_hidden_layers=4, num_attention_heads=6,
        num_key_value_heads=2, num_local_experts=8, num_experts_per_tok=2, sliding_window=None, bos_token_id=0,
        max_position_embeddings=2048, dtype=torch.bfloat16,
    ),
    "wide": LlamaConfig(
        vocab_size=TOKENS, hidden_size=1024, intermediate_size=3072, num_hidden_layers=2, num_attention_heads=16,
        num_key_value_heads=16, bos_token_id=0, max_position_embeddings=2048,
    ),
    "deep": LlamaConfig(
        vocab_size=TOKENS, hidden_size=48, intermediate_size=128, num_hidden_layers=16, num_attention_heads=4,
        num_key_value_heads=2, bos_token_id=0, max_position_embeddings=2048, tie_word_embeddings=True,
    ),
}  # fmt: skip
STEMS = ("toy_induction_head", "forerunner_heads", "induction_scores", "ioi_patching", "edge_ablation", "role_atlas")
SOME_DATA = ("trec", "glue_sst2", "sst5", "rotten_tomatoes", "financial_phrasebank", "agnews")


def model_of(name: str, folder: Path) -> Model:
    """The model of this name, or one of SHAPES, with random weights and the embedded tokenizer.

    Such a folder's name begins with "embedded/", so that the model is asked words that this tokenizer does not split.
    """
    if name not in SHAPES:
        return Model(name, verbose=False)
    place, config = folder / name, SHAPES[name]
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=config.dtype or torch.float32).save_pretrained(place)
    AutoTokenizer.from_pretrained(embedded.path()).save_pretrained(place)
    dtype = str(config.dtype or "float32").removeprefix("torch.")
    return Model(f"embedded/{place}", dtype=dtype, verbose=False)


# ------------------------------------------------------------------------------------------------ what is measured


def parts(stem: str, model: Model, shape: Shape, size: str, folder: Path) -> dict[str, Part]:
    """The parts of a figure, with the defaults of its notebook ("notebook") or at small sizes ("small")."""
    small = size == "small"
    given: dict[str, Any] = {"folder": folder}
    asked: list[int]
    sizes: dict[str, Any]
    if stem == "toy_induction_head":
        return of_figures.parts(ToyStudy(model, sequences=4 if small else 10, **given), shape)
    if stem == "forerunner_heads":
        prompts, fewer = (16, 8) if small else (256, 64)
        study = ForerunnerStudy(model, prompts=prompts, untrained_control=True, untrained_prompts=fewer, **given)
        some = study.replace(prompts=fewer)
        sizes = {"choice_prompts": 16, "read_prompts": 8, "single_heads": 2, "heads_cut": 4} if small else {}
        ablation = AblationStudy.like(study, prompts=4 if small else 24, draws=1)
        plan = SimpleNamespace(
            study=study,
            causal=CausalStudy(ablation, SOME_DATA[:2] if small else SOME_DATA, **sizes),
            grid=Grid(some, SOME_DATA[:2] if small else SOME_DATA),
            by_k=ByDemonstrations(some.replace(dataset="trec"), (0, 2) if small else (0, 1, 2, 4, 8, 12)),
        )
        from util.figures.forerunner_heads import costs

        return {**of_figures.parts(study, shape), **costs.plan_parts(plan, shape)}
    if stem == "induction_scores":
        sizes = {"prompts": 8, "sequences": 2, "control_sets": 3, "shots": (0, 5), "tasks": ("repetition", "wordseq1")}
        of_all = InductionStudy(model, **(sizes if small else {}), **given)
        found = of_figures.parts(of_all, shape)
        if small:
            asked = [4, 8, 4]
            work = induction_costs.function_vectors(of_all, shape, *asked, control_sets=3)
            found["function_vectors"] = Part(work, lambda: of_all.function_vectors(*asked, control_sets=3))
        return found
    if stem == "ioi_patching":
        sizes = {"prompts": 8, "path_heads": 4, "edge_pairs": 4, "exact_edges": 64}
        return of_figures.parts(IOIStudy(model, **(sizes if small else {}), **given), shape)
    if stem == "edge_ablation":
        few: dict[str, Any] = {"prompts": 8, "donor_seeds": (0,)} if small else {"prompts": 32}
        of_one = EdgeStudy(model, "capitalization", two_pass=True, **few, **given)
        sizes = {
            "tasks": ("copying", "capitalization"), "random_circuits": 3, "layer_cuts": 3, "ambiguous_counts": (0, 7),
            "corruptions": (1, 2), "pruned_tasks": ("capitalization",), "search_prompts": 8, "per_round": 0.5,
        }  # fmt: skip
        return of_figures.parts(EdgePlan(of_one, **(sizes if small else {})), shape)
    sizes = {"prompts": 8, "sequences": 8, "pairs": 8, "word_prompts": 4, "intact": 4, "untrained_prompts": 4}
    return of_figures.parts(RoleStudy(model, **(sizes if small else {}), **given), shape)


# ------------------------------------------------------------------------------------------------ what ran


class Counted:
    """What ran of a model, counted at its linear modules. Models of other shapes, such as planted ones, do not count.

    tokens: through all layers, a backward pass as another one; unembedded: whose logits were computed.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        head = model.get_output_embeddings()
        linear = [m for m in model.modules() if isinstance(m, nn.Linear | Conv1D) and m is not head]
        self.head = tuple(head.weight.shape)
        self.shapes = {tuple(m.weight.shape) for m in linear}
        self.numbers = sum(m.weight.numel() for m in linear)
        self.tokens = self.unembedded = 0.0

    def hook(self, module: nn.Module, given: Any, out: Any) -> None:
        """Count one call."""
        if not isinstance(module, nn.Linear | Conv1D):
            return
        rows = given[0].numel() / given[0].shape[-1]
        if tuple(module.weight.shape) == self.head:
            self.unembedded += rows
        elif tuple(module.weight.shape) in self.shapes:
            with_gradient = torch.is_grad_enabled() and out.requires_grad
            self.tokens += rows * module.weight.numel() / self.numbers * (1 + with_gradient)


@contextmanager
def counting(model: PreTrainedModel) -> Iterator[Counted]:
    """Counts what runs of a model inside the block."""
    counted = Counted(model)
    handle = register_module_forward_hook(counted.hook)
    try:
        yield counted
    finally:
        handle.remove()


def measured(name: str, size: str, stems: tuple[str, ...], *, controls: bool) -> dict[str, Any]:
    """By figure and part what was estimated and what was measured, in this process."""
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        model = model_of(name, Path(scratch))
        shape = Shape.of_model(model)  # of the configuration, as before any work
        model.expect_twin()
        before, passed = process_bytes(model, shape), NOTHING
        for stem in stems:
            asked = parts(stem, model, shape, size, Path(scratch) / "records")
            works = {part: one for part, one in asked.items() if controls or part not in CONTROLS}
            loaded = model.pair[0]
            speed = Speed.measured(loaded)
            found: dict[str, Any] = {}
            for part, one in works.items():
                begun, cpu = time.perf_counter(), time.process_time()
                with counting(loaded) as counted:
                    one.measure()
                found[part] = {
                    "tokens": [one.work.tokens, counted.tokens],
                    "with logits": [
                        one.work.tokens + shape.unembedding * one.work.unembedded,
                        counted.tokens + shape.unembedding * counted.unembedded,
                    ],
                    "seconds": [speed.seconds(one.work, shape), time.perf_counter() - begun],
                    "CPU seconds": time.process_time() - cpu,
                    "room": one.work.room,
                    "peak": peak_bytes(),
                }
            passed = together([passed, *(one.work for one in works.values())])  # the process keeps its peak
            needed = before + passed.room + shape.kernels(passed.tokens)
            rows[stem] = {"parts": found, "gigabytes": [needed / 1e9, peak_bytes() / 1e9]}
    return rows


def total(row: Mapping[str, Any], name: str) -> tuple[float, float]:
    """What was estimated and what was measured of all parts of a figure together."""
    pairs = [part[name] for part in row["parts"].values()]
    return sum(pair[0] for pair in pairs), sum(pair[1] for pair in pairs)


def main() -> None:
    """Measure one model and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help=f"a model's name, or one of {', '.join(SHAPES)}")
    parser.add_argument("size", choices=["small", "notebook"])
    parser.add_argument("stems", nargs="*", default=STEMS, metavar="STEM")
    parser.add_argument("--controls", action="store_true", help="measure planted models, too")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    found = measured(arguments.model, arguments.size, tuple(arguments.stems), controls=arguments.controls)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
