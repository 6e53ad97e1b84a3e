"""Heads of four producers in one record: generation by shape, every tensor's origin, every switch kept."""

from pathlib import Path
from typing import Any

import pytest

from helpers.fabricated_checkpoints import (
    LLAMA_8B,
    SMALL,
    Shapes,
    eagle1_tensors,
    eagle3_config,
    eagle3_tensors,
    llama_config,
    llama_tensors,
    write_checkpoint,
)
from specdeploy.checkpoint.eagle_head import render_head_config
from specdeploy.checkpoint.info import inspect_checkpoint
from specdeploy.checkpoint_contract import CheckpointInfo, CheckpointKind, HeadFacts, HeadLayout, TensorOrigin
from specdeploy.errors import CheckpointError

LAYOUTS = ["safeailab", "specforge", "speculators", "modelopt"]


def inspect(folder: Path, config: dict[str, Any], shapes: Shapes) -> CheckpointInfo:
    return inspect_checkpoint(write_checkpoint(folder, config, shapes))


def head_of(info: CheckpointInfo) -> HeadFacts:
    assert info.head is not None
    return info.head


@pytest.mark.parametrize("layout", LAYOUTS)
def test_four_layouts_give_one_record(tmp_path: Path, layout: str) -> None:
    prefix = "midlayer." if layout in ("safeailab", "specforge") else "layers.0."
    info = inspect(
        tmp_path,
        eagle3_config(LLAMA_8B, layout, draft_vocab=32000),
        eagle3_tensors(LLAMA_8B, draft_vocab=32000, prefix=prefix),
    )

    head = head_of(info)

    assert info.kind is CheckpointKind.EAGLE3
    assert head.layout is HeadLayout(layout)
    assert head.generation == "v3"
    assert head.declared_generation == (None if layout == "safeailab" else "v3")
    assert (head.fc_in_features, head.fc_out_features) == (3 * 4096, 4096)
    assert (head.num_layers, head.hidden_size, head.target_hidden_size) == (1, 4096, 4096)
    assert (head.draft_vocab_size, head.target_vocab_size, head.num_aux_layers) == (32000, 128256, 3)
    assert (head.aux_layer_ids, head.aux_layer_ids_source) == (None, None)
    assert (head.has_own_lm_head, head.has_own_embedding, head.has_d2t, head.has_t2d) == (True, False, True, True)
    assert head.tensors["embed_tokens.weight"] is TensorOrigin.BORROWED_FROM_TARGET
    assert TensorOrigin.MISSING not in head.tensors.values()
    assert head.unexpected_tensors == ()
    assert head.unknown_config_keys == ()
    assert (info.max_positions, info.num_layers) == (2048, 1)
    assert (info.vocabulary.lm_head_rows, info.vocabulary.embedding_rows) == (32000, None)


class TestGeneration:
    @pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "LlamaForCausalLMEagle", "LlamaForCausalLMEagle3"])
    def test_v1_is_v1_whatever_it_is_called(self, tmp_path: Path, architecture: str) -> None:
        config = llama_config(SMALL, num_hidden_layers=1, architectures=[architecture])
        info = inspect(tmp_path, config, eagle1_tensors(SMALL))

        head = head_of(info)

        assert (info.kind, head.generation) == (CheckpointKind.EAGLE, "v1")
        assert head.declared_generation == {"LlamaForCausalLMEagle": "v1", "LlamaForCausalLMEagle3": "v3"}.get(
            architecture
        )
        assert (head.fc_in_features, head.target_hidden_size) == (2 * SMALL.hidden, SMALL.hidden)
        assert head.tensors["lm_head.weight"] is TensorOrigin.BORROWED_FROM_TARGET
        assert TensorOrigin.MISSING not in head.tensors.values()

    def test_two_auxiliary_layers_are_not_v1(self, tmp_path: Path) -> None:
        shapes = eagle3_tensors(SMALL, draft_vocab=100, num_aux=2)
        config = eagle3_config(
            SMALL, "modelopt", draft_vocab=100, eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 3]}
        )

        head = head_of(inspect(tmp_path, config, shapes))

        assert (head.generation, head.num_aux_layers, head.target_hidden_size) == ("v3", 2, SMALL.hidden)

    def test_head_narrower_than_its_target(self, tmp_path: Path) -> None:
        shapes = eagle3_tensors(SMALL, draft_vocab=100, target_hidden=160, embedding=True)
        config = eagle3_config(SMALL, "speculators", draft_vocab=100, target_hidden_size=160)

        head = head_of(inspect(tmp_path, config, shapes))

        assert (head.num_aux_layers, head.target_hidden_size, head.hidden_size) == (3, 160, 64)

    def test_modelopt_head_on_the_last_hidden_state_has_no_fc(self, tmp_path: Path) -> None:
        shapes = eagle3_tensors(SMALL, draft_vocab=SMALL.vocab, prefix="layers.0.", maps=False)
        del shapes["fc.weight"], shapes["layers.0.hidden_norm.weight"]
        config = eagle3_config(SMALL, "modelopt", draft_vocab=None, eagle_config={"use_aux_hidden_state": False})

        info = inspect(tmp_path, config, shapes)

        assert (info.kind, head_of(info).num_aux_layers) == (CheckpointKind.EAGLE3, 1)
        assert TensorOrigin.MISSING not in head_of(info).tensors.values()
        assert "fc.weight" not in head_of(info).tensors


