"""White addresses in the forms of ACL 1.0."""

import pytest

from cometmq.core.access.white import WhiteAddresses
from cometmq.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("*", ["1.2.3.4", "::1"], ["nobody", ""]),
        ("*.*.*.*", ["255.255.255.255"], []),
        ("10.0.0.7", ["10.0.0.7", "::ffff:10.0.0.7"], ["10.0.0.8", "::7"]),
        ("10.0.0.7, 10.0.0.9", ["10.0.0.7", "10.0.0.9"], ["10.0.0.8"]),
        ("192.168.1.{4,5},10.0.0.1", ["192.168.1.4", "192.168.1.5", "10.0.0.1"], ["192.168.1.6"]),
        ("192.168.*", ["192.168.0.0", "192.168.255.255"], ["192.169.0.0"]),
        ("192.168.1-5.*", ["192.168.1.9", "192.168.5.0"], ["192.168.0.9", "192.168.6.0"]),
        ("192.168.1.10-12", ["192.168.1.10", "192.168.1.12"], ["192.168.1.13"]),
        ("::1", ["::1", "0:0:0:0:0:0:0:1"], ["::2", "0.0.0.1"]),
        ("fe80:1:*", ["fe80:1::9", "fe80:1:2:3:4:5:6:7"], ["fe80:2::9"]),
        ("fe80::{a,b}", ["fe80::a", "fe80::b"], ["fe80::c"]),
        ("fe80::1-ff", ["fe80::80"], ["fe80::100"]),
        ("", [], ["1.2.3.4"]),
    ],
)
def test_what_is_inside(text: str, inside: list[str], outside: list[str]) -> None:
    """And what is just outside."""
    white = WhiteAddresses([text])
    assert [ip for ip in inside if ip not in white] == []
    assert [ip for ip in outside if ip in white] == []


@pytest.mark.parametrize(
    "text",
    ["10.0.0", "10.0.0.256", "10.0.0.9-3", "host", "1.2.3.4.5", "{1,2}", "1:2:3", "10.0.0.{}"],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    """With the forms that there are."""
    with pytest.raises(ConfigError, match="the white address"):
        WhiteAddresses([text])
