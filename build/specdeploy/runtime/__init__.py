"""The PyTorch engine: continuous batching with speculative decoding, on any CPU or CUDA device.

    request.py    what a request asks for and what a step gives back
    linear.py     matrix products with weights packed once
    model.py      the decoder: one forward pass over a flat, ragged batch
    kv_cache.py   a slot of key/value memory per row
    drafters/     who proposes tokens
    sampling.py   logits -> the target's distribution for one position
    verify.py     which proposed tokens the target accepts
    engine.py     the step loop: draft -> verify -> commit
    stats.py      what drafting brought

Nothing here knows of Triton, YAML or files other than a checkpoint folder.
"""
