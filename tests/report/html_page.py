"""Reads an HTML report as strictly as XHTML would: what is opened is closed, and nothing is said twice."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "br", "wbr", "hr", "link", "img", "input"}
INLINE = {"wbr", "b", "code", "a", "sup"}
SHAPES = {"rect", "line", "path", "circle"}


class Element:
    """One element: its attributes, the text inside, what it contains."""

    def __init__(self, tag: str, attributes: dict[str, str], parent: Element | None) -> None:
        self.tag, self.attributes, self.parent = tag, attributes, parent
        self.children: list[Element] = []
        self.words: list[str] = []

    def all(self, *tags: str) -> list[Element]:
        """Everything below with one of the tags, in order; everything, without any."""
        found = []
        for child in self.children:
            found += [child] if not tags or child.tag in tags else []
            found += child.all(*tags)
        return found

    @property
    def text(self) -> str:
        """All text inside, on one line."""
        return " ".join("".join(self.words).split())

    @property
    def classes(self) -> set[str]:
        """The classes."""
        return set(self.attributes.get("class", "").split())


class Page(HTMLParser):
    """A parsed page; anything that a browser would have to guess about is an AssertionError."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("", {}, None)
        self.open = [self.root]
        self.doctype = ""
        self.feed(text)
        self.close()
        assert [each.tag for each in self.open] == [""], "not closed"

    def handle_decl(self, decl: str) -> None:
        self.doctype = decl

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"an attribute twice: <{tag} {attrs}>"
        element = Element(tag, {name: value or "" for name, value in attrs}, self.open[-1])
        self.open[-1].children.append(element)
        if tag not in INLINE:
            self.handle_data(" ")
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in SHAPES, f"<{tag}/> is not closed in HTML"
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()
        if tag not in INLINE:
            self.handle_data(" ")

    def handle_data(self, data: str) -> None:
        for element in self.open:
            element.words.append(data)
