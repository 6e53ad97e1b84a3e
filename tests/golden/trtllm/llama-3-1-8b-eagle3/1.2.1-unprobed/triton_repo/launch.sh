#!/usr/bin/env bash
# Planned by a dry run of llama-3-1-8b-eagle3, not to be served; change configs/deployments/llama-3-1-8b-eagle3.yaml instead.
# Starts the server of this repository and stays until it ends. TensorRT-LLM 1.2.1: container image nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3.
set -euo pipefail

here="$(cd -- "$(dirname -- "$0")" && pwd)"
printenv SPECDEPLOY_ENGINES_ROOT > /dev/null || export SPECDEPLOY_ENGINES_ROOT=/workspace/engines
fail() { echo "specdeploy: launch.sh: $1" >&2; exit 1; }
[[ -x /opt/tritonserver/bin/tritonserver ]] || fail "/opt/tritonserver/bin/tritonserver is missing: run this inside the container, which docker-run.sh starts"
[[ -x "$here/tritonserver.sh" ]] || fail "$here/tritonserver.sh may not be executed: run chmod +x on it"
[[ -d /workspace/engines/llama-3-1-8b-eagle3 ]] || fail '/workspace/engines/llama-3-1-8b-eagle3 is missing: mount it here'
[[ -d /workspace/checkpoints/meta-llama--Llama-3.1-8B-Instruct/main ]] || fail '/workspace/checkpoints/meta-llama--Llama-3.1-8B-Instruct/main is missing: mount it here'
[[ -d /workspace/checkpoints/yuhuili--EAGLE3-LLaMA3.1-Instruct-8B/main ]] || fail '/workspace/checkpoints/yuhuili--EAGLE3-LLaMA3.1-Instruct-8B/main is missing: mount it here'
# Engines run only with the versions they were built with, and only in the repository packed for them.
python3 -m specdeploy.serving.runtime_versions llama-3-1-8b-eagle3 llama-3-1-8b-eagle3 "$here"

exec "$here/tritonserver.sh" \
  --model-repository="$here" \
  --http-port=8000 \
  --grpc-port=8001 \
  --metrics-port=8002 \
  --disable-auto-complete-config
