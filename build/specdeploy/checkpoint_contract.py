"""What files alone say of one checkpoint (`CheckpointInfo`), and of a target and its draft together (`PairReport`).

Both are JSON files like the types of `contract`, whose base they share. `None` means "the files do not say", never
zero and never a default: a default that a reader applied is listed where it was applied.
"""

from enum import StrEnum
from typing import Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from specdeploy.contract import ContractModel, Lane, Method


class CheckpointKind(StrEnum):
    """What a folder of weights is. `eagle` covers EAGLE-1 and EAGLE-2: their heads have the same tensors."""

    CAUSAL_LM = "causal_lm"
    EAGLE = "eagle"
    EAGLE3 = "eagle3"
    MEDUSA = "medusa"


class HeadLayout(StrEnum):
    """Who wrote an EAGLE or Medusa head, told from the spelling of its config and tensors."""

    SAFEAILAB = "safeailab"
    SPECFORGE = "specforge"
    SPECULATORS = "speculators"
    MODELOPT = "modelopt"
    MEDUSA = "medusa"


class TensorOrigin(StrEnum):
    """Where a tensor that the forward pass of a head needs comes from."""

    IN_HEAD = "in head"
    BORROWED_FROM_TARGET = "borrowed from target"
    MISSING = "missing"


# --- one checkpoint -------------------------------------------------------------------------------------------------


class VocabularySizes(ContractModel):
    """Four counts of one vocabulary; they differ where rows were added as padding.

    `tokenizer_length` highest token id + 1, added tokens included; `config_vocab_size` what config.json says;
    `lm_head_rows` and `embedding_rows` rows of the stored tensors [V, H]. None = not there (a tied lm_head is not).
    """

    tokenizer_length: PositiveInt | None = None
    config_vocab_size: PositiveInt | None = None
    lm_head_rows: PositiveInt | None = None
    embedding_rows: PositiveInt | None = None


class MoeShape(ContractModel):
    """A mixture of experts. `num_experts` routed experts of each MoE layer, `num_experts_per_token` of them used.

    `num_shared_experts` run for every token. Intermediate sizes are of one expert, `shared_intermediate_size` of all
    shared experts together.
    """

    num_experts: PositiveInt
    num_experts_per_token: PositiveInt
    num_shared_experts: NonNegativeInt = 0
    num_moe_layers: PositiveInt
    num_dense_layers: NonNegativeInt
    expert_intermediate_size: PositiveInt | None = None
    shared_intermediate_size: PositiveInt | None = None


class RopeScaling(ContractModel):
    """Rotary embedding stretched beyond the trained length, as stated; `type` "default" = not stretched."""

    type: str = "default"
    factor: float | None = None
    original_max_positions: PositiveInt | None = None
    theta: float | None = None


class Quantization(ContractModel):
    """How weights are stored below 16 bit: `method` and `bits` as the file `source` names them (bits None = unsaid)."""

    method: str
    bits: PositiveInt | None = None
    kv_cache_dtype: str | None = None
    source: str


class SpecialTokens(ContractModel):
    """Ids that start, end and pad a sequence (generation_config before config); SHA-256 of the chat template's text."""

    bos_token_id: NonNegativeInt | None = None
    eos_token_ids: tuple[NonNegativeInt, ...] = ()
    pad_token_id: NonNegativeInt | None = None
    chat_template_sha256: str | None = None


class HeadFacts(ContractModel):
    """An EAGLE, EAGLE-3 or Medusa head, whoever wrote it, in one spelling.

    `generation` by shapes: "v1" (EAGLE-1/2: fc reads 2 x hidden), "v3" (fc reads the hidden states of `num_aux_layers`
    target layers) or "medusa"; `declared_generation` by the names in config.json. `fc_in_features` and
    `fc_out_features` are columns and rows of `fc.weight`. `num_heads` is of Medusa. `aux_layer_ids` the target layers
    that v3 reads and `aux_layer_ids_source` the config key that names them, both None when no key does.
    `aux_ids_name_outputs`: an id i is what layer i puts out; else the state before layer i runs.
    `norm_switches` config keys as found; `norm_tensors` tensors of those norms as found. `tensors` every tensor that
    the forward pass needs and where it comes from; `unexpected_tensors` the others in the file. `unknown_config_keys`
    may change the forward pass and are not understood; `defaults_applied` key -> value taken where config is silent.
    """

    layout: HeadLayout
    generation: Literal["v1", "v3", "medusa"]
    declared_generation: Literal["v1", "v3", "medusa"] | None = None
    fc_in_features: PositiveInt | None = None
    fc_out_features: PositiveInt | None = None
    has_fc_bias: bool = False
    num_layers: NonNegativeInt | None = None
    num_heads: PositiveInt | None = None
    hidden_size: PositiveInt | None = None
    target_hidden_size: PositiveInt | None = None
    draft_vocab_size: PositiveInt | None = None
    target_vocab_size: PositiveInt | None = None
    num_aux_layers: PositiveInt | None = None
    aux_layer_ids: tuple[NonNegativeInt, ...] | None = None
    aux_layer_ids_source: str | None = None
    aux_ids_name_outputs: bool = False
    norm_switches: dict[str, bool] = Field(default_factory=dict)
    norm_tensors: tuple[str, ...] = ()
    has_own_embedding: bool = False
    has_own_lm_head: bool = False
    has_d2t: bool = False
    has_t2d: bool = False
    tensors: dict[str, TensorOrigin] = Field(default_factory=dict)
    unexpected_tensors: tuple[str, ...] = ()
    unknown_config_keys: tuple[str, ...] = ()
    defaults_applied: dict[str, str] = Field(default_factory=dict)

    @property
    def aux_states(self) -> tuple[int, ...] | None:
        """After how many layers of the target each state is read that `aux_layer_ids` names; 0 = its embeddings."""
        if self.aux_layer_ids is None:
            return None
        return tuple(layer + self.aux_ids_name_outputs for layer in self.aux_layer_ids)


