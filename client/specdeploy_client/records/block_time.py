"""How long one block of requests took, for rates per second; all times are [n] of the requests of one block, in ns.

Workers of a closed loop send when they are answered: their block lasts from the first request to the last answer. In an
open loop the last answers come after the last request was due, and a server that takes longer for each would then seem
to answer fewer per second although it kept up with every one. There a block lasts as long as its requests were due.
"""

import numpy as np
import numpy.typing as npt

LongInts = npt.NDArray[np.int64]


def closed_block_time_ns(send_ns: LongInts, end_ns: LongInts) -> int:
    """last end - first send."""
    return int(end_ns.max() - send_ns.min())


def open_block_time_ns(scheduled_ns: LongInts, end_ns: LongInts, request_rate: float) -> int:
    """last due - first due + their mean gap (1 / rate where they have none), and what a server fell behind meanwhile.

    One that does not keep up takes longer for every later request: that is 2 * (median latency of the later half -
    that of the earlier half) over the whole block. Chance alone moves medians too, so it counts only where three
    quarters of the later half took longer than three quarters of the earlier half.
    """
    order = np.argsort(scheduled_ns, kind="stable")
    due_ns, latency_ns = scheduled_ns[order], (end_ns - scheduled_ns)[order]
    span_ns, num_gaps = int(due_ns[-1] - due_ns[0]), len(due_ns) - 1
    window_ns = span_ns + (span_ns / num_gaps if span_ns else 1e9 / request_rate)
    earlier, later = np.array_split(latency_ns, 2)
    if later.size and np.quantile(later, 0.25) > np.quantile(earlier, 0.75):
        window_ns += 2 * float(np.median(later) - np.median(earlier))
    return round(window_ns)
