"""The LLM objects of a build: from their argument files to loaded instances.

From a YAML mapping to LLM(**arguments) there is one way for all: `trtllm.class_arguments`, as in the probe and the
warm-up, so that what was tried at the build is what is served. NVIDIA/TensorRT-LLM's own Triton model
(triton_backend/all_models/llmapi/tensorrt_llm/1/model.py@044a90d2 and @b35ac1b6) calls llm_utils
update_llm_args_with_extra_dict({}, mapping), which does the same for the keys this project writes. TensorRT-LLM is
imported here, and only when a deployment of this lane is loaded.
"""

import importlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from packaging.version import InvalidVersion, Version

from specdeploy.errors import BuildError, SpecDeployError
from specdeploy.serving.adapters.llmapi_placement import Instance, Setup
from specdeploy.serving.adapters.llmapi_request import refuse_unknown_fields
from specdeploy.trtllm.class_arguments import class_arguments
from specdeploy.trtllm.llm_args import UNRESOLVED

ARGUMENT_FILES = {Instance.SPECULATIVE: "llm_args.yaml", Instance.PLAIN: "llm_args_plain.yaml"}
_PATH_KEYS = ("model", "tokenizer")
_DRAFT_PATH_KEYS = ("speculative_model_dir", "speculative_model")


@dataclass(slots=True, eq=False)
class LoadedInstance:
    """One LLM object. `num_active` requests are inside it."""

    setup: Setup
    llm: Any
    num_active: int = 0


@dataclass(frozen=True, slots=True)
class Library:
    """What is used of the installed tensorrt_llm."""

    version: Version
    llm_class: Any
    sampling_params_class: Any
    guided_decoding_params_class: Any
    llm_args_module: Any

    def sampling_params(self, arguments: Mapping[str, Any]) -> Any:
        """A SamplingParams of `sampling_arguments`. Raises RequestError for a field this version lacks."""
        values = dict(arguments)
        refuse_unknown_fields(values, self.sampling_params_class)
        if "embedding_bias" in values:
            import torch  # a dependency of tensorrt_llm, which is loaded when this runs

            values["embedding_bias"] = torch.from_numpy(values["embedding_bias"])
        if "guided_decoding" in values:
            values["guided_decoding"] = self.guided_decoding_params_class(**values["guided_decoding"])
        return self.sampling_params_class(**values)


def read_arguments(build_folder: Path, instance: Instance, deployment: str) -> dict[str, Any]:
    """The arguments of one instance, paths below the build made absolute. Raises BuildError naming file and remedy."""
    path = build_folder / ARGUMENT_FILES[instance]
    remedy = f"Run `make engines DEPLOYMENT={deployment}`."
    try:
        arguments = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BuildError(f"{path}: cannot be read ({error.strerror or error}). {remedy}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BuildError(f"{path}: is no YAML ({' '.join(str(error).split())}). {remedy}") from error
    if not isinstance(arguments, dict) or not isinstance(arguments.get("model"), str):
        raise BuildError(f"{path}: model: is missing. {remedy}")
    speculation = arguments.get("speculative_config")
    if instance is Instance.SPECULATIVE and not isinstance(speculation, dict):
        raise BuildError(f"{path}: speculative_config: is missing. {remedy}")
    if instance is Instance.PLAIN and speculation is not None:
        raise BuildError(f"{path}: speculative_config: the plain instance must not have it. {remedy}")
    if unresolved := sorted(_unresolved_keys(arguments)):
        raise BuildError(
            f"{path}: {', '.join(unresolved)}: not settled for the installed TensorRT-LLM. Build where it is installed"
        )
    _resolve(arguments, _PATH_KEYS, build_folder)
    if speculation is not None:
        _resolve(speculation, _DRAFT_PATH_KEYS, build_folder)
    return arguments


def read_vocab_size(target_folder: Path) -> int:
    """Rows of the target's output layer. Raises SpecDeployError when its config.json does not say."""
    path = target_folder / "config.json"
    try:
        return int(json.loads(path.read_bytes())["vocab_size"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SpecDeployError(f"{path}: vocab_size: cannot be read ({describe(error)}). Build again") from error


def _unresolved_keys(value: Any, key: str = "") -> Iterator[str]:
    if isinstance(value, str) and value.startswith(UNRESOLVED):
        yield key
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _unresolved_keys(item, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _unresolved_keys(item, f"{key}[{index}]")


def _resolve(arguments: dict[str, Any], keys: tuple[str, ...], build_folder: Path) -> None:
    """A relative path that exists in the build means that folder; anything else (a hub id) is left as it is."""
    for key in keys:
        value = arguments.get(key)
        if isinstance(value, str) and not os.path.isabs(value) and (build_folder / value).exists():
            arguments[key] = str((build_folder / value).resolve())


def load_library(expected_version: str) -> Library:
    """Import TensorRT-LLM. Raises SpecDeployError when it is not there, not usable or another version."""
    remedy = f"Serve this deployment in a container of TensorRT-LLM {expected_version}, on a machine with its GPUs"
    try:
        package = importlib.import_module("tensorrt_llm")
        library = Library(
            version=Version(package.__version__),
            llm_class=package.LLM,
            sampling_params_class=package.SamplingParams,
            guided_decoding_params_class=importlib.import_module("tensorrt_llm.sampling_params").GuidedDecodingParams,
            llm_args_module=importlib.import_module("tensorrt_llm.llmapi.llm_args"),
        )
    # Its import loads CUDA and MPI: a missing library is an OSError, a missing GPU often a RuntimeError.
    except (ImportError, OSError, RuntimeError, AttributeError, InvalidVersion) as error:
        raise SpecDeployError(f"tensorrt_llm cannot be imported ({describe(error)}). {remedy}") from error
    if library.version.public != Version(expected_version).public:
        raise SpecDeployError(
            f"tensorrt_llm.version: built for {expected_version}, installed is {library.version}. {remedy}"
            " or build again for the installed version"
        )
    return library


def load_instance(library: Library, instance: Instance, arguments: Mapping[str, Any], source: Path) -> LoadedInstance:
    """Make the LLM object; blocks until its weights are loaded. Raises SpecDeployError with the cause.

    `source` is the argument file, for the message.
    """
    try:
        llm = library.llm_class(**class_arguments(arguments, library.llm_args_module))
    except (Exception, SystemExit) as error:  # whatever it raises: configuration, memory, CUDA, MPI
        raise SpecDeployError(
            f"{source}: the {instance} instance did not load ({describe(error)}). TensorRT-LLM's own lines in the log"
            " of the server say more; where memory is short, lower serving.max_rows, serving.max_seq_len or"
            " tensorrt_llm.kv_cache_fraction and build again"
        ) from error
    return LoadedInstance(Setup(library.version, arguments), llm)


def describe(error: BaseException) -> str:
    """One line of an exception: its type and its text."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
