"""What heads should draft, written down plainly: whole sequences, full attention, no cache, one row at a time.

`states[i]` are the hidden states of text position i that a head reads. Only positions given there are paired with their
next token, so that a gap is a missing key. A tree needs no attention mask of its own: each of its paths is a chain.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

States = Mapping[int, torch.Tensor]


class PairOracle:
    """Base: pairs of a feature and the token behind it, through decoder layers, to logits over the target's tokens."""

    def __init__(self, folder: Path, target_folder: Path) -> None:
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        self.weights = load_file(folder / "model.safetensors")
        self.target = load_file(target_folder / "model.safetensors")
        self.eps = self.config.get("rms_norm_eps", 1e-6)
        self.embedding = self.weights.get("embed_tokens.weight", self.target["model.embed_tokens.weight"])
        self.vocab = len(self.target["model.embed_tokens.weight"])

    def feature(self, states: torch.Tensor) -> torch.Tensor:
        return states

    def outputs(self, embedded: torch.Tensor, features: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def logits(self, output: torch.Tensor) -> torch.Tensor:
        return self.target["lm_head.weight"] @ output

    def guesses(self, text: Sequence[int], states: States, path: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits [V] of the token after `text` and the drafted `path`, and the last output [H]."""
        positions = sorted(states)
        features = [self.feature(states[position]) for position in positions]
        tokens = [text[position + 1] for position in positions]
        for count in range(len(path) + 1):
            at = torch.tensor([*positions, *range(len(text) - 1, len(text) - 1 + count)])
            embedded = self.embedding[torch.tensor([*tokens, *path[:count]])]
            output = self.outputs(embedded, torch.stack(features), at)[-1]
            features.append(output)
        return self.logits(output), output

    def chain(self, text: Sequence[int], states: States, depth: int, *, vocab: int | None = None) -> tuple[int, ...]:
        path: list[int] = []
        for _ in range(depth):
            path.append(int(self.guesses(text, states, path)[0][:vocab].argmax()))
        return tuple(path)

    def tree(
        self, text: Sequence[int], states: States, choices: Sequence[Sequence[int]], *, vocab: int | None = None
    ) -> set[tuple[int, ...]]:
        """The token paths of the nodes."""
        paths: dict[tuple[int, ...], tuple[int, ...]] = {(): ()}
        for node in sorted((tuple(choice) for choice in choices), key=len):
            before = paths[node[:-1]]
            ranked = self.guesses(text, states, before)[0][:vocab].argsort(descending=True)
            paths[node] = (*before, int(ranked[node[-1]]))
        return set(paths.values()) - {()}

    def norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        normed: torch.Tensor = x / (x.pow(2).mean(-1, keepdim=True) + self.eps).sqrt() * weight
        return normed

    def attention(self, x: torch.Tensor, positions: torch.Tensor, prefix: str) -> torch.Tensor:
        heads, kv_heads = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        dim = self.config["head_dim"]

        def project(name: str, count: int) -> torch.Tensor:
            bias = self.weights.get(f"{prefix}.{name}.bias", torch.zeros(()))
            return (x @ self.weights[f"{prefix}.{name}.weight"].T + bias).view(len(x), count, dim)

        queries = _rotated(project("q_proj", heads), positions, self.theta)
        keys = _rotated(project("k_proj", kv_heads), positions, self.theta).repeat_interleave(heads // kv_heads, dim=1)
        values = project("v_proj", kv_heads).repeat_interleave(heads // kv_heads, dim=1)
        scores = torch.einsum("qhd,khd->hqk", queries, keys) / math.sqrt(dim)
        later = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
        mixed = torch.einsum("hqk,khd->qhd", scores.masked_fill(later, float("-inf")).softmax(-1), values)
        return F.linear(mixed.flatten(1), self.weights[f"{prefix}.o_proj.weight"])

    @property
    def theta(self) -> float:
        rope = self.config.get("rope_parameters") or {}
        return float(rope.get("rope_theta", self.config.get("rope_theta", 10000.0)))

    def mlp(self, x: torch.Tensor, base: str) -> torch.Tensor:
        normed = self.norm(x, self.weights[f"{base}.post_attention_layernorm.weight"])
        gate, up = (normed @ self.weights[f"{base}.mlp.{name}.weight"].T for name in ("gate_proj", "up_proj"))
        return (gate * torch.sigmoid(gate) * up) @ self.weights[f"{base}.mlp.down_proj.weight"].T

    def layer(self, x: torch.Tensor, positions: torch.Tensor, base: str, *, is_normed: bool = True) -> torch.Tensor:
        read = self.norm(x, self.weights[f"{base}.input_layernorm.weight"]) if is_normed else x
        x = x + self.attention(read, positions, f"{base}.self_attn")
        return x + self.mlp(x, base)


class EagleOracle(PairOracle):
    """EAGLE-1."""

    def outputs(self, embedded: torch.Tensor, features: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x = torch.cat((embedded, features), dim=1) @ self.weights["fc.weight"].T
        x = x + self.weights.get("fc.bias", torch.zeros(()))
        for index in range(self.config["num_hidden_layers"]):
            x = self.layer(x, positions, f"layers.{index}", is_normed=index > 0)
        return x


class Eagle3Oracle(PairOracle):
    """EAGLE-3 with every switch."""

    def __init__(self, folder: Path, target_folder: Path) -> None:
        super().__init__(folder, target_folder)
        self.switches = json.loads((folder / "head.json").read_text())["norm_switches"]

    def feature(self, states: torch.Tensor) -> torch.Tensor:
        if self.switches.get("norm_before_fc"):
            states = self.norm(states, self.weights["input_norm.weight"])
        if self.switches.get("fc_norm"):
            parts = states.chunk(len(states) // len(self.weights["fc_norm.0.weight"]))
            scales = [self.weights[f"fc_norm.{index}.weight"] for index in range(len(parts))]
            states = torch.cat([self.norm(part, scale) for part, scale in zip(parts, scales, strict=True)])
        return self.weights["fc.weight"] @ states

    def outputs(self, embedded: torch.Tensor, features: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        normed = self.norm(features, self.weights["layers.0.hidden_norm.weight"])
        read = torch.cat((self.norm(embedded, self.weights["layers.0.input_layernorm.weight"]), normed), dim=1)
        x = normed if self.switches.get("norm_before_residual") else features
        x = x + self.attention(read, positions, "layers.0.self_attn")
        x = x + self.mlp(x, "layers.0")
        for index in range(1, self.config["num_hidden_layers"]):
            x = self.layer(x, positions, f"layers.{index}")
        return self.norm(x, self.weights["norm.weight"]) if self.switches.get("norm_output") else x

    def logits(self, output: torch.Tensor) -> torch.Tensor:
        normed = output if self.switches.get("norm_output") else self.norm(output, self.weights["norm.weight"])
        own = self.weights.get("lm_head.weight", self.target["lm_head.weight"]) @ normed
        if "d2t" not in self.weights:
            return own
        spread = torch.full((self.vocab,), float("-inf"))
        spread[torch.arange(len(own)) + self.weights["d2t"]] = own
        return spread


class MtpOracle(PairOracle):
    """MiMo's MTP layer; `target_folder` holds it."""

    def __init__(self, target_folder: Path) -> None:
        super().__init__(target_folder, target_folder)
        self.embedding = self.target["model.embed_tokens.weight"]

    def outputs(self, embedded: torch.Tensor, features: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        base = "model.mtp_layers.0"
        token = self.norm(embedded, self.weights[f"{base}.token_layernorm.weight"])
        state = self.norm(features, self.weights[f"{base}.hidden_layernorm.weight"])
        x = torch.cat((state, token), dim=1) @ self.weights[f"{base}.input_proj.weight"].T
        return self.norm(self.layer(x, positions, base), self.weights[f"{base}.final_layernorm.weight"])


class MedusaOracle:
    """Medusa heads: what head h guesses from one state."""

    def __init__(self, folder: Path, target_folder: Path) -> None:
        self.weights = load_file(folder / "model.safetensors")
        self.target = load_file(target_folder / "model.safetensors")

    def logits(self, head: int, state: torch.Tensor) -> torch.Tensor:
        block = 0
        while f"{head}.{block}.linear.weight" in self.weights:
            inner = self.weights[f"{head}.{block}.linear.weight"] @ state
            inner = inner + self.weights.get(f"{head}.{block}.linear.bias", torch.zeros(()))
            state, block = state + F.silu(inner), block + 1
        shared = self.weights.get("lm_head.weight", self.target["lm_head.weight"])
        return self.weights.get(f"{head}.lm_head.weight", shared) @ state


def _rotated(x: torch.Tensor, positions: torch.Tensor, theta: float) -> torch.Tensor:
    """RoFormer's rotation of the pairs (d, d + D/2) of x [N, heads, D]."""
    half = x.shape[-1] // 2
    angles = positions[:, None] * theta ** (-torch.arange(half) / half)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
