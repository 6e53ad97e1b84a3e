"""One bfloat16 layer as the runtime multiplies it beside the plain product: same weights, same run, interleaved.

    .venv/bin/python benchmarks/linear_layer.py --threads 1 --repeats 15

Prints a Markdown table: rows, median milliseconds of both, ratio ours / plain.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from specdeploy.runtime.linear import Linear, has_bfloat16_products

IN_FEATURES, OUT_FEATURES = 576, 1536  # SmolLM2-135M's feed-forward
NUM_ROWS = (1, 5, 32, 128, 256)


def milliseconds(product: Callable[[], torch.Tensor]) -> float:
    start = time.perf_counter()
    product()
    return (time.perf_counter() - start) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    weight = torch.randn(OUT_FEATURES, IN_FEATURES).bfloat16()
    ours = Linear(weight)
    print(f"bfloat16 products on this processor: {'yes' if has_bfloat16_products() else 'no, float32 sums'}\n")
    print("| rows | ours ms | plain bfloat16 ms | ratio |\n|---|---|---|---|")
    with torch.inference_mode():
        for num_rows in NUM_ROWS:
            x = torch.randn(num_rows, IN_FEATURES).bfloat16()
            pairs = [
                (milliseconds(lambda x=x: ours(x)), milliseconds(lambda x=x: F.linear(x, weight)))
                for _ in range(options.repeats + 2)
            ][2:]
            mine, plain = (statistics.median(pair[side] for pair in pairs) for side in (0, 1))
            print(f"| {num_rows} | {mine:.2f} | {plain:.2f} | {mine / plain:.2f} |")


if __name__ == "__main__":
    main()
