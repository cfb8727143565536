"""The page around HTML reports: its palette, its policy, its style sheet."""

from __future__ import annotations

import base64
import hashlib
import re

import pytest

from memcheck.accounts.estimate import PARTS
from memcheck.report.html.shell import BACKGROUNDS, BARS, TEXT, page
from tests.report.html_page import Page


def luminance(colour: str) -> float:
    """Relative luminance of ``#rrggbb`` by WCAG 2.2."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """The contrast ratio of two colours."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_contrast_is_computed_as_specified() -> None:
    """Black on white is 21, a colour on itself is 1, and WCAG's own example of 4.54 is grey 767676."""
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#123456", "#123456") == 1
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.005)


def test_every_colour_is_legible() -> None:
    """Text on every background, and bars on that of cards, reach the ratio 4.5 on light and on dark screens."""
    for role in [*TEXT, *BARS]:
        for shade in ["light", "dark"]:
            colour = getattr({**TEXT, **BARS}[role], shade)
            grounds = BACKGROUNDS if role in TEXT else {"card": BACKGROUNDS["card"]}
            for name, ground in grounds.items():
                assert contrast(colour, getattr(ground, shade)) >= 4.5, name


def test_every_component_has_a_colour_of_its_own() -> None:
    """A new component of memory cannot be forgotten, and no two look the same."""
    assert tuple(BARS) == PARTS
    for shade in ("light", "dark"):
        assert len({getattr(colour, shade) for colour in BARS.values()}) == len(PARTS)


def test_page_allows_its_own_style_alone() -> None:
    """The policy names the hash of the one style sheet: no script, no image, no font, no request."""
    text = page("a & <b>", "<h1>x</h1>", version="1.0", styles=".mine{color:red}")
    root = Page(text).root
    (style,) = root.all("style")
    sheet = re.search("<style>(.*?)</style>", text, re.DOTALL)[1]
    assert ".mine{color:red}" in style.text
    digest = base64.b64encode(hashlib.sha256(sheet.encode()).digest()).decode()
    policy = next(m for m in root.all("meta") if m.attributes.get("http-equiv") == "Content-Security-Policy")
    assert policy.attributes["content"].startswith(f"default-src 'none'; style-src 'sha256-{digest}'")
    assert root.all("title")[0].text == "a & <b>"
    assert not root.all("script", "link", "img")
    assert "url(" not in sheet
    assert "@import" not in sheet


def test_every_colour_that_is_used_is_defined() -> None:
    """No rule of the style sheet names a colour that the palette lacks."""
    text = page("x", "<h1>x</h1>", version="1.0")
    assert set(re.findall(r"var\((--[\w-]+)\)", text)) - set(re.findall(r"(--[\w-]+):", text)) == set()
