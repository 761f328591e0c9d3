"""Path patching between heads: what each tells each other one, through its query, key or value, and the output.

A sender's outputs are taken from the source prompts, and all other heads are frozen to the base run, so that what the
sender says spreads through MLPs and norms alone. The stream of this run gives the direct path to the output, and the
query, key and value that any later head, a receiver, would have. In a second run the receiver has one of these, or all
three together, and all else is free: the metric then moves by what the sender tells the receiver (Wang et al. 2022,
appendix B).

One frozen run serves all receivers of a sender. The second runs start at the receiver's layer, see `engine.replay`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from util.engine.components import Components, Parts
from util.engine.finite import check_finite
from util.engine.layer_calls import repeated
from util.engine.replay import BUDGET, Edit, replay, row_bytes
from util.scores.attribution import check_pairs, first_difference, metric
from util.scores.exact import STATES, head_edit, heads_reading

CHANNELS = (*STATES, "together")
Head = tuple[int, int]  # (layer, head)
Path = tuple[int, int, int]  # places of sender, receiver and channel


@dataclass(frozen=True)
class PathEffects:
    """By how much the metric changes, for N prompts and K heads, on the CPU.

    direct [N, K]: through the direct path of a sender to the output. edges [N, K, K, 4]: from sender to receiver,
    through one of CHANNELS; NaN where the receiver is in no later layer.
    """

    direct: Tensor
    edges: Tensor


@torch.no_grad()
def path_effects(
    model: PreTrainedModel,
    base: Tensor,
    source: Tensor,
    answers: Tensor,
    heads: Sequence[Head],
    budget: int = BUDGET,
) -> PathEffects:
    """Returns what heads (layer, head) tell each other and the output, in runs of the base prompts.

    base, source: the tokens of both prompts [N, T]. answers [N, 2]: the metric is the logit of the first minus that of
    the second, behind the last token. budget: bytes of one batch. Raises ValueError for prompts or answers of other
    shapes and for heads that the model does not have or that come twice, UnsupportedModel for a class that `Components`
    refuses.
    """
    check_pairs(model, base, source, answers)
    parts = Components(model, base)
    if not heads or len({*heads} & {*np.ndindex(parts.layers, parts.heads)}) < len(heads):
        shape = f"{parts.layers} layers of {parts.heads} heads"
        raise ValueError(f"heads = {list(heads)}: name at least one head of {shape}, and none twice")
    base_run, source_run = parts.base, parts.run(source)
    size = max(1, budget // (len(base) * row_bytes(model, base.shape[1], base.shape[1])))
    order = sorted(range(len(heads)), key=lambda place: heads[place])
    paths: dict[Path, Edit] = {}
    direct = torch.empty(len(base), len(heads), dtype=torch.promote_types(model.dtype, torch.float32))
    plain = metric(parts, base_run.hidden[-1], answers).cpu()
    for start in range(0, len(order), size):
        run = _FrozenRun(parts, base_run, source_run, heads, order[start : start + size])
        paths |= run.heard()
        direct[:, run.senders] = (metric(parts, run.stream, answers).cpu().unflatten(0, (-1, len(base))) - plain).T
    edges = direct.new_full((len(base), len(heads), len(heads), len(CHANNELS)), torch.nan)
    if paths:
        first = first_difference(base, source)
        found = replay(model, base, list(paths.values()), answers, first, budget=budget)
        after, before = (logits[..., 0] - logits[..., 1] for logits in (found.logits, found.base))
        sender, receiver, channel = torch.tensor(list(paths)).T
        edges[:, sender, receiver, channel] = (after - before).T.to(edges)
    check_finite(direct, "the direct paths of heads", model, base)
    return PathEffects(direct, edges)


class _FrozenRun:
    """Runs of the base prompts, one for each sender: it is from the source, and all other heads are frozen.

    senders: their places in `heads`, in the order of their layers; each joins the batch at its own layer.
    """

    def __init__(
        self, parts: Components, base: Parts, source: Parts, heads: Sequence[Head], senders: Sequence[int]
    ) -> None:
        self.parts, self.base, self.source, self.heads = parts, base, source, heads
        self.senders = list(senders)
        self.stream: Tensor = base.hidden[0][:0]  # [senders N, T, d], behind the last layer in the end

    def heard(self) -> dict[Path, Edit]:
        """Every path from these senders to other heads, as a run in which the receiver puts out what it then would."""
        paths: dict[Path, Edit] = {}
        joined = 0
        for layer in range(self.heads[self.senders[0]][0], self.parts.layers):
            if joined:
                paths |= dict(self._paths(layer, self.senders[:joined]))
            coming = [place for place in self.senders if self.heads[place][0] == layer]
            self._go_on(layer, [self.heads[place][1] for place in coming])
            joined += len(coming)
        return paths

    def _go_on(self, layer: int, senders: Sequence[int]) -> None:
        """Take the streams through a layer; heads of it that are senders begin theirs here."""
        hidden, z = self.base.hidden[layer], self.base.z[layer]
        streams, added = [self.stream.to(hidden.device)], [repeated(self.parts.writes(layer, z), len(self.stream))]
        for head in senders:
            changed = z.clone()
            changed[:, :, head] = self.source.z[layer][:, :, head]
            streams.append(hidden)
            added.append(self.parts.writes(layer, changed))
        self.stream = self.parts.behind(layer, torch.cat(streams), torch.cat(added))

    def _paths(self, layer: int, senders: Sequence[int]) -> Iterator[tuple[Path, Edit]]:
        """Paths to receivers in this layer, from senders in earlier ones."""
        receivers = [place for place, head in enumerate(self.heads) if head[0] == layer]
        if not receivers:
            return
        before = self.parts.reads(layer, self.base.hidden[layer])
        after = self.parts.reads(layer, self.stream)
        for channel, name in enumerate(CHANNELS):
            z = after.plain() if name == "together" else heads_reading(before, after, name)
            z = z.unflatten(0, (len(senders), -1))
            for sender, own in zip(senders, z, strict=True):
                for receiver in receivers:
                    head = self.heads[receiver][1]
                    yield (sender, receiver, channel), head_edit(layer, head, own[:, :, head : head + 1].clone())
