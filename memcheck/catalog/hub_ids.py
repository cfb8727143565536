"""Ids of copies: a catalog's model under another organisation, quantised, or tuned further."""

from __future__ import annotations

from collections.abc import Mapping

from memcheck.record import Record

STORED = frozenset(
    {
        *("bnb", "4bit", "8bit", "int4", "int8", "nf4", "fp4", "mxfp4", "nvfp4", "fp8", "fp16", "fp32", "bf16"),
        *("unsloth", "awq", "gptq", "hqq", "eetq", "aqlm", "autoround", "torchao", "quantized", "quant", "marlin"),
        *("w4a16", "w8a8", "w8a16", "quantized.w4a16", "quantized.w8a8", "quantized.w8a16", "gguf", "mlx", "hf"),
        *("dynamic", "block", "kv", "128g", "sym", "sharded"),
    }
)
"""Words at the end of an id that say how weights are stored, which changes no dimension."""
TUNED = frozenset({"instruct", "it", "chat", "base", "pt", "thinking", "reasoning", "sft", "mixture", "dpo", "rlvr"})
"""Words at the end of an id for a stage of training on the same dimensions."""
_LONGEST = 96
"""Characters of a repository's name on the Hub."""


class Copy(Record):
    """What an id that the catalog lacks is a copy of."""

    name: str
    """The catalog's record."""
    without: tuple[str, ...]
    """What was left out of the id until it was a name: the organisation with its slash, words with their hyphen."""


def copied(written: str, index: Mapping[str, str]) -> Copy | None:
    """The record whose copy ``written`` is by its name: ``unsloth/Llama-3.1-8B-Instruct-bnb-4bit``.

    ``index``: every known name, in lower case -> record. None unless what is left is one of them exactly.
    """
    organisation, slash, name = written.rpartition("/")
    if not name or len(name) > _LONGEST or (slash and not _is_word(organisation)):
        return None
    left = name
    while left.lower() not in index:
        left = _without_last_word(left, STORED | TUNED)
        if not left:
            return None
    return Copy(index[left.lower()], tuple(part for part in (organisation + slash, name[len(left) :]) if part))


def stem(name: str) -> str:
    """``name``, which has no organisation, without words at its end that say how weights are stored."""
    while shorter := _without_last_word(name, STORED):
        name = shorter
    return name


def _without_last_word(name: str, words: frozenset[str]) -> str:
    """``name`` up to a last word that is one of ``words``; empty where it is not."""
    for joint in ("-", "_"):
        shorter, _, word = name.rpartition(joint)
        if shorter and word.lower() in words:
            return shorter
    return ""


def _is_word(organisation: str) -> bool:
    """Whether ``organisation`` can be the name of an account on the Hub: it is neither a path nor empty."""
    return organisation.replace("-", "").replace("_", "").replace(".", "").isalnum() and organisation[0] != "."
