#!/usr/bin/env bash
# qwen3-8b-ngram by hand, as `specdeploy build qwen3-8b-ngram` does it. Never run before: see UNCHECKED.md.
# Run it on 1 x H100 with TensorRT-LLM 1.2.1 inside nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3.
# To get there, from the folder of this project, with a large disk as /workspace:
#   docker run -it --gpus all --ipc=host -v /mnt/disk:/workspace -v "$PWD":/project -w /project -e HF_TOKEN nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3 bash
#   python3 -m pip install -e '.[serve]'
#
# What these commands make cannot be served: the model `llm` reads what only a build records. To serve, let
# the project do them instead; it resumes where it was interrupted, verifies what it made and writes it down:
#   specdeploy build qwen3-8b-ngram --allow aux-layers-guessed && specdeploy repo qwen3-8b-ngram && specdeploy serve qwen3-8b-ngram
# It fetches checkpoints into the cache of the model hub; to have it read the folders below, name those in
# configs/deployments/qwen3-8b-ngram.yaml.
set -euo pipefail
here="$(cd -- "$(dirname -- "$0")" && pwd)"

# 1. fetch target Qwen/Qwen3-8B (about 15.3 GiB)
hf download Qwen/Qwen3-8B --exclude 'original/*' --local-dir /workspace/checkpoints/Qwen--Qwen3-8B/main

# 2. probe
# prints how the installed version spells each method
python3 -m specdeploy.builders.trtllm_probe /workspace/engines

# 3. put together
mkdir -p /workspace/engines/qwen3-8b-ngram/target
for file in /workspace/checkpoints/Qwen--Qwen3-8B/main/*.json /workspace/checkpoints/Qwen--Qwen3-8B/main/*.model /workspace/checkpoints/Qwen--Qwen3-8B/main/*.txt /workspace/checkpoints/Qwen--Qwen3-8B/main/*.jinja; do if [[ -f "$file" ]]; then cp "$file" /workspace/engines/qwen3-8b-ngram/target/; fi; done
if [[ -e /workspace/engines/qwen3-8b-ngram/llm_args.yaml ]] && ! cmp -s "$here/llm_args.yaml" /workspace/engines/qwen3-8b-ngram/llm_args.yaml; then echo '/workspace/engines/qwen3-8b-ngram/llm_args.yaml differs from the llm_args.yaml beside this script: edit that one, remove the copy' >&2; exit 1; fi
cp "$here/llm_args.yaml" /workspace/engines/qwen3-8b-ngram/llm_args.yaml
if [[ -e /workspace/engines/qwen3-8b-ngram/llm_args_plain.yaml ]] && ! cmp -s "$here/llm_args_plain.yaml" /workspace/engines/qwen3-8b-ngram/llm_args_plain.yaml; then echo '/workspace/engines/qwen3-8b-ngram/llm_args_plain.yaml differs from the llm_args_plain.yaml beside this script: edit that one, remove the copy' >&2; exit 1; fi
cp "$here/llm_args_plain.yaml" /workspace/engines/qwen3-8b-ngram/llm_args_plain.yaml

# 4. warm-up (needs a GPU)
# loads the LLM objects and generates a few tokens with and without drafting
python3 -m specdeploy.builders.trtllm_warmup /workspace/engines/qwen3-8b-ngram

# Memory as it was counted:
#   memory of H100 SXM (GPU 0)       79.0 GiB
#   - weights of target              15.3 GiB  (13891534848 B of layers + embedding 1244659712 + output layer 1244659712) / 1 + norms 598016
#   - activations of target           1.1 GiB  estimated: 8192 tokens x (2 x 4096 + 6144 + 36864) x 2 B + 320 rows x 151936 logits x 4 B x 2
#   - runtime of target               2.0 GiB  assumed: CUDA context, kernels, NCCL, workspaces, decoder state
#   - weights of target_plain        15.3 GiB  (13891534848 B of layers + embedding 1244659712 + output layer 1244659712) / 1 + norms 598016
#   - activations of target_plain     1.1 GiB  estimated: 8192 tokens x (2 x 4096 + 6144 + 36864) x 2 B + 320 rows x 151936 logits x 4 B x 2
#   - runtime of target_plain         2.0 GiB  assumed: CUDA context, kernels, NCCL, workspaces, decoder state
#   - kept free                       6.3 GiB  (1 - kv_cache_fraction 0.85) x 45312098304 left
#   = key/value caches               35.9 GiB
#   target: 130592 tokens x 147456 B = 17.9 GiB
#   target_plain: 130592 tokens x 147456 B = 17.9 GiB
#   full-length requests at once: 15 (45 with the target alone)
