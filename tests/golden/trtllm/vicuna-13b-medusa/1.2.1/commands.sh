#!/usr/bin/env bash
# vicuna-13b-medusa by hand, as `specdeploy build vicuna-13b-medusa` does it. Never run before: see UNCHECKED.md.
# Run it on 1 x H100 with TensorRT-LLM 1.2.1 inside nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3.
# To get there, from the folder of this project, with a large disk as /workspace:
#   docker run -it --gpus all --ipc=host -v /mnt/disk:/workspace -v "$PWD":/project -w /project -e HF_TOKEN nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3 bash
#   python3 -m pip install -e '.[serve]'
#
# What these commands make cannot be served: the model `llm` reads what only a build records. To serve, let
# the project do them instead; it resumes where it was interrupted, verifies what it made and writes it down:
#   specdeploy build vicuna-13b-medusa --allow aux-layers-guessed && specdeploy repo vicuna-13b-medusa && specdeploy serve vicuna-13b-medusa
# It fetches checkpoints into the cache of the model hub; to have it read the folders below, name those in
# configs/deployments/vicuna-13b-medusa.yaml.
set -euo pipefail
here="$(cd -- "$(dirname -- "$0")" && pwd)"

# 1. look for engines of an earlier run
for folder in /workspace/engines/vicuna-13b-medusa/target_engine /workspace/engines/vicuna-13b-medusa/target_plain_engine; do if [[ -e "$folder" ]]; then echo "$folder is there already: move it away first" >&2; exit 1; fi; done

# 2. fetch target lmsys/vicuna-13b-v1.3 (about 24.2 GiB)
hf download lmsys/vicuna-13b-v1.3 --exclude 'original/*' --local-dir /workspace/checkpoints/lmsys--vicuna-13b-v1.3/main

# 3. fetch draft FasterDecoding/medusa-vicuna-13b-v1.3 (about 1.8 GiB)
hf download FasterDecoding/medusa-vicuna-13b-v1.3 --exclude 'original/*' --local-dir /workspace/checkpoints/FasterDecoding--medusa-vicuna-13b-v1.3/main

# 4. convert target (about 26.0 GiB, needs a GPU)
mkdir -p /workspace/work/vicuna-13b-medusa/convert-target && python3 /app/examples/medusa/convert_checkpoint.py --model_dir /workspace/checkpoints/lmsys--vicuna-13b-v1.3/main --medusa_model_dir /workspace/checkpoints/FasterDecoding--medusa-vicuna-13b-v1.3/main --output_dir /workspace/work/vicuna-13b-medusa/convert-target/checkpoint --dtype float16 --tp_size 1 --workers 1 --pp_size 1 --model_type llama --num_medusa_heads 4 --num_medusa_layers 1 --max_medusa_token_len 63
ls -l /workspace/work/vicuna-13b-medusa/convert-target/checkpoint/config.json
ls -l /workspace/work/vicuna-13b-medusa/convert-target/checkpoint/rank0.safetensors

# 5. build target (about 26.0 GiB, needs a GPU)
mkdir -p /workspace/work/vicuna-13b-medusa/build-target && trtllm-build --checkpoint_dir /workspace/work/vicuna-13b-medusa/convert-target/checkpoint --output_dir /workspace/work/vicuna-13b-medusa/build-target/engine --max_batch_size 8 --max_input_len 2048 --max_seq_len 2048 --max_num_tokens 4096 --max_beam_width 1 --kv_cache_type paged --use_paged_context_fmha enable --gemm_plugin float16 --workers 1 --speculative_decoding_mode medusa
ls -l /workspace/work/vicuna-13b-medusa/build-target/engine/config.json
ls -l /workspace/work/vicuna-13b-medusa/build-target/engine/rank0.engine

# 6. convert target_plain (about 24.2 GiB)
mkdir -p /workspace/work/vicuna-13b-medusa/convert-target_plain && python3 /app/examples/models/core/llama/convert_checkpoint.py --model_dir /workspace/checkpoints/lmsys--vicuna-13b-v1.3/main --output_dir /workspace/work/vicuna-13b-medusa/convert-target_plain/checkpoint --dtype float16 --tp_size 1 --workers 1 --pp_size 1
ls -l /workspace/work/vicuna-13b-medusa/convert-target_plain/checkpoint/config.json
ls -l /workspace/work/vicuna-13b-medusa/convert-target_plain/checkpoint/rank0.safetensors

# 7. build target_plain (about 24.2 GiB, needs a GPU)
mkdir -p /workspace/work/vicuna-13b-medusa/build-target_plain && trtllm-build --checkpoint_dir /workspace/work/vicuna-13b-medusa/convert-target_plain/checkpoint --output_dir /workspace/work/vicuna-13b-medusa/build-target_plain/engine --max_batch_size 8 --max_input_len 2048 --max_seq_len 2048 --max_num_tokens 4096 --max_beam_width 1 --kv_cache_type paged --use_paged_context_fmha enable --gemm_plugin float16 --workers 1
ls -l /workspace/work/vicuna-13b-medusa/build-target_plain/engine/config.json
ls -l /workspace/work/vicuna-13b-medusa/build-target_plain/engine/rank0.engine

# 8. put together
mkdir -p /workspace/engines/vicuna-13b-medusa/target
for file in /workspace/checkpoints/lmsys--vicuna-13b-v1.3/main/*.json /workspace/checkpoints/lmsys--vicuna-13b-v1.3/main/*.model /workspace/checkpoints/lmsys--vicuna-13b-v1.3/main/*.txt /workspace/checkpoints/lmsys--vicuna-13b-v1.3/main/*.jinja; do if [[ -f "$file" ]]; then cp "$file" /workspace/engines/vicuna-13b-medusa/target/; fi; done
mv -T /workspace/work/vicuna-13b-medusa/build-target/engine /workspace/engines/vicuna-13b-medusa/target_engine
mv -T /workspace/work/vicuna-13b-medusa/build-target_plain/engine /workspace/engines/vicuna-13b-medusa/target_plain_engine

# Memory as it was counted:
#   memory of H100 SXM (GPU 0)       79.0 GiB
#   - weights of target              26.0 GiB  (27276134400 B of layers + output layer 327680000) / 1 + norms 829440 + embedding 327680000
#   - activations of target         649.0 MiB  estimated: 4096 tokens x (2 x 5120 + 15360 + 41472) x 2 B + 512 rows x 32000 logits x 4 B x 2
#   - runtime of target               2.0 GiB  assumed: CUDA context, kernels, NCCL, workspaces, decoder state
#   - weights of target_plain        24.2 GiB  (25375539200 B of layers + output layer 327680000) / 1 + norms 829440 + embedding 327680000
#   - activations of target_plain   649.0 MiB  estimated: 4096 tokens x (2 x 5120 + 15360 + 41472) x 2 B + 512 rows x 32000 logits x 4 B x 2
#   - runtime of target_plain         2.0 GiB  assumed: CUDA context, kernels, NCCL, workspaces, decoder state
#   - kept free                       3.5 GiB  (1 - kv_cache_fraction 0.85) x 25205532672 left
#   = key/value caches               20.0 GiB
#   target: 13056 tokens x 819200 B = 10.0 GiB
#   target_plain: 13056 tokens x 819200 B = 10.0 GiB
#   full-length requests at once: 6 (27 with the target alone)