class TestBias:
    @pytest.mark.parametrize(
        ("stated", "stored", "needed", "unexpected"),
        [
            (True, True, TensorOrigin.IN_HEAD, ()),
            (True, False, TensorOrigin.MISSING, ()),
            (False, True, None, ("fc.bias",)),
            (False, False, None, ()),
            (None, True, None, ()),
        ],
    )
    def test_fc_bias_against_its_flag(
        self,
        tmp_path: Path,
        stated: bool | None,
        stored: bool,
        needed: TensorOrigin | None,
        unexpected: tuple[str, ...],
    ) -> None:
        flag: dict[str, Any] = {} if stated is None else {"bias": stated}
        config = llama_config(SMALL, num_hidden_layers=1, **flag)

        head = head_of(inspect(tmp_path, config, eagle1_tensors(SMALL, bias=stored)))

        assert head.has_fc_bias is stored
        assert head.tensors.get("fc.bias") is needed
        assert head.unexpected_tensors == unexpected


class TestOrigins:
    def test_reduced_vocabulary_cannot_borrow_the_lm_head(self, tmp_path: Path) -> None:
        shapes = eagle3_tensors(SMALL, draft_vocab=100, lm_head=False, maps=False)

        head = head_of(inspect(tmp_path, eagle3_config(SMALL, "specforge", draft_vocab=100), shapes))

        assert head.tensors["lm_head.weight"] is TensorOrigin.MISSING
        assert head.tensors["d2t"] is TensorOrigin.MISSING

    def test_full_vocabulary_can(self, tmp_path: Path) -> None:
        shapes = eagle3_tensors(SMALL, draft_vocab=SMALL.vocab, lm_head=False, maps=False)

        head = head_of(inspect(tmp_path, eagle3_config(SMALL, "specforge", draft_vocab=SMALL.vocab), shapes))

        assert head.tensors["lm_head.weight"] is TensorOrigin.BORROWED_FROM_TARGET
        assert "d2t" not in head.tensors

    def test_narrow_head_cannot_borrow_embeddings(self, tmp_path: Path) -> None:
        shapes = eagle3_tensors(SMALL, draft_vocab=100, target_hidden=128)
        config = eagle3_config(SMALL, "speculators", draft_vocab=100, target_hidden_size=128)

        assert head_of(inspect(tmp_path, config, shapes)).tensors["embed_tokens.weight"] is TensorOrigin.MISSING

    def test_missing_and_surplus_tensors_are_named(self, tmp_path: Path) -> None:
        shapes = eagle3_tensors(SMALL, draft_vocab=100)
        del shapes["midlayer.mlp.up_proj.weight"]
        shapes |= {"midlayer.self_attn.q_proj.bias": ("BF16", (64,)), "strange.weight": ("BF16", (2,))}

        head = head_of(inspect(tmp_path, eagle3_config(SMALL, "safeailab", draft_vocab=100), shapes))

        missing = [name for name, origin in head.tensors.items() if origin is TensorOrigin.MISSING]
        assert missing == ["layers.0.mlp.up_proj.weight"]
        assert head.unexpected_tensors == ("layers.0.self_attn.q_proj.bias", "strange.weight")

    def test_second_layer_reads_one_state(self, tmp_path: Path) -> None:
        shapes = eagle3_tensors(SMALL, draft_vocab=100, prefix="layers.0.")
        config = eagle3_config(SMALL, "modelopt", draft_vocab=100, num_hidden_layers=2)

        head = head_of(inspect(tmp_path, config, shapes))

        assert head.tensors["layers.1.input_layernorm.weight"] is TensorOrigin.MISSING
        assert "layers.1.hidden_norm.weight" not in head.tensors


FLAT = "eagle_aux_hidden_state_layer_ids"