class CheckpointInfo(ContractModel):
    """Facts of one checkpoint folder, read without loading weights.

    `reference` as the user wrote it, `folder` where it lies. `num_parameters` counts stored elements of all tensors
    when `parameters_from` is "headers", else follows from the sizes in config.json; `num_active_parameters` are those
    that one token uses (equal for dense models, None where the experts are unclear). Parts that are not the text
    decoder are in neither: `left_out_parameters` counts them by their prefix ("mtp", "model.visual"). `num_bytes` of
    the tensors on disk; `stored_dtypes` safetensors dtype -> bytes. `kv_elements_per_token` over all layers that cache,
    K and V (for MLA its latent), None where it is unclear which of them do;
    `kv_bytes_per_token` = that many elements of `kv_dtype`, the checkpoint's own dtype unless it quantises its cache.
    `not_found` facts that no known key states, with the keys looked for. `head` is set for every kind but causal_lm.
    """

    schema_version: Literal[1] = 1
    reference: str
    folder: str
    kind: CheckpointKind
    architecture: str | None = None
    model_type: str | None = None
    num_layers: PositiveInt | None = None
    hidden_size: PositiveInt | None = None
    num_heads: PositiveInt | None = None
    num_kv_heads: PositiveInt | None = None
    head_dim: PositiveInt | None = None
    intermediate_size: PositiveInt | None = None
    num_parameters: NonNegativeInt | None = None
    num_active_parameters: NonNegativeInt | None = None
    parameters_from: Literal["headers", "config"] | None = None
    left_out_parameters: dict[str, NonNegativeInt] = Field(default_factory=dict)
    num_bytes: NonNegativeInt | None = None
    dtype: str | None = None
    stored_dtypes: dict[str, int] = Field(default_factory=dict)
    quantization: Quantization | None = None
    vocabulary: VocabularySizes = VocabularySizes()
    tie_word_embeddings: bool | None = None
    max_positions: PositiveInt | None = None
    sliding_window: PositiveInt | None = None
    rope: RopeScaling | None = None
    special_tokens: SpecialTokens = SpecialTokens()
    kv_elements_per_token: NonNegativeInt | None = None
    kv_bytes_per_token: NonNegativeInt | None = None
    kv_dtype: str | None = None
    moe: MoeShape | None = None
    num_mtp_layers: NonNegativeInt = 0
    head: HeadFacts | None = None
    not_found: tuple[str, ...] = ()


# --- a target and its draft -----------------------------------------------------------------------------------------


class Severity(StrEnum):
    """`info` a fact worth knowing; `warning` is printed and recorded, and some need a person's consent to build
    (`pair_findings.CONSENT_CODES`); `failure` forbids the build."""

    INFO = "info"
    WARNING = "warning"
    FAILURE = "failure"


class PairFinding(ContractModel):
    """One thing seen in a pair. `code` is stable and kebab-case; `subject` the file, tensor or key it is about.

    `why` says in one line what would happen if it were ignored, `remedy` what to do.
    """

    code: str
    severity: Severity
    subject: str
    detail: str
    why: str
    remedy: str


class PairVerdict(StrEnum):
    """`compatible` = different, and each difference is a finding that does not forbid the pair."""

    IDENTICAL = "identical"
    COMPATIBLE = "compatible"
    INCOMPATIBLE = "incompatible"


class DifferingId(ContractModel):
    """A token id that is not the same piece in both tokenizers; None = the id is not in that tokenizer."""

    token_id: NonNegativeInt
    target: str | None
    draft: str | None


class LaneFit(ContractModel):
    """Whether `lane` can serve this pair by `method`, and why (not). `versions` of the lane's engine that can."""

    lane: Lane
    method: Method
    can_serve: bool
    reason: str
    versions: str | None = None


class PairReport(ContractModel):
    """Does this draft fit this target? `draft` is None for methods without a checkpoint of their own (n-gram, MTP).

    `draft_cost_ratio` parameters one draft step reads / active parameters one target step reads. `digest` is the pair
    digest of the build made from these sources, None where there is none: an inspection hashes no weights.
    """

    schema_version: Literal[1] = 1
    target: CheckpointInfo
    draft: CheckpointInfo | None = None
    verdict: PairVerdict
    findings: tuple[PairFinding, ...] = ()
    num_differing_ids: NonNegativeInt = 0
    first_differing_ids: tuple[DifferingId, ...] = ()
    draft_cost_ratio: NonNegativeFloat | None = None
    lanes: tuple[LaneFit, ...] = ()
    digest: str | None = None
