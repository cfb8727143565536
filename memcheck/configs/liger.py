"""Which of a model's modules a config puts into Liger's kernels."""

from __future__ import annotations

from collections.abc import Mapping

from memcheck.configs.draft import Draft
from memcheck.errors import MemcheckError
from memcheck.families.architecture import architecture_of
from memcheck.frameworks.transformers.liger import modelled
from memcheck.models.types import Architecture
from memcheck.plan.types import ModelSpec

KEY = "training.kernels.liger"
UPPER = "Liger's other kernels keep less than transformers' own: an upper bound"


def liger_kernels(draft: Draft, paths: Mapping[str, str]) -> None:
    """Set the kernels that memcheck prices, and note the others. ``paths``: the config's key by kernel.

    The model, the layout and ``torch.compile`` have been read. Liger leaves families that it does not know alone.
    """
    able = _able(draft)
    found = [name for name in paths if name in able]
    if found:
        draft.set(KEY, found, paths[found[0]])
    for path in dict.fromkeys(paths.values()):
        draft.config.see(path)
        if any(at == path and name not in able for name, at in paths.items()):
            draft.note(path, UPPER)


def _able(draft: Draft) -> tuple[str, ...]:
    name, tensor = draft.value("model.name"), draft.value("parallelism.tensor")
    if not isinstance(name, str) or draft.value("training.compile") or (isinstance(tensor, int) and tensor > 1):
        return ()
    try:
        found = architecture_of(ModelSpec(name=name))
    except MemcheckError:
        return ()
    return modelled(found) if isinstance(found, Architecture) else ()
