"""Request and response correlation."""

import pytest

from cometmq.errors import LocalProtocolError
from cometmq.wire.frame.connection import Correlator


def test_answers_may_come_in_any_order() -> None:
    """Each token once, unknown opaques are nobody's."""
    correlator: Correlator[str] = Correlator()
    opaques = [correlator.next_opaque() for _ in range(3)]
    assert opaques == [0, 1, 2]
    for opaque in opaques:
        correlator.register(opaque, f"token {opaque}")
    assert len(correlator) == 3
    assert correlator.take(1) == "token 1"
    assert correlator.take(1) is None
    assert correlator.take(99) is None
    assert correlator.take_all() == ["token 0", "token 2"]
    assert len(correlator) == 0


def test_opaques_wrap_and_skip_those_in_use() -> None:
    """After the largest positive int32 comes 0, unless it still waits."""
    correlator: Correlator[int] = Correlator(2**31 - 1)
    correlator.register(0, 0)
    correlator.register(1, 1)
    assert correlator.next_opaque() == 2**31 - 1
    assert correlator.next_opaque() == 2
    with pytest.raises(LocalProtocolError, match="in use"):
        correlator.register(0, 5)
