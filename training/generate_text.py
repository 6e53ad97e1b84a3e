"""Training text for a draft: answers of the target to prompts of `prompts.py`, made with the project's own engine.

    python training/generate_text.py TARGET_FOLDER --output TEXT_FOLDER --chat 4000 --library 4000

Writes TEXT_FOLDER/<kind>-NNNN.jsonl of 256 prompts each, {"family", "prompt_ids", "output_ids", "is_held_out",
"first_position"}, and beside it <kind>-NNNN.safetensors: the target's states that were seen on the way, `states`
[tokens, 4*H] bfloat16, row after row, from `first_position` of its text to the last token that was read. A part
is written as a whole, so an interrupted run goes on where it stopped. Same arguments: same text (up to the rounding of
bfloat16 between processors). About 1 GB for a million tokens of text.
"""

import argparse
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from prompts import USER_TURN_PREFIX, TrainingPrompt, standard_library_prompts
from safetensors.torch import save_file
from tokenizers import Tokenizer

from specdeploy.runtime.drafters.base import Draft, DraftRow, Observation
from specdeploy.runtime.engine import Engine
from specdeploy.runtime.model import DecoderModel
from specdeploy.runtime.request import GenerationRequest, SamplingParams

PART_SIZE = 256
_ROWS = 64
_EOS_ID = 2
_PROMPT_LIMIT = 448
_ANSWER_LIMIT = 96
_SHORTEST_ANSWER = 8
# The end of a prompt that a draft sees in training; more of it would be most of the bytes and none of the loss.
CONTEXT_LIMIT = 64
# After layers 2, n//2 and n-3, as EAGLE-3 reads them, and after the last.
STATE_LAYERS = (2, 15, 27, 30)


class StateRecorder:
    """A drafter that drafts nothing and keeps the states it is shown, by request in the order of slots taken."""

    def __init__(self) -> None:
        self._pieces: dict[int, list[torch.Tensor]] = {}
        self._texts: dict[int, list[int]] = {}
        self.finished: dict[tuple[int, ...], torch.Tensor] = {}

    @property
    def hidden_layers(self) -> tuple[int, ...]:
        """The layers that are recorded."""
        return STATE_LAYERS

    def max_draft_tokens(self, draft_len: int) -> int:  # noqa: ARG002 - the signature is the contract
        """None at all."""
        return 0

    def observe(self, observations: Sequence[Observation]) -> None:
        """Keep the states [n, 4*H] of one row after the other."""
        for observation in observations:
            if observation.hidden is not None:
                self._pieces.setdefault(observation.slot, []).append(observation.hidden.clone())
            self._texts[observation.slot] = list(observation.token_ids)

    def propose(self, rows: Sequence[DraftRow]) -> list[Draft]:
        """Nothing."""
        return [Draft() for _ in rows]

    def release(self, slot: int) -> None:
        """The row is finished: file its states under its text."""
        if pieces := self._pieces.pop(slot, None):
            self.finished[tuple(self._texts.pop(slot))] = torch.cat(pieces)


