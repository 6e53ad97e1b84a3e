"""TensorRT-LLM versions: what can be parsed, which flow they have, which container carries them."""

from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from specdeploy.errors import BuildError

FIRST_KNOWN = Version("1.0.0")
LAST_WITH_ENGINE_FLOW = Version("1.2.1")
IMAGE_REPOSITORY = "nvcr.io/nvidia/tritonserver"
IMAGE_SUFFIX = "-trtllm-python-py3"


@dataclass(frozen=True, slots=True)
class Container:
    """One release of Triton's TensorRT-LLM container and what it carries; versions as NVIDIA's matrix writes them."""

    tag: str
    tensorrt_llm: str
    tensorrt: str
    cuda: str
    pytorch: str
    python: str
    driver: str


def _containers(tags: str, *versions: str) -> tuple[Container, ...]:
    return tuple(Container(tag, *versions) for tag in tags.split())


# triton-inference-server/server docs/introduction/compatibility.md@e1db8a603, from TensorRT-LLM 0.18 on, newest first.
# The release branches of 26.03 and 25.11 pin release candidates (1.2.0rc8, 1.2.0rc2): what is installed decides.
CONTAINERS: tuple[Container, ...] = (
    *_containers(
        "26.07 26.06 26.05 26.04", "1.2.1", "10.14.1.48", "13.1.0.036", "2.10.0a0 (nv25.12)", "3.12.3", "590.44.01"
    ),
    *_containers("26.03", "1.2.0", "10.14.1.48", "13.1.0.036", "2.10.0a0 (nv25.12)", "3.12.3", "590.44.01"),
    *_containers("26.02 26.01 25.12", "1.1.0", "10.13.3.9", "13.0.2.006", "2.9.0a0 (nv25.10)", "3.12.3", "580.95.05"),
    *_containers("25.11", "1.0.3.2510", "10.13.3.9", "13.0.2.006", "2.9.0a0 (nv25.10)", "3.12.3", "580.95.05"),
    *_containers("25.10 25.09", "1.0.0", "10.11.0.33", "12.9.1.010", "2.8.0a0 (nv25.6)", "3.12.3", "575.57.08"),
    *_containers("25.08", "0.21.0", "10.11.0.33", "12.9.0.043", "2.8.0a0 (nv25.5)", "3.12.3", "575.51.03"),
    *_containers("25.07 25.06", "0.20.0", "10.10.0.31", "12.9.0.036", "2.7.0a0 (nv25.4)", "3.12.3", "575.51.03"),
    *_containers("25.05", "0.19.0", "10.9.0.34", "12.8.1.012", "2.7.0a0 (nv25.3)", "3.12.3", "570.124.06"),
    *_containers("25.04", "0.18.2", "10.9.0.34", "12.8.1.012", "2.7.0a0 (nv25.3)", "3.12.3", "570.124.06"),
    *_containers("25.03", "0.18.0", "10.9.0.34", "12.8.1.012", "2.7.0a0 (nv25.3)", "3.12.3", "570.124.06"),
)


def parse_version(text: str) -> Version:
    """`text` as a version; raises `BuildError` when it is none."""
    try:
        return Version(text)
    except InvalidVersion as error:
        raise BuildError(
            f"tensorrt_llm.version: '{text}' is no version. Write the exact TensorRT-LLM version, such as 1.2.1"
        ) from error


def engine_flow_refusal(version: Version) -> str | None:
    """Why `version` cannot build TensorRT engines for this project, or None when it can (1.0.0 to 1.2.1).

    Source: TensorRT-LLM docs/source/legacy/tensorrt-backend-removal.md@335107a7. Candidates of 1.3.0 from before July
    2026 still carry the commands; which ones is not known, so 1.3 counts as without.
    """
    if version < FIRST_KNOWN:
        return f"TensorRT-LLM {version} is older than {FIRST_KNOWN}, the first whose build flags are known here"
    if version.release[:3] > LAST_WITH_ENGINE_FLOW.release:
        return (
            f"TensorRT-LLM {version} has no engine flow: trtllm-build and the convert scripts were removed after"
            f" {LAST_WITH_ENGINE_FLOW}"
        )
    return None


def container_of(version: Version) -> Container | None:
    """The newest container that carries exactly `version`, None when no known one does (candidates, 1.3 and later)."""
    return next((container for container in CONTAINERS if Version(container.tensorrt_llm) == version), None)


def image_of(container: Container) -> str:
    """The image to pull, such as nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3."""
    return f"{IMAGE_REPOSITORY}:{container.tag}{IMAGE_SUFFIX}"
