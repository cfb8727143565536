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
    """Return the letters of each pipeline stage of ``pipeline_model_parallel_layout``, over all ranks and chunks.

    Letters: E embedding, t layer, m prediction layer (MTP), L loss. ``layout``: a text such as ``Et*3|(tt|)*29m|L``, in
    which | ends a stage, or a list of words for each stage. Empty: it is neither.

    Raises:
        UnsupportedError: repetitions make it longer than any model is deep.
    """
    if isinstance(layout, str):
        return list(_stages(layout))
    if isinstance(layout, (list, tuple)):
        stage_words = [stage if isinstance(stage, (list, tuple)) else [stage] for stage in layout]
        return ["".join(_WORDS.get(str(word), str(word)) for word in stage) for stage in stage_words]
    return []


@lru_cache(maxsize=64)
def _stages(text: str) -> tuple[str, ...]:
    """Write all repetitions of a layout's text out, and split it into its stages."""
    text = text.replace(",", "").replace(" ", "")
    while True:
        expanded = _repeated(_REPEAT, _repeated(_GROUP, text))
        if expanded == text:
            return tuple(text.split("|"))
        text = expanded


def _repeated(pattern: str, text: str) -> str:
    """Return the text with each match of ``pattern``, (letters)*(times), written out.

    Raises:
        UnsupportedError: the text gets more than :data:`MAX_LETTERS` letters.
    """
    import re

    length = len(text)

    def written(match: re.Match[str]) -> str:
        """Return the letters of one match as often as it says."""
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

    return re.sub(pattern, written, text)
