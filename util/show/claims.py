"""Verdicts on a paper's claims, as `make claims` stores them among a figure's values: sentences and table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from util.show.part import Part, Values, stored
from util.stats import verdicts
from util.stats.verdicts import CANNOT_BE_TOLD, DOES_NOT_HOLD, HOLDS, Claim, claims_of

COUNTED = {  # of one claim, of several
    HOLDS: ("holds", "hold"),
    DOES_NOT_HOLD: ("does not hold in this model", "do not hold in this model"),
    CANNOT_BE_TOLD: ("cannot be told", "cannot be told"),
    verdicts.NO_PREMISE: ("lacks its premise", "lack their premise"),
    verdicts.NOT_DONE: ("has no task that is done", "have no task that is done"),
    verdicts.NOT_ASKED: ("is not asked", "are not asked"),
}


NOTHING_DONE = "none of whose tasks this model is shown to learn from demonstrations"


def judged(values: Values) -> tuple[Claim, ...]:
    """The claims among the values of a figure, with their verdicts; none where nothing was judged."""
    return claims_of(values["claims"]) if values.get("claims") else ()


def says(values: Values) -> Iterator[str]:
    """How many claims have each verdict, if any is decided; then a sentence for each verdict."""
    claims = judged(values)
    if not claims:
        yield ""
        yield "The paper's claims are not judged yet: `make claims MODEL=...` does so."
        return
    numbers = {name: [str(claim.number) for claim in claims if claim.verdict == name] for name in COUNTED}
    parts = [
        f"{len(those)} {COUNTED[name][len(those) > 1]} ({', '.join(those)})" for name, those in numbers.items() if those
    ]
    decided = numbers[HOLDS] or numbers[DOES_NOT_HOLD]
    yield f"Of {len(claims)} published claims {', '.join(parts)}" if decided else ""
    queries = max((part.queries for claim in claims for part in claim.parts), default=0)
    setting = f"up to {queries} queries of a task" if queries else NOTHING_DONE
    for name in dict.fromkeys(claim.verdict for claim in claims):
        texts = [f"{one.number}, {one.text}{made_of(one)}" for one in claims if one.verdict == name]
        yield f"The paper's claims, {setting}: **{name}**: {'; '.join(texts)}."


def made_of(claim: Claim) -> str:
    """What a verdict is made of, in brackets; "" where the verdict says all."""
    notes = [claim.note]
    for part in claim.parts:
        notes.append(f"{part.name}: {part.number}, wanted {'>' if part.above else '<'} {part.bound:g}")
        if part.verdict == CANNOT_BE_TOLD:
            notes.append(part.enough)
    text = "; ".join(filter(None, notes))
    return f" ({text})" if text else ""


def table(values: Values) -> pd.DataFrame:
    """A row for each comparison."""
    return verdicts.table(judged(values))


def numbers(arrays: Mapping[str, Any], settings: Any) -> dict[str, Any]:
    """What `make claims` has stored, as it stands; nothing where it has stored nothing."""
    return {"claims": arrays["claims"]} if arrays["claims"] else {}


def judged_of(stem: str, model: str) -> dict[str, Any]:
    """What `make claims` has stored of a model, by this run or in the clone; arrays of the part "claims"."""
    return {"claims": (stored(stem, model, latest=True) or {}).get("claims")}


CLAIMS = Part(numbers, "claims", says, table=table)
