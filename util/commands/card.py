"""The circuit card of a model, see `util.card`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Literal

from util import paths
from util.commands.arguments import Asked, Folder, Seed
from util.study.exports import check_folder


def run(
    asked: Asked = Asked(),
    *,
    size: Literal["small", "full"] = "full",
    seed: Seed = 0,
    untrained: Seed | None = None,
    out: Folder | None = None,
    redo: bool = False,
) -> None:
    """Measure the card and write the page. Raises ValueError for what there is not.

    Args:
        size: how many prompts are measured
        seed: of all prompts
        untrained: of the model's untrained twin with fresh weights from this seed: what a card says of nothing
        out: receives card.html and card.json
        redo: measure again what is cached
    """
    from util.card import page
    from util.card.measure import card

    model, twin = asked.source, ""
    if untrained is not None:
        model, twin = model.twin(untrained), f"untrained-{untrained}"
    out = out or paths.output("cards", asked.model) / twin
    check_folder(out, "out")
    made = card(model, size, seed, redo=redo)
    name = Path(asked.model).name if Path(asked.model).exists() else asked.model  # without the folder of this machine
    flags = {
        "untrained": untrained,
        "size": size,
        "seed": seed or None,
        "revision": asked.revision,
        "dtype": asked.dtype,
    }
    words = [f"--{flag} {shlex.quote(str(value))}" for flag, value in flags.items() if value not in (None, "auto")]
    command = " ".join(["python -m util card", shlex.quote(name), *words, *["--quantized"] * asked.quantized])
    for topic, said in made["sentences"].items():
        print(f"{topic}:", *said)
    print(*page.write(made, out, command), sep="\n")
