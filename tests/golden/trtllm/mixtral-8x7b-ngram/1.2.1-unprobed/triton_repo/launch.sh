#!/usr/bin/env bash
# Planned by a dry run of mixtral-8x7b-ngram, not to be served; change configs/deployments/mixtral-8x7b-ngram.yaml instead.
# Starts the server of this repository and stays until it ends. TensorRT-LLM 1.2.1: container image nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3.
set -euo pipefail

here="$(cd -- "$(dirname -- "$0")" && pwd)"
printenv SPECDEPLOY_ENGINES_ROOT > /dev/null || export SPECDEPLOY_ENGINES_ROOT=/workspace/engines
fail() { echo "specdeploy: launch.sh: $1" >&2; exit 1; }
[[ -x /opt/tritonserver/bin/tritonserver ]] || fail "/opt/tritonserver/bin/tritonserver is missing: run this inside the container, which docker-run.sh starts"
[[ -x "$here/tritonserver.sh" ]] || fail "$here/tritonserver.sh may not be executed: run chmod +x on it"
[[ -d /workspace/engines/mixtral-8x7b-ngram ]] || fail '/workspace/engines/mixtral-8x7b-ngram is missing: mount it here'
[[ -d /workspace/checkpoints/mistralai--Mixtral-8x7B-Instruct-v0.1/main ]] || fail '/workspace/checkpoints/mistralai--Mixtral-8x7B-Instruct-v0.1/main is missing: mount it here'
# Engines run only with the versions they were built with, and only in the repository packed for them.
python3 -m specdeploy.serving.runtime_versions mixtral-8x7b-ngram mixtral-8x7b-ngram "$here"

exec "$here/tritonserver.sh" \
  --model-repository="$here" \
  --http-port=8000 \
  --grpc-port=8001 \
  --metrics-port=8002 \
  --disable-auto-complete-config
