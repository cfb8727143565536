"""Feed ``check`` with inputs that nobody wrote, and keep those on which it misbehaves.

    python -m benchmarks.fuzz_check --seconds 60 --seed 1 [--count INPUTS] [--only KIND] [--keep FOLDER]
                                    [--profile research]
    python -m benchmarks.fuzz_check --again SEED.NUMBER     # one input again, with what check says

Input ``N`` of a seed is always the same (``benchmarks.hostile_draw``). It misbehaves where ``check``

- ends in exit code 3 or in an exception: a defect;
- takes more than a second of processor time, or 200 MB, in a process of its own: slow, large;
- ends in 0 although a plan has no estimate: unjudged;
- prints a control character: unclean.

A run that is interrupted or terminated says what it counted until then.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import multiprocessing
import os
import re
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.hostile_draw import KINDS, Input, draw_input
from memcheck.cli.judging import SWITCH

SECONDS = 1.0
MEGABYTES = 200
HANGS_S, PATIENCE_S = 30, 900
"""Processor time after which an input counts as one that does not end, and elapsed time: a busy machine is slow."""
FRESH = 200
"""Inputs after which a process is replaced, so that what one keeps of many is not taken for what one input needs."""
KEPT = 8
"""Of so many inputs one's verdict is kept: none is ever found again, as each lies in a folder of its own."""
WARM = 40
"""Inputs of seed 0 that load modules, before processes are forked that check the others."""
PROFILE = "MEMCHECK_FUZZ_PROFILE"
"""Says to every process which profile's rules are asked."""
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class Outcome(NamedTuple):
    """What became of an input."""

    code: int
    cpu_s: float
    peak_mb: int
    faults: tuple[str, ...]
    said: str


def lay_out(given: Input, folder: Path) -> None:
    """Write an input's files into an empty folder."""
    for name, data in given.files.items():
        (folder / name).write_bytes(data)
    for name, target in given.links.items():
        (folder / name).symlink_to(target)
    for name in given.pipes:
        os.mkfifo(folder / name)