class TestAuxiliaryLayers:
    @pytest.mark.parametrize(
        ("layout", "overrides", "source", "after"),
        [
            ("specforge", {FLAT: [1, 21, 40]}, FLAT, (1, 21, 40)),
            ("speculators", {FLAT: [1, 21, 40]}, FLAT, (1, 21, 40)),
            ("specforge", {"target_layer_ids": [1, 21, 40]}, "target_layer_ids", (2, 22, 41)),
            ("specforge", {"dflash_config": {"target_layer_ids": [1, 21, 40]}}, "dflash_config.target_layer_ids",
             (2, 22, 41)),
            ("modelopt", {"eagle_config": {FLAT: [1, 21, 40]}}, f"eagle_config.{FLAT}", (2, 22, 41)),
            ("modelopt", {"eagle_config": {FLAT: [1, 40, 21]}}, f"eagle_config.{FLAT}", (2, 22, 41)),
        ],
    )  # fmt: skip
    def test_found_wherever_a_producer_puts_them(
        self, tmp_path: Path, layout: str, overrides: dict[str, Any], source: str, after: tuple[int, ...]
    ) -> None:
        """Under eagle_config, and as target_layer_ids, they number outputs of layers; flat, states before them."""
        config = eagle3_config(SMALL, layout, draft_vocab=100, **overrides)

        head = head_of(inspect(tmp_path, config, eagle3_tensors(SMALL, draft_vocab=100)))

        assert (head.aux_layer_ids, head.aux_layer_ids_source, head.num_aux_layers) == ((1, 21, 40), source, 3)
        assert head.aux_states == after

    def test_two_places_that_differ_are_both_named(self, tmp_path: Path) -> None:
        nested = {"eagle_aux_hidden_state_layer_ids": [2, 20, 39]}
        config = eagle3_config(
            SMALL, "modelopt", draft_vocab=100, eagle_config=nested, eagle_aux_hidden_state_layer_ids=[1, 21, 40]
        )

        head = head_of(inspect(tmp_path, config, eagle3_tensors(SMALL, draft_vocab=100)))

        assert head.aux_layer_ids == (1, 21, 40)
        assert "eagle_config.eagle_aux_hidden_state_layer_ids says [2, 20, 39]" in (head.aux_layer_ids_source or "")

    def test_two_places_that_say_the_same_in_their_own_way(self, tmp_path: Path) -> None:
        config = eagle3_config(
            SMALL, "modelopt", draft_vocab=100, eagle_config={FLAT: [1, 20, 39]}, **{FLAT: [2, 21, 40]}
        )

        head = head_of(inspect(tmp_path, config, eagle3_tensors(SMALL, draft_vocab=100)))

        assert (head.aux_layer_ids, head.aux_layer_ids_source) == ((2, 21, 40), FLAT)

    def test_an_empty_list_is_none(self, tmp_path: Path) -> None:
        config = eagle3_config(
            SMALL, "modelopt", draft_vocab=100, eagle_config={"eagle_aux_hidden_state_layer_ids": []}
        )

        assert head_of(inspect(tmp_path, config, eagle3_tensors(SMALL, draft_vocab=100))).aux_layer_ids is None

    def test_ids_that_are_no_numbers(self, tmp_path: Path) -> None:
        config = eagle3_config(SMALL, "specforge", draft_vocab=100, eagle_aux_hidden_state_layer_ids=[1, "x"])

        with pytest.raises(CheckpointError, match="eagle_aux_hidden_state_layer_ids: must be whole numbers"):
            inspect(tmp_path, config, eagle3_tensors(SMALL, draft_vocab=100))


