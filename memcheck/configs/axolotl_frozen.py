"""Axolotl's ``unfrozen_parameters``: patterns of parameter names. All other parameters are frozen.

Source: Axolotl 067b021c ``src/axolotl/utils/freeze.py`` (freeze_layers_except, LayerNamePattern): each pattern is
matched with the start of a name, and its dots are literal. A range of rows after a pattern only zeroes gradients, which
are allocated whole. Names are those of transformers 5.23.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from memcheck.configs.draft import Draft
from memcheck.configs.pictures import FREEZE
from memcheck.configs.trainer_parts import architecture_named, on, words
from memcheck.edge.expressions import Expression, ExpressionError
from memcheck.models.parameters import block_tensors, outer_tensors
from memcheck.models.types import Architecture

RENAMED = {"mixtral": ("block_sparse_moe", "mlp")}
"""By model type: what transformers 4 called a part, and what it is called since."""
_ROWS = re.compile(r"\[[0-9]*(?::[0-9]*)?\]$")
"""Rows of a parameter at the end of a pattern, a single digit in brackets included, as upstream has it."""
_HELP = "state what is frozen: --set training.freeze=[embed, head, norm, layers:0-24]"


class UnreadError(Exception):
    """Patterns that ``training.freeze`` has no words for."""


def frozen_but(draft: Draft, path: str) -> None:
    """Freeze all that no pattern of ``path`` names, or refuse the patterns by what is in their way."""
    known, patterns = architecture_named(draft), words(draft, path)
    if known is None or known.encoder is not None or known.others:
        draft.refuse(path, f"`{path}` freezes by patterns that are not read", _HELP, (FREEZE,))
        return
    old, new = RENAMED.get(known.model_type, ("", ""))
    renamed = [each for each in patterns if old and old in each]
    try:
        found = _frozen(known, [each.replace(old, new) if each in renamed else each for each in patterns])
    except (UnreadError, ExpressionError) as error:
        draft.refuse(path, f"`{path}` {error}", _HELP, (FREEZE,))
        return
    asked = any(name in each for each in patterns for name in ("lm_head", "embed_tokens"))
    if asked and "embed" in found and not on(draft, "gradient_checkpointing"):  # train.py: enable_input_require_grads
        why = "makes the frozen embedding's rows want a gradient, which is not modelled without recompute"
        draft.refuse(path, f"`{path}` {why}", _HELP, (FREEZE,))
        return
    draft.set(FREEZE, found, path)
    if renamed:
        what = f"transformers 5 calls `{old}` `{new}`, and trains nothing by the old name"
        draft.note(path, f"{what}: estimated as trained, an upper bound")


def _frozen(a: Architecture, patterns: list[str]) -> list[str]:
    """The words of ``training.freeze``.

    Raises:
        UnreadError: it has none for them.
        ExpressionError: a pattern cannot be read.
    """
    outside = _outside(a)
    layers = [[f"{a.paths.layers}.{i}.{name}" for name in names] for i, names in enumerate(_names(a))]
    every = [*outside.values(), *(name for names in layers for name in names)]
    trained: set[str] = set()
    for pattern in patterns:
        compiled = Expression(_ROWS.sub("", pattern).replace(".", r"\."))
        found = {name for name in every if compiled.begins(name)}
        if not found and not (a.tie_word_embeddings and compiled.begins(f"{a.paths.head}.weight")):
            raise UnreadError(f"has `{pattern}`, which matches no parameter of {a.model_type} in transformers")
        trained |= found
    if not trained:
        raise UnreadError("trains nothing")
    parts = [part for part, name in outside.items() if name not in trained]
    whole = [i for i, names in enumerate(layers) if trained.isdisjoint(names)]
    inside = {name for i, names in enumerate(layers) if i not in set(whole) for name in names}
    return [*parts, *_runs(whole), *_modules(inside - trained, inside & trained, len(a.paths.layers) + 1)]


def _outside(a: Architecture) -> dict[str, str]:
    """The parameters outside the layers by the plan's word for each.

    Raises:
        UnreadError: there are others.
    """
    final = a.final_norm.name if a.final_norm is not None else ""
    known = {f"{a.paths.embedding}.weight": "embed", f"{final}.weight": "norm", f"{a.paths.head}.weight": "head"}
    found = {known.get(tensor.name, ""): tensor.name for tensor in outer_tensors(a)}
    if "" in found:
        raise UnreadError(f"is not read of models with a `{found['']}`")
    return found


def _names(a: Architecture) -> Iterator[list[str]]:
    for block, times in a.blocks:
        names = [tensor.name for tensor in block_tensors(block)]
        yield from (names for _ in range(times))


def _runs(layers: list[int]) -> list[str]:
    """Whole frozen layers as ranges, their ends excluded."""
    starts = [i for i in layers if i - 1 not in set(layers)]
    ends = [i + 1 for i in layers if i + 1 not in set(layers)]
    return [f"layers:{first}-{end}" for first, end in zip(starts, ends, strict=True)]


def _modules(frozen: set[str], trained: set[str], cut: int) -> list[str]:
    """Names of modules that stand for every frozen tensor of the other layers, and for no trained one.

    ``cut``: how many characters of a name are in front of its layer's number.

    Raises:
        UnreadError: a tensor is trained in some layers and frozen in others, or is trained while its bias is frozen.
    """
    found: list[str] = []
    left, kept = (
        {each[cut:].partition(".")[2].removesuffix(".weight") for each in names} for names in (frozen, trained)
    )
    for module in sorted(left):
        if any(_names_it(word, module) for word in found):
            continue
        steps = module.split(".")
        above = (".".join(steps[: i + 1]) for i in range(len(steps)))
        stands = (each for each in above if not any(_names_it(each, other) for other in kept))
        word = next(stands, "")
        if not word:
            raise UnreadError(f"trains `{module}` in some layers and not in others")
        found.append(word)
    return found


def _names_it(word: str, module: str) -> bool:
    """Whether ``training.freeze`` reaches a module by this word: a step of its path, or the way to it or above it."""
    return word in module.split(".") or module == word or module.startswith(f"{word}.")
