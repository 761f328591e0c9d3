"""Induction by hand, and the numbers of heads that do it in models, from arrays alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from util import paths
from util.figures.edits import WHOLE
from util.roles import attention_scores
from util.roles.attention_scores import ROLES, best_heads, head_intervals
from util.show.part import Arrays
from util.stats.heads import Floats, head_name
from util.stats.intervals import mean_interval

Numbers = dict[str, Any]
SLOTS = ("token", "previous", "output")  # of the residual stream of the construction
SCORES = ("prefix matching", "previous token")
SEQUENCE = np.vstack([np.eye(3), [0.5, 0.5, 0.0]])  # of the lecture
TOKENS, DIMENSIONS = ["a", "b", "c", "ab"], ["a", "b", "c"]  # the fourth token is half a, half b
VISIBLE = 0.1  # attention that is drawn
EARLY, LATE, AROUND = 50, 500, 10  # tokens between which loss falls in context; so many on either side count, too
STEPS = 16  # of the curve of losses
WITHOUT = "without induction heads"
VOCABULARY, COPY = 64, 15  # tokens of the model of the phase change; distinct ones of a sequence that it is measured on


# ------------------------------------------------------------------------------------------------ by hand


def attention(queries: Floats, keys: Floats, beta: float) -> Floats:
    """Returns the causal softmax of queries [T, d] times keys [T, d], times beta: [T, T]."""
    causal = np.where(np.tri(len(queries)), 0, -np.inf)
    return softmax(beta * queries @ keys.T + causal, axis=-1)


def before(tokens: int) -> Floats:
    """Returns the attention [T, T] of the lecture's head: all to the token before, and none from the first."""
    weights = np.eye(tokens, k=-1)
    return weights / (weights.sum(axis=1, keepdims=True) + 1e-8)


def role_scores(pattern: Floats, length: int, copies: int, bos: bool = True) -> dict[str, float]:
    """Returns the SCORES of attention [T, T] on a repeated sequence, by name."""
    rows = pattern[attention_scores.queries(length, copies, bos)]
    cells = attention_scores.cells(length, copies, bos)["previous_token"]
    values = float(attention_scores.prefix_matching(rows, length, copies, bos)), float(rows[cells].mean())
    return dict(zip(SCORES, values, strict=True))


def construction(tokens: int) -> dict[str, Floats]:
    """Returns the matrices of two layers of one head each that continue any pattern of so many tokens, BOS counted.

    The residual stream has three slots of one-hot vectors, `SLOTS`. embedding [V, 3 V] writes the first, unembedding
    [3 V, V] reads the last. ov_0: layer 0 copies the token it reads into "previous"; qk_1: layer 1 matches the query's
    token with the key's previous one; ov_1: it copies the token it reads to the output: [3 V, 3 V]. qk, ov [V, V]: what
    layer 1 matches and adds to the logits, through both layers.
    """
    token, previous, output = (np.kron(slot, np.eye(tokens)) for slot in np.eye(len(SLOTS)))
    ov_0, qk_1, ov_1 = token.T @ previous, token.T @ previous, token.T @ output
    circuits = {"qk": token @ qk_1 @ (token @ ov_0).T, "ov": token @ ov_1 @ output.T}
    return {"embedding": token, "unembedding": output.T, "ov_0": ov_0, "qk_1": qk_1, "ov_1": ov_1, **circuits}


def run(ids: Sequence[int] | NDArray[np.integer], tokens: int, beta: float) -> tuple[Floats, Floats, Floats]:
    """Returns the attention [T, T] of both layers of the construction on ids [T], BOS in front, and logits [T, V]."""
    made, places = construction(tokens), np.eye(len(ids))
    x = made["embedding"][ids]
    layer_0 = attention(np.eye(len(ids), k=-1), places, beta)
    x = x + layer_0 @ x @ made["ov_0"]
    layer_1 = attention(x @ made["qk_1"], x, beta)
    return layer_0, layer_1, (x + layer_1 @ x @ made["ov_1"]) @ made["unembedding"]


# ------------------------------------------------------------------------------------------------ parts


def texts(arrays: Any, settings: Any) -> Numbers:
    """The letters that the construction predicts after each text, three at most, with their shares.

    ^ is BOS. Shares of a millionth or less are left out; equal ones come in the order of the alphabet.
    """
    alphabet, likely = ["^", *sorted(set("".join(settings.texts)))], {}
    for text in settings.texts:
        shares = run([alphabet.index(letter) for letter in f"^{text}"], len(alphabet), settings.beta)[2][-1]
        best = np.argsort(-shares.round(6), kind="stable")[:3]
        likely[text] = {alphabet[place]: float(shares[place]) for place in best if shares[place] > 1e-6}
    return {"texts": likely}


def heads(arrays: Arrays, settings: Any) -> Numbers:
    """Scores of planted heads, and of the best heads of the trained model and its twin, held-out ones."""
    planted, shown = arrays["planted"], {}
    for layer, head, role in arrays["roles"]:
        shown[f"planted GPT-2, {head_name((layer, head))}: {role}"] = head_intervals(planted, (layer, head))
    for whose, name in (("trained", arrays["title"]), ("untrained", "untrained twin")):
        for role, (best, intervals) in best_heads(arrays[whose]).items() if whose in arrays else ():
            shown[f"{name}, {head_name(best)}: best {role.replace('_', ' ')}"] = intervals
    means = {role: planted[role].mean(axis=0) for role in ROLES}
    decoys = {role: float(max(mean[tuple(decoy)] for decoy in arrays["decoys"])) for role, mean in means.items()}
    return {"heads": shown, "planted": {"decoys, at most": decoys}}


