#!/usr/bin/env bash
# llama-3-1-8b-eagle3 by hand, as `specdeploy build llama-3-1-8b-eagle3` does it. Never run before: see UNCHECKED.md.
# Run it on 1 x H200 where TensorRT-LLM 1.3.0rc27 is installed; no known container carries it.
#   python3 -m pip install -e '.[serve]'
#
# What these commands make cannot be served: the model `llm` reads what only a build records. To serve, let
# the project do them instead; it resumes where it was interrupted, verifies what it made and writes it down:
#   specdeploy build llama-3-1-8b-eagle3 --allow aux-layers-guessed && specdeploy repo llama-3-1-8b-eagle3 && specdeploy serve llama-3-1-8b-eagle3
# It fetches checkpoints into the cache of the model hub; to have it read the folders below, name those in
# configs/deployments/llama-3-1-8b-eagle3.yaml.
set -euo pipefail
here="$(cd -- "$(dirname -- "$0")" && pwd)"

# 1. fetch target meta-llama/Llama-3.1-8B-Instruct (about 15.0 GiB)
hf download meta-llama/Llama-3.1-8B-Instruct --exclude 'original/*' --local-dir /workspace/checkpoints/meta-llama--Llama-3.1-8B-Instruct/main

# 2. fetch draft yuhuili/EAGLE3-LLaMA3.1-Instruct-8B (about 810.4 MiB)
hf download yuhuili/EAGLE3-LLaMA3.1-Instruct-8B --exclude 'original/*' --local-dir /workspace/checkpoints/yuhuili--EAGLE3-LLaMA3.1-Instruct-8B/main

# 3. probe
# prints how the installed version spells each method
python3 -m specdeploy.builders.trtllm_probe /workspace/engines

# 4. put together
mkdir -p /workspace/engines/llama-3-1-8b-eagle3/target
for file in /workspace/checkpoints/meta-llama--Llama-3.1-8B-Instruct/main/*.json /workspace/checkpoints/meta-llama--Llama-3.1-8B-Instruct/main/*.model /workspace/checkpoints/meta-llama--Llama-3.1-8B-Instruct/main/*.txt /workspace/checkpoints/meta-llama--Llama-3.1-8B-Instruct/main/*.jinja; do if [[ -f "$file" ]]; then cp "$file" /workspace/engines/llama-3-1-8b-eagle3/target/; fi; done
if [[ -e /workspace/engines/llama-3-1-8b-eagle3/llm_args.yaml ]] && ! cmp -s "$here/llm_args.yaml" /workspace/engines/llama-3-1-8b-eagle3/llm_args.yaml; then echo '/workspace/engines/llama-3-1-8b-eagle3/llm_args.yaml differs from the llm_args.yaml beside this script: edit that one, remove the copy' >&2; exit 1; fi
cp "$here/llm_args.yaml" /workspace/engines/llama-3-1-8b-eagle3/llm_args.yaml
if [[ -e /workspace/engines/llama-3-1-8b-eagle3/llm_args_plain.yaml ]] && ! cmp -s "$here/llm_args_plain.yaml" /workspace/engines/llama-3-1-8b-eagle3/llm_args_plain.yaml; then echo '/workspace/engines/llama-3-1-8b-eagle3/llm_args_plain.yaml differs from the llm_args_plain.yaml beside this script: edit that one, remove the copy' >&2; exit 1; fi
cp "$here/llm_args_plain.yaml" /workspace/engines/llama-3-1-8b-eagle3/llm_args_plain.yaml

# 5. warm-up (needs a GPU)
# loads the LLM objects and generates a few tokens with and without drafting
python3 -m specdeploy.builders.trtllm_warmup /workspace/engines/llama-3-1-8b-eagle3

# Memory as it was counted:
#   memory of H200 SXM (GPU 0)      131.3 GiB
#   - weights of target              15.0 GiB  (13958643712 B of layers + embedding 1050673152 + output layer 1050673152) / 1 + norms 532480
#   - activations of target           1.2 GiB  estimated: 8192 tokens x (2 x 4096 + 6144 + 43008) x 2 B + 384 rows x 128256 logits x 4 B x 2
#   - runtime of target               2.0 GiB  assumed: CUDA context, kernels, NCCL, workspaces, decoder state
#   - weights of draft              810.0 MiB  (849354752 B of layers + embedding 0 + output layer 0) / 1 + norms 24576
#   - activations of draft          989.8 MiB  estimated: 8192 tokens x (2 x 4096 + 6144 + 43008) x 2 B + 384 rows x 32000 logits x 4 B x 2
#   - runtime of draft                2.0 GiB  assumed: CUDA context, kernels, NCCL, workspaces, decoder state
#   - weights of target_plain        15.0 GiB  (13958643712 B of layers + embedding 1050673152 + output layer 1050673152) / 1 + norms 532480
#   - activations of target_plain     1.2 GiB  estimated: 8192 tokens x (2 x 4096 + 6144 + 43008) x 2 B + 384 rows x 128256 logits x 4 B x 2
#   - runtime of target_plain         2.0 GiB  assumed: CUDA context, kernels, NCCL, workspaces, decoder state
#   - kept free                      13.7 GiB  (1 - kv_cache_fraction 0.85) x 97882243584 left
#   = key/value caches               77.5 GiB
#   target: 312480 tokens x 131072 B = 38.1 GiB
#   draft: 312480 tokens x 4096 B = 1.2 GiB
#   target_plain: 312480 tokens x 131072 B = 38.1 GiB
#   full-length requests at once: 38 (96 with the target alone)
