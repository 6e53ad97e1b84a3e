#!/usr/bin/env bash
# mixtral-8x7b-ngram by hand, as `specdeploy build mixtral-8x7b-ngram` does it. Never run before: see UNCHECKED.md.
# Run it on 2 x H100 where TensorRT-LLM 1.3.0rc27 is installed; no known container carries it.
#   python3 -m pip install -e '.[serve]'
#
# What these commands make cannot be served: the model `llm` reads what only a build records. To serve, let
# the project do them instead; it resumes where it was interrupted, verifies what it made and writes it down:
#   specdeploy build mixtral-8x7b-ngram --allow aux-layers-guessed && specdeploy repo mixtral-8x7b-ngram && specdeploy serve mixtral-8x7b-ngram
# It fetches checkpoints into the cache of the model hub; to have it read the folders below, name those in
# configs/deployments/mixtral-8x7b-ngram.yaml.
set -euo pipefail
here="$(cd -- "$(dirname -- "$0")" && pwd)"

# 1. fetch target mistralai/Mixtral-8x7B-Instruct-v0.1 (about 87.0 GiB)
hf download mistralai/Mixtral-8x7B-Instruct-v0.1 --exclude 'original/*' --local-dir /workspace/checkpoints/mistralai--Mixtral-8x7B-Instruct-v0.1/main

# 2. probe
# prints how the installed version spells each method
python3 -m specdeploy.builders.trtllm_probe /workspace/engines

# 3. put together
mkdir -p /workspace/engines/mixtral-8x7b-ngram/target
for file in /workspace/checkpoints/mistralai--Mixtral-8x7B-Instruct-v0.1/main/*.json /workspace/checkpoints/mistralai--Mixtral-8x7B-Instruct-v0.1/main/*.model /workspace/checkpoints/mistralai--Mixtral-8x7B-Instruct-v0.1/main/*.txt /workspace/checkpoints/mistralai--Mixtral-8x7B-Instruct-v0.1/main/*.jinja; do if [[ -f "$file" ]]; then cp "$file" /workspace/engines/mixtral-8x7b-ngram/target/; fi; done
if [[ -e /workspace/engines/mixtral-8x7b-ngram/llm_args.yaml ]] && ! cmp -s "$here/llm_args.yaml" /workspace/engines/mixtral-8x7b-ngram/llm_args.yaml; then echo '/workspace/engines/mixtral-8x7b-ngram/llm_args.yaml differs from the llm_args.yaml beside this script: edit that one, remove the copy' >&2; exit 1; fi
cp "$here/llm_args.yaml" /workspace/engines/mixtral-8x7b-ngram/llm_args.yaml

# 4. warm-up (needs a GPU)
# loads the LLM objects and generates a few tokens with and without drafting
python3 -m specdeploy.builders.trtllm_warmup /workspace/engines/mixtral-8x7b-ngram

# Memory as it was counted:
#   memory of H100 SXM (GPU 0)    79.0 GiB
#   - weights of target           43.5 GiB  (92880764928 B of layers + embedding 262144000 + output layer 262144000) / 2 + norms 532480
#   - activations of target      871.4 MiB  estimated: 8192 tokens x (2 x 4096 + 3072 + 43008) x 2 B + 96 rows x 32000 logits x 4 B x 2
#   - runtime of target            2.0 GiB  assumed: CUDA context, kernels, NCCL, workspaces, decoder state
#   - kept free                    4.9 GiB  (1 - kv_cache_fraction 0.85) x 35061293056 left
#   = key/value caches            27.8 GiB
#   target: 454720 tokens x 65536 B = 27.8 GiB
#   full-length requests at once: 55 (55 with the target alone)