def patterns(arrays: Arrays, settings: Any) -> Numbers:
    """Where the best heads of the trained model attend on one sequence, BOS left out, beside the heads by hand.

    Of each: query and key positions and weights of at least VISIBLE, weak ones first.
    """
    length, copies = settings.length, settings.copies
    drawn = np.random.default_rng(settings.seed).choice(np.arange(1, 1 + settings.vocabulary), length, replace=False)
    ids = np.r_[0, np.tile(drawn, copies)]
    roles = {
        "previous_token": (before(copies * length), "previous token", False),
        "prefix_matching": (run(ids, 1 + settings.vocabulary, settings.beta)[1], "prefix matching", True),
    }
    shown = {}
    for role, (pattern, score, bos) in roles.items():
        head, intervals = arrays["best"][role]
        by_hand, trained = pattern[bos:, bos:], arrays["attention"][role][1:, 1:]
        score_by_hand = role_scores(pattern, length, copies, bos)[score]
        shown[f"by hand, {role}"] = {"score": score_by_hand, **_visible(by_hand)}
        shown[f"{head_name(head)}, {role}"] = {"score": intervals[role], **_visible(trained)}
    return {"patterns": {"title": arrays["title"], "length": length, "heads": shown}}


def _visible(pattern: Floats) -> Numbers:
    query, key = np.nonzero(pattern >= VISIBLE)
    order = np.argsort(pattern[query, key])  # strong ones lie above weak ones
    query, key = query[order], key[order]
    return {"tokens": len(pattern), "query": query, "key": key, "weight": pattern[query, key]}


def in_context(arrays: Arrays, settings: Any) -> Numbers:
    """The in-context-learning score (Olsson et al. 2022): the loss at token 500 minus that at token 50, by ablation.

    In a shorter context it is the last token. Each loss is the mean over 21 tokens, those around it, so that as few
    excerpts tell it. score: with intervals over excerpts; change: of the score, and lost: of the late loss, paired with
    the whole model's; beyond: how much larger these two are without induction heads than without others, on average
    over the control sets; early: the loss at token 50, and uniform: that of equal odds; curve: mean losses [STEPS] of
    spans of tokens that grow, and where each ends.
    """
    losses = arrays["losses"]
    tokens = 1 + losses[WHOLE].shape[1]
    late = min(LATE, tokens - AROUND)
    early, end = (slice(at - AROUND - 2, at + AROUND - 1) for at in (EARLY, late))  # losses begin with token 2
    late_loss = {row: loss[:, end].mean(axis=1) for row, loss in losses.items()}
    scores = {row: late_loss[row] - loss[:, early].mean(axis=1) for row, loss in losses.items()}
    others = [row for row in losses if row not in (WHOLE, WITHOUT)]
    beyond = {
        name: mean_interval(rows[WITHOUT] - np.mean([rows[row] for row in others], axis=0))
        for name, rows in {"change": scores, "lost": late_loss}.items()
        if others
    }
    ends = np.unique(np.geomspace(2, tokens, STEPS + 1).astype(int))
    spans = [slice(start - 1, stop - 1) for start, stop in pairwise(ends)]
    return {
        "in context": {
            "heads": [head_name(head) for head in arrays["heads"]],
            "tokens": [EARLY, late],
            "excerpts": len(losses[WHOLE]),
            "early": losses[WHOLE][:, early].mean(),
            "uniform": arrays["uniform"],
            "lost": {row: mean_interval((loss - losses[WHOLE])[:, end].mean(axis=1)) for row, loss in losses.items()},
            "beyond": beyond,
            "score": {row: mean_interval(score) for row, score in scores.items()},
            "change": {row: mean_interval(score - scores[WHOLE]) for row, score in scores.items() if row != WHOLE},
            "curve": {row: [loss[:, span].mean() for span in spans] for row, loss in losses.items()},
            "ends": ends[1:],
        }
    }


# ------------------------------------------------------------------------------------------------ training


@cache
def training_runs() -> dict[str, Numbers]:
    """Returns the stored runs of training by name, data/phase_change.json.

    A run is what `data/embedded_models/recipe/phase_change.py` measured while it trained: tokens read; first_copy and
    later_copies, losses in nats per token; prefix_matching and previous_token, scores [L, H] of heads.
    """
    log = json.loads((paths.root() / "data" / "phase_change.json").read_text(encoding="utf-8"))
    return {f"seed {seed}": run for seed, run in log["seeds"].items()}


def formed_at(run: Arrays) -> int | None:
    """How many tokens were read when the best prefix-matching score was first measured above 0.5; None: never."""
    formed = np.max(run["prefix_matching"], axis=(1, 2)) > 0.5
    return run["tokens"][int(formed.argmax())] if formed.any() else None


def phase_change(arrays: Any, settings: Any) -> Numbers:
    """When induction heads formed in training, by run."""
    formed = {name: formed_at(run) for name, run in training_runs().items()}
    return {"phase_change": {"tokens at a score of 0.5": formed}}
