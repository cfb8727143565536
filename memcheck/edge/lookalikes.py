"""Letters of other scripts that look like plain ones, and words written in them."""

from __future__ import annotations

_LETTERS = {
    "a": "аɑαᴀꭺ",
    "b": "ЬƄвВβΒʙ",
    "c": "сСϲϹᴄϾꮯ¢",
    "d": "ԁɗԀ",
    "e": "еЕєЄεΕҽ℮ɘǝəɛᴇꭼ",
    "f": "ғϝƒꜰ",
    "g": "ɡցġɢԍ",
    "h": "һҺհнНΗʜħꮋᏂ",
    "i": "іІιΙıɩɪӀ",
    "j": "јЈϳᴊ",
    "k": "кКκΚᴋҟĸꮶ",
    "l": "ӏŀłʟⅼ",
    "m": "мМΜμᴍɱꮇµ",
    "n": "пηΝոռɴп",
    "o": "оОοΟօσᴏ०૦",
    "p": "рРρΡᴘ",
    "q": "ԛգ",
    "r": "гᴦʀɾ",
    "s": "ѕЅꜱƽ",
    "t": "тТτΤᴛŧ",
    "u": "υսᴜʋц",
    "v": "νѵᴠ",
    "w": "ԝѡᴡωɯш",
    "x": "хХχΧ×",
    "y": "уУүΥγʏყ",
    "z": "ᴢʐζΖ",
    "-": "‐‑‒–—−﹣",
    "_": "＿‿",
    ":": "։ː",
}
"""Letters of other scripts, and of Latin's own, by the one that they look like."""


class _Table(dict[int, "str | int | None"]):
    """What becomes of a character, by its code: a plain letter, itself, or nothing."""

    def __missing__(self, code: int) -> str | int | None:
        import unicodedata

        char = chr(code)
        kind = unicodedata.category(char)
        invisible = kind in ("Mn", "Me", "Cf") or char in _FILLERS
        found = None if invisible else code
        self[code] = found
        return found


_FILLERS = "\u115f\u1160\u3164\uffa0"
"""Letters that are drawn as nothing."""
_TABLE = _Table({ord(other): plain for plain, others in _LETTERS.items() for other in others})


def skeleton(text: str) -> str:
    """A text in small plain letters, where each looks like the letter that stands there.

    Marks above and below letters, and what is drawn as nothing, are left out.
    """
    if text.isascii():
        return text.lower()
    import unicodedata

    return unicodedata.normalize("NFKD", text.translate(_TABLE)).translate(_TABLE).lower()


def looks_like(text: str, word: str) -> bool:
    """Whether a text looks like a word of plain small letters."""
    return text == word or (not text.isascii() and skeleton(text) == word)


def other_letters(text: str) -> str:
    """The characters of a text that are not ASCII's, as codes: ``U+0441``; the first three of them."""
    found = list(dict.fromkeys(f"U+{ord(char):04X}" for char in text if not char.isascii()))
    return ", ".join(found[:3])
