"""Plans with what the command answers to them, for the page's engine to be compared with.

    python -m benchmarks.page_plans --count 500 --out FILE

Examples, the examples of every rule, configs of other programs, plans that were drawn for ``verify``, and hostile files
as the fuzzer draws them. ``FILE`` is JSON: for each case its files (base64 by name), the words of the command, and its
exit code and output. Case ``I`` of ``N`` is always the same, and a smaller number is taken evenly from all.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.draw import draw
from benchmarks.hostile_draw import draw_input
from memcheck.__main__ import main as memcheck

ROOT = Path(__file__).resolve().parent.parent
SEED = 37
WHOLE = 500
"""Cases of the benchmark; those of a test are some of them."""


class Case(NamedTuple):
    """Files in a folder, and what the command is asked there."""

    name: str
    files: dict[str, bytes]
    words: tuple[str, ...]


def cases() -> Iterator[Case]:
    """All cases, without end."""
    bases = {f"bases/{path.name}": path.read_bytes() for path in sorted((ROOT / "examples/bases").iterdir())}
    for path in sorted((ROOT / "examples").glob("*.yaml")):
        yield Case(f"example {path.name}", {path.name: path.read_bytes(), **bases}, ("check", path.name))
    for path in sorted((ROOT / "docs/rules/examples").glob("*.yaml")):
        yield Case(f"rule {path.name}", {path.name: path.read_bytes()}, ("check", path.name))
    hardware = ("--gpu", "h100-80gb", "--gpus-per-node", "8")
    for folder in ("examples/configs", "tests/configs"):
        for path in sorted((ROOT / folder).iterdir()):
            if path.suffix in {".yaml", ".yml", ".json", ".toml", ".sh"}:
                yield Case(f"config {path.name}", {path.name: path.read_bytes()}, ("check", path.name, *hardware))
    index = 0
    while True:
        index += 1
        plan = {"memcheck": 1, **draw(SEED, index)}
        yield Case(f"drawn {index}", {"plan.json": json.dumps(plan).encode()}, ("check", "plan.json"))
        given = draw_input(SEED, index)
        if not given.links and not given.pipes:
            yield Case(f"{given.kind} {index}", dict(given.files), ("check", *given.arguments))


def answer(case: Case) -> dict[str, Any]:
    """What the command answers to a case, in a folder of its own."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", newline="", write_through=True) for _ in range(2))
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        for name, data in case.files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        os.chdir(folder)
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = memcheck([*case.words, "--format", "json"])
        finally:
            os.chdir(before)
    stdout, stderr = (stream.buffer.getvalue().decode("utf-8", "replace") for stream in (out, err))  # type: ignore[attr-defined]
    return {"code": code, "stdout": stdout, "stderr": stderr}


def main(arguments: list[str]) -> int:
    """Write the cases with their answers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=WHOLE)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    os.environ.update(MEMCHECK_NO_CACHE="1", NO_COLOR="1")
    drawn = [case for case, _ in zip(cases(), range(WHOLE), strict=False)]
    chosen = [drawn[index * WHOLE // options.count] for index in range(options.count)]
    written = [
        {
            "name": case.name,
            "files": {name: base64.b64encode(data).decode() for name, data in case.files.items()},
            "words": [*case.words, "--format", "json"],
            **answer(case),
        }
        for case in chosen
    ]
    options.out.write_text(json.dumps(written), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
