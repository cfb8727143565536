"""transformers' own Trainer, without TRL: its examples, and scripts of one's own that take TrainingArguments."""

from __future__ import annotations

from memcheck.configs.draft import Reader
from memcheck.configs.key_table import key_table
from memcheck.configs.launch_lines import training_alone
from memcheck.configs.read_trl import read_transformers, recognise_arguments

READER = Reader(
    recognise=recognise_arguments,
    read=read_transformers,
    lists=key_table("transformers").as_set("lists"),
    trains=training_alone,
)
