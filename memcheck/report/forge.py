"""What forges make of findings, files, rules and text: fingerprints, paths, pages, and Markdown that stays text."""

from __future__ import annotations

import os
import re
from collections.abc import Container, Iterator

from memcheck.edge.screen import Screen, width, wrap
from memcheck.plan.finding import Finding, key_of
from memcheck.report import DOCS_URL
from memcheck.rules.result import Hidden, PlanResult, Report

_WEB = ("https://", "http://")
_SAFE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~/")


def docs_folder() -> str:
    """The address of the rules' pages on the web, without a slash at its end; empty where none is configured."""
    base = os.environ.get(DOCS_URL, "").rstrip("/")
    return base if base.startswith(_WEB) and base.isascii() and base.isprintable() and " " not in base else ""


def family_of(code: str) -> str:
    """The name of the page that has a rule: ``MEM1xx`` for ``MEM101``."""
    return f"{code[:-2]}xx"


def published(code: str) -> str:
    """The address of a rule on the web; empty where no address of the pages is configured."""
    base = docs_folder()
    return f"{base}/{family_of(code)}.md#{code.lower()}" if base else ""


def page(code: str) -> str:
    """Where to read about a rule: its published page, else the module whose docstring becomes that page."""
    address = published(code)
    if address:
        return address
    folder = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "rules")
    prefix = f"{code.lower()}_"
    try:
        found = [name for name in os.listdir(folder) if name.startswith(prefix) and name.endswith(".py")]
    except OSError:  # the package is not a folder
        found = []
    name = found[0] if found else next((name for name, numbers in FILE_RULES.items() if code[3:] in numbers), "")
    path = os.path.join(folder, name)
    return file_url(path) if name and os.path.isfile(path) else ""


FILE_RULES = {
    "text_rules.py": ["001", "002", "003", "004", "005", "006", "007"],
    "plan_rules.py": ["010", "011", "012", "013", "014", "015", "016", "020", "021", "022", "023", "024", "025"],
    "config_rules.py": ["030", "031", "032", "501", "502", "503", "504", "607"],
}
"""The modules with the pages of rules that have no check, each with the numbers of their codes."""


def file_url(path: str) -> str:
    """An absolute path as a URL that names the machine, since a terminal may show another one's output."""
    host = os.uname().nodename if hasattr(os, "uname") else ""
    path = path.replace(os.sep, "/")
    return f"file://{quoted(host)}{'' if path.startswith('/') else '/'}{quoted(path, ':')}"


def quoted(text: str, safe: str = "") -> str:
    """Percent-encoding for the path of a URL."""
    return "".join(
        char if char in _SAFE or char in safe else "".join(f"%{byte:02X}" for byte in char.encode("utf-8", "replace"))
        for char in text
    )


WORKSPACES = ("GITHUB_WORKSPACE", "CI_PROJECT_DIR")
"""Where GitHub's and GitLab's runners say that the repository lies."""


def repository_path(path: str) -> str:
    """The path from the repository's root; as given if it lies outside."""
    return relative_to(path, root())


def root() -> str:
    """The runner's workspace, else the nearest folder with ``.git``, else the working directory."""
    for name in WORKSPACES:
        if stated := os.environ.get(name):
            return os.path.abspath(stated)
    here = os.getcwd()
    folder = here
    while not os.path.exists(os.path.join(folder, ".git")):
        parent = os.path.dirname(folder)
        if parent == folder:
            return here
        folder = parent
    return folder


def relative_to(path: str, folder: str) -> str:
    """The path from a folder, with forward slashes; as given if it lies outside."""
    absolute = os.path.abspath(path)
    folder = os.path.abspath(folder)
    try:
        inside = os.path.commonpath([absolute, folder]) == folder
    except ValueError:  # another drive
        inside = False
    return os.path.relpath(absolute, folder).replace(os.sep, "/") if inside else path


Identified = tuple[PlanResult, Finding, str]
"""A finding with its plan and its key."""
Keyed = tuple[PlanResult, Finding, str, Hidden | None]
"""A finding with its plan, its key and what hides it; None where it is shown."""


def identified(report: Report) -> Iterator[Identified]:
    """Every finding with a key of its own: findings of one rule at one key of a plan are counted."""
    for plan, finding, key, _ in keyed(report, ()):
        yield plan, finding, key


def keyed(report: Report, hidden_by: Container[str]) -> Iterator[Keyed]:
    """Every finding, shown or hidden by one of the given things, with its key; each plan's hidden ones come last."""
    from hashlib import sha256  # slow to load, and of no use to a link

    seen: dict[tuple[str, ...], int] = {}
    for plan in report.plans:
        path = repository_path(plan.path)
        hidden = [(each.finding, each) for each in plan.hidden if each.by in hidden_by]
        for finding, why in [*((finding, None) for finding in plan.findings), *hidden]:
            parts = (finding.code, path, plan.name, key_of(finding.code, finding.pointer))
            seen[parts] = seen.get(parts, 0) + 1
            text = "\0".join((*parts, str(seen[parts])))
            yield plan, finding, sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:32], why