def main() -> None:
    """Generate the parts that are missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--chat", type=int, default=4000, help="prompts the target invents itself")
    parser.add_argument("--library", type=int, default=4000, help="prompts over the standard library")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    arguments.output.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(str(arguments.target / "tokenizer.json"))
    model = DecoderModel(arguments.target, dtype=torch.bfloat16, device=torch.device("cpu"), max_seq_len=640)

    library = standard_library_prompts(arguments.seed)[: arguments.library]
    num_library_parts = -(-len(library) // PART_SIZE)
    num_chat_parts = -(-arguments.chat // PART_SIZE)
    # Alternating, so that a run that is cut short has both.
    order = sorted(
        [("chat", i, i / num_chat_parts) for i in range(num_chat_parts)]
        + [("library", i, i / num_library_parts) for i in range(num_library_parts)],
        key=lambda item: item[2],
    )
    for kind, index, _ in order:
        path = arguments.output / f"{kind}-{index:04d}.jsonl"
        if path.exists():
            continue
        start = time.monotonic()
        if kind == "chat":
            prompts = invent_prompts(model, tokenizer, PART_SIZE, seed=arguments.seed * 1_000_000 + index * PART_SIZE)
        else:
            prompts = library[index * PART_SIZE : (index + 1) * PART_SIZE]
        count = write_part(path, model, tokenizer, prompts, arguments.seed + index)
        print(f"{path.name}: {len(prompts)} prompts, {count} tokens, {time.monotonic() - start:.0f} s", flush=True)


def invent_prompts(model: DecoderModel, tokenizer: Tokenizer, count: int, seed: int) -> list[TrainingPrompt]:
    """User messages the target writes when the text ends where one begins."""
    prefix = tuple(tokenizer.encode(USER_TURN_PREFIX, add_special_tokens=False).ids)
    requests = [
        GenerationRequest(
            request_id=str(index),
            prompt_ids=prefix,
            max_tokens=96,
            stop_ids=frozenset({_EOS_ID}),
            sampling=SamplingParams(temperature=1.0, top_k=60, seed=seed + index),
        )
        for index in range(count)
    ]
    texts = {tokenizer.decode(ids[:-1]).strip() for ids in run(model, requests) if ids and ids[-1] == _EOS_ID}
    return [TrainingPrompt("chat", text) for text in sorted(texts) if 20 <= len(text) <= 1500]


def write_part(path: Path, model: DecoderModel, tokenizer: Tokenizer, prompts: list[TrainingPrompt], seed: int) -> int:
    """Answer every prompt, two of three greedily and the others at temperature 0.7; returns the output tokens."""
    requests, kept = [], []
    for index, prompt in enumerate(prompts):
        text = f"{USER_TURN_PREFIX}{prompt.text}<|im_end|>\n<|im_start|>assistant\n"
        ids = tuple(tokenizer.encode(text, add_special_tokens=False).ids)
        if len(ids) > _PROMPT_LIMIT:
            continue
        sampling = SamplingParams() if index % 3 else SamplingParams(temperature=0.7, top_k=40, seed=seed + index)
        requests.append(
            GenerationRequest(
                request_id=str(len(kept)),
                prompt_ids=ids,
                max_tokens=_ANSWER_LIMIT,
                stop_ids=frozenset({_EOS_ID}),
                sampling=sampling,
                draft_len=lambda in_flight: 1,  # noqa: ARG005 - so that the recorder is shown the states
            )
        )
        kept.append(prompt)
    recorder = StateRecorder()
    outputs = run(model, requests, recorder)
    # A row that ended is not observed any more: its last token has no states, and the shortest rows have none at all.
    rows = [
        (prompt, request, output)
        for prompt, request, output in zip(kept, requests, outputs, strict=True)
        if len(output) >= _SHORTEST_ANSWER
    ]
    kept, requests, outputs = [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]
    firsts = [max(0, len(request.prompt_ids) - CONTEXT_LIMIT) for request in requests]
    states = [
        recorder.finished[(*request.prompt_ids, *output[:-1])][first:]
        for request, output, first in zip(requests, outputs, firsts, strict=True)
    ]
    lines = [
        json.dumps(
            {
                "family": prompt.family,
                "prompt_ids": request.prompt_ids,
                "output_ids": output,
                "is_held_out": prompt.is_held_out,
                "first_position": first,
            }
        )
        for prompt, request, output, first in zip(kept, requests, outputs, firsts, strict=True)
    ]
    save_file({"states": torch.cat(states)}, path.with_suffix(".safetensors"))
    temporary = path.with_suffix(".tmp")
    temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
    temporary.rename(path)
    return sum(len(output) for output in outputs)


def run(
    model: DecoderModel, requests: list[GenerationRequest], recorder: StateRecorder | None = None
) -> list[list[int]]:
    """Output ids of each request, in order."""
    engine = Engine(model, recorder, max_rows=_ROWS, max_queue=len(requests), prefill_chunk=256)
    outputs: list[list[int]] = [[] for _ in requests]
    for request in requests:
        engine.submit(request)
    while engine.num_in_flight:
        for update in engine.step():
            outputs[int(update.request_id)].extend(update.token_ids)
    return outputs


if __name__ == "__main__":
    main()
