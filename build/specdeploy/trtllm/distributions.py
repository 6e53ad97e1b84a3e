"""Names by which the versions of TensorRT-LLM, TensorRT and CUDA are found, without importing any of them."""

import importlib.metadata
from collections.abc import Callable

DISTRIBUTION = "tensorrt_llm"
# One distribution per CUDA major; the plain names depend on the one that fits.
TENSORRT_DISTRIBUTIONS = ("tensorrt", "tensorrt_cu13", "tensorrt_cu12")
CUDA_DISTRIBUTIONS = ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu13", "nvidia-cuda-runtime-cu12")
CUDA_VARIABLE = "CUDA_VERSION"  # set by NVIDIA's containers; it goes before the packages


def find_version(*names: str, version_of: Callable[[str], str] = importlib.metadata.version) -> str | None:
    """The version of the first distribution of these that is installed, or None."""
    for name in names:
        try:
            return version_of(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None
