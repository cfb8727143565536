"""Reads a configuration key by key, and remembers which keys were read and what is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping

from memcheck.errors import MemcheckError, closest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final, NoReturn


class ArchitectureError(MemcheckError):
    """A configuration that cannot be turned into an architecture.

    ``key`` names the offending configuration key (dotted inside a nested section); empty when none is to blame.
    """

    def __init__(self, message: str, help: str = "", key: str = "") -> None:
        super().__init__(message, help)
        self.key = key


IRRELEVANT = frozenset(
    """
    add_cross_attention architectures attention_softmax_in_fp32 attn_implementation auto_map bad_words_ids
    begin_suppress_tokens bos_token_id cache_implementation chunk_size_feed_forward classifier_dropout
    classifier_dropout_prob cross_attention_hidden_size decoder_start_token_id diversity_penalty do_sample dtype
    early_stopping encoder_no_repeat_ngram_size eos_token_id eos_token_ids exponential_decay_length_penalty
    finetuning_task forced_bos_token_id forced_eos_token_id generation_config gradient_checkpointing id2label
    ignore_index initializer_factor initializer_range is_decoder is_encoder_decoder is_llama_config label2id
    layer_norm_eps layer_norm_epsilon length_penalty logits_to_keep max_length min_length model_type
    name_or_path no_repeat_ngram_size norm_eps norm_epsilon norm_topk_prob num_beam_groups num_beams num_labels
    num_logits_to_keep num_return_sequences original_max_position_embeddings output_attentions
    output_hidden_states output_router_logits output_scores pad_token_id prefix pretraining_tp problem_type
    pruned_heads remove_invalid_values repetition_penalty return_dict return_dict_in_generate rms_norm_eps
    rope_interleaved rope_local_base_freq rope_theta rope_type rotary_emb_base rotary_scaling_factor
    routed_scaling_factor router_aux_loss_coef router_jitter_noise router_z_loss_coef
    scale_attention_softmax_in_fp32 scoring_func sep_token_id seq_aux suppress_tokens task_specific_params
    temperature tf_legacy_loss tie_encoder_decoder tokenizer_class tokenizer_name top_k top_p topk_method
    torch_dtype torchscript transformers.js_config transformers_version typical_p unk_token_id unsloth_fixed
    unsloth_version use_bfloat16 use_cache vocab_file
    """.split()  # noqa: SIM905  # a list of 120 quoted names is harder to read
)
"""Carried by many configurations, without influence on any tensor's size."""

SYNONYMS: tuple[frozenset[str], ...] = (
    frozenset(("hidden_size", "n_embd", "n_embed", "d_model", "dim")),
    frozenset(("num_hidden_layers", "n_layer", "n_layers", "num_layers")),
    frozenset(("num_attention_heads", "n_head", "n_heads", "num_heads")),
    frozenset(
        ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_head_kv", "num_query_groups", "multi_query_group_num")
    ),
    frozenset(
        ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "d_ff", "d_inner", "ffn_intermediate_size")
    ),
    frozenset(("head_dim", "attention_head_dim", "kv_channels")),
    frozenset(("vocab_size", "padded_vocab_size", "n_vocab")),
    frozenset(("max_position_embeddings", "n_positions", "max_seq_len", "max_seq_length", "seq_length", "n_ctx")),
    frozenset(("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")),
    frozenset(("num_experts_per_tok", "num_experts_per_token", "moe_top_k", "moe_topk", "num_selected_experts")),
    frozenset(("moe_intermediate_size", "expert_intermediate_size", "moe_ffn_hidden_size")),
    frozenset(("n_shared_experts", "num_shared_experts", "num_shared_expert")),
    frozenset(("hidden_act", "activation_function", "hidden_activation", "activation", "mlp_hidden_act")),
    frozenset(("attention_bias", "qkv_bias", "use_qkv_bias", "use_bias")),
)
"""Names of one quantity in different families. A family reads its own; a foreign one is named in the error."""

ACTIVATIONS = frozenset(
    """
    gelu gelu_10 gelu_accurate gelu_fast gelu_new gelu_python gelu_python_tanh gelu_pytorch_tanh laplace
    leaky_relu linear mish prelu quick_gelu relu relu2 relu6 sigmoid silu swish tanh xielu
    """.split()  # noqa: SIM905  # as above
)
"""Names in transformers' ``ACT2FN``."""


def synonyms(key: str) -> frozenset[str]:
    """Return the names that other families have for what ``key`` says."""
    for group in SYNONYMS:
        if key in group:
            return group - {key}
    return frozenset()


