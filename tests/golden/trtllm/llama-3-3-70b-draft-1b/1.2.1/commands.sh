#!/usr/bin/env bash
# llama-3-3-70b-draft-1b by hand, as `specdeploy build llama-3-3-70b-draft-1b` does it. Never run before: see UNCHECKED.md.
# Run it on 1 x H200 with TensorRT-LLM 1.2.1 inside nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3.
# To get there, from the folder of this project, with a large disk as /workspace:
#   docker run -it --gpus all --ipc=host -v /mnt/disk:/workspace -v "$PWD":/project -w /project -e HF_TOKEN nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3 bash
#   python3 -m pip install -e '.[serve]'
#
# What these commands make cannot be served: the model `llm` reads what only a build records. To serve, let
# the project do them instead; it resumes where it was interrupted, verifies what it made and writes it down:
#   specdeploy build llama-3-3-70b-draft-1b --allow aux-layers-guessed && specdeploy repo llama-3-3-70b-draft-1b && specdeploy serve llama-3-3-70b-draft-1b
# It fetches checkpoints into the cache of the model hub; to have it read the folders below, name those in
# configs/deployments/llama-3-3-70b-draft-1b.yaml.
set -euo pipefail
here="$(cd -- "$(dirname -- "$0")" && pwd)"

# 1. look for engines of an earlier run
for folder in /workspace/engines/llama-3-3-70b-draft-1b/target_engine /workspace/engines/llama-3-3-70b-draft-1b/draft_engine; do if [[ -e "$folder" ]]; then echo "$folder is there already: move it away first" >&2; exit 1; fi; done

# 2. fetch target nvidia/Llama-3.3-70B-Instruct-FP8 (about 67.7 GiB)
hf download nvidia/Llama-3.3-70B-Instruct-FP8 --exclude 'original/*' --local-dir /workspace/checkpoints/nvidia--Llama-3.3-70B-Instruct-FP8/main

# 3. fetch draft meta-llama/Llama-3.2-1B-Instruct (about 2.3 GiB)
hf download meta-llama/Llama-3.2-1B-Instruct --exclude 'original/*' --local-dir /workspace/checkpoints/meta-llama--Llama-3.2-1B-Instruct/main

# 4. convert target (about 67.7 GiB)
mkdir -p /workspace/work/llama-3-3-70b-draft-1b/convert-target && python3 /app/examples/models/core/llama/convert_checkpoint.py --model_dir /workspace/checkpoints/nvidia--Llama-3.3-70B-Instruct-FP8/main --output_dir /workspace/work/llama-3-3-70b-draft-1b/convert-target/checkpoint --dtype bfloat16 --tp_size 1 --workers 1 --pp_size 1 --use_fp8
ls -l /workspace/work/llama-3-3-70b-draft-1b/convert-target/checkpoint/config.json
ls -l /workspace/work/llama-3-3-70b-draft-1b/convert-target/checkpoint/rank0.safetensors

# 5. build target (about 67.7 GiB, needs a GPU)
mkdir -p /workspace/work/llama-3-3-70b-draft-1b/build-target && trtllm-build --checkpoint_dir /workspace/work/llama-3-3-70b-draft-1b/convert-target/checkpoint --output_dir /workspace/work/llama-3-3-70b-draft-1b/build-target/engine --max_batch_size 32 --max_input_len 8192 --max_seq_len 8192 --max_num_tokens 8192 --max_beam_width 1 --kv_cache_type paged --use_paged_context_fmha enable --gemm_plugin fp8 --workers 1 --speculative_decoding_mode draft_tokens_external --max_draft_len 10
ls -l /workspace/work/llama-3-3-70b-draft-1b/build-target/engine/config.json
ls -l /workspace/work/llama-3-3-70b-draft-1b/build-target/engine/rank0.engine

# 6. convert draft (about 2.3 GiB)
mkdir -p /workspace/work/llama-3-3-70b-draft-1b/convert-draft && python3 /app/examples/models/core/llama/convert_checkpoint.py --model_dir /workspace/checkpoints/meta-llama--Llama-3.2-1B-Instruct/main --output_dir /workspace/work/llama-3-3-70b-draft-1b/convert-draft/checkpoint --dtype bfloat16 --tp_size 1 --workers 1 --pp_size 1
ls -l /workspace/work/llama-3-3-70b-draft-1b/convert-draft/checkpoint/config.json
ls -l /workspace/work/llama-3-3-70b-draft-1b/convert-draft/checkpoint/rank0.safetensors

# 7. build draft (about 2.3 GiB, needs a GPU)
mkdir -p /workspace/work/llama-3-3-70b-draft-1b/build-draft && trtllm-build --checkpoint_dir /workspace/work/llama-3-3-70b-draft-1b/convert-draft/checkpoint --output_dir /workspace/work/llama-3-3-70b-draft-1b/build-draft/engine --max_batch_size 32 --max_input_len 8192 --max_seq_len 8192 --max_num_tokens 8192 --max_beam_width 1 --kv_cache_type paged --use_paged_context_fmha enable --gemm_plugin bfloat16 --workers 1
ls -l /workspace/work/llama-3-3-70b-draft-1b/build-draft/engine/config.json
ls -l /workspace/work/llama-3-3-70b-draft-1b/build-draft/engine/rank0.engine

# 8. put together
mkdir -p /workspace/engines/llama-3-3-70b-draft-1b/target
for file in /workspace/checkpoints/nvidia--Llama-3.3-70B-Instruct-FP8/main/*.json /workspace/checkpoints/nvidia--Llama-3.3-70B-Instruct-FP8/main/*.model /workspace/checkpoints/nvidia--Llama-3.3-70B-Instruct-FP8/main/*.txt /workspace/checkpoints/nvidia--Llama-3.3-70B-Instruct-FP8/main/*.jinja; do if [[ -f "$file" ]]; then cp "$file" /workspace/engines/llama-3-3-70b-draft-1b/target/; fi; done
mv -T /workspace/work/llama-3-3-70b-draft-1b/build-target/engine /workspace/engines/llama-3-3-70b-draft-1b/target_engine
mv -T /workspace/work/llama-3-3-70b-draft-1b/build-draft/engine /workspace/engines/llama-3-3-70b-draft-1b/draft_engine

# Memory as it was counted:
#   memory of H200 SXM (GPU 0)   131.3 GiB
#   - weights of target           67.7 GiB  (68451041280 B of layers + output layer 2101346304) / 1 + norms 2637824 + embedding 2101346304
#   - activations of target        2.1 GiB  estimated: 8192 tokens x (2 x 8192 + 10240 + 86016) x 2 B + 352 rows x 128256 logits x 4 B x 2
#   - runtime of target            2.0 GiB  assumed: CUDA context, kernels, NCCL, workspaces, decoder state
#   - weights of draft             2.8 GiB  (1946157056 B of layers + output layer 525336576 (tied, counted again)) / 1 + norms 135168 + embedding 525336576
#   - activations of draft       840.4 MiB  estimated: 8192 tokens x (2 x 2048 + 3072 + 24576) x 2 B + 352 rows x 128256 logits x 4 B x 2
#   - runtime of draft             2.0 GiB  assumed: CUDA context, kernels, NCCL, workspaces, decoder state
#   - kept free                    8.1 GiB  (1 - kv_cache_fraction 0.85) x 57963770368 left
#   = key/value caches            45.9 GiB
#   target: 136672 tokens x 327680 B = 41.7 GiB
#   draft: 136672 tokens x 32768 B = 4.2 GiB
#   full-length requests at once: 16 (20 with the target alone)
