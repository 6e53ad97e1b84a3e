#!/usr/bin/env bash
# Planned by a dry run of llama-3-1-405b-draft-3b, not to be served; change configs/deployments/llama-3-1-405b-draft-3b.yaml instead.
# Usage: docker-run.sh SOURCE_FOLDER [ENGINES_ROOT]: the project's sources, and where builds lie.
set -euo pipefail

fail() { echo "docker-run.sh: $1" >&2; exit 1; }
[[ $# -ge 1 ]] || fail "usage: docker-run.sh SOURCE_FOLDER [ENGINES_ROOT]"
command -v docker > /dev/null || fail "docker is not installed: install it with NVIDIA's container toolkit"
repository="$(cd -- "$(dirname -- "$0")" && pwd)"
[[ -d "$1" ]] || fail "no such folder: ""$1"
source="$(cd -- "$1" && pwd)"
engines=/workspace/engines
if [[ $# -ge 2 ]]; then engines="$2"; fi
[[ -f "$source/pyproject.toml" ]] || fail "$source is not the source folder: it has no pyproject.toml"
[[ -d "$engines/"llama-3-1-405b-draft-3b ]] || fail "$engines holds no build llama-3-1-405b-draft-3b: give the folder of builds as last argument, or run make engines DEPLOYMENT=llama-3-1-405b-draft-3b and make repo DEPLOYMENT=llama-3-1-405b-draft-3b"
engines="$(cd -- "$engines" && pwd)"
for folder in "$source" "$engines" "$repository"; do
  [[ "$folder" != *[,:]* ]] || fail "$folder holds a comma or colon, which separate mounts: move it"
done

# All GPUs: a selection would be numbered anew inside, and the engines name theirs.
# The host's network: the server listens on serving.host and the ports of the config, as it would outside.
exec docker run \
  --rm \
  --init \
  --name=specdeploy-llama-3-1-405b-draft-3b \
  --gpus=all \
  --env=CUDA_DEVICE_ORDER=PCI_BUS_ID \
  --network=host \
  --ipc=host \
  --ulimit=memlock=-1 \
  --ulimit=stack=67108864 \
  --env=SPECDEPLOY_ENGINES_ROOT=/workspace/engines \
  --volume="$engines":/workspace/engines:ro \
  --volume="$repository":/opt/specdeploy-repository:ro \
  --volume="$source":/opt/specdeploy-source:ro \
  nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3 \
  bash -c 'python3 -m pip install --quiet /opt/specdeploy-source && exec bash /opt/specdeploy-repository/launch.sh'
