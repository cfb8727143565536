"""Megatron's text for what each pipeline stage holds.

Source: Megatron-core ``transformer/pipeline_parallel_layer_layout.py`` (parse_str_to_list).
"""

from __future__ import annotations

from functools import lru_cache

from memcheck.errors import UnsupportedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re

_GROUP = r"\(([^()]*)\)\*(\d+)"
_REPEAT = r"([EtmL|])\*(\d+)"
MAX_LETTERS = 50_000
"""Letters of a layout with its repetitions written out: of the 10,000 layers that a model may have, and their stages.
"""
_WORDS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}


def stages_of_layout(layout: object) -> list[str]:
    """``Et*3|(tt|)*29m|L``: E embedding, t layer, m prediction layer, L loss, | the end of a stage; or lists of words.

    One text of such letters for each stage, over all ranks and virtual stages; none where it is neither.

    Raises:
        UnsupportedError: repetitions make it longer than any model is deep.
    """
    if isinstance(layout, str):
        return list(_stages(layout))
    if isinstance(layout, (list, tuple)):
        lists = [p if isinstance(p, (list, tuple)) else [p] for p in layout]
        return ["".join(_WORDS.get(str(w), str(w)) for w in p) for p in lists]
    return []


@lru_cache(maxsize=64)
def _stages(text: str) -> tuple[str, ...]:
    text = text.replace(",", "").replace(" ", "")
    while True:
        wider = _repeated(_REPEAT, _repeated(_GROUP, text))
        if wider == text:
            return tuple(text.split("|"))
        text = wider


def _repeated(what: str, text: str) -> str:
    """The text with each repetition written out, as long as it stays within bounds."""
    import re

    length = len(text)

    def written(match: re.Match[str]) -> str:
        nonlocal length
        times = match[2].lstrip("0")
        if len(times) <= len(str(MAX_LETTERS)):
            length += len(match[1]) * int(times or 0)
            if length <= MAX_LETTERS:
                return match[1] * int(times or 0)
        raise UnsupportedError(
            f"pipeline_model_parallel_layout repeats {match[1][:20]!r} until it has more than {MAX_LETTERS:,} letters",
            "write one `t` for each layer, and one `|` after each stage",
            "/training/options/pipeline_model_parallel_layout",
        )

    return re.sub(what, written, text)
