"""Bytes of text files as clean text: one encoding, one spelling of letters, nothing invisible."""

from __future__ import annotations

import codecs
import re
import unicodedata
from dataclasses import dataclass

#: Characters that nobody sees, which make two names of one: byte-order marks, zero-width
#: characters, marks of the writing direction, soft hyphens, selectors of variants, and control
#: characters other than white space and NUL, which tells that a file is not text.
INVISIBLE = (
    "\u0001-\u0008\u000e-\u001f\u007f\u00ad\u034f\u061c\u180b-\u180e\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\ufe00-\ufe0f\ufeff"
)

_INVISIBLE = re.compile(f"[{INVISIBLE}]")
_CONTROLS = bytes([*range(1, 9), *range(0x0E, 0x20), 0x7F])
# The first bytes of these characters in UTF-8, which are quicker to find than the characters.
_FIRST_BYTES = (
    b"\xc2\xad",
    b"\xcd\x8f",
    b"\xd8\x9c",
    b"\xe1\xa0",
    b"\xe2\x80",
    b"\xe2\x81",
    b"\xef\xb8",
    b"\xef\xbb\xbf",
)


@dataclass(frozen=True)
class PlainText:
    """The contents of a text file in UTF-8, and what was changed in it."""

    utf8: bytes
    n_invisible: int = 0  # characters that were removed, without a mark at the beginning
    n_other_encoding: int = 0  # characters in Windows-1252 in a file that is UTF-8 otherwise
    n_unreadable: int = 0  # characters that have no meaning in the encoding, now U+FFFD
    n_composed: int = 0  # fields or lines with letters that were spelled as letter and accent

    @property
    def notes(self) -> dict[str, int | str]:
        """What was changed, for the account of an import; empty if nothing was."""
        counts = {
            "invisible_characters_removed": self.n_invisible,
            "characters_in_another_encoding": self.n_other_encoding,
            "unreadable_characters": self.n_unreadable,
            "letters_composed": self.n_composed,
        }
        return {kind: n for kind, n in counts.items() if n}


def plain_text(data: bytes) -> PlainText:
    """Convert text in UTF-8, UTF-16 or Windows-1252 to UTF-8.

    A file in UTF-8 with single characters in Windows-1252, which two programs wrote in turn, keeps
    both; these characters are counted.
    """
    n_other_encoding = 0
    n_unreadable = 0
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        text = data.decode("utf-16", errors="replace")
        n_unreadable = text.count("\ufffd")
        data = text.encode()
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        text, n_other_encoding = _two_encodings(data)
        n_unreadable = text.count("\ufffd")
        data = text.encode()
    data, n_invisible = _without_invisible_bytes(data)
    data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    data, n_composed = _composed_bytes(data)
    return PlainText(data, n_invisible, n_other_encoding, n_unreadable, n_composed)


def plain_name(text: str) -> str:
    """Return a name, or several, as `plain_text` leaves them.

    They have no character of `INVISIBLE`, and one spelling: an accented letter is one character
    (the normal form NFC of Unicode) and not a letter and an accent, which look the same.
    """
    if text.isascii() and text.isprintable():
        return text
    return unicodedata.normalize("NFC", _INVISIBLE.sub("", text))


def _two_encodings(data: bytes) -> tuple[str, int]:
    """Decode bytes that are not UTF-8.

    Returns the text and the number of characters in Windows-1252, which is 0 if all of the file is
    in this encoding: it then has no character that takes several bytes in UTF-8.
    """
    as_utf8 = data.decode("utf-8", errors="surrogateescape")
    n_other = len(re.findall("[\udc80-\udcff]", as_utf8))
    if not re.search("[\u0080-\ud7ff\ue000-\U0010ffff]", as_utf8):
        return data.decode("cp1252", errors="replace"), 0

    def in_cp1252(match: re.Match[str]) -> str:
        return match[0].encode("utf-8", "surrogateescape").decode("cp1252", errors="replace")

    return re.sub("[\udc80-\udcff]", in_cp1252, as_utf8), n_other


def _without_invisible_bytes(data: bytes) -> tuple[bytes, int]:
    """Return text in UTF-8 without invisible characters, and their number."""
    without_controls = data.translate(None, _CONTROLS)
    n_controls = len(data) - len(without_controls)
    if not any(first in without_controls for first in _FIRST_BYTES):
        return without_controls, n_controls
    visible, n_removed = _INVISIBLE.subn("", without_controls.decode("utf-8"))
    return visible.encode(), n_controls + n_removed


def _composed_bytes(data: bytes) -> tuple[bytes, int]:
    """Return text in UTF-8 in the normal form NFC, and the number of lines that were not."""
    if data.isascii():
        return data, 0
    text = data.decode("utf-8")
    if unicodedata.is_normalized("NFC", text):
        return data, 0
    lines = text.split("\n")
    composed = [unicodedata.normalize("NFC", line) for line in lines]
    n_changed = sum(before != after for before, after in zip(lines, composed, strict=True))
    return "\n".join(composed).encode(), n_changed
