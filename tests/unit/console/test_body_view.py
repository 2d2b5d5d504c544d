"""Bodies as text, JSON or hexadecimal, whatever their bytes are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.console.body_view import BODY_KINDS, SHOWN_BYTES, view_body
from cometmq.console.moments import moment_of
from cometmq.errors import ConfigError


@pytest.mark.parametrize(
    ("body", "kind", "shown"),
    [
        (b'{"id": 7}', "", ("json", '{\n  "id": 7\n}', 0)),
        (b'{"id": 7}', "text", ("text", '{"id": 7}', 0)),
        ("grüße".encode(), "", ("text", "grüße", 0)),
        ("grüße".encode(), "json", ("hex", "00000000  67 72 c3 bc c3 9f 65", 0)),
        (b"\xff\x00", "text", ("hex", "00000000  ff 00", 0)),
        (b"a\0b", "", ("hex", "00000000  61 00 62", 0)),
        (b"a\0b", "text", ("text", "a\0b", 0)),
        (b"", "", ("text", "", 0)),
        (b"", "hex", ("hex", "", 0)),
    ],
)
def test_view(body: bytes, kind: str, shown: tuple[str, str, int]) -> None:
    """What is asked for, or what the body is."""
    view = view_body(body, kind)
    assert view.kind == shown[0]
    assert view.text.startswith(shown[1])
    assert view.hidden_bytes == shown[2]


def test_a_long_body_is_cut_also_within_a_letter() -> None:
    """The rest is counted; bytes behind the cut do not decide what it is."""
    view = view_body(b"x" + "ü".encode() * SHOWN_BYTES)
    assert view.kind == "text"
    assert view.text == "x" + "ü" * ((SHOWN_BYTES - 1) // 2)
    assert view.hidden_bytes == SHOWN_BYTES + 1
    assert view_body(b"\xff" * (SHOWN_BYTES + 5)).hidden_bytes == 5


def test_deep_json_is_text() -> None:
    """Nesting that JSON's reader refuses does not break the page."""
    assert view_body(b"[" * 30_000).kind == "text"


@given(body=st.binary(max_size=200), kind=st.sampled_from(("", *BODY_KINDS)))
def test_any_body_has_a_view(body: bytes, kind: str) -> None:
    """No bytes fail, and hexadecimal shows all of them."""
    view = view_body(body, kind)
    assert view.hidden_bytes == 0
    if view.kind == "hex":
        text = "".join(line[10:58] for line in view.text.splitlines())
        assert bytes.fromhex(text) == body


def test_moments() -> None:
    """ISO times are UTC where they name no zone."""
    assert moment_of("2026-01-31T12:00") == moment_of("2026-01-31T13:00+01:00") == 1769860800000
    assert moment_of("1769860800000") == 1769860800000
    for wrong in ("soon", "12:00", "9" * 16, "-1", "\uff12"):
        with pytest.raises(ConfigError, match="is no time"):
            moment_of(wrong)
