"""What to say about configuration keys that the family did not read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from memcheck.errors import closest
from memcheck.models.reader import ConfigReader, shown, synonyms
from memcheck.models.types import Architecture, Attention, LatentAttention, Mlp, Moe

MOST_NAMED = 50
"""Keys that were not read and that are named: every plan of the model lists them."""


def check_leftovers(reader: ConfigReader, architecture: Architecture, *, written: frozenset[str]) -> None:
    """Refuse a key that might be a size; accept one that repeats what is known; note the rest.

    Tools write redundant keys (``head_dim`` for GPT-2, ``num_experts`` as well as ``num_local_experts``): these are
    compared with the architecture instead of being ignored. ``written``: keys that the plan itself states.
    """
    leftovers = reader.unread()
    if not leftovers:
        return
    facts = _facts(architecture)
    known = reader.known_keys()
    unread = 0
    for key, value in leftovers:
        is_written = key.partition(".")[0] in written
        if value is None and (not is_written or key in facts):
            continue
        if key in facts:
            if isinstance(value, (list, dict)) or value not in facts[key]:  # no set holds the former
                _refuse_contradiction(reader, key, value, facts[key], known)
            continue
        _refuse_unknown(reader, key, value, known, is_written=is_written)
        unread += 1
        if unread <= MOST_NAMED:
            reader.note(f"{key} was not read")
    if unread > MOST_NAMED:
        reader.note(f"{unread - MOST_NAMED:,} more keys were not read")


def _refuse_unknown(reader: ConfigReader, key: str, value: Any, known: frozenset[str], *, is_written: bool) -> None:
    """Refuse an unknown key that looks misspelt, that the plan itself states, or that may decide a size.

    ``known``: keys that the family reads. ``is_written``: the plan states the key, and not a file of the model.

    Raises:
        ArchitectureError: it is such a key.
    """
    close = closest(key, known - set(reader.config), 1, 0.8)
    if close:
        reader.fail(key, f"unknown key {key}", f"did you mean {close[0]!r}?")
    if is_written and key.partition(".")[0] == "text_config":
        reader.fail(key, f"unknown key {key}", "write its keys one level up: they are not nested here")
    if is_written:
        near = closest(key, known)
        reader.fail(key, f"unknown key {key}", f"close: {near[0]}" if near else "remove it")
    if may_carry_size(value):
        reader.fail(key, f"{key} = {shown(value)} was not read, and may decide sizes", "remove it if it does not")


def may_carry_size(value: Any) -> bool:
    """Say whether an unread value could change a tensor's size: a whole number, a switch that is on, or a container of
    them.
    """
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return True
    if isinstance(value, dict):
        return any(may_carry_size(v) for v in value.values())
    if isinstance(value, (list, tuple)):
        return any(may_carry_size(v) for v in value)
    return False


def _refuse_contradiction(
    reader: ConfigReader, key: str, value: Any, facts: Iterable[object], known: frozenset[str]
) -> None:
    """Refuse a key whose value contradicts what the rest of the configuration says about the same size.

    ``facts``: the values that the architecture has for the key. ``known``: keys that the family reads.

    Raises:
        ArchitectureError: always.
    """
    read_synonyms = sorted(synonyms(key) & known)
    stated = ", ".join(str(fact) for fact in sorted(facts, key=str))
    help = f"this family reads {read_synonyms[0]}" if read_synonyms else f"remove {key}: this family does not read it"
    reader.fail(key, f"{key} = {shown(value)} contradicts the rest of the configuration, which makes it {stated}", help)


def _facts(architecture: Architecture) -> dict[str, set[object]]:
    """Return for each well-known key, and its synonyms, the values that the architecture has for it."""
    facts: dict[str, set[object]] = {}

    def fact(key: str, *values: object) -> None:
        for name in (key, *synonyms(key)):
            facts.setdefault(name, set()).update(values)

    fact("hidden_size", architecture.hidden_size)
    fact("num_hidden_layers", architecture.num_layers)
    fact("vocab_size", architecture.vocab_size)
    fact("max_position_embeddings", architecture.max_position_embeddings)
    for block, _ in architecture.blocks:
        if isinstance(block.mixer, Attention):
            fact("num_attention_heads", block.mixer.heads)
            fact("num_key_value_heads", block.mixer.kv_heads)
            fact("head_dim", block.mixer.head_dim)
            fact("attention_bias", block.mixer.qkv_bias)
        elif isinstance(block.mixer, LatentAttention):
            attention = block.mixer
            fact("num_attention_heads", attention.heads)
            fact("num_key_value_heads", attention.heads)
            fact(
                "head_dim",
                attention.qk_rope_head_dim,
                attention.qk_nope_head_dim + attention.qk_rope_head_dim,
                attention.v_head_dim,
            )
        if isinstance(block.mlp, Mlp):
            fact("intermediate_size", block.mlp.width)
            fact("hidden_act", block.mlp.activation)
        elif isinstance(block.mlp, Moe):
            fact("num_local_experts", block.mlp.experts)
            fact("num_experts_per_tok", block.mlp.experts_per_token)
            fact("moe_intermediate_size", block.mlp.width)
    return facts
