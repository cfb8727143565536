"""A plan as a link and back: ``#p=1.PAYLOAD``, the base64url of the raw deflate of its text. The page reads the same.

Parts are joined by ``&``: ``p`` a plan, ``q`` a second one to compare, ``d`` the number of the plan in its file, ``v``
the version that made the link, ``e`` an example by name, ``s`` the section to show first. Other parts are ignored.
What follows ``#`` of an address never reaches a server.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import zlib
from collections.abc import Mapping, Sequence
from urllib.parse import quote, unquote

from memcheck import __version__
from memcheck.catalog.names import read_config
from memcheck.configs.documents import is_config
from memcheck.errors import MemcheckError
from memcheck.plan.places import Document
from memcheck.plan.read import load_documents
from memcheck.plan.value_edits import flow_text
from memcheck.record import Record

FORMAT = 1
"""The format of payloads; a link with a higher one was made by a later version."""
LARGEST = 256 * 1024
"""Bytes of a plan in a link. Reading stops here, before more is in memory."""
SAFE_CHARACTERS = 8_000
"""Chat programs cut longer links."""
MOST_CHARACTERS = 32_000
"""Beyond this a file is the better way."""
LARGEST_PAYLOAD = LARGEST * 1002 * 4 // 3000 + 1
"""Characters beyond which a payload holds more than :data:`LARGEST`: deflate adds less than one byte in 500."""
MOST_PARTS = 64
NAME = re.compile(r"[\w.+-]{1,100}")
PART = re.compile(r"([a-z])=(.*)", re.DOTALL)
PAYLOAD = re.compile(r"([0-9]{1,6})\.([A-Za-z0-9_-]*)")
ELSEWHERE = ("extends", "source")
"""Keys of a plan that name other files, which a link does not have."""


class LinkError(MemcheckError):
    """A link that cannot be read, or a plan that no link can hold."""


class SharedPlan(Record):
    """What a link says."""

    plan: str
    """The text of the plan's file; empty where the link names an example."""
    compared: str = ""
    """The text of a second plan's file; empty where there is none."""
    document: int = 0
    """The number of the plan in its file."""
    version: str = ""
    """The version of memcheck that made the link; figures of another may differ."""
    example: str = ""
    section: str = ""
    """The section to show first."""


def write_link(shared: SharedPlan) -> str:
    """The part of an address from ``#`` on. An example, a version or a section that is no name is left out.

    Raises:
        LinkError: a plan is too large, or no Unicode.
    """
    parts = {
        "e": quote(_name(shared.example)),
        "p": _payload(shared.plan) if shared.plan else "",
        "q": _payload(shared.compared) if shared.compared else "",
        "d": str(shared.document) if shared.document else "",
        "s": quote(_name(shared.section)),
        "v": quote(_name(shared.version)),
    }
    return "#" + "&".join(f"{name}={value}" for name, value in parts.items() if value)


def _payload(text: str) -> str:
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise LinkError(
            f"the plan is not Unicode: half of a pair at character {error.start + 1:,}", "save it anew"
        ) from None
    if len(data) > LARGEST:
        raise LinkError(f"the plan has {_kib(len(data))}, and a link holds up to {_kib(LARGEST)}", "send the file")
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = packer.compress(data) + packer.flush()
    return f"{FORMAT}.{base64.urlsafe_b64encode(packed).decode('ascii').rstrip('=')}"


def read_link(link: str) -> SharedPlan:
    """What an address, or the part of it from ``#`` on, says.

    Raises:
        LinkError: it holds no plan, is damaged or too large, or was made by a later version.
    """
    _, mark, fragment = link.partition("#")
    found: dict[str, str] = {}
    for part in (fragment if mark else link).split("&", MOST_PARTS)[:MOST_PARTS]:
        match = PART.fullmatch(part)
        if match is not None:
            found.setdefault(match[1], match[2])
    example = _name(found.get("e"))
    if "p" not in found and not example:
        raise LinkError("the link holds no plan", "a link that `memcheck link` makes has `#p=` in it")
    document = found.get("d", "")
    return SharedPlan(
        plan=_text(found["p"]) if "p" in found else "",
        compared=_text(found["q"]) if "q" in found else "",
        document=int(document) if re.fullmatch("[0-9]{1,4}", document) else 0,
        version=_name(found.get("v")),
        example="" if "p" in found else example,
        section=_name(found.get("s")),
    )


