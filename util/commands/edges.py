"""Edge ablation from JSON, see `commands.edge_configs`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from util.commands.results import shown


def run(file: Path | None = None, *, examples: bool = False, device: str = "auto", overwrite: bool = False) -> None:
    """Run the configs of a file. Raises ValueError without one, and what `configs.load` and `configs.run` raise.

    Args:
        file: CONFIG.json: one config, or a list of them
        examples: print a small config of each action
        device: cpu, cuda, cuda:1, ...; default: what there is
        overwrite: measure again, and replace what is in out_dir
    """
    from util.commands import edge_configs as configs

    if examples:
        print(json.dumps(configs.EXAMPLES, indent=1))
        return
    if file is None:
        raise ValueError("name a CONFIG.json; --examples prints one of each action")
    runs = configs.load(file)
    models: dict[str, Any] = {}  # by request: configs of one model share it
    for number, config in enumerate(runs, 1):
        asked = replace(config.model, device=device)
        model = models.setdefault(json.dumps(asked.request), asked)
        print(f"[{number}/{len(runs)}] {config.action}: {model.request['model']}, {config.draws[0].task}")
        result = configs.run(config, model, overwrite=overwrite)
        for name, row in result["results"].items():
            print(f"  {name:28}", "  ".join(f"{measure} {shown(interval)}" for measure, interval in row.items()))
