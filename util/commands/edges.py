"""Edge ablation from JSON, see `commands.edge_configs`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path


def run(
    file: Path | None = None,
    *,
    examples: bool = False,
    device: str = "auto",
    overwrite: bool = False,
    redo: bool = False,
) -> None:
    """Run the configs of a file. Raises ValueError without one, and what `edge_configs.load` raises.

    Args:
        file: CONFIG.json: one config, or a list of them
        examples: print a small config of each action
        device: cpu, cuda, cuda:1, ...; default: what there is
        overwrite: replace the result of another config in out_dir
        redo: measure again what is cached
    """
    from util.commands import edge_configs
    from util.study.model import Model

    if examples:
        print(json.dumps(edge_configs.EXAMPLES, indent=1))
        return
    if file is None:
        raise ValueError("name a CONFIG.json; --examples prints one of each action")
    models: dict[Model, Model] = {}  # configs of one model share it
    runs = []
    for config in edge_configs.load(file):
        asked = replace(config.model, device=device)
        model = models.setdefault(asked, asked)
        runs.append((config, *edge_configs.prepared(config, model, overwrite=overwrite, redo=redo)))
    if len({result.folder for _, _, result in runs}) < len(runs):
        raise ValueError(f"cannot run {file}: two configs have one out_dir; give each a folder of its own")
    for number, (config, study, result) in enumerate(runs, 1):
        print(f"[{number}/{len(runs)}] {config.action}: {study.model.title}, {config.draws[0].task}")
        edge_configs.write(config, study, result)
