"""What `llm` adds around the engine per streamed message, against one engine step of the same model in the same run.

    python benchmarks/message_cost.py CHECKPOINT_FOLDER --threads 1

Parsing and routing happen once per request and are spread over its messages; detokenising and building the output
tensors happen per message. Sending through Triton is not in it.
"""

import argparse
import statistics
import time
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from specdeploy.contract import DeploymentPlan, DraftLenRange, Method, SegmentPlan
from specdeploy.runtime.drafters import NgramDrafter
from specdeploy.runtime.engine import Engine
from specdeploy.runtime.model import DecoderModel
from specdeploy.runtime.request import GenerationRequest
from specdeploy.serving.detokenize import OutputText
from specdeploy.serving.request import ServingLimits, parse_request
from specdeploy.serving.responses import message_tensors
from specdeploy.serving.router import route

PROMPT = (
    "Rewrite with type hints: def total(items):\n    return sum(item.price * item.quantity for item in items)\n" * 4
)
NUM_TOKENS = 48
REPEATS = 9


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    tokenizer = Tokenizer.from_file(str(arguments.checkpoint / "tokenizer.json"))
    model = DecoderModel(arguments.checkpoint, dtype=torch.float32, device=torch.device("cpu"), max_seq_len=1024)
    every_load = (DraftLenRange(min_in_flight=1, max_in_flight=None, draft_len=4),)
    plan = DeploymentPlan(
        deployment="benchmark",
        source="config",
        method=Method.NGRAM,
        max_draft_len=4,
        segments=(),
        default=SegmentPlan(segment="other", ranges=every_load),
    )
    tensors = {"text_input": np.array([PROMPT.encode()], dtype=object), "max_tokens": np.array([NUM_TOKENS])}
    limits = ServingLimits(1024, model.vocab_size, 64)
    steps: list[float] = []
    around: list[float] = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        request = parse_request(tensors, tokenizer, limits, frozenset())
        routed = route(plan, segment="", num_draft_tokens=None)
        text = OutputText(tokenizer, ("\n\n\n",))
        per_request = time.perf_counter() - start
        drafter = NgramDrafter(min_matching_ngram_size=1, max_matching_ngram_size=3)
        engine = Engine(model, drafter, max_rows=1, max_queue=1, prefill_chunk=512)
        engine.submit(GenerationRequest("0", request.prompt_ids, NUM_TOKENS, draft_len=routed.draft_len))
        engine.step()  # the prompt
        per_message: list[float] = []
        while engine.num_in_flight:
            start = time.perf_counter()
            (update,) = engine.step()
            stepped = time.perf_counter()
            for token in update.token_ids:
                text.accept(token)
            message_tensors(text.take_delta(is_final=False), update.token_ids, (), request)
            per_message.append(time.perf_counter() - stepped)
            steps.append(stepped - start)
        around.append(statistics.fmean(per_message) + per_request / len(per_message))
    step_ms, around_ms = statistics.median(steps) * 1e3, statistics.median(around) * 1e3
    print("| engine step ms | around it per message ms | share |\n|---|---|---|")
    print(f"| {step_ms:.2f} | {around_ms:.3f} | {around_ms / step_ms:.2%} |")


if __name__ == "__main__":
    main()
