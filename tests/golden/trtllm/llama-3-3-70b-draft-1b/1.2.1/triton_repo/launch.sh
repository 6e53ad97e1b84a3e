#!/usr/bin/env bash
# Planned by a dry run of llama-3-3-70b-draft-1b, not to be served; change configs/deployments/llama-3-3-70b-draft-1b.yaml instead.
# Starts the server of this repository and stays until it ends. TensorRT-LLM 1.2.1: container image nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3.
set -euo pipefail

here="$(cd -- "$(dirname -- "$0")" && pwd)"
printenv SPECDEPLOY_ENGINES_ROOT > /dev/null || export SPECDEPLOY_ENGINES_ROOT=/workspace/engines
fail() { echo "specdeploy: launch.sh: $1" >&2; exit 1; }
[[ -x /opt/tritonserver/bin/tritonserver ]] || fail "/opt/tritonserver/bin/tritonserver is missing: run this inside the container, which docker-run.sh starts"
[[ -x "$here/tritonserver.sh" ]] || fail "$here/tritonserver.sh may not be executed: run chmod +x on it"
[[ -d /workspace/engines/llama-3-3-70b-draft-1b/target_engine ]] || fail '/workspace/engines/llama-3-3-70b-draft-1b/target_engine is missing: mount it here'
[[ -d /workspace/engines/llama-3-3-70b-draft-1b/draft_engine ]] || fail '/workspace/engines/llama-3-3-70b-draft-1b/draft_engine is missing: mount it here'
[[ -f /app/scripts/launch_triton_server.py ]] || fail "/app/scripts/launch_triton_server.py is missing: this is not a TensorRT-LLM container"
# Engines run only with the versions they were built with, and only in the repository packed for them.
python3 -m specdeploy.serving.runtime_versions llama-3-3-70b-draft-1b llama-3-3-70b-draft-1b "$here"

# The launcher returns at once; what it started is waited for.
exec python3 -m specdeploy.serving.foreground python3 /app/scripts/launch_triton_server.py \
  --model_repo="$here" \
  --tritonserver="$here/tritonserver.sh" \
  --multi-model \
  --world_size=1 \
  --tensorrt_llm_model_name=target,draft \
  --http_port=8000 \
  --grpc_port=8001 \
  --metrics_port=8002 \
  --force
