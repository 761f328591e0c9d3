"""What the stored values of induction heads say."""

import numpy as np

from util.roles.attention_scores import INDUCTION_HEAD
from util.show.conclusions import Conclusions, Values, in_words, interval_at, listed, none_or, sign, told, written
from util.stats.heads import head_name, top
from util.stats.intervals import Interval, detectable

WHOLE, KNOCKED_OUT = "whole model", "pattern knocked out"
FEW = 16  # queries, or sequences: that so few show no difference is not said


def of(model: str) -> Conclusions:
    """What was found, of the committed models and of `model`."""
    return told("induction_scores", sentences, model)


def sentences(values: Values) -> list[str]:
    """The primary endpoint, which heads score, what they write, what a model loses without them, which are FV heads.

    values: of data/values/induction_scores.json.
    """
    said = [_primary(values), *_scores(values), *_ablation(values), *_examples(values)]
    return said + (_vectors(values["function vectors"]) if "function vectors" in values else [])


def _primary(values: Values) -> str:
    """The endpoint that was fixed beforehand, met or not."""
    task, p = values["primary"]["task"], values["primary"]["p"]
    if p is None:
        return f"Primary endpoint: the model does not do `{task}` from its demonstrations, so that nothing was ablated."
    number = len(values["chosen"])
    ablated = values["accuracy"][task][f"top {number} ablated"]
    verdict = "met" if p <= 0.05 else "not met"
    return (
        f"Primary endpoint, {verdict}: accuracy on `{task}` is {written(ablated)} without the best {in_words(number)} "
        f"heads. Among sets of as many other heads p = {p:.3f}."
    )


def _scores(values: Values) -> list[str]:
    scores = values["scores"]
    mean = np.array(scores["mean"])
    heads, (best,) = np.argwhere(mean >= INDUCTION_HEAD), top(mean, 1)
    where = ""
    if len(heads):
        first, last = heads[:, 0].min(), heads[:, 0].max()
        where = f", in layer {first}" if first == last else f", in layers {first} to {last}"
    untrained = f"; untrained, at most {np.max(scores['untrained']):.2f}" if scores.get("untrained") else ""
    have, asked = "has" if len(heads) < 2 else "have", len(values["request"]["seeds"])
    said = [
        f"{none_or(len(heads)).capitalize()} of {mean.size} heads {have} a prefix-matching score of {INDUCTION_HEAD} "
        f"or more{where} ({asked} sequences). The best is {head_name(best)}: "
        f"{interval_at(scores, *best, value='mean')}{untrained}."
    ]
    mechanism = values.get("mechanism") or {}
    if mechanism.get("mean scores"):
        below = [head_name((layer, head)) for layer, head in mechanism["previous_token_heads"]]
        left = mechanism["mean scores"]["previous-token heads out"]
        others = [score for name, (score, *_) in mechanism["mean scores"].items() if name.startswith("others")]
        said.append(
            f"The chosen heads' mean score is {written(left)} without the previous-token heads {listed(below)}, and "
            f"{min(others):.2f} to {max(others):.2f} without as many others."
        )
    written_by = values.get("attribution") or {}
    if written_by.get("value"):
        raised = [interval_at(written_by, *head).value for head in map(tuple, values["chosen"])]
        strongest = top(np.array(written_by["value"], dtype=float), 1)[0]
        said.append(
            f"Directly they raise the next token by {min(raised):.2f} to {max(raised):.2f} logits. Of all heads "
            f"{head_name(strongest)} raises it most: {interval_at(written_by, *strongest)}."
        )
    return said


def _ablation(values: Values) -> list[str]:
    done, number = values["tasks_done"], len(values["chosen"])
    if not done:
        return []
    said = []
    for task in done:
        rows = values["accuracy"][task]
        ablated = rows[f"top {number} ablated"]
        controls = [row[0] for name, row in rows.items() if name.startswith(("layer-matched", "norm-matched"))]
        as_low = sum(value <= ablated[0] for value in controls)
        said.append(
            f"`{task}`, {values['queries'][task]} queries: accuracy {written(rows[WHOLE])} "
            f"whole; {written(ablated)} without the best {in_words(number)} "
            f"heads ({as_low} of {len(controls)} control sets are as low); {written(rows[KNOCKED_OUT])} with their "
            "pattern forbidden."
        )
    losses = values["losses"]
    said.append(
        f"On plain text the loss is {losses[WHOLE][0]:.2f} nats per token, and "
        f"{losses[f'top {number} ablated'][0]:.2f} without these heads."
        if losses[WHOLE][0] < losses["uniform"]
        else "On plain text it is no better than equal probabilities, so its loss there says nothing."
    )
    return said


def _examples(values: Values) -> list[str]:
    found, said = values["benefits"], []
    for task, row in found["benefit"].items():
        asked = f"`{task}`, {found['tasks'][task]['queries']} queries"
        changes = row["without induction heads"], row["without others"]
        if None not in changes:  # else they are worth no more than twice the error
            without, others = (row["benefit"] * (1 + change / 100) for change in changes)
            said.append(
                f"{asked}: examples are worth {row['benefit']:.2f} of accuracy, {without:.2f} without the induction "
                f"heads, {others:.2f} without others."
            )
    undone = {task: row["check"] for task, row in found["tasks"].items() if not row["does"]}
    if undone:
        names, comparisons = listed([f"`{task}`" for task in undone]), len(found["tasks"]) / 2  # tests are one-sided
        seen = [
            check["baseline"] + detectable(Interval(check["accuracy"], check["bound"], 1.0), check["n"], comparisons)
            for check in undone.values()
        ]
        said.append(
            f"On up to {max(check['n'] for check in undone.values())} other queries the model is not shown to do "
            f"{names} (accuracies from {max(seen):.2f} on would be seen to lie above chance)."
        )
    return said


def _vectors(found: Values) -> list[str]:
    effects = found["AIE"]
    (best,) = top(np.array(effects["mean"]), 1)
    value, low, high = interval_at(effects, *best, value="mean")
    said = [
        f"The function-vector (FV) head with the largest average indirect effect is {head_name(best)}: {value:.3f} "
        f"({low:.3f} to {high:.3f}). Of the best {in_words(len(found['sets']['FV']))} of either kind "
        f"{none_or(len(found['both']))} {'is' if len(found['both']) == 1 else 'are'} the same."
    ]
    for kind, difference in found["contrast"].items():
        rows = found["accuracy"][kind]
        asked, queries = found["asked"][kind], int(found["asked"][kind].split()[0])
        name = kind.capitalize() if " " in kind else f"The queries of `{kind}`"
        if more := sign(difference):
            verdict = f"{name} rest more on {'FV' if more > 0 else 'induction'} heads ({asked})"
        elif queries > FEW:
            seen = f"differences from {detectable(Interval(*difference), queries):.2f} on would be seen"
            verdict = f"{name}: no difference between the two kinds was detected ({asked}; {seen})"
        else:
            continue
        sets = [
            f"{written(rows[name])} without {words} (controls {_range(rows, name)})"
            for name, words in (
                ("FV, not induction", "FV heads that are no induction heads"),
                ("induction, not FV", "induction heads that are no FV heads"),
            )
        ]
        said.append(f"{verdict}: {written(rows[WHOLE])} whole, {listed(sets)}.")
    return said


def _range(rows: Values, name: str) -> str:
    """From the least to the most that the control sets of an ablation have."""
    controls = [row[0] for control, row in rows.items() if control.startswith(f"{name}, control")]
    return f"{min(controls):.2f} to {max(controls):.2f}" if controls else "none"