MAX_LAYERS: Final = 10_000
MAX_SIZE: Final = 2**40


class Required:
    """The type of :data:`REQUIRED`."""


REQUIRED: Final = Required()
"""No default: the key must be given."""


class ConfigReader:
    """A configuration (or a nested section of one) with checked access."""

    def __init__(self, config: Mapping[str, Any], model_type: str, prefix: str = "") -> None:
        """Read ``config``, a family's config.json as a mapping.

        ``prefix``: path of a nested section, such as ``text_config.``, which error messages put before its keys.
        """
        self.config = config
        self.model_type = model_type
        self.prefix = prefix
        self.notes: list[str] = []
        self._read: set[str] = set()
        self._sections: list[ConfigReader] = []

    def fail(self, key: str, message: str, help: str = "") -> NoReturn:
        """Raise an :class:`ArchitectureError` about ``key``."""
        raise ArchitectureError(f"{self.model_type}: {message}", help, self.prefix + key)

    def refuse(self, key: str, message: str, help: str = "") -> None:
        """Read the boolean ``key``, and fail if it is true: the model that it switches on has no memory model."""
        if self.flag(key):
            self.fail(key, message, help)

    def expect(self, key: str, value: int, message: str, help: str = "") -> None:
        """Read the whole number ``key``, and fail if it is stated and is not ``value``."""
        if self.integer(key, default=value) != value:
            self.fail(key, message, help)

    def has(self, key: str) -> bool:
        """Whether the key is present and not null."""
        return self.config.get(key) is not None

    def ignore(self, *keys: str) -> None:
        """Keys that this family knows and that change no tensor."""
        self._read.update(keys)

    def note(self, text: str) -> None:
        """Something a reader of the estimate should know."""
        self.notes.append(text)

    def raw(self, key: str, *aliases: str) -> Any:
        """Return the value of the first of these keys that is not null, or None.

        Raises:
            ArchitectureError: two of the keys state different values.
        """
        self._read.update((key, *aliases))
        value = self.config.get(key)
        for alias in aliases:
            alias_value = self.config.get(alias)
            if alias_value is None:
                continue
            if value is not None and value != alias_value:
                self.fail(alias, f"{alias} = {alias_value!r} contradicts {key} = {value!r}", f"remove {alias}")
            value = alias_value
        return value

    def integer(
        self,
        key: str,
        *aliases: str,
        default: int | Required = REQUIRED,
        null: int | Required = REQUIRED,
        minimum: int = 1,
        maximum: int = MAX_SIZE,
    ) -> int:
        """Read a whole number from ``minimum`` to ``maximum``, and refuse any other value.

        ``aliases``: further keys, read if ``key`` is absent. ``default``: result if all are absent. ``null``: result if
        the value is null.
        """
        value = self.raw(key, *aliases)
        if value is None:
            stated = any(k in self.config for k in (key, *aliases))
            fallback = null if stated and not isinstance(null, Required) else default
            if isinstance(fallback, Required):
                self._missing(key)
            return fallback
        if isinstance(value, bool) or not isinstance(value, int):
            self.fail(key, f"{key} must be a whole number, not {shown(value)}")
        if not minimum <= value <= maximum:
            self.fail(key, f"{key} = {value} is outside {minimum} ... {maximum}")
        return value

    def optional_integer(self, key: str, *aliases: str, minimum: int = 1) -> int | None:
        """Read a whole number of at least ``minimum``; None if the key is absent or null."""
        return self.integer(key, *aliases, minimum=minimum) if self.raw(key, *aliases) is not None else None

    def window(self, key: str = "sliding_window") -> int | None:
        """Read a sliding window in tokens; None if it is null, absent or 0."""
        return self.integer(key, minimum=0) or None if self.has(key) else self.raw(key)

    def flag(self, key: str, *aliases: str, default: bool = False) -> bool:
        """Read a boolean: ``default`` if the key and its ``aliases`` are absent or null."""
        value = self.raw(key, *aliases)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.fail(key, f"{key} must be true or false, not {shown(value)}")
        return value

    def number(self, key: str, *aliases: str, default: float) -> float:
        """Read a number, as a float: ``default`` if the key and its ``aliases`` are absent or null."""
        value = self.raw(key, *aliases)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self.fail(key, f"{key} must be a number, not {shown(value)}")
        return float(value)

    def dropout(self, key: str, *aliases: str, default: float = 0.0) -> float:
        """Read a dropout probability, from 0 to below 1: ``default`` if it is absent or null."""
        value = self.number(key, *aliases, default=default)
        if not 0.0 <= value < 1.0:
            self.fail(key, f"{key} = {value} is not a probability below 1")
        return value

    def text(self, key: str, *aliases: str, default: str) -> str:
        """Read a string: ``default`` if the key and its ``aliases`` are absent or null."""
        value = self.raw(key, *aliases)
        if value is None:
            return default
        if not isinstance(value, str):
            self.fail(key, f"{key} must be a string, not {shown(value)}")
        return value

    def activation(self, key: str = "hidden_act", *aliases: str, default: str = "silu") -> str:
        """Read the name of an activation function, as transformers spells it, and refuse an unknown one."""
        value = self.text(key, *aliases, default=default)
        if value not in ACTIVATIONS:
            self.fail(key, f"unknown activation function {key} = {value!r}", _did_you_mean(value, ACTIVATIONS))
        return value

    def texts(self, key: str, *aliases: str) -> tuple[str, ...] | None:
        """Read a list of strings; None if the key and its ``aliases`` are absent or null."""
        value = self.raw(key, *aliases)
        if value is None:
            return None
        if not isinstance(value, (list, tuple)) or not all(isinstance(v, str) for v in value):
            self.fail(key, f"{key} must be a list of strings, not {shown(value)}")
        return tuple(value)

    def integers(self, key: str) -> tuple[int, ...] | None:
        """Read a list of whole numbers; None if the key is absent or null."""
        value = self.raw(key)
        if value is None:
            return None
        is_valid = isinstance(value, (list, tuple)) and all(isinstance(v, int) for v in value)
        if not is_valid:
            self.fail(key, f"{key} must be a list of whole numbers, not {shown(value)}")
        return tuple(int(v) for v in value)

    def section(self, key: str) -> ConfigReader:
        """Return a reader of a nested mapping; of an empty one if the key is absent or null."""
        value = self.raw(key)
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            self.fail(key, f"{key} must be a mapping, not {shown(value)}")
        nested = ConfigReader(value, self.model_type, f"{self.prefix}{key}.")
        self._sections.append(nested)
        return nested

    def rotary_fraction(self, default: float = 1.0, *aliases: str) -> float:
        """Read which share of a head's dimensions the rotary embedding rotates, from 0 to 1.

        transformers 5 nests it in ``rope_parameters``, earlier files have ``partial_rotary_factor`` at the top.
        """
        nested = self.raw("rope_parameters")
        scaling = self.raw("rope_scaling")
        value: float | None = None
        for holder in (nested, scaling):
            if isinstance(holder, Mapping) and isinstance(holder.get("partial_rotary_factor"), (int, float)):
                value = float(holder["partial_rotary_factor"])
        stated = self.number("partial_rotary_factor", *aliases, default=default if value is None else value)
        if not 0.0 <= stated <= 1.0:
            self.fail("partial_rotary_factor", f"partial_rotary_factor = {stated} is not a share of 1")
        return stated

    def unread(self) -> list[tuple[str, Any]]:
        """List the keys that have not been read, with their values; keys of nested sections with their path."""
        rest = [
            (self.prefix + key, value)
            for key, value in self.config.items()
            if key not in self._read and key not in IRRELEVANT and not key.startswith("_")
        ]
        for section in self._sections:
            rest += section.unread()
        return rest

    def known_keys(self) -> frozenset[str]:
        """Every key that was asked for."""
        return frozenset(self._read)

    def _missing(self, key: str) -> NoReturn:
        """Refuse a configuration without ``key``, and name the key that it probably has in its place.

        Raises:
            ArchitectureError: always.
        """
        other_families_keys = sorted(k for k in synonyms(key) if self.has(k))
        if other_families_keys:
            self.fail(
                key,
                f"{key} is missing: {other_families_keys[0]} is another family's name",
                f"write {key} instead of {other_families_keys[0]}",
            )
        close = "" if key in self.config else _did_you_mean(key, [k for k in self.config if k not in self._read])
        self.fail(key, f"{key} is missing", close or f"state {key}: it decides sizes, so there is no default")


def _did_you_mean(word: str, known: Any) -> str:
    """Return a question that names the closest of the ``known`` words; an empty text if none is close."""
    close = closest(word, known, 1, 0.75)
    return f"did you mean {close[0]!r}?" if close else ""


def shown(value: Any) -> str:
    """Return a value as messages show it: its ``repr``, cut to 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
