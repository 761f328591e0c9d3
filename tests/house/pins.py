"""The lock and the pins of environment.yml, made from pip's report of what it would install; `make lock` runs this.

    pins.py direct          the ranges of pyproject.toml, one a line
    pins.py write REPORT    requirements.lock, and the versions in environment.yml

It runs in a bare environment: only the standard library is there.
"""

import json
import re
import sys
import tomllib
from pathlib import Path


def direct():
    """The dependencies of pyproject.toml, those of developers among them."""
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    return [*project["dependencies"], *project["optional-dependencies"]["dev"]]


def canonical(name):
    return re.sub("[-_.]+", "-", name).lower()


def write(report):
    """Pin every package but the builds of one platform: local versions (2.13.0+cpu), CUDA libraries."""
    packages = [item["metadata"] for item in json.loads(report.read_text())["install"]]
    version = {canonical(package["name"]): package["version"].partition("+")[0] for package in packages}
    kept = [name for name in sorted(version) if not re.fullmatch("pip|triton|nvidia-.*|cuda-.*", name)]
    Path("requirements.lock").write_text("".join(f"{name}=={version[name]}\n" for name in kept))
    conda = Path("environment.yml")
    renewed = re.sub(
        r"(?m)^( +- )([\w.-]+)==\S+",
        lambda line: f"{line[1]}{line[2]}=={version[canonical(line[2])]}",
        conda.read_text(),
    )
    conda.write_text(renewed)


if __name__ == "__main__":
    if sys.argv[1] == "direct":
        print(*direct(), sep="\n")
    else:
        write(Path(sys.argv[2]))
