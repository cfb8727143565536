"""What the XML formats share: a document as text, with nothing in it that XML cannot carry."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from memcheck.edge.screen import without_commands
from memcheck.edge.text import clean


def element(parent: ET.Element | None, tag: str, **attributes: object) -> ET.Element:
    """A new element, under its parent if it has one; what is None is left out."""
    stated = {key: printable(str(value)) for key, value in attributes.items() if value is not None}
    return ET.Element(tag, stated) if parent is None else ET.SubElement(parent, tag, stated)


def printable(text: str) -> str:
    """User text without control characters, which XML cannot carry even as entities, and without runners' commands."""
    return without_commands(clean(text))


def serialized(root: ET.Element) -> str:
    """The document, indented, with its declaration."""
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'
