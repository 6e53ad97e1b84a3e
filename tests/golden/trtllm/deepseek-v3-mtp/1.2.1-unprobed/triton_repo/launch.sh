#!/usr/bin/env bash
# Planned by a dry run of deepseek-v3-mtp, not to be served; change configs/deployments/deepseek-v3-mtp.yaml instead.
# Starts the server of this repository and stays until it ends. TensorRT-LLM 1.2.1: container image nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3.
set -euo pipefail

here="$(cd -- "$(dirname -- "$0")" && pwd)"
printenv SPECDEPLOY_ENGINES_ROOT > /dev/null || export SPECDEPLOY_ENGINES_ROOT=/workspace/engines
fail() { echo "specdeploy: launch.sh: $1" >&2; exit 1; }
[[ -x /opt/tritonserver/bin/tritonserver ]] || fail "/opt/tritonserver/bin/tritonserver is missing: run this inside the container, which docker-run.sh starts"
[[ -x "$here/tritonserver.sh" ]] || fail "$here/tritonserver.sh may not be executed: run chmod +x on it"
[[ -d /workspace/engines/deepseek-v3-mtp ]] || fail '/workspace/engines/deepseek-v3-mtp is missing: mount it here'
[[ -d /workspace/checkpoints/deepseek-ai--DeepSeek-V3/main ]] || fail '/workspace/checkpoints/deepseek-ai--DeepSeek-V3/main is missing: mount it here'
# Engines run only with the versions they were built with, and only in the repository packed for them.
python3 -m specdeploy.serving.runtime_versions deepseek-v3-mtp deepseek-v3-mtp "$here"

exec "$here/tritonserver.sh" \
  --model-repository="$here" \
  --http-port=8000 \
  --grpc-port=8001 \
  --metrics-port=8002 \
  --disable-auto-complete-config
