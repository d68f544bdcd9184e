"""Text of models and files for a terminal: a name may hold any character, also those that a terminal obeys."""

from __future__ import annotations


def printable(text: str) -> str:
    """`text` with every character that does not print, but line breaks, as an escape such as \\x1b or \\u202e."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode("ascii") for c in text)


def one_line(text: str) -> str:
    """As `printable`, with line breaks as escapes too: a name may not look like the next line of a report."""
    return printable(text).replace("\n", "\\n")
