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


# Never more than a driver reports (nvidia-smi: H100 81559 MiB = 79.6 GiB, H200 143771 MiB = 140.4 GiB, and a process
# sees a little less): a budget above it would promise key/value cache that cannot be allocated. Too little costs cache.
HARDWARE: Mapping[Gpu, Hardware] = MappingProxyType(
    {
        Gpu.H100: Hardware(
            "H100 SXM",
            "sm90",
            79 * BYTES_PER_GIB,
            "marketed as 80 GB, 80 GiB are on the board; drivers report 79.6 GiB, so 79 GiB are counted",
        ),
        Gpu.H200: Hardware(
            "H200 SXM",
            "sm90",
            141 * 10**9,
            "141 GB (131.3 GiB), the vendor's marketed figure taken as decimal; drivers report 140.4 GiB, so budgets "
            "are about 6 % below what is there",
        ),
    }
)