def styled(page: str, screen: Screen) -> str:
    """Markdown for a terminal: headings bold, code coloured, paragraphs filled to the screen's width."""
    lines: list[str] = []
    paragraph: list[str] = []

    def flush() -> None:
        if paragraph:
            indent = " " * marker(paragraph[0])
            whole = " ".join([paragraph[0], *(told.strip() for told in paragraph[1:])])
            parts = wrap(whole, screen.columns - len(indent), -len(indent))
            lines.extend(inline(told, screen) for told in [parts[0], *(indent + part for part in parts[1:])])
            paragraph.clear()

    for line in page.splitlines():
        if line.startswith(("#", "    ")) or not line.strip() or marker(line):
            flush()
        if line.startswith("#"):
            lines.append(screen.paint(line.lstrip("# "), "strong"))
        elif line.startswith("    "):
            lines.extend(screen.paint(part, "gutter") for part in example(line, screen.columns))
        elif line.strip():
            paragraph.append(line)
        else:
            lines.append("")
    flush()
    return "\n".join(lines) + "\n"


def marker(line: str) -> int:
    """The characters of the mark of a list item or a table row, which begins a line of its own; 0 without one."""
    inside = line.lstrip()
    number = inside.partition(".")[0]
    mark = inside[:1] if inside[:1] in ("-", "*", "|") else f"{number}." if number.isdecimal() else ""
    found = mark and inside.startswith(mark) and inside[len(mark) : len(mark) + 1].isspace()
    return len(line) - len(inside) + len(mark) + 1 if found else 0


def example(line: str, columns: int) -> list[str]:
    """A line of an example, which is never broken. A comment after it that does not fit is put above it."""
    code, mark, comment = line.partition("   # ")
    if not mark or width(line) <= columns:
        return [line]
    indent = code[: len(code) - len(code.lstrip())]
    return [*(f"{indent}# {part}" for part in wrap(comment, columns - len(indent) - 2)), code.rstrip()]


def inline(told: str, screen: Screen) -> str:
    """Code spans in colour, or in their backticks where there is none."""
    if not screen.color:
        return told
    import re  # slow to load, and of no use to findings

    return re.sub(r"`([^`]+)`", lambda span: screen.paint(span[1], "gutter"), told)


def doc_section(doc: str, title: str) -> str:
    """The text under one heading, as a single paragraph; empty if there is none."""
    _, _, rest = doc.partition(f"\n## {title}\n")
    return " ".join(rest.partition("\n## ")[0].split())


NO_WIDTH = "\u200b"
_LINKS = re.compile(
    r"(?<=:)(?=//)|(?<=@)|(?<=#)(?=\w)|(?<=[Gg][Hh]-)(?=\d)|(?<=[Ww]{3})(?=\.)|(?<=\b[Mm]ailto)(?=:)|(?<=\bxmpp)(?=:)"
    r"|(?<=:)(?!(?!100:|1234:)\d{1,64}:)(?=[\w+-]{1,64}:)"
)
"""Where what GitHub would link or draw is broken: addresses, mentions, numbers of issues, emoji such as ``:100:``. It
does so after it has read entities, and cmark-gfm links addresses inside ``<code>``, too, because raw HTML tells it
nothing."""
_COMMIT = re.compile(r"\b(?=\d*[a-f])[0-9a-f]{7,40}\b")
"""GitHub links seven digits of a commit and more."""
_SIGNS = str.maketrans({char: f"\\u{ord(char):04x}" for char in "✅❌❎⚠✔✖✓✗✘☑⛔"})
_SIGNS.update({ord(char): f"\\U{ord(char):08x}" for char in "🟢🟡🟠🔴🚫🆗👍🚨"})
"""Signs that a reader takes for memcheck's own verdict."""
_MARKUP = re.compile(r"(?<=\])(?=[(\[:])|(?<=<)(?=[A-Za-z/!?])|(?<=&)(?=[#\w])|(?<=!)(?=\[)")
"""Where a link, a tag, an entity or an image is broken, where no entity may stand for its signs."""
_ENTITIES = {ord(char): f"&#{ord(char)};" for char in "*~"}
_EDGE = re.compile(r"(?<!\w)_|_(?!\w)")
"""An underscore that may begin or end what is emphasised; within a word none does."""


def broken(text: str, *, commits: bool = False) -> str:
    """A line with a character of no width where a link, a mention or an emoji would begin, and without verdict signs.

    ``commits``: what looks like a commit may become a link to it.
    """
    shown = _LINKS.sub(NO_WIDTH, text.translate(_SIGNS))
    if not commits:
        shown = _COMMIT.sub(lambda found: NO_WIDTH.join(re.findall(".{1,6}", found[0])), shown)
    return shown


def neutral(text: str) -> str:
    """A message for readers of which some show Markdown, and others plain text: both show it as it is meant.

    Code between single backticks stays code. Where backticks do not pair, they are written as entities.
    """
    shown = _MARKUP.sub(NO_WIDTH, broken(text))
    parts = shown.split("`")
    if len(parts) % 2 == 0 or "``" in shown:
        return _words("&#96;".join(parts))
    return "`".join(part if number % 2 else _words(part) for number, part in enumerate(parts))


def _words(text: str) -> str:
    return _EDGE.sub("&#95;", text.translate(_ENTITIES))