def _name(written: str | None) -> str:
    """A name in a link; empty where it is none."""
    plain = unquote(written or "", errors="replace")
    return plain if NAME.fullmatch(plain) else ""


def _text(payload: str) -> str:
    match = PAYLOAD.fullmatch(payload[: LARGEST_PAYLOAD + 8])
    if match is not None and int(match[1]) > FORMAT:
        raise LinkError(
            f"the link has format {match[1]}, and memcheck {__version__} reads format {FORMAT}", "update memcheck"
        )
    too_large = LinkError(f"the link holds more than a plan of {_kib(LARGEST)}", "ask for the file")
    if len(payload) > LARGEST_PAYLOAD:
        raise too_large
    damaged = LinkError("the link is damaged: a part of it was cut or changed on its way", "ask for it again")
    if match is None or int(match[1]) != FORMAT:
        raise damaged
    try:
        packed = base64.urlsafe_b64decode(match[2] + "=" * (-len(match[2]) % 4))
        reader = zlib.decompressobj(-15)
        data = reader.decompress(packed, LARGEST + 1)
    except (binascii.Error, zlib.error, ValueError):
        raise damaged from None
    if len(data) > LARGEST:
        raise too_large
    if not reader.eof or reader.unused_data:
        raise damaged
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise damaged from None


def _kib(count: int) -> str:
    return f"{-(-count // 1024):,} KiB"


def shareable(path: str, data: bytes, documents: Sequence[Document]) -> tuple[str, bool]:
    """The text of a file for a link, and whether it was written anew without the files that its plans refer to.

    Raises:
        LinkError: a plan cannot be read, or not be written without those files.
    """
    for document in documents:
        for finding in document.findings:
            if finding.severity == "error":
                raise LinkError(f"{finding.code} {finding.message}", finding.help or "correct the plan first")
    if not is_config(path, data) and not any(map(_refers, documents)):
        try:
            return data.decode("utf-8").removeprefix("\ufeff"), False
        except UnicodeDecodeError:
            raise LinkError(f"{path} is not UTF-8", "save it as UTF-8") from None
    wanted = [_alone(document) for document in documents]
    text = "---\n".join(map(_written, wanted))
    if [each.values for each in load_documents("plan.yaml", text.encode())] != wanted:
        raise LinkError(f"{path} cannot be written without the files that it refers to", "write the plan out")
    return text, True


def _refers(document: Document) -> bool:
    """Whether a plan takes something from another file."""
    values = document.values
    if not isinstance(values, dict):
        return False
    model = values.get("model")
    return any(key in values for key in ELSEWHERE) or (isinstance(model, dict) and "config" in model)


def _alone(document: Document) -> dict[str, object]:
    """The values of a plan with those of the files that it refers to."""
    values = document.values
    if not isinstance(values, dict):
        raise LinkError(f"{document.path} holds no plan", "a plan starts with `memcheck: 1`")
    found = {"memcheck": 1, **{key: value for key, value in values.items() if key not in ELSEWHERE}}
    model = found.get("model")
    if isinstance(model, dict) and isinstance(model.get("config"), str):
        config = read_config(model["config"], os.path.dirname(document.path))
        found["model"] = {"architecture": config, **{key: each for key, each in model.items() if key != "config"}}
    return found


def _written(values: Mapping[str, object]) -> str:
    """A plan as text, with a line for each key of a section."""
    lines: list[str] = []
    for name, value in values.items():
        if isinstance(value, dict) and value:
            lines += [f"{name}:", *(f"  {key}: {flow_text(each)}" for key, each in value.items())]
        else:
            lines.append(f"{name}: {flow_text(value)}")
    return "\n".join(lines) + "\n"


def warning(link: str) -> str:
    """What to say of a long link; empty for one that goes everywhere.

    Raises:
        LinkError: it is too long for any use.
    """
    if len(link) > MOST_CHARACTERS:
        raise LinkError(f"the link would have {len(link):,} characters, more than {MOST_CHARACTERS:,}", "send the file")
    if len(link) > SAFE_CHARACTERS:
        return f"the link has {len(link):,} characters, and chat programs cut links of more than {SAFE_CHARACTERS:,}"
    return ""
