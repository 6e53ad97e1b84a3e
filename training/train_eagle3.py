"""Train an EAGLE-3 head (Li et al. 2025, arXiv:2503.01840) for a small target, on a CPU, from recorded states.

    python training/train_eagle3.py TARGET_FOLDER TEXT_FOLDER --output HEAD_FOLDER --steps 1500

One layer over [embedding of the next token ; three of the target's states], rolled out on its own output for
`--depth` tokens as it will be when it drafts (the paper's training-time test), cross-entropy against the target's
distribution over the draft vocabulary. The rows of lm_head are the target's, frozen: half a million tokens of text
are too few to learn them from. Resumes from HEAD_FOLDER/training.pt.
"""

import json
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from dataset import Batch, Sequence, collate
from loop import common_parser, load_material, train
from safetensors.torch import save_file
from target import FrozenTarget, rotary, rotate
from torch import nn

AUX_LAYER_IDS = (2, 15, 27)


class Eagle3Head(nn.Module):
    """Names as in the original authors' checkpoints."""

    def __init__(self, target: FrozenTarget, intermediate_size: int) -> None:
        """Starts from the target's last layer: what it does is the closest thing to what the head must do."""
        super().__init__()
        config = target.config
        self.config = config
        hidden, dim = config.hidden_size, config.head_dim
        query, key = config.num_attention_heads * dim, config.num_key_value_heads * dim
        self.fc = nn.Linear(3 * hidden, hidden, bias=False)
        self.q_proj = nn.Linear(2 * hidden, query, bias=False)
        self.k_proj = nn.Linear(2 * hidden, key, bias=False)
        self.v_proj = nn.Linear(2 * hidden, key, bias=False)
        self.o_proj = nn.Linear(query, hidden, bias=False)
        self.gate_proj = nn.Linear(hidden, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden, bias=False)
        self.input_layernorm = nn.Parameter(target.last_layer("input_layernorm").clone())
        self.hidden_norm = nn.Parameter(target.last_layer("input_layernorm").clone())
        self.post_attention_layernorm = nn.Parameter(target.last_layer("post_attention_layernorm").clone())
        self.norm = nn.Parameter(target.weights["model.norm.weight"].clone())
        with torch.no_grad():
            self.fc.weight.copy_(torch.cat((torch.zeros(hidden, 2 * hidden), torch.eye(hidden)), dim=1))
            for name in ("q_proj", "k_proj", "v_proj"):
                weight = target.last_layer(f"self_attn.{name}")
                getattr(self, name).weight.copy_(torch.cat((torch.randn_like(weight) * 0.02, weight), dim=1))
            self.o_proj.weight.copy_(target.last_layer("self_attn.o_proj"))
            for name in ("gate_proj", "up_proj"):
                getattr(self, name).weight.copy_(target.last_layer(f"mlp.{name}")[:intermediate_size])
            self.down_proj.weight.copy_(target.last_layer("mlp.down_proj")[:, :intermediate_size])

    def forward(self, states: torch.Tensor, embedded: torch.Tensor, depth: int) -> list[torch.Tensor]:
        """states [B, T, 3*H]; embedded [B, T + depth - 1, H], of the token after each state. Returns per depth j the
        head's output [B, T, H]: at place i after reading states up to i, one real and j own tokens."""
        config = self.config
        num_tokens = states.shape[1]
        feature = self.fc(states)
        keys: list[torch.Tensor] = []
        values: list[torch.Tensor] = []
        outputs = []
        causal = torch.full((num_tokens, num_tokens), float("-inf")).triu_(1)
        for j in range(depth):
            mixed = torch.cat(
                (
                    self._norm(embedded[:, j : j + num_tokens], self.input_layernorm),
                    self._norm(feature, self.hidden_norm),
                ),
                dim=-1,
            )
            cos, sin = rotary(config, torch.arange(j, j + num_tokens))
            q = rotate(self._heads(self.q_proj(mixed), config.num_attention_heads), cos, sin)
            keys.append(self._repeat(rotate(self._heads(self.k_proj(mixed), config.num_key_value_heads), cos, sin)))
            values.append(self._repeat(self._heads(self.v_proj(mixed), config.num_key_value_heads)))
            attended = _attend_rollout(q, keys, values, causal)
            feature = feature + self.o_proj(attended.transpose(1, 2).flatten(2))
            normed = self._norm(feature, self.post_attention_layernorm)
            feature = feature + self.down_proj(F.silu(self.gate_proj(normed)) * self.up_proj(normed))
            outputs.append(feature)
        return outputs

    def logits(self, output: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
        """Draft logits [M, n] of outputs [M, H]."""
        return (self._norm(output, self.norm).to(head.dtype) @ head.T).float()

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x.float(), (x.shape[-1],), weight, self.config.rms_norm_eps)

    def _heads(self, x: torch.Tensor, heads: int) -> torch.Tensor:
        return x.unflatten(-1, (heads, -1)).transpose(1, 2).float()

    def _repeat(self, x: torch.Tensor) -> torch.Tensor:
        return x.repeat_interleave(self.config.num_attention_heads // self.config.num_key_value_heads, dim=1)


def _attend_rollout(
    q: torch.Tensor, keys: list[torch.Tensor], values: list[torch.Tensor], causal: torch.Tensor
) -> torch.Tensor:
    """Place i sees the real places up to i and, of every rolled-out depth, its own one. All [B, heads, T, D]."""
    scale = 1.0 / math.sqrt(q.shape[-1])
    scores = [q @ keys[0].transpose(2, 3) * scale + causal]
    scores += [(q * key).sum(-1, keepdim=True) * scale for key in keys[1:]]
    weights = torch.cat(scores, dim=-1).softmax(dim=-1)
    num_tokens = q.shape[2]
    out = weights[..., :num_tokens] @ values[0]
    for index, value in enumerate(values[1:]):
        out = out + weights[..., num_tokens + index, None] * value
    return out


def unrolled(head: Eagle3Head, target: FrozenTarget, batch: Batch, depth: int) -> list[tuple[torch.Tensor, ...]]:
    """Per depth j: draft logits [M, n], the target's distribution [M, n] and the true next token [M], at the places
    whose guess is part of an answer."""
    hidden = target.config.hidden_size
    num_tokens = batch.states.shape[1] - depth + 1
    states = batch.states[:, :num_tokens, : 3 * hidden].float()
    embedded = F.embedding(batch.tokens[:, 1 : num_tokens + depth], target.embedding)
    result = []
    for j, output in enumerate(head(states, embedded, depth)):
        # Place i at depth j guesses token i + 2 + j, whose distribution follows from the state at i + 1 + j.
        last = batch.states[:, 1 + j : num_tokens + j, 3 * hidden :]
        counts = batch.is_output[:, 2 + j : num_tokens + 1 + j]
        truth = batch.tokens[:, 2 + j : num_tokens + 1 + j][counts]
        with torch.no_grad():
            probs = target.probs(last[counts])
        result.append((head.logits(output[:, :-1][counts], target.head), probs, truth, counts))
    return result


def loss_of(parts: list[tuple[torch.Tensor, ...]], decay: float = 0.8) -> torch.Tensor:
    """Cross-entropy against the target's distribution, depth j weighted decay^j."""
    losses = [-(probs * logits.log_softmax(-1)).sum(-1).mean() for logits, probs, _, _ in parts]
    weights = [decay**j for j in range(len(losses))]
    return sum(w * loss for w, loss in zip(weights, losses, strict=True)) / sum(weights)


@torch.no_grad()
def acceptance(head: Eagle3Head, target: FrozenTarget, sequences: list[Sequence], depth: int) -> dict[str, list[float]]:
    """Per family and depth: share of greedy guesses that are the target's own next token, given that those before were.
    Places are the answer's; the text before is the target's."""
    right: dict[str, list[float]] = {}
    tried: dict[str, list[float]] = {}
    for start in range(0, len(sequences), 16):
        batch = collate(sequences[start : start + 16])
        parts = unrolled(head, target, batch, depth)
        shape = parts[0][3].shape
        alive = torch.ones(shape, dtype=torch.bool)
        for j, (logits, _, truth, counts) in enumerate(parts):
            hit = torch.zeros(shape, dtype=torch.bool)
            hit[counts] = target.draft_ids[logits.argmax(-1)] == truth
            asked = alive & counts
            for row, family in enumerate(batch.families):
                for name in (family, "all"):
                    tried.setdefault(name, [0.0] * depth)[j] += int(asked[row].sum())
                    right.setdefault(name, [0.0] * depth)[j] += int((hit & asked)[row].sum())
            alive = alive & hit
    return {name: [r / max(1.0, t) for r, t in zip(right[name], tried[name], strict=True)] for name in sorted(tried)}


def save_head(head: Eagle3Head, target: FrozenTarget, folder: Path, intermediate_size: int) -> None:
    """The original authors' layout: midlayer, fc, norm, lm_head, d2t, t2d; embeddings are the target's."""
    weights = {name: tensor.detach() for name, tensor in head.state_dict().items()}
    tensors = {"fc.weight": weights["fc.weight"], "norm.weight": weights["norm"], "lm_head.weight": target.head.float()}
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        tensors[f"midlayer.self_attn.{name}.weight"] = weights[f"{name}.weight"]
    for name in ("gate_proj", "up_proj", "down_proj"):
        tensors[f"midlayer.mlp.{name}.weight"] = weights[f"{name}.weight"]
    for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
        tensors[f"midlayer.{name}.weight"] = weights[name]
    tensors = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in tensors.items()}
    ids = target.draft_ids
    tensors["d2t"] = ids - torch.arange(len(ids))
    t2d = torch.zeros(target.config.vocab_size, dtype=torch.bool)
    t2d[ids] = True
    tensors["t2d"] = t2d
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = target.config
    content = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": config.hidden_size,
        "intermediate_size": intermediate_size,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "num_hidden_layers": 1,
        "vocab_size": config.vocab_size,
        "draft_vocab_size": len(ids),
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_parameters["rope_theta"],
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "eagle_aux_hidden_state_layer_ids": list(AUX_LAYER_IDS),
    }
    (folder / "config.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Train, measure, save."""
    parser = common_parser(__doc__)
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--intermediate", type=int, default=1536)
    arguments = parser.parse_args()
    material = load_material(arguments)
    target, depth = material.target, arguments.depth
    head = Eagle3Head(target, arguments.intermediate)

    def loss_of_next() -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return loss_of(unrolled(head, target, next(material.source), depth))

    train(head, loss_of_next, lambda: acceptance(head, target, material.held_out, depth), arguments)
    save_head(head, target, arguments.output, arguments.intermediate)


if __name__ == "__main__":
    main()
