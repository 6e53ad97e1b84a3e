"""The GPUs that the TensorRT-LLM lanes are made for, as far as memory and code generation need them."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from specdeploy.config.schema import Gpu
from specdeploy.units import BYTES_PER_GIB


@dataclass(frozen=True, slots=True)
class Hardware:
    """One GPU model. `architecture` is its compute capability as compilers spell it; `source` says who states it."""

    name: str
    architecture: str
    memory_bytes: int
    source: str


# The driver keeps some of it for itself and reports its own total; the runtime reserve of a budget covers that.
HARDWARE: Mapping[Gpu, Hardware] = MappingProxyType(
    {
        Gpu.H100: Hardware(
            "H100 SXM", "sm90", 80 * BYTES_PER_GIB, "80 GiB: system descriptions of ai-dynamo/aiconfigurator@095f58a5"
        ),
        Gpu.H200: Hardware(
            "H200 SXM",
            "sm90",
            141 * 10**9,
            "141 GB as marketed (131.3 GiB): system descriptions of ai-dynamo/aiconfigurator@095f58a5",
        ),
    }
)
