#!/usr/bin/env bash
# Planned by a dry run of qwen3-8b-ngram, not to be served; change configs/deployments/qwen3-8b-ngram.yaml instead.
# Starts the server of this repository and stays until it ends. TensorRT-LLM 1.2.1: container image nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3.
set -euo pipefail

here="$(cd -- "$(dirname -- "$0")" && pwd)"
printenv SPECDEPLOY_ENGINES_ROOT > /dev/null || export SPECDEPLOY_ENGINES_ROOT=/workspace/engines
fail() { echo "specdeploy: launch.sh: $1" >&2; exit 1; }
[[ -x /opt/tritonserver/bin/tritonserver ]] || fail "/opt/tritonserver/bin/tritonserver is missing: run this inside the container, which docker-run.sh starts"
[[ -x "$here/tritonserver.sh" ]] || fail "$here/tritonserver.sh may not be executed: run chmod +x on it"
[[ -d /workspace/engines/qwen3-8b-ngram ]] || fail '/workspace/engines/qwen3-8b-ngram is missing: mount it here'
[[ -d /workspace/checkpoints/Qwen--Qwen3-8B/main ]] || fail '/workspace/checkpoints/Qwen--Qwen3-8B/main is missing: mount it here'
# Engines run only with the versions they were built with, and only in the repository packed for them.
python3 -m specdeploy.serving.runtime_versions qwen3-8b-ngram qwen3-8b-ngram "$here"

exec "$here/tritonserver.sh" \
  --model-repository="$here" \
  --http-port=8000 \
  --grpc-port=8001 \
  --metrics-port=8002 \
  --disable-auto-complete-config
