"""Which characters a text is made of: the ASCII alphabets of ids, names and numbers.

Owns the alphabets and the two questions that are asked of them. The modules of the resident process
ask here, and not a regular expression: `re` and what it pulls in would weigh half a megabyte there.
"""

from __future__ import annotations

DIGITS = "0123456789"
HEX = DIGITS + "abcdef"
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
ALPHANUMERIC = LETTERS + DIGITS
BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # before a text that Windows has saved; no part of it
_CONTROL = frozenset(map(chr, (*range(32), 127)))


def consists_of(text: str, alphabet: str) -> bool:
    """Whether every character of `text` stands in `alphabet`; an empty text has none that does
    not."""
    return not text.strip(alphabet)


def is_number(text: str) -> bool:
    """Whether `text` is one or more of the digits 0 to 9, and not of another script."""
    return text.isascii() and text.isdigit()


def has_control(text: str) -> bool:
    """Whether a control character of ASCII stands in `text`."""
    return not _CONTROL.isdisjoint(text)
