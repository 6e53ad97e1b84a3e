"""Traffic served in simulated time: continuous batching, chunked prefill, bounded memory, ragged acceptance.

`simulate` (simulation.py) is the way in. It mirrors the scheduling of `specdeploy.runtime.engine`:

    between two steps   rows that are done leave; requests that have arrived meanwhile join the queue or are refused;
                        K follows from the requests in flight, waiting ones included; the queue is admitted in order
                        while a row and key/value memory are free, never overtaken, never evicted
    a step              every decoding row one token and its draft, and up to `prefill_chunk` prompt tokens of the rows
                        still reading, oldest first; several prompts may share a chunk

Steps are not simulated one by one. Between two events (an arrival, a prompt read, a row done, another K) all steps have
the same composition and a time that is affine in the cached tokens, which grow linearly: n of them are summed as an
arithmetic series. Time and memory are linear in the requests, whatever their lengths.
"""
