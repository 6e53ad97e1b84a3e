"""What training a head and training a draft model share: arguments, text, the optimiser loop."""

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from dataset import Batch, Sequence, batches, frequent_tokens, load_sequences
from target import FrozenTarget, load_target
from torch import nn


@dataclass(frozen=True)
class Material:
    """What is trained on: the target, endless batches, and the sequences kept for measuring."""

    target: FrozenTarget
    source: Iterator[Batch]
    held_out: list[Sequence]


def common_parser(description: str | None) -> argparse.ArgumentParser:
    """Arguments of both scripts."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("target", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--vocabulary", type=int, default=6144)
    parser.add_argument("--every", type=int, default=200)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seed", type=int, default=0)
    return parser


def load_material(arguments: argparse.Namespace, *, whole_prompt: bool = False) -> Material:
    """Set threads and seed, and read text and target."""
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    arguments.output.mkdir(parents=True, exist_ok=True)
    sequences = load_sequences(arguments.text, held_out=False, whole_prompt=whole_prompt)
    held_out = load_sequences(arguments.text, held_out=True, whole_prompt=whole_prompt)[:192]
    ids, covered = frequent_tokens(sequences, arguments.vocabulary)
    print(f"{len(sequences)} sequences, {len(held_out)} held out; {len(ids)} tokens cover {covered:.4f}", flush=True)
    return Material(load_target(arguments.target, ids), batches(sequences, arguments.batch, arguments.seed), held_out)


def optimizers(head: nn.Module, lr: float) -> list[torch.optim.Optimizer]:
    """Muon (Jordan et al. 2024) for matrices, AdamW for the norms."""
    matrices = [p for p in head.parameters() if p.ndim == 2]
    vectors = [p for p in head.parameters() if p.ndim == 1]
    return [
        torch.optim.Muon(matrices, lr=lr, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(vectors, lr=lr, weight_decay=0.0),
    ]


def train(
    head: nn.Module,
    loss_of_next: Callable[[], torch.Tensor],
    evaluate: Callable[[], dict[str, list[float]]],
    arguments: argparse.Namespace,
) -> None:
    """The learning rate warms up over 30 steps and falls linearly to a twentieth. Goes on from `training.pt` in the
    output folder, with batches from the beginning."""
    folder, steps, lr, every = arguments.output, arguments.steps, arguments.lr, arguments.every
    opts = optimizers(head, lr)
    state_path = folder / "training.pt"
    first = 0
    if state_path.exists():
        state = torch.load(state_path, weights_only=True)
        head.load_state_dict(state["head"])
        for opt, saved in zip(opts, state["optimizers"], strict=True):
            opt.load_state_dict(saved)
        first = state["step"]
    start, average = time.monotonic(), None
    for step in range(first, steps):
        rate = lr * min(1.0, (step + 1) / 30) * (1 - 0.95 * step / steps)
        for opt in opts:
            for group in opt.param_groups:
                group["lr"] = rate
            opt.zero_grad(set_to_none=True)
        loss = loss_of_next()
        loss.backward()
        nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        for opt in opts:
            opt.step()
        average = loss.item() if average is None else 0.95 * average + 0.05 * loss.item()
        if (step + 1) % 20 == 0:
            pace = (time.monotonic() - start) / (step + 1 - first)
            print(f"step {step + 1}/{steps} loss {average:.3f} {pace:.2f} s/step", flush=True)
        if (step + 1) % every == 0 or step + 1 == steps:
            temporary = state_path.with_suffix(".tmp")
            torch.save(
                {"head": head.state_dict(), "optimizers": [opt.state_dict() for opt in opts], "step": step + 1},
                temporary,
            )
            temporary.rename(state_path)
            print(json.dumps(evaluate()), flush=True)
