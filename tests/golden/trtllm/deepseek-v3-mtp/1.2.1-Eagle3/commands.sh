#!/usr/bin/env bash
# deepseek-v3-mtp by hand, as `specdeploy build deepseek-v3-mtp` does it. Never run before: see UNCHECKED.md.
# Run it on 8 x H200 with TensorRT-LLM 1.2.1 inside nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3.
# To get there, from the folder of this project, with a large disk as /workspace:
#   docker run -it --gpus all --ipc=host -v /mnt/disk:/workspace -v "$PWD":/project -w /project -e HF_TOKEN nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3 bash
#   python3 -m pip install -e '.[serve]'
#
# What these commands make cannot be served: the model `llm` reads what only a build records. To serve, let
# the project do them instead; it resumes where it was interrupted, verifies what it made and writes it down:
#   specdeploy build deepseek-v3-mtp --allow aux-layers-guessed && specdeploy repo deepseek-v3-mtp && specdeploy serve deepseek-v3-mtp
# It fetches checkpoints into the cache of the model hub; to have it read the folders below, name those in
# configs/deployments/deepseek-v3-mtp.yaml.
set -euo pipefail
here="$(cd -- "$(dirname -- "$0")" && pwd)"

# 1. fetch target deepseek-ai/DeepSeek-V3 (about 637.7 GiB)
hf download deepseek-ai/DeepSeek-V3 --exclude 'original/*' --local-dir /workspace/checkpoints/deepseek-ai--DeepSeek-V3/main

# 2. probe
# prints how the installed version spells each method
python3 -m specdeploy.builders.trtllm_probe /workspace/engines

# 3. put together
mkdir -p /workspace/engines/deepseek-v3-mtp/target
for file in /workspace/checkpoints/deepseek-ai--DeepSeek-V3/main/*.json /workspace/checkpoints/deepseek-ai--DeepSeek-V3/main/*.model /workspace/checkpoints/deepseek-ai--DeepSeek-V3/main/*.txt /workspace/checkpoints/deepseek-ai--DeepSeek-V3/main/*.jinja; do if [[ -f "$file" ]]; then cp "$file" /workspace/engines/deepseek-v3-mtp/target/; fi; done
if [[ -e /workspace/engines/deepseek-v3-mtp/llm_args.yaml ]] && ! cmp -s "$here/llm_args.yaml" /workspace/engines/deepseek-v3-mtp/llm_args.yaml; then echo '/workspace/engines/deepseek-v3-mtp/llm_args.yaml differs from the llm_args.yaml beside this script: edit that one, remove the copy' >&2; exit 1; fi
cp "$here/llm_args.yaml" /workspace/engines/deepseek-v3-mtp/llm_args.yaml

# 4. warm-up (needs a GPU)
# loads the LLM objects and generates a few tokens with and without drafting
python3 -m specdeploy.builders.trtllm_warmup /workspace/engines/deepseek-v3-mtp

# Memory as it was counted:
#   memory of H200 SXM (GPU 0)   131.3 GiB
#   - weights of target           79.7 GiB  (680993406976 B of layers + embedding 1853358080 + output layer 1853358080) / 8 + norms 1763328
#   - activations of target      554.2 MiB  estimated: 8192 tokens x (2 x 7168 + 6144 + 6912) x 2 B + 128 rows x 129280 logits x 4 B x 2
#   - runtime of target            2.0 GiB  assumed: CUDA context, kernels, NCCL, workspaces, decoder state
#   - kept free                    7.4 GiB  (1 - kv_cache_fraction 0.85) x 52682064384 left
#   = key/value caches            41.7 GiB
#   target: 607360 tokens x 73728 B = 41.7 GiB
#   full-length requests at once: 74 (74 with the target alone)
