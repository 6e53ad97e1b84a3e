"""How load is taken up: workers that start one after another, and a request rate that rises to its target.

Ramps belong to the warm-up of an arm: what is measured runs under the load that its label says.
"""

import math


def worker_starts_ns(concurrency: int, ramp_ns: int) -> tuple[int, ...]:
    """When worker 0 ... concurrency - 1 starts, after the start of its block; the last one `ramp_ns` later.

    Without a ramp all start at once.
    """
    if concurrency == 1 or ramp_ns == 0:
        return (0,) * concurrency
    return tuple(worker * ramp_ns // (concurrency - 1) for worker in range(concurrency))


def ramp_offsets_ns(request_rate: float, ramp_s: float) -> tuple[int, ...]:
    """When the requests of a ramp are due, ns after its start: those expected before `ramp_s` is over."""
    num_requests = math.ceil(request_rate * ramp_s / 2)
    return tuple(round(ramped_time_s(number, request_rate, ramp_s) * 1e9) for number in range(num_requests))


def ramped_time_s(num_expected: float, request_rate: float, ramp_s: float) -> float:
    """The time at which `num_expected` requests are expected to have been sent.

    The rate grows linearly from 0 to `request_rate` (per second) during `ramp_s` and stays there, so that
    N(t) = rate * t^2 / (2 * ramp) within the ramp and rate * (t - ramp / 2) after it; this is its inverse.
    """
    num_in_ramp = request_rate * ramp_s / 2
    if num_expected < num_in_ramp:
        return math.sqrt(2 * ramp_s * num_expected / request_rate)
    return ramp_s / 2 + num_expected / request_rate
