"""What the YAML says reaches the runtime: every key that lane torch reads, and its defaults."""

from pathlib import Path
from typing import Any

from helpers.deployment_files import write_deployment
from specdeploy.config.load import load_deployment
from specdeploy.contract import Method
from specdeploy.runtime.assemble import EngineSettings
from specdeploy.serving.adapters.torch import _engine_settings


def settings_of(tmp_path: Path, **overrides: Any) -> EngineSettings:
    return _engine_settings(load_deployment(write_deployment(tmp_path, overrides=overrides)).config, 320)


def test_defaults(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)

    assert (settings.method, settings.max_draft_len, settings.num_token_ids) == (Method.NGRAM, 4, 320)
    assert (settings.min_ngram_size, settings.max_ngram_size, settings.kv_cache_tokens) == (1, 3, None)
    assert settings.is_draft_len_dynamic
    assert settings.trees == {}


def test_every_key(tmp_path: Path) -> None:
    speculation = {
        "method": "auto",
        "max_draft_len": 5,
        "dynamic_draft_len": False,
        "draft": {"checkpoint": "head"},
        "ngram": {"min_matching_ngram_size": 2, "max_matching_ngram_size": 6},
        "eagle3": {"choices": [[0], [0, 0]]},
    }
    serving = {"max_rows": 3, "max_queue": 7, "max_seq_len": 200, "prefill_chunk": 11, "kv_cache_tokens": 400}

    settings = settings_of(tmp_path, speculation=speculation, serving=serving, dtype="bfloat16")

    assert (settings.method, settings.max_draft_len, str(settings.dtype)) == (Method.AUTO, 5, "torch.bfloat16")
    assert (settings.min_ngram_size, settings.max_ngram_size) == (2, 6)
    assert (settings.max_rows, settings.max_queue, settings.max_seq_len) == (3, 7, 200)
    assert (settings.prefill_chunk, settings.kv_cache_tokens, settings.is_draft_len_dynamic) == (11, 400, False)
    assert settings.trees == {Method.EAGLE3: ((0,), (0, 0))}


def test_methods_with_a_number_of_their_own(tmp_path: Path) -> None:
    suffix = {"method": "suffix", "max_draft_len": 4, "suffix": {"min_matching_size": 9}}
    layer_skip = {"method": "layer_skip", "max_draft_len": 4, "layer_skip": {"num_layers": 7}}

    assert settings_of(tmp_path, speculation=suffix).min_suffix_size == 9
    assert settings_of(tmp_path, speculation=layer_skip).num_skip_layers == 7
