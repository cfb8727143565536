"""Which rows a script of transformers makes: full ones of grouped texts, texts padded to a limit, or texts of many
lengths. Read in the examples of transformers 4.30 to 5.x (for PyTorch: ``run_clm.py`` and ``run_fim.py``,
group_texts; ``run_mlm.py`` and ``run_plm.py``, line_by_line; ``run_glue.py`` and ``run_qa.py``, pad_to_max_length).
"""

from __future__ import annotations

from memcheck.configs import trainer_parts as parts
from memcheck.configs.draft import Draft
from memcheck.configs.key_table import key_table
from memcheck.configs.trainer_parts import off, on
from memcheck.configs.trainer_script import commands

GROUPED = ("clm", "fim", "mlm", "plm", "language_modeling")
"""Scripts that join all texts and cut them into rows of the limit: the first word of their names after ``run_``."""
BY_LINE = ("mlm", "plm", "language_modeling")
"""Grouping scripts that keep one text per row under ``--line_by_line``."""
PADDED = ("glue", "classification", "xnli", "qa", "qa_beam_search")
"""Scripts that pad every row to the limit unless ``--pad_to_max_length False`` is stated."""
SHORT = ("ner", "seq2seq_qa", "summarization", "translation")
"""Scripts that pad the rows of a micro-batch to its longest row."""
LIMITS = {"glue": 128, "classification": 128, "xnli": 128, "qa": 384, "qa_beam_search": 384, "seq2seq_qa": 384}
LIMITS |= {"plm": 512}
"""The limits that the scripts have themselves."""
LENGTHS = ("max_length", "max_seq_length", "block_size", "model_max_length", "max_seq_len", "max_token_length")
"""Arguments that state the most tokens per row."""
TO_LIMIT = "pad_to_max_length"
UNKNOWN = "memcheck does not know how the script makes rows: `padded` if each row is one text of its own length"


def rows_of(draft: Draft, *, alone: bool, opened: bool) -> int:
    """Read how long rows are and how they lie; return the multiple of tokens to which the collator pads each row.

    ``alone``: the script is TRL's own; ``opened``: it is open-instruct's.
    """
    stated_none = any(name in draft.config.values and not draft.config.has(name) for name in LENGTHS)
    cut = not any(each.startswith(key_table("trl").names["uncut"]) for each in commands(draft.config))
    default, why = (1024, "TRL's default max_length") if alone and cut and not stated_none else _own_limit(draft)
    packed = on(draft, "packing")
    full = "" if packed or alone or opened else _full(draft)
    parts.length(draft, LENGTHS, default, packed or bool(full), why, said=full)
    if not (packed or full):
        _pad_to_limit(draft)
    draft.config.see("packing", "line_by_line", TO_LIMIT, *LENGTHS)
    help = "state the longest that a row gets: --sequence-length 4096"
    draft.ask("training.sequence_length", "how long a sequence is", help)
    key, path = "training.sequence_length", "pad_to_multiple_of"
    longest, multiple = draft.value(key), draft.whole(path, key) or 1
    if isinstance(longest, int) and longest % multiple:
        draft.set(key, longest + multiple - longest % multiple, path)
    return multiple


def _example_of(draft: Draft) -> str:
    """The example whose name the script has or starts with: ``glue`` for ``run_glue_no_trainer.py``."""
    known = (*GROUPED, *PADDED, *SHORT)
    for name in commands(draft.config):
        found = [each for each in known if name == each or name.startswith(f"{each}_")]
        if found:
            return max(found, key=len)
    return ""


def _own_limit(draft: Draft) -> tuple[int | None, str]:
    """The limit that an example has where none is stated, and who says so."""
    name = _example_of(draft)
    return LIMITS.get(name), f"the default of run_{name}.py"


def _full(draft: Draft) -> str:
    """Why every row has the limit's tokens; empty where a row is one text, which may be shorter.

    Rows of a script that memcheck does not know are taken as full: a short row is no reason to pass.
    """
    name = _example_of(draft)
    if name in GROUPED and not (name in BY_LINE and on(draft, "line_by_line")):
        return f"run_{name}.py joins all texts and cuts them into full rows"
    if not name and draft.config.has("block_size"):
        return "`block_size`: texts are joined and cut into full rows"
    if not name:
        return UNKNOWN
    return ""


def _pad_to_limit(draft: Draft) -> None:
    """State that the longest row has the limit's tokens, where a script pads every row to the limit."""
    name, limit = _example_of(draft), draft.value("training.sequence_length")
    switched = any(each.endswith("_no") for each in commands(draft.config))  # `run_glue_no_trainer.py`
    pads = on(draft, TO_LIMIT) or (name in PADDED and not switched and not off(draft, TO_LIMIT))
    if not pads or not isinstance(limit, int):
        return
    if draft.config.has(TO_LIMIT):
        draft.set("training.longest_row", limit, TO_LIMIT)
    else:
        draft.assume("training.longest_row", limit, f"run_{name}.py pads every row to the limit")
