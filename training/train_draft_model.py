"""Train a small draft model for a target, on a CPU, from the target's own text and distributions.

    python training/train_draft_model.py TARGET_FOLDER TEXT_FOLDER --output DRAFT_FOLDER --steps 1500

A few of the target's layers, cut out and distilled (cross-entropy against the target's distribution over the draft
vocabulary). Embeddings and lm_head rows are the target's, frozen and not saved: the draft borrows them. Resumes from
DRAFT_FOLDER/training.pt.
"""

import json
import shutil
from pathlib import Path

import torch
import torch.nn.functional as F
from dataset import Batch, Sequence, collate
from loop import common_parser, load_material, train
from safetensors.torch import save_file
from target import FrozenTarget, rotary, rotate
from torch import nn

_LINEARS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
_MLP = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
_NORMS = ("input_layernorm", "post_attention_layernorm")


class DraftModel(nn.Module):
    """Layers of the target by index, in order, and its final norm."""

    def __init__(self, target: FrozenTarget, layer_ids: tuple[int, ...]) -> None:
        """Every layer starts as the target's."""
        super().__init__()
        self.config = target.config
        self.weights = nn.ParameterDict()
        for index, layer_id in enumerate(layer_ids):
            for name in (*_LINEARS, *_MLP, *_NORMS):
                self.weights[self._key(index, name)] = nn.Parameter(target.layer(layer_id, name).clone())
        self.weights["norm"] = nn.Parameter(target.weights["model.norm.weight"].clone())
        self.num_layers = len(layer_ids)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Embedded tokens [B, T, H] -> normed states [B, T, H]."""
        config = self.config
        cos, sin = rotary(config, torch.arange(hidden.shape[1]))
        for index in range(self.num_layers):
            normed = self._norm(hidden, self._at(index, "input_layernorm"))
            q, k, v = (
                F.linear(normed, self._at(index, name)).unflatten(-1, (-1, config.head_dim)).transpose(1, 2).float()
                for name in _LINEARS[:3]
            )
            attended = F.scaled_dot_product_attention(
                rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True, enable_gqa=True
            )
            hidden = hidden + F.linear(attended.transpose(1, 2).flatten(2), self._at(index, "self_attn.o_proj"))
            normed = self._norm(hidden, self._at(index, "post_attention_layernorm"))
            gate, up = (F.linear(normed, self._at(index, name)) for name in _MLP[:2])
            hidden = hidden + F.linear(F.silu(gate) * up, self._at(index, "mlp.down_proj"))
        return self._norm(hidden, self.weights["norm"])

    def _at(self, index: int, name: str) -> torch.Tensor:
        return self.weights[self._key(index, name)]

    @staticmethod
    def _key(index: int, name: str) -> str:
        return f"{index}-{name}".replace(".", "-")

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x.float(), (x.shape[-1],), weight, self.config.rms_norm_eps)

    def save(self, target: FrozenTarget, folder: Path) -> None:
        """Hugging Face layout without embeddings and lm_head; d2t names the rows of the borrowed head."""
        tensors = {
            f"model.layers.{index}.{name}.weight": self._at(index, name).detach()
            for index in range(self.num_layers)
            for name in (*_LINEARS, *_MLP, *_NORMS)
        }
        tensors["model.norm.weight"] = self.weights["norm"].detach()
        tensors = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in tensors.items()}
        tensors["d2t"] = target.draft_ids - torch.arange(len(target.draft_ids))
        tensors["t2d"] = torch.zeros(target.config.vocab_size, dtype=torch.bool).index_fill_(0, target.draft_ids, True)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        config = json.loads(self.config.to_json_string(use_diff=False))
        config |= {
            "num_hidden_layers": self.num_layers,
            "draft_vocab_size": len(target.draft_ids),
            "dtype": "bfloat16",
            "tie_word_embeddings": True,
        }
        (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def guesses(model: DraftModel, target: FrozenTarget, batch: Batch) -> tuple[torch.Tensor, ...]:
    """Draft logits [M, n], the target's distribution [M, n], the true token [M] and where they are [B, T - 1]."""
    hidden = target.config.hidden_size
    embedded = F.embedding(batch.tokens[:, :-2], target.embedding)
    counts = batch.is_output[:, 1:-1]
    with torch.no_grad():
        probs = target.probs(batch.states[..., 3 * hidden :][counts])
    normed = model(embedded)[counts]
    logits = (normed.to(target.head.dtype) @ target.head.T).float()
    return logits, probs, batch.tokens[:, 1:-1][counts], counts


@torch.no_grad()
def acceptance(
    model: DraftModel, target: FrozenTarget, sequences: list[Sequence], depth: int
) -> dict[str, list[float]]:
    """As for a head: share of right greedy guesses at each depth, given that those before were right."""
    right: dict[str, list[float]] = {}
    tried: dict[str, list[float]] = {}
    for start in range(0, len(sequences), 16):
        batch = collate(sequences[start : start + 16])
        logits, _, truth, counts = guesses(model, target, batch)
        hit = torch.zeros(counts.shape, dtype=torch.bool)
        hit[counts] = target.draft_ids[logits.argmax(-1)] == truth
        for row, family in enumerate(batch.families):
            alive = counts[row].clone()
            for j in range(depth):
                here = hit[row].roll(-j) & counts[row].roll(-j)
                if j:
                    here[-j:] = False
                for name in (family, "all"):
                    tried.setdefault(name, [0.0] * depth)[j] += int(alive.sum())
                    right.setdefault(name, [0.0] * depth)[j] += int((alive & here).sum())
                alive = alive & here
    return {name: [r / max(1.0, t) for r, t in zip(right[name], tried[name], strict=True)] for name in sorted(tried)}


def main() -> None:
    """Train, measure, save."""
    parser = common_parser(__doc__)
    parser.add_argument("--layers", type=int, nargs="+", default=(0, 29))
    arguments = parser.parse_args()
    material = load_material(arguments, whole_prompt=True)
    target = material.target
    model = DraftModel(target, tuple(arguments.layers))

    def loss_of_next() -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            logits, probs, _, _ = guesses(model, target, next(material.source))
        return -(probs * logits.log_softmax(-1)).sum(-1).mean()

    train(model, loss_of_next, lambda: acceptance(model, target, material.held_out, 4), arguments)
    model.save(target, arguments.output)
    # A draft model must prove by its own files that it has the target's tokenizer.
    shutil.copyfile(arguments.target / "tokenizer.json", arguments.output / "tokenizer.json")


if __name__ == "__main__":
    main()
