"""Whatever a file holds, the readers answer or raise `CheckpointError`; nothing hangs, nothing allocates much."""

import contextlib
import json
import struct
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open

from helpers.fabricated_checkpoints import (
    SMALL,
    byte_level_tokenizer,
    eagle3_config,
    eagle3_tensors,
    header_bytes,
    llama_config,
    llama_tensors,
    write_weights,
)
from specdeploy.checkpoint.info import inspect_checkpoint
from specdeploy.checkpoint.json_text import parse_json_object
from specdeploy.checkpoint.safetensors_header import read_header, read_weight_files
from specdeploy.checkpoint.tokenizer import load_token_map
from specdeploy.errors import CheckpointError

MAX_SECONDS = 2.0
QUICK = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 70), 1 << 70),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["F32", "BF16", "U8", "I64", "__metadata__", "../x", "\0", "NaN"]),
)
values: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)),
    max_leaves=12,
)


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """`CheckpointError` is an answer; every other exception, and more than `MAX_SECONDS`, is a failure."""
    start = time.monotonic()
    with contextlib.suppress(CheckpointError):
        yield
    assert time.monotonic() - start < MAX_SECONDS


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def nearly_entries() -> st.SearchStrategy[dict[str, Any]]:
    """Headers that are right or nearly so."""
    size = st.integers(-1, 40)
    entry = st.fixed_dictionaries(
        {
            "dtype": st.one_of(st.sampled_from(["U8", "BOOL", "F32", "F4", "F31"]), values),
            "shape": st.one_of(st.lists(size, max_size=3), values),
            "data_offsets": st.one_of(st.tuples(size, size), values),
        }
    )
    return st.dictionaries(
        st.one_of(st.text(max_size=4), st.just("__metadata__")), st.one_of(entry, values), max_size=4
    )


def damaged(whole: bytes) -> st.SearchStrategy[bytes]:
    """`whole` with a few bytes changed, a piece cut out, or a piece repeated."""
    place = st.integers(0, len(whole) - 1)
    changed = st.lists(st.tuples(place, st.integers(0, 255)), min_size=1, max_size=6)

    def change(edits: list[tuple[int, int]]) -> bytes:
        result = bytearray(whole)
        for at, byte in edits:
            result[at] = byte
        return bytes(result)

    return st.one_of(
        changed.map(change),
        st.tuples(place, place).map(lambda ends: whole[: min(ends)] + whole[max(ends) :]),
        st.tuples(place, place).map(lambda ends: whole[: max(ends)] + whole[min(ends) :]),
    )


def accepted_by_library(path: Path) -> set[str] | None:
    try:
        with safe_open(path, framework="np") as library:
            return set(library.keys())
    except (SafetensorError, OSError):
        return None


@QUICK
@given(raw=st.binary(max_size=200))
def test_random_bytes(folder: Path, raw: bytes) -> None:
    for name in ("config.json", "tokenizer.json", "tokenizer.model", "model.safetensors"):
        (folder / name).write_bytes(raw)
    with bounded():
        read_header(folder / "model.safetensors")
    with bounded():
        load_token_map(folder)
    with bounded():
        parse_json_object(raw, "x")
    with bounded():
        inspect_checkpoint(folder)


@QUICK
@given(header=nearly_entries(), length=st.one_of(st.none(), st.integers(0, (1 << 64) - 1)), num_data=st.integers(0, 40))
def test_headers_are_judged_as_by_the_library(
    folder: Path, header: dict[str, Any], length: int | None, num_data: int
) -> None:
    path = folder / "fuzzed"
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + bytes(num_data))
    names = None
    with bounded():
        names = set(read_header(path))

    if names is not None:  # what we accept, the library accepts, and sees the same tensors
        assert accepted_by_library(path) == names


WHOLE = header_bytes({"a": ("U8", (3,)), "b.c": ("F32", (2, 1)), "d": ("BF16", (0, 4))})[0] + bytes(11)


@QUICK
@given(raw=damaged(WHOLE))
def test_damaged_files_are_judged_as_by_the_library(folder: Path, raw: bytes) -> None:
    path = folder / "damaged"
    path.write_bytes(raw)
    names = None
    with bounded():
        names = set(read_header(path))

    if names is not None:
        assert accepted_by_library(path) == names


@QUICK
@given(content=st.one_of(values, st.fixed_dictionaries({"weight_map": values})))
def test_index(folder: Path, content: Any) -> None:
    place = folder / "indexed"
    place.mkdir(exist_ok=True)
    (place / "model.safetensors.index.json").write_text(json.dumps(content))
    with bounded():
        read_weight_files(place)


CONFIG = json.dumps(
    eagle3_config(SMALL, "modelopt", draft_vocab=100, rope_scaling={"type": "yarn", "factor": 2})
).encode()


@QUICK
@given(raw=st.one_of(damaged(CONFIG), values.map(lambda value: json.dumps(value).encode())))
def test_config(folder: Path, raw: bytes) -> None:
    place = folder / "configured"
    place.mkdir(exist_ok=True)
    (place / "config.json").write_bytes(raw)
    with bounded():
        inspect_checkpoint(place)


