"""How much of real configs the readers understand: python -m benchmarks.readers FOLDER... [--verbose]

Every file below the folders that belongs to one of the frameworks is imported. What its reader asks for because no
config of that kind can say it (the model, the GPUs, the length of a sequence) is answered; everything else counts:

- fully: every key is carried over, or is known to move no memory;
- with notes: a plan, and a list of the keys that it does not carry;
- refused: no plan, with the reason.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from memcheck.configs.detect import detect
from memcheck.configs.importing import import_config
from memcheck.configs.types import ConfigError, ReadSetting

ANSWERS: dict[str, object] = {
    "model": "llama-3.1-8b",
    "model.architecture.vocab_size": 50304,
    "hardware.gpu": "h100-80gb",
    "hardware.gpus_per_node": "see attempt",
    "training.sequence_length": 4096,
    "training.micro_batch_size": 1,
    "training.precision": "bf16-mixed",
}
"""What nobody can read from a config, or what it leaves to another one."""
SUFFIXES = (".json", ".yaml", ".yml", ".toml", ".txt", ".sh")


class Outcome(NamedTuple):
    """One file."""

    path: str
    format: str
    kind: str
    """``fully`` | ``with notes`` | ``refused``."""
    reasons: tuple[str, ...]
    asked: tuple[str, ...]


def outcome(path: Path) -> Outcome | None:
    """What becomes of one file; None when it is of no framework that is read.

    A total batch may be too small for eight GPUs: then the file is read for one.
    """
    first = attempt(path, 8)
    if first is None or first.kind != "refused":
        return first
    second = attempt(path, 1)
    return second if second is not None and second.kind != "refused" else first


def attempt(path: Path, gpus: int) -> Outcome | None:
    """What becomes of one file on so many GPUs, where it does not say how many."""
    data = path.read_bytes()
    name = str(path)
    try:
        format = detect(name, data.decode())
    except (ConfigError, UnicodeDecodeError):
        return None
    stated: dict[str, ReadSetting] = {"hardware.gpu": ReadSetting("h100-80gb", "benchmark")}
    asked: list[str] = []
    try:
        while True:
            found = import_config(name, data, stated)
            wanted = [key for each in found.problems for key in each.keys if key in ANSWERS and key not in stated]
            if not wanted:
                break
            # how many GPUs there are decides what else is missing: a total batch divides over them
            wanted = [key for key in wanted if key.startswith("hardware.")] or wanted
            asked += wanted
            answers = {**ANSWERS, "hardware.gpus_per_node": gpus}
            stated.update((key, ReadSetting(answers[key], "benchmark")) for key in wanted)
    except ConfigError as error:
        return Outcome(name, format, "refused", (error.message.rpartition(": ")[2],), ())
    if found.problems:
        return Outcome(name, format, "refused", tuple(each.message for each in found.problems), tuple(asked))
    notes = tuple(note.message for note in found.notes)
    return Outcome(name, format, "with notes" if notes else "fully", notes, tuple(asked))


def files(folders: list[str]) -> list[Path]:
    """Every candidate below the folders."""
    return sorted(path for each in folders for path in Path(each).rglob("*") if path.suffix in SUFFIXES)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--verbose", action="store_true", help="name every file that is not read fully")
    options = parser.parse_args()
    found = [each for path in files(options.folders) if (each := outcome(path)) is not None]
    formats = sorted({each.format for each in found})
    print("| format | files | fully | with notes | refused |\n|---|---|---|---|---|")
    for format in [*formats, "all"]:
        here = [each for each in found if format in (each.format, "all")]
        kinds = Counter(each.kind for each in here)
        print(f"| {format} | {len(here)} | {kinds['fully']} | {kinds['with notes']} | {kinds['refused']} |")
    for kind in ("refused", "with notes"):
        print(f"\n{kind}:")
        here = [each for each in found if each.kind == kind]
        reasons = Counter(f"{each.format}: {general(reason)}" for each in here for reason in set(each.reasons))
        for reason, count in reasons.most_common():
            print(f"{count:5}  {reason}")
        if options.verbose:
            for each in here:
                print(f"    {os.path.basename(each.path)}: {'; '.join(each.reasons)}")
    return 0


def general(reason: str) -> str:
    """A reason without the values of one file."""
    return re.sub(r"\b\d+\b", "N", reason)


if __name__ == "__main__":
    sys.exit(main())
