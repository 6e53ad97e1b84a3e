#!/usr/bin/env bash
# llama-3-1-405b-draft-3b by hand, as `specdeploy build llama-3-1-405b-draft-3b` does it. Never run before: see UNCHECKED.md.
# Run it on 4 x H200 with TensorRT-LLM 1.0.0 inside nvcr.io/nvidia/tritonserver:25.10-trtllm-python-py3.
# To get there, from the folder of this project, with a large disk as /workspace:
#   docker run -it --gpus all --ipc=host -v /mnt/disk:/workspace -v "$PWD":/project -w /project -e HF_TOKEN nvcr.io/nvidia/tritonserver:25.10-trtllm-python-py3 bash
#   python3 -m pip install -e '.[serve]'
#
# What these commands make cannot be served: the model `llm` reads what only a build records. To serve, let
# the project do them instead; it resumes where it was interrupted, verifies what it made and writes it down:
#   specdeploy build llama-3-1-405b-draft-3b --allow aux-layers-guessed && specdeploy repo llama-3-1-405b-draft-3b && specdeploy serve llama-3-1-405b-draft-3b
# It fetches checkpoints into the cache of the model hub; to have it read the folders below, name those in
# configs/deployments/llama-3-1-405b-draft-3b.yaml.
set -euo pipefail
here="$(cd -- "$(dirname -- "$0")" && pwd)"

# 1. look for engines of an earlier run
for folder in /workspace/engines/llama-3-1-405b-draft-3b/target_engine /workspace/engines/llama-3-1-405b-draft-3b/draft_engine; do if [[ -e "$folder" ]]; then echo "$folder is there already: move it away first" >&2; exit 1; fi; done

# 2. fetch target nvidia/Llama-3.1-405B-Instruct-FP8 (about 381.9 GiB)
hf download nvidia/Llama-3.1-405B-Instruct-FP8 --exclude 'original/*' --local-dir /workspace/checkpoints/nvidia--Llama-3.1-405B-Instruct-FP8/main

# 3. fetch draft meta-llama/Llama-3.2-3B-Instruct (about 6.0 GiB)
hf download meta-llama/Llama-3.2-3B-Instruct --exclude 'original/*' --local-dir /workspace/checkpoints/meta-llama--Llama-3.2-3B-Instruct/main

# 4. convert target (about 381.9 GiB)
mkdir -p /workspace/work/llama-3-1-405b-draft-3b/convert-target && python3 /app/examples/models/core/llama/convert_checkpoint.py --model_dir /workspace/checkpoints/nvidia--Llama-3.1-405B-Instruct-FP8/main --output_dir /workspace/work/llama-3-1-405b-draft-3b/convert-target/checkpoint --dtype bfloat16 --tp_size 4 --workers 4 --pp_size 1 --use_fp8
ls -l /workspace/work/llama-3-1-405b-draft-3b/convert-target/checkpoint/config.json
ls -l /workspace/work/llama-3-1-405b-draft-3b/convert-target/checkpoint/rank0.safetensors
ls -l /workspace/work/llama-3-1-405b-draft-3b/convert-target/checkpoint/rank1.safetensors
ls -l /workspace/work/llama-3-1-405b-draft-3b/convert-target/checkpoint/rank2.safetensors
ls -l /workspace/work/llama-3-1-405b-draft-3b/convert-target/checkpoint/rank3.safetensors

# 5. build target (about 381.9 GiB, needs a GPU)
mkdir -p /workspace/work/llama-3-1-405b-draft-3b/build-target && trtllm-build --checkpoint_dir /workspace/work/llama-3-1-405b-draft-3b/convert-target/checkpoint --output_dir /workspace/work/llama-3-1-405b-draft-3b/build-target/engine --max_batch_size 16 --max_input_len 8192 --max_seq_len 8192 --max_num_tokens 8192 --max_beam_width 1 --kv_cache_type paged --use_paged_context_fmha enable --gemm_plugin fp8 --workers 4 --speculative_decoding_mode draft_tokens_external --max_draft_len 8
ls -l /workspace/work/llama-3-1-405b-draft-3b/build-target/engine/config.json
ls -l /workspace/work/llama-3-1-405b-draft-3b/build-target/engine/rank0.engine
ls -l /workspace/work/llama-3-1-405b-draft-3b/build-target/engine/rank1.engine
ls -l /workspace/work/llama-3-1-405b-draft-3b/build-target/engine/rank2.engine
ls -l /workspace/work/llama-3-1-405b-draft-3b/build-target/engine/rank3.engine