@QUICK
@given(data=st.data())
def test_config_with_any_value_of_any_key(folder: Path, data: st.DataObject) -> None:
    """Every key that a reader looks at, with whatever value, beside the weights of a head."""
    place = folder / "valued"
    if not place.is_dir():
        place.mkdir()
        header, _, num_bytes = header_bytes(eagle3_tensors(SMALL, draft_vocab=100))
        with (place / "model.safetensors").open("wb") as file:
            file.write(header)
            file.truncate(len(header) + num_bytes)
    config = eagle3_config(SMALL, "modelopt", draft_vocab=100)
    more = ["quantization_config", "kv_lora_rank", "num_experts", "num_experts_per_tok", "layer_types", "text_config"]
    more += ["speculators_config", "transformer_layer_config", "target_hidden_size", "num_aux_layers"]
    changed = data.draw(st.dictionaries(st.sampled_from([*config, *more]), values, min_size=1, max_size=3))
    (place / "config.json").write_text(json.dumps({**config, **changed}))
    (place / "generation_config.json").write_text(json.dumps({"eos_token_id": data.draw(values)}))
    (place / "tokenizer_config.json").write_text(json.dumps({"chat_template": data.draw(values)}))
    with bounded():
        inspect_checkpoint(place)


# Numbers that are right for JSON and wrong for a model: loops and shifts over them would never end.
huge = st.one_of(
    st.integers(-2, 40),
    st.integers(1, 20).map(lambda exponent: 10**exponent),
    st.integers(0, 70).map(lambda bit: 1 << bit),
)
COUNTS = (
    *("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_size", "vocab_size"),
    *("intermediate_size", "num_experts", "num_experts_per_tok", "n_shared_experts", "moe_intermediate_size"),
    *("first_k_dense_replace", "decoder_sparse_step", "moe_layer_freq", "expert_layer_period", "expert_layer_offset"),
    *("full_attention_interval", "attn_layer_period", "attn_layer_offset", "num_nextn_predict_layers"),
    *("kv_lora_rank", "qk_rope_head_dim", "medusa_num_heads", "medusa_num_layers", "mlp_only_layers"),
)


@QUICK
@given(counts=st.dictionaries(st.sampled_from(COUNTS), huge, min_size=1, max_size=8), has_weights=st.booleans())
def test_config_with_large_numbers(folder: Path, counts: dict[str, int], has_weights: bool) -> None:
    place = folder / f"numbered-{has_weights}"
    if not place.is_dir():
        place.mkdir()
        if has_weights:
            write_weights(place, llama_tensors(SMALL))
    (place / "config.json").write_text(json.dumps({**llama_config(SMALL), **counts}))
    with bounded():
        inspect_checkpoint(place)


TOKENIZER = json.dumps(byte_level_tokenizer(280, num_merges=3)).encode()


@QUICK
@given(
    raw=st.one_of(
        damaged(TOKENIZER),
        st.fixed_dictionaries({"model": st.fixed_dictionaries({"vocab": values}), "added_tokens": values}).map(
            lambda value: json.dumps(value).encode()
        ),
    )
)
def test_tokenizer(folder: Path, raw: bytes) -> None:
    place = folder / "tokenized"
    place.mkdir(exist_ok=True)
    (place / "tokenizer.json").write_bytes(raw)
    with bounded():
        load_token_map(place)


BOMBS = {
    "brackets": b'{"a":' + b"[" * 20_000_000,
    "empty lists": b'{"__metadata__":{},"a":[' + b"[]," * 7_000_000,
    "short pairs": b"{" + b",".join(b'"%d":1' % index for index in range(900_000)) + b"}",
    "backslashes": b'{"a":"' + b"\\" * 24_000_000 + b'"}',
    "quotes": b'{"merges":[' + b'"' * 20_000_000,
    "digits": b'{"a":{"dtype":"F32","shape":[' + b"1" * 20_000_000 + b"]}}",
    "blanks": b"{" + b" " * 24_000_000,
    "one long name": b'{"' + b"a" * 24_000_000 + b'":1}',
}


@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.parametrize("place", ["header", "index", "config.json", "tokenizer.json"])
def test_bombs_cost_little_more_than_their_bytes(tmp_path: Path, bomb: str, place: str) -> None:
    """Python objects never take more than a few times the file, which is bounded itself."""
    raw = BOMBS[bomb]
    name = {"header": "model.safetensors", "index": "model.safetensors.index.json"}.get(place, place)
    (tmp_path / name).write_bytes(struct.pack("<Q", len(raw)) + raw if place == "header" else raw)
    readers: dict[str, Callable[[], object]] = {
        "header": lambda: read_header(tmp_path / name),
        "index": lambda: read_weight_files(tmp_path),
        "config.json": lambda: inspect_checkpoint(tmp_path),
        "tokenizer.json": lambda: load_token_map(tmp_path),
    }

    tracemalloc.start()
    start = time.monotonic()
    try:
        with pytest.raises(CheckpointError):
            readers[place]()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 250 << 20
    assert time.monotonic() - start < 10
