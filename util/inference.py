"""The inference functions of the reference code (Cho et al. 2025), under their old names, computed by the engine."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedModel

from util import paths
from util.engine.batches import Batch, Row, check_context, layer_inputs, run_rows
from util.engine.handshake import check_tokenizer, prepare
from util.engine.instruments import CaptureRows

with suppress(OSError):  # the reference notebook saves there, under this spelling; a read-only clone does without
    (paths.clone() or Path.cwd()).joinpath("experiment_matrial").mkdir(exist_ok=True)


def step2_get_fl_feature_and_lastftol_attention(
    model: PreTrainedModel, tokenizer: Any, prompts_with_label: Sequence[str]
) -> tuple[list[list[Tensor]], list[list[list[Tensor]]]]:
    """Hidden states and attention at the last two tokens of each string, in the format of the reference code.

    Returns hidden[sample][layer 0..L] of [2, d] (forerunner, label), and attention[sample][layer][head] of [2]: the
    attention of the last token to the token before it and to itself. Like the reference code, it takes the last token
    for the label; for labels of several tokens use `label_run` of the figure of forerunner heads. Raises ValueError for
    strings of fewer than two tokens.
    """
    support = prepare(model)
    check_tokenizer(model, tokenizer)
    ids = [tuple(tokenizer(text)["input_ids"]) for text in prompts_with_label]
    if min(map(len, ids), default=2) < 2:
        raise ValueError("a prompt with label needs at least two tokens")
    check_context(model, [len(tokens) for tokens in ids], "shorter prompts")
    hidden: list[list[Tensor]] = [[] for _ in ids]
    attention: list[list[list[Tensor]]] = [[] for _ in ids]

    def visit(batch: Batch) -> None:
        ends = batch.lengths[:, None] - torch.tensor([2, 1])
        captured = CaptureRows(ends[:, 1:], ends[:, None])
        states = layer_inputs(model, batch, captured)
        for i, number in enumerate(batch.numbers):
            hidden[number] = [state[i, ends[i].to(state.device)].cpu().clone() for state in states]
            attention[number] = [list(captured.weights[layer][i, :, 0].cpu().clone()) for layer in support.layers]

    with tqdm(total=len(ids), unit="prompt") as bar:
        run_rows(model, [Row(tokens) for tokens in ids], visit, bar=bar)
    return hidden, attention


def get_copy_magnitude_for_single_layer(
    ICL_attention: Sequence[Sequence[Sequence[Tensor]]], sample_index: int, layer: int
) -> list[float]:
    """A[last, last-1] of every head of one layer for one sample, in the format of the reference code.

    ICL_attention: the attention that `step2_get_fl_feature_and_lastftol_attention` returns.
    """
    return [float(head[0]) for head in ICL_attention[sample_index][layer]]
