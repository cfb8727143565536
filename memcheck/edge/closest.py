"""Words that are close to an unknown one, by their letters and by how these look."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

_LONGEST = 200
"""Characters of a word that is compared; comparing takes time that grows with the square of them, and no name has
more."""


def closest(word: str, known: Iterable[str], most: int = 1, cutoff: float = 0.6) -> list[str]:
    """Known words that are like a word, best first, as difflib's ratio of equal characters (0 to 1) has it.

    Nothing is like a word of more than 200 characters.
    """
    if len(word) > _LONGEST:
        return []
    return list(_closest(word, tuple(each for each in known if len(each) <= _LONGEST), most, cutoff))


@lru_cache(maxsize=16_384)
def _closest(word: str, known: tuple[str, ...], most: int, cutoff: float) -> tuple[str, ...]:
    from difflib import get_close_matches

    return tuple(get_close_matches(word, known, most, cutoff))


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
