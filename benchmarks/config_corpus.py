"""How many of the configs that people commit are estimated: python -m benchmarks.config_corpus FOLDER...

Each folder below the given ones is a framework. Every file in it that is a config is read and estimated; what its kind
cannot say (the GPUs; of a launcher's half the model, the length and the batch) is answered. Printed are, per framework:

- files, and how many are estimated, which is that a check ends in a verdict: the job fits, or memory is all that it
  fails for; of those whose job a plan can say, which share: a file is beyond a plan when it names a construct that has
  no memory model, or a model that the catalog does not have; and of those that train a known model on text alone, with
  whatever construct;
- located errors by their reason;
- the ten most frequent keys that the estimate does not see;
- crashes, and files that take longer than a second.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from benchmarks.readers import ANSWERS, SUFFIXES
from memcheck.configs.detect import detect
from memcheck.configs.importing import Imported, import_config
from memcheck.configs.pictures import FILLED
from memcheck.configs.types import ConfigError, ConfigProblem, ReadSetting
from memcheck.judge import Gate, check_file

ESTIMATED, BEYOND, FAILED, CRASHED, FOREIGN = "estimated", "beyond a plan", "failed", "crashed", "no config"
LIMIT_SECONDS = 1.0
WORLDS = ((1, 1), (2, 1), (4, 1), (8, 2), (8, 4), (8, 8), (8, 16), (8, 20), (8, 32), (8, 48))
"""GPUs of a node and nodes that are tried where eight GPUs do not divide what a file states."""
_BEYOND = re.compile(
    r"has no memory model|have no memory model|no memory model of|memory model here|is not modelled|unknown model"
    r"|trains on images|generates? (text|between)|rollout engine|this is a (verl|NeMo-RL|OpenRLHF)|is no decoder"
    r"|is an? (image|video|vision)|has no model here|which has no|are not told apart|patterns that are not read"
    r"|whose number and size|trains nothing|the job is an encoder|no model of|not modell?ed|until its weight"
    r"|have no model|is a folder|does not know the dimensions|variable that the script does not set|runs on no GPU"
)
_NO_TEXT = re.compile(
    r"trains on images|model of pictures|vision|is an? (image|video)|diffusion|unknown model|no model of|trains nothing"
    r"|is a folder|variable that the script does not set|do not say --num-layers|generates? text|server|encoder"
    r"|the model hears|does not know the dimensions"
)
"""Files that train on more than text, or no model that the catalog has, or nothing at all."""
_ELSEWHERE = (
    "no config that memcheck knows",
    "which it names",
    "its launch is on line",
    "the launch is in `",
    "is not a YAML mapping",
    "is not a JSON object",
    "a Hugging Face config.json",
)
"""Files that are no config, or hand on another file, which is one by itself."""
_DIVIDES = re.compile(r"divide|multiple of|batch|ranks|GPU|interleaved pipeline|world|node")
"""Failures that another number of GPUs may mend."""
_DETAILS = re.compile(r"`[^`]*`|\b\d[\d.,]*\b")


class Verdict(NamedTuple):
    """One file."""

    path: str
    kind: str
    reasons: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    pictures: bool = False
    """It trains on pictures, which are priced as the most that a sequence holds."""
    seconds: float = 0.0


def verdict(path: Path) -> Verdict:
    """What becomes of one file, and in which time."""
    started = time.perf_counter()
    try:
        found = judged(path)
    except Exception:  # noqa: BLE001  # a crash is what is looked for
        found = Verdict(str(path), CRASHED, (traceback.format_exc().strip().rpartition("\n")[2],))
    return found._replace(seconds=time.perf_counter() - started)


def judged(path: Path) -> Verdict:
    """The verdict on one file; its GPUs are eight, or as many as divide what it states."""
    first = attempt(path, 8, 1)
    if first.kind != FAILED or not any(map(_DIVIDES.search, first.reasons)):
        return first
    others = (attempt(path, gpus, nodes) for gpus, nodes in WORLDS)
    return next((each for each in others if each.kind != FAILED), first)


def attempt(path: Path, gpus: int, nodes: int) -> Verdict:
    """One file on so many GPUs and nodes, where it does not say how many."""
    data, name = path.read_bytes(), str(path)
    try:
        detect(name, data.decode())
    except (ConfigError, UnicodeDecodeError) as error:
        message = error.message if isinstance(error, ConfigError) else "not UTF-8"
        located = isinstance(error, ConfigError) and error.location is not None
        foreign = any(each in message for each in _ELSEWHERE)
        kind = FOREIGN if foreign else BEYOND if _BEYOND.search(message) else FAILED
        return Verdict(name, kind if located or kind == FOREIGN else FAILED, (message.rpartition(": ")[2],))
    answers = {**ANSWERS, "hardware.gpus_per_node": gpus, "hardware.nodes": nodes}
    stated = {"hardware.gpu": ReadSetting("h200", "benchmark")}
    if nodes > 1:
        stated["hardware.nodes"] = ReadSetting(nodes, "benchmark")
    try:
        while True:
            found = import_config(name, data, stated)
            wanted = [key for each in found.problems if not _own(each, found) for key in each.keys]
            wanted = [key for key in wanted if key in answers and key not in stated]
            asked = [key for key in wanted if key.startswith("hardware.")] or wanted
            if not asked:
                break
            stated.update((key, ReadSetting(answers[key], "benchmark")) for key in asked)
    except ConfigError as error:
        return Verdict(name, FAILED, (error.message.rpartition(": ")[2],))
    unread = tuple(re.sub(r"^`([^`]+)`.*", r"\1", each.message) for each in found.notes)
    if found.problems:
        reasons = tuple(each.message for each in found.problems)
        return Verdict(name, BEYOND if any(map(_BEYOND.search, reasons)) else FAILED, reasons, unread)
    (plan,), traces = check_file("plan.yaml", found.text.encode(), Gate())
    if traces:
        return Verdict(name, CRASHED, (traces[0].rpartition("\n")[2],), unread)
    errors = [each for each in plan.findings if each.severity == "error"]
    if plan.estimate is not None and all(each.code.startswith("MEM1") for each in errors):
        return Verdict(name, ESTIMATED, (), unread, any(FILLED in each.message for each in found.notes))
    reasons = tuple(each.message for each in errors if not each.code.startswith("MEM1"))
    return Verdict(name, BEYOND if any(map(_BEYOND.search, reasons)) else FAILED, reasons, unread)


def _own(problem: ConfigProblem, found: Imported) -> bool:
    """Whether a problem is with the model that the config names: another one in its place is no answer."""
    named = any(key.split(".")[0] == "model" for key in found.settings)
    unknown = ("is a folder", "does not know the dimensions")
    return "model" in problem.keys and (named or any(each in problem.message for each in unknown))


def share(found: list[Verdict]) -> float | None:
    """Which part of the files whose job a plan can say is estimated; None where there is none."""
    sayable = [each for each in found if each.kind in (ESTIMATED, FAILED, CRASHED)]
    return sum(each.kind == ESTIMATED for each in sayable) / len(sayable) if sayable else None


def of_text(found: list[Verdict]) -> float | None:
    """Which part of the files that train a known model on text alone is estimated; None where there is none."""
    known = [each for each in found if each.kind != FOREIGN and not each.pictures]
    named = [each for each in known if not any(map(_NO_TEXT.search, each.reasons))]
    return sum(each.kind == ESTIMATED for each in named) / len(named) if named else None


def general(reason: str) -> str:
    """A reason without the values of one file."""
    return _DETAILS.sub("...", reason)[:110]


def report(name: str, found: list[Verdict]) -> str:
    """The section of one framework."""
    kinds = Counter(each.kind for each in found)
    part = share(found)
    those = "none that a plan can say" if part is None else f"{part:.0%} of those that a plan can say"
    text = of_text(found)
    beside = "" if text is None else f", {text:.0%} of those that train a known model on text"
    configs = sum(kinds.values()) - kinds[FOREIGN]
    lines = [f"## {name}", "", f"{configs} configs, {kinds[ESTIMATED]} estimated: {those}{beside}"]
    lines += [f"  {kind}: {kinds[kind]}" for kind in (BEYOND, FAILED, CRASHED, FOREIGN) if kinds[kind]]
    for title, kind in (("errors", FAILED), ("beyond a plan", BEYOND), ("crashes", CRASHED)):
        reasons = Counter(general(reason) for each in found if each.kind == kind for reason in set(each.reasons[:3]))
        told = [f"{count:5}  {reason}" for reason, count in reasons.most_common(12)]
        lines += [f"{title}:", *told] if told else []
    unread = Counter(key for each in found for key in set(each.unread))
    if unread:
        lines += ["not in the estimate:", *(f"{count:5}  {key}" for key, count in unread.most_common(10))]
    slow = [each for each in found if each.seconds > LIMIT_SECONDS]
    lines += [f"{len(slow)} of {len(found)} files above {LIMIT_SECONDS:g} s"]
    return "\n".join(lines) + "\n"


def corpora(folders: list[str]) -> dict[str, list[Path]]:
    """The files of every framework: those of each folder below the given ones, or of a given one without any."""
    found: dict[str, list[Path]] = {}
    for folder in map(Path, folders):
        for each in [path for path in sorted(folder.iterdir()) if path.is_dir()] or [folder]:
            found[each.name] = sorted(path for path in each.rglob("*") if path.suffix in SUFFIXES)
    return found


def main(arguments: list[str] | None = None) -> int:
    """Print the report; exit code 1 if a file crashed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--verbose", action="store_true", help="name every file that failed")
    options = parser.parse_args(arguments)
    crashed = False
    for name, paths in corpora(options.folders).items():
        found = [verdict(path) for path in paths]
        crashed |= any(each.kind == CRASHED for each in found)
        print(report(name, found))
        if options.verbose:
            for each in found:
                if each.kind in (FAILED, CRASHED):
                    print(f"    {each.path}: {'; '.join(each.reasons)}")
    return int(crashed)


if __name__ == "__main__":
    sys.exit(main())
