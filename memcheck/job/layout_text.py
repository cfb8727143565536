"""Megatron's text for what each pipeline stage holds.

Source: Megatron-core ``transformer/pipeline_parallel_layer_layout.py`` (parse_str_to_list).
"""

from __future__ import annotations

import re
from functools import lru_cache

_GROUP = re.compile(r"\(([^()]*)\)\*(\d+)")
_REPEAT = re.compile(r"([EtmL|])\*(\d+)")
_WORDS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}


def stages_of_layout(layout: object) -> list[str]:
    """``Et*3|(tt|)*29m|L``: E embedding, t layer, m prediction layer, L loss, | the end of a stage; or lists of words.

    One text of such letters for each stage, over all ranks and virtual stages; none where it is neither.
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
        wider = _REPEAT.sub(lambda m: m[1] * int(m[2]), _GROUP.sub(lambda m: m[1] * int(m[2]), text))
        if wider == text:
            return tuple(text.split("|"))
        text = wider
