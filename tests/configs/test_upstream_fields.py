"""Every field that a framework's own classes have is read, harmless with a reason, refused or listed by its name.

``upstream_fields.json`` has the names of the fields with the version and the file that they stand in; `reported`: those
that a reading only lists, as what the estimate does not see; `others`: harmless keys here that upstream has not, or no
longer, by the reason why they are read.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from memcheck.configs.importing import import_config
from memcheck.configs.key_table import key_table
from memcheck.configs.types import ReadSetting
from tests.configs.test_litgpt import LORA, PRETRAIN
from tests.configs.test_nothing_lost import PAIRS, TRL
from tests.configs.test_trainers import AXOLOTL, FACTORY

UPSTREAM: dict[str, Any] = json.loads((Path(__file__).parent / "upstream_fields.json").read_text())
PLAIN = TRL.replace("dataset_name: trl-lib/Capybara\n", "").replace("max_length", "block_size")
JOBS = {
    "axolotl": (AXOLOTL, f"{AXOLOTL}rl: dpo\n"),
    "llamafactory": (FACTORY, FACTORY.replace("stage: sft", "stage: dpo")),
    "trl": (TRL, PAIRS),
    "transformers": (PLAIN,),
    "litgpt": (LORA, PRETRAIN),
}
HARMLESS = {name: key_table(name).irrelevant for name in ("axolotl", "llamafactory", "trl", "litgpt")}
TRAINER = key_table("transformers")
VALUES = (True, 2, "word", ["word"], {"word": 1})
STATED = {"hardware.gpu": ReadSetting("h100-80gb", "test"), "hardware.gpus_per_node": ReadSetting(1, "test")}


def known(kind: str, field: str) -> bool:
    """Whether any job of this kind reads, refuses or has heard of a field, whatever it may hold."""
    for job in JOBS[kind]:
        for value in VALUES:
            values = yaml.safe_load(job)
            *sections, name = field.split(".")
            table = values
            for each in sections:
                table = table.setdefault(each, {})
            table[name] = value
            notes = import_config("config.yaml", yaml.safe_dump(values).encode(), dict(STATED), kind).notes
            if not any(f"`{field}" in note.message and "not a key that" in note.message for note in notes):
                return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("kind", JOBS)
def test_every_field_upstream_is_known(kind: str) -> None:
    """None but those that are listed as reported; and those are."""
    found = sorted(field for field in UPSTREAM[kind]["fields"] if not known(kind, field))
    assert found == UPSTREAM[kind]["reported"]


@pytest.mark.parametrize("kind", HARMLESS)
def test_no_harmless_key_is_unknown_upstream(kind: str) -> None:
    """A name that upstream never had would hide a misspelt one; each has the reason why it is read."""
    fields = {*UPSTREAM[kind]["fields"], *UPSTREAM["transformers"]["fields"]}
    if kind == "trl":
        fields |= TRAINER.as_set("trl", "handbook", "training_arguments")
    names = {each.rstrip(".") for group in HARMLESS[kind].values() for each in group}
    whole = {name if kind == "litgpt" else name.partition(".")[0] for name in names}
    unknown = {name for name in whole - fields if not any(field.startswith(f"{name}.") for field in fields)}
    explained = [name for group in UPSTREAM[kind]["others"].values() for name in group]
    assert sorted(unknown) == sorted(explained)


def test_fields_of_the_launches_are_those_of_the_classes() -> None:
    """What tells a script from transformers' and TRL's has every field of their classes."""
    assert set(UPSTREAM["transformers"]["fields"]) <= TRAINER.as_set("training_arguments")
    assert set(UPSTREAM["trl"]["fields"]) <= TRAINER.as_set("trl", "training_arguments")
