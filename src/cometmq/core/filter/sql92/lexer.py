"""Cuts the text of an SQL92 filter into tokens with their positions.

The parser decides which token may follow which.

White space is space, tab, line feed, carriage return and form feed.  A comment runs from ``--`` to
the end of its line or from ``/*`` to ``*/``.  Keywords may be in any case.  Names consist of ASCII
letters, digits, ``_`` and ``$``, and their case matters.

Source: the token rules of SelectorParser.jj, RocketMQ 5.4, with two differences.  ``--`` on the
last line begins a comment too; Java needs a line end after it and reads two minus signs otherwise.
And all tokens must be legal, while Java stops reading at the end of the first complete filter.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from cometmq.errors import ExpressionIllegal

__all__ = ["KEYWORDS", "LENGTH_MAX", "Token", "line_and_column", "refuse", "tokenize"]

LENGTH_MAX: Final = 32_768
"""Characters. Every pull may carry its subscription's filter, so longer ones belong elsewhere."""

KEYWORDS: Final = frozenset(
    {"NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS"}
    | {"CONTAINS", "STARTSWITH", "ENDSWITH"}
)

_TOKEN: Final = re.compile(
    r"""
      (?P<space>[ \t\n\r\f]+ | --[^\n\r]* | /\*[^*]*\*+(?:[^*/][^*]*\*+)*/)
    | (?P<float>(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)? | [0-9]+[eE][+-]?[0-9]+)
    | (?P<decimal>0 | [1-9][0-9]*[lL]?)
    | (?P<string>'(?:[^']++|'')*+')
    | (?P<name>[A-Za-z_$][A-Za-z0-9_$]*)
    | (?P<sign><>|<=|>=|[=<>(),+-])
    """,
    re.VERBOSE,
)


class Token(NamedTuple):
    """One token of a filter.

    `kind` is the keyword or sign itself, else ``name``, ``decimal``, ``float`` or ``string``; the
    last token has the kind ``end``.
    """

    kind: str
    text: str
    position: int


def line_and_column(text: str, position: int) -> tuple[int, int]:
    """Line and column of a character, both from 1."""
    lines = re.split(r"\r\n|\r|\n", text[:position])
    return len(lines), len(lines[-1]) + 1


def refuse(
    text: str, position: int, expected: str, actual: str, hint: str = ""
) -> ExpressionIllegal:
    """The error for the text at a position of a filter."""
    return ExpressionIllegal(*line_and_column(text, position), expected, actual, hint)


_STRAY_HINTS: Final = {
    "!": "write <> for not equal and NOT for a negation",
    '"': "text stands in single quotes",
    "&": "write AND",
    "|": "write OR",
    "*": "there is no arithmetic",
    "/": "there is no arithmetic, and a comment that begins with /* ends with */",
    "%": "there is no arithmetic",
    ".": "names have letters, digits, _ and $ only",
    ";": "leave it out",
}


def _stray(text: str, position: int) -> ExpressionIllegal:
    character = text[position]
    if character == "'":
        return refuse(
            text, position, "a text that is closed", text[position:], "two quotes '' make one"
        )
    if text.startswith("/*", position):
        return refuse(text, position, "a comment that is closed by */", text[position:])
    actual = character if character.isprintable() else f"U+{ord(character):04X}"
    return refuse(
        text, position, "a name, a value or an operator", actual, _STRAY_HINTS.get(character, "")
    )


def tokenize(text: str) -> list[Token]:
    """The tokens of a filter; the last one has the kind ``end``.

    Raises:
        ExpressionIllegal: the text is longer than `LENGTH_MAX`, or a character of it does not begin
            a token.
    """
    if len(text) > LENGTH_MAX:
        raise refuse(
            text, LENGTH_MAX, f"at most {LENGTH_MAX} characters", "", f"it has {len(text)}"
        )
    tokens: list[Token] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _stray(text, position)
        word = match.group()
        kind = match.lastgroup
        if kind == "sign":
            tokens.append(Token(word, word, position))
        elif kind == "name":
            upper = word.upper()
            tokens.append(Token(upper if upper in KEYWORDS else "name", word, position))
        elif kind is not None and kind != "space":
            tokens.append(Token(kind, word, position))
        position = match.end()
    tokens.append(Token("end", "", len(text)))
    return tokens
