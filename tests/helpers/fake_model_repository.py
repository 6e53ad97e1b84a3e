"""The model-repository calls of a Triton server, behind httpx's mock transport."""

from dataclasses import dataclass, field

import httpx


@dataclass
class FakeTriton:
    """`slow`: index reads until a change of state is done. `memory`: what its metrics page shows, read by read."""

    states: dict[str, str | None]
    slow: int = 1
    broken: frozenset[str] = frozenset()
    memory: list[int] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    _due: dict[str, tuple[int, str]] = field(default_factory=dict)

    def answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if path == "/metrics":
            self.calls.append("metrics")
            used = self.memory.pop(0) if len(self.memory) > 1 else self.memory[0]
            text = f'# TYPE nv_gpu_memory_used_bytes gauge\nnv_gpu_memory_used_bytes{{gpu_uuid="a"}} {used}\n'
            return httpx.Response(200, text=text if used >= 0 else "")
        if path == "/v2/repository/index":
            for name, (reads, state) in list(self._due.items()):
                self._due[name] = (reads - 1, state)
                if reads <= 1:
                    self.states[name] = self._due.pop(name)[1]
            entries = [{"name": name, "version": "1", "state": state} for name, state in self.states.items()]
            return httpx.Response(200, json=[{k: v for k, v in e.items() if v is not None} for e in entries])
        name, verb = path.split("/")[-2:]
        self.calls.append(f"{verb} {name}")
        if name in self.broken:
            return httpx.Response(400, json={"error": f"failed to load '{name}', no version is available."})
        self.states[name] = f"{verb.upper()}ING"
        self._due[name] = (self.slow, "READY" if verb == "load" else "UNAVAILABLE")
        return httpx.Response(200)