# 6. convert draft (about 6.0 GiB)
mkdir -p /workspace/work/llama-3-1-405b-draft-3b/convert-draft && python3 /app/examples/models/core/llama/convert_checkpoint.py --model_dir /workspace/checkpoints/meta-llama--Llama-3.2-3B-Instruct/main --output_dir /workspace/work/llama-3-1-405b-draft-3b/convert-draft/checkpoint --dtype bfloat16 --tp_size 4 --workers 4 --pp_size 1
ls -l /workspace/work/llama-3-1-405b-draft-3b/convert-draft/checkpoint/config.json
ls -l /workspace/work/llama-3-1-405b-draft-3b/convert-draft/checkpoint/rank0.safetensors
ls -l /workspace/work/llama-3-1-405b-draft-3b/convert-draft/checkpoint/rank1.safetensors
ls -l /workspace/work/llama-3-1-405b-draft-3b/convert-draft/checkpoint/rank2.safetensors
ls -l /workspace/work/llama-3-1-405b-draft-3b/convert-draft/checkpoint/rank3.safetensors

# 7. build draft (about 6.0 GiB, needs a GPU)
mkdir -p /workspace/work/llama-3-1-405b-draft-3b/build-draft && trtllm-build --checkpoint_dir /workspace/work/llama-3-1-405b-draft-3b/convert-draft/checkpoint --output_dir /workspace/work/llama-3-1-405b-draft-3b/build-draft/engine --max_batch_size 16 --max_input_len 8192 --max_seq_len 8192 --max_num_tokens 8192 --max_beam_width 1 --kv_cache_type paged --use_paged_context_fmha enable --gemm_plugin bfloat16 --workers 4
ls -l /workspace/work/llama-3-1-405b-draft-3b/build-draft/engine/config.json
ls -l /workspace/work/llama-3-1-405b-draft-3b/build-draft/engine/rank0.engine
ls -l /workspace/work/llama-3-1-405b-draft-3b/build-draft/engine/rank1.engine
ls -l /workspace/work/llama-3-1-405b-draft-3b/build-draft/engine/rank2.engine
ls -l /workspace/work/llama-3-1-405b-draft-3b/build-draft/engine/rank3.engine

# 8. put together
mkdir -p /workspace/engines/llama-3-1-405b-draft-3b/target
for file in /workspace/checkpoints/nvidia--Llama-3.1-405B-Instruct-FP8/main/*.json /workspace/checkpoints/nvidia--Llama-3.1-405B-Instruct-FP8/main/*.model /workspace/checkpoints/nvidia--Llama-3.1-405B-Instruct-FP8/main/*.txt /workspace/checkpoints/nvidia--Llama-3.1-405B-Instruct-FP8/main/*.jinja; do if [[ -f "$file" ]]; then cp "$file" /workspace/engines/llama-3-1-405b-draft-3b/target/; fi; done
mv -T /workspace/work/llama-3-1-405b-draft-3b/build-target/engine /workspace/engines/llama-3-1-405b-draft-3b/target_engine
mv -T /workspace/work/llama-3-1-405b-draft-3b/build-draft/engine /workspace/engines/llama-3-1-405b-draft-3b/draft_engine

# Memory as it was counted:
#   memory of H200 SXM (GPU 0)   131.3 GiB
#   - weights of target           98.4 GiB  (401646551040 B of layers + output layer 4202692608) / 4 + norms 8290304 + embedding 4202692608
#   - activations of target        1.3 GiB  estimated: 8192 tokens x (2 x 16384 + 4608 + 39936) x 2 B + 144 rows x 128256 logits x 4 B x 2
#   - runtime of target            2.0 GiB  assumed: CUDA context, kernels, NCCL, workspaces, decoder state
#   - weights of draft             2.2 GiB  (5637144576 B of layers + output layer 788004864 (tied, counted again)) / 4 + norms 350208 + embedding 788004864
#   - activations of draft       352.9 MiB  estimated: 8192 tokens x (2 x 3072 + 1280 + 6144) x 2 B + 144 rows x 128256 logits x 4 B x 2
#   - runtime of draft             2.0 GiB  assumed: CUDA context, kernels, NCCL, workspaces, decoder state
#   - kept free                    3.8 GiB  (1 - kv_cache_fraction 0.85) x 26852616704 left
#   = key/value caches            21.3 GiB
#   target: 144736 tokens x 129024 B = 17.4 GiB
#   draft: 144736 tokens x 28672 B = 3.9 GiB
#   full-length requests at once: 17 (25 with the target alone)