def run(given: Input) -> Outcome:
    """Check an input in this process, in a folder of its own."""
    from memcheck.__main__ import main

    stdout, stderr = (io.TextIOWrapper(io.BytesIO(), "utf-8", newline="", write_through=True) for _ in range(2))
    before, start = os.getcwd(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        lay_out(given, Path(folder))
        os.chdir(folder)
        try:
            with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
                profile = os.environ.get(PROFILE, "gate")
                code = main(["check", "--format", "json", "--profile", profile, *given.arguments])
        except BaseException as error:  # noqa: BLE001 - nothing may come out of it
            code, _ = 3, stderr.write(f"{type(error).__name__}: {error}")
        finally:
            os.chdir(before)
    cpu_s = time.process_time() - start
    peak_mb = most_resident_mb()
    out, err = (stream.buffer.getvalue().decode("utf-8", "replace") for stream in (stdout, stderr))  # type: ignore[attr-defined]
    return Outcome(code, cpu_s, peak_mb, faults_of(code, cpu_s, peak_mb, out, err), (err + out)[:4000])


def most_resident_mb() -> int:
    """The most that this process had in memory.

    ``getrusage`` counts what the process that started this one had at that time, which Linux's own figure does not.
    """
    try:
        with open("/proc/self/status", encoding="utf-8") as stream:
            return next(int(line.split()[1]) // 1024 for line in stream if line.startswith("VmHWM:"))
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def faults_of(code: int, cpu_s: float, peak_mb: float, out: str, err: str = "") -> tuple[str, ...]:
    """What is wrong with how a check ended. ``out``: its JSON report."""
    found = {
        "defect": code == 3,
        "slow": cpu_s > SECONDS,
        "large": peak_mb > MEGABYTES,
        "unjudged": code == 0 and not judged(out),
        "unclean": bool(CONTROL.search(out + err)),
    }
    return tuple(name for name, is_so in found.items() if is_so)


def judged(report: str) -> bool:
    """Whether every plan of a report that passes has an estimate, and there is one."""
    plans: list[dict[str, Any]] = json.loads(report)["plans"]
    return bool(plans) and all(
        plan["estimate"] and plan["estimate"]["device_bytes"] > 0 and plan["estimate"]["parameters"] > 0
        for plan in plans
    )


def serve(pipe: Connection) -> None:
    """Answer seeds, numbers and kinds with kinds and outcomes until the pipe ends; None for inputs of other kinds."""
    with contextlib.suppress(EOFError, OSError):
        while True:
            seed, number, kinds = pipe.recv()
            given = draw_input(seed, number)
            os.environ[SWITCH] = "1" if number % KEPT else ""
            pipe.send((given.kind, run(given) if given.kind in kinds else None))


class Runner:
    """A process in which inputs are checked one after the other."""

    def __init__(self, method: str = "spawn") -> None:
        """Start it. ``method``: of multiprocessing; one that is forked has this one's modules."""
        context: Any = multiprocessing.get_context(method)
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self.served = 0

    def check(self, seed: int, number: int, kinds: tuple[str, ...] = tuple(KINDS)) -> tuple[str, Outcome | None]:
        """The kind of one input and its outcome; a process that dies or does not end is an outcome, too.

        None: it is of none of these kinds.
        """
        self.served += 1
        self.pipe.send((seed, number, kinds))
        if not self._answers():
            return draw_input(seed, number).kind, Outcome(-1, HANGS_S, 0, ("slow",), "does not end")
        try:
            found: tuple[str, Outcome | None] = self.pipe.recv()
        except (EOFError, OSError):
            return draw_input(seed, number).kind, Outcome(-1, 0.0, 0, ("defect",), "the process ended")
        return found

    def _answers(self) -> bool:
        """Wait for the outcome of an input, as long as it may take."""
        before, end = self._cpu_s(), time.monotonic() + PATIENCE_S
        while not self.pipe.poll(1):
            if self._cpu_s() - before > HANGS_S or time.monotonic() > end:
                return False
        return True

    def _cpu_s(self) -> float:
        """Processor time of the process so far; that of this one where the system does not tell."""
        try:
            with open(f"/proc/{self.process.pid}/stat", encoding="utf-8") as stream:
                user, system = stream.read().rpartition(")")[2].split()[11:13]
        except (OSError, ValueError):
            return time.process_time()
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def end(self) -> None:
        """Stop it, whatever it does."""
        self.pipe.close()
        self.process.kill()
        self.process.join()


def in_fresh_process(seed: int, number: int) -> Outcome:
    """One input in a process that has the modules loaded and nothing else."""
    runner = Runner()
    try:
        runner.check(0, 0)  # loads what any check loads
        found = runner.check(seed, number)[1]
        if found is None:
            raise RuntimeError("every kind was asked for")
        return found
    finally:
        runner.end()


def fuzz(
    seed: int, first: int, seconds: float, kinds: tuple[str, ...], count: float = math.inf
) -> tuple[Counter[str], dict[int, Outcome], int]:
    """Check inputs for a while, at most ``count`` of them, or until it is interrupted.

    Returns what was counted (inputs by kind, exit codes, faults), the outcomes with faults by number, and the number
    after the last one.
    """
    counted: Counter[str] = Counter()
    faulty: dict[int, Outcome] = {}
    method = "fork" if sys.platform == "linux" else "spawn"
    if method == "fork":
        for each in range(WARM):
            run(draw_input(0, each))
    runner, end, number = Runner(method), time.monotonic() + seconds, first
    try:
        while time.monotonic() < end and number < first + count:
            kind, found = runner.check(seed, number, kinds)
            if found is not None:
                again = found.faults or runner.served >= FRESH or found.code == -1
                if again:
                    runner.end()
                    runner = Runner(method)
                if set(found.faults) & {"slow", "large"} and found.code != -1:
                    found = in_fresh_process(seed, number)
                counted.update((f"kind {kind}", f"exit {found.code}", *(f"fault {each}" for each in found.faults)))
                if found.faults:
                    faulty[number] = found
                    print(f"{seed}.{number}: {described(found)}", file=sys.stderr, flush=True)
            number += 1
    except KeyboardInterrupt:
        pass  # what was counted is said
    finally:
        runner.end()
    return counted, faulty, number


def keep(given: Input, folder: Path) -> None:
    """Write an input that misbehaves, so that it can be looked at and become a test."""
    folder.mkdir(parents=True)
    lay_out(given, folder)
    (folder / "arguments.json").write_text(json.dumps(given.arguments))


def described(found: Outcome) -> str:
    """An outcome in a line."""
    return f"{', '.join(found.faults) or 'fine'} (exit {found.code}, {found.cpu_s:.2f} s, {found.peak_mb} MB)"


def main() -> int:
    """Fuzz, print what was counted and each input that misbehaves, and end in 1 if there is one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=math.inf)
    parser.add_argument("--only", choices=KINDS)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--again", metavar="SEED.NUMBER")
    parser.add_argument("--profile", choices=("gate", "review", "research"), default="gate")
    options = parser.parse_args()
    os.environ[PROFILE] = options.profile
    if options.again:
        seed, number = map(int, options.again.split("."))
        given = draw_input(seed, number)
        for name, data in given.files.items():
            print(f"--- {name!r}\n{data.decode('utf-8', 'replace')}")
        found = in_fresh_process(seed, number)
        print(f"--- {' '.join(given.arguments)!r}: {described(found)}\n{found.said}")
        return int(bool(found.faults))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as kept:
        os.environ["XDG_CACHE_HOME"] = kept  # not the user's own
        kinds = (options.only,) if options.only else tuple(KINDS)
        counted, faulty, after = fuzz(options.seed, options.first, options.seconds, kinds, options.count)
    for number, found in faulty.items():
        line = found.said.strip().splitlines()[-1:] or [""]
        print(f"{options.seed}.{number}: {described(found)} {line[0][:160]!r}")
        if options.keep:
            keep(draw_input(options.seed, number), options.keep / f"{options.seed}.{number}")
    print(
        f"inputs {options.first} to {after - 1} of seed {options.seed}: "
        + ", ".join(f"{name}: {n}" for name, n in sorted(counted.items()))
    )
    return int(bool(faulty))


if __name__ == "__main__":
    sys.exit(main())
