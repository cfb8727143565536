"""Logs that attack: nothing runs, nothing is believed, no escape leaves, and time grows with the length alone."""

from __future__ import annotations

import time

import pytest

from memcheck.edge.screen import Screen
from memcheck.why.answer import as_data, render_html, render_json, render_text
from memcheck.why.log import read_log
from memcheck.why.run import answer

OOM = b"RuntimeError: CUDA out of memory. Tried to allocate %s MiB (GPU 0; 14.73 GiB total capacity; 13.33 GiB free)\n"
ATTACKS = {
    "empty": b"",
    "null bytes": b"\0" * 5000 + OOM % b"3.00",
    "no text": bytes(range(256)) * 40,
    "utf-16": "CUDA out of memory. Tried to allocate 3.00 GiB".encode("utf-16"),
    "escape": b"\x1b]8;;http://evil\x07CUDA out of memory. Tried to allocate 3.00 MiB\x1b]8;;\x07\x1b[2J\n",
    "half an escape": b"\x1b]8;;" + b"A" * 5000 + OOM % b"3.00",
    "carriage returns": b"\r" * 5000 + OOM % b"3.00",
    "direction marks": "CUDA out of memory. Tried to allocate 3.00 MiB \u202e\u2066evil".encode(),
    "markup": b"<script>alert(1)</script> CUDA out of memory. Tried to allocate 3.00 MiB</title>",
    "digits": OOM % (b"9" * 5000),
    "many decimals": OOM % (b"3." + b"1" * 5000),
    "negative": OOM % b"-3.00",
    "not a number": OOM % b"nan",
    "infinite": OOM % b"1e999",
    "boolean": OOM % b"True",
    "other digits": "CUDA out of memory. Tried to allocate \u0663\u0664 MiB (GPU \u0663;".encode(),
    "commas": OOM % b"1,2,3,4,5,6,7,8,9",
    "absurd": OOM % b"99999999999999.00",
    "gpu number": b"CUDA out of memory. Tried to allocate 3.00 MiB (GPU " + b"1" * 4000 + b";",
    "rank number": b"[rank" + b"7" * 4000 + b"]: " + OOM % b"3.00",
    "units": OOM.replace(b"MiB", b"MiBMiBMiB" * 200) % b"3.00",
    "one long line": b"x" * 300_000 + OOM.strip() % b"3.00" + b"y" * 300_000,
    "one long line of words": b"tried to allocate " * 20_000,
    "brackets": b"CUDA out of memory. Tried to allocate 3.00 MiB " + b"(" * 20_000,
    "spaces": b"Killed" + b" " * 100_000 + b"x",
    "dots": b"slurmstepd: error: " + b"." * 100_000 + b"oom-kill event",
    "shapes": b"OOM when allocating tensor with shape[" + b"9," * 20_000 + b"9] and type float",
    "shape": b"OOM when allocating tensor with shape[999999999999,999999999999,999999999999] and type float on",
    "backslashes": b"+ torchrun " + b"\\\n" * 5000 + OOM % b"3.00",
    "command": b"+ torchrun $(touch /tmp/x) `id` --model_name_or_path ../../../etc/passwd --bf16 True\n"
    + OOM % b"3.00",
    "config path": b"+ torchrun train.py --deepspeed /dev/zero --model_name_or_path gpt2\n" + OOM % b"3.00",
    "models": b"--model a/b\n" * 20_000 + OOM % b"3.00",
    "steps": b"step " * 50_000 + b"\n" + OOM % b"3.00",
    "tracebacks": b'  File "a.py", line 1, in forward\n' * 20_000 + OOM % b"3.00",
    "torchrun": b"Root Cause (first observed failure)" * 5000 + OOM % b"3.00",
}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_answered_in_a_second(name: str) -> None:
    """Every form of the answer is short, without escapes and markup of the log, and its sizes are sizes of memory."""
    data = ATTACKS[name]
    begun = time.process_time()
    found = answer(("-",), stdin=lambda limit: data[:limit])
    assert time.process_time() - begun < 2
    for text in (render_text(found, Screen(width=80)), render_html(found), render_json(found)):
        assert "\x1b" not in text
        assert "\x07" not in text
        assert "\u202e" not in text
        assert len(text) < 60_000
    assert "<script>" not in render_html(found)
    for count in as_data(found)["figures"].values():
        assert count is None or (type(count) is int and 0 <= count < 2**50)


@pytest.mark.slow
@pytest.mark.parametrize("line", [OOM % b"3.00", b"[rank3]: " + OOM % b"3.00", b"loss 3 exit code error: killed\n"])
def test_time_grows_with_the_length_alone(line: bytes) -> None:
    """Eight times the lines take about eight times as long, and a megabyte less than a second."""

    def taken(count: int) -> float:
        best = 9.0
        for _ in range(3):
            begun = time.process_time()
            read_log(line * count)
            best = min(best, time.process_time() - begun)
        return best

    count = 2**20 // len(line)
    assert taken(count) < 1
    assert taken(8 * count) < 16 * max(taken(count), 0.02)


@pytest.mark.slow
def test_fifty_thousand_messages() -> None:
    """10 MB with 50,000 messages of 64 ranks take seconds at most; each rank's first is read, the others are counted."""
    line = (
        OOM.strip() % b"386.00"
        + b" If reserved memory is >> allocated memory try setting max_split_size_mb to avoid it."
    )
    data = b"".join(b"[rank%d]: %s\n" % (number % 64, line) for number in range(50_000))
    begun = time.process_time()
    found = read_log(data)
    assert time.process_time() - begun < 3
    assert found.echoes == 49_999
    assert {message.rank for message in found.messages} == set(range(64))