class TestNorms:
    def test_switches_and_their_tensors(self, tmp_path: Path) -> None:
        shapes = eagle3_tensors(SMALL, draft_vocab=100)
        shapes |= {f"fc_norm.{index}.weight": ("BF16", (64,)) for index in range(3)}
        config = eagle3_config(SMALL, "specforge", draft_vocab=100, fc_norm=True, norm_output=True)

        head = head_of(inspect(tmp_path, config, shapes))

        assert head.norm_switches == {"fc_norm": True, "norm_output": True}
        assert head.norm_tensors == ("fc_norm.0.weight", "fc_norm.1.weight", "fc_norm.2.weight")
        assert head.defaults_applied == {"norm_before_residual": "false", "norm_before_fc": "false"}
        assert TensorOrigin.MISSING not in head.tensors.values()

    def test_flag_without_tensor_and_tensor_without_flag(self, tmp_path: Path) -> None:
        shapes = {**eagle3_tensors(SMALL, draft_vocab=100), "fc_norm.0.weight": ("BF16", (64,))}
        config = eagle3_config(SMALL, "modelopt", draft_vocab=100, eagle_config={"norm_before_fc": True})

        head = head_of(inspect(tmp_path, config, shapes))

        assert head.norm_switches["norm_before_fc"] is True
        assert head.tensors["input_norm.weight"] is TensorOrigin.MISSING
        assert head.unexpected_tensors == ("fc_norm.0.weight",)

    def test_unknown_keys_are_named(self, tmp_path: Path) -> None:
        config = eagle3_config(
            SMALL, "modelopt", draft_vocab=100, eagle_config={"use_residual_twist": 1}, gate_scale=2.0
        )

        head = head_of(inspect(tmp_path, config, eagle3_tensors(SMALL, draft_vocab=100)))

        assert head.unknown_config_keys == ("eagle_config.use_residual_twist", "gate_scale")

    @pytest.mark.parametrize("section", ["transformer_layer_config", "speculators_config"])
    def test_speculators_nested_switches_and_keys(self, tmp_path: Path, section: str) -> None:
        config = eagle3_config(SMALL, "speculators", draft_vocab=100)
        config[section] = {**config[section], "norm_before_fc": True, "fc_norm": False, "gate_scale": 2.0}

        head = head_of(inspect(tmp_path, config, eagle3_tensors(SMALL, draft_vocab=100)))

        assert head.norm_switches == {"norm_before_residual": True, "norm_before_fc": True, "fc_norm": False}
        assert head.defaults_applied == {"norm_output": "false"}
        assert head.tensors["input_norm.weight"] is TensorOrigin.MISSING
        assert head.unknown_config_keys == (f"{section}.gate_scale",)

    def test_switch_that_two_places_state_differently(self, tmp_path: Path) -> None:
        config = eagle3_config(SMALL, "speculators", draft_vocab=100, norm_before_fc=False)
        config["transformer_layer_config"]["norm_before_fc"] = True

        head = head_of(inspect(tmp_path, config, eagle3_tensors(SMALL, draft_vocab=100)))

        assert head.norm_switches["norm_before_fc"] is False
        assert head.unknown_config_keys == ("transformer_layer_config.norm_before_fc",)

    @pytest.mark.parametrize("ids", [[0, 2, 3], [1, 2, 3]])
    @pytest.mark.parametrize("from_layout", ["speculators", "modelopt"])
    @pytest.mark.parametrize("to_layout", LAYOUTS)
    def test_nothing_is_lost_between_producers(
        self, tmp_path: Path, to_layout: str, from_layout: str, ids: list[int]
    ) -> None:
        """Ids may be written as another producer counts them: the states they mean are the same."""
        shapes = eagle3_tensors(SMALL, draft_vocab=100)
        stated: dict[str, Any] = {FLAT: ids, "norm_before_residual": True, "fc_norm": False, "norm_before_fc": False}
        if from_layout == "modelopt":
            stated = {"eagle_config": stated}
        config = eagle3_config(SMALL, from_layout, draft_vocab=100, **stated)
        first = head_of(inspect(tmp_path / "first", config, shapes))

        rendered = render_head_config(first, HeadLayout(to_layout))
        second = head_of(inspect(tmp_path / "second", rendered, shapes))

        told = {"layout", "declared_generation", "aux_layer_ids_source"}
        if to_layout != from_layout:
            told |= {"aux_layer_ids", "aux_ids_name_outputs"}
        assert second.layout is HeadLayout(to_layout)
        assert second.aux_states == first.aux_states
        assert second.model_dump(exclude=told) == first.model_dump(exclude=told)


def test_speculators_eagle1_has_its_own_names(tmp_path: Path) -> None:
    shapes = {
        name.replace("fc.", "fusion_fc.").replace("layers.0.", "transformer."): shape
        for name, shape in eagle1_tensors(SMALL).items()
    }
    config = {
        "architectures": ["EagleSpeculator"],
        "speculators_model_type": "eagle",
        "transformer_layer_config": llama_config(SMALL, num_hidden_layers=1),
        "fusion_bias": False,
    }

    info = inspect(tmp_path, config, shapes)

    assert (info.kind, head_of(info).layout) == (CheckpointKind.EAGLE, HeadLayout.SPECULATORS)
    assert TensorOrigin.MISSING not in head_of(info).tensors.values()
    assert head_of(info).unexpected_tensors == ()


def test_quantised_head_has_its_weights(tmp_path: Path) -> None:
    shapes = eagle3_tensors(SMALL, draft_vocab=100)
    packed: Shapes = {}
    for name, (dtype, shape) in shapes.items():
        if "proj" in name:
            packed |= {name: ("F8_E4M3", shape), f"{name}_scale": ("F32", (1,))}
        else:
            packed[name] = (dtype, shape)

    head = head_of(inspect(tmp_path, eagle3_config(SMALL, "modelopt", draft_vocab=100), packed))

    assert TensorOrigin.MISSING not in head.tensors.values()
    assert head.unexpected_tensors == ()


def test_eagle_vision_models_are_no_heads(tmp_path: Path) -> None:
    config = llama_config(SMALL, architectures=["Eagle2_5_VLForConditionalGeneration"])

    assert inspect(tmp_path, config, llama_tensors(SMALL)).kind is CheckpointKind.CAUSAL_LM
