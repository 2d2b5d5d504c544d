"""The list of epochs as RocketMQ's brokers write it."""

import pytest

from cometmq.codec.epoch_file import Epoch, decode_epochs, encode_epochs
from cometmq.errors import CodecError

#: Written by a broker of 5.4.0 that was a master twice.
WRITTEN = b"3\n1354886215\n1-0\n2-5285\n3-6561\n"
EPOCHS = (Epoch(1, 0), Epoch(2, 5285), Epoch(3, 6561))


def test_a_file_of_rocketmq_comes_back() -> None:
    """Byte for byte."""
    assert decode_epochs(WRITTEN) == EPOCHS
    assert encode_epochs(EPOCHS) == WRITTEN
    assert decode_epochs(encode_epochs(())) == ()


def test_a_file_without_a_checksum_is_read() -> None:
    """RocketMQ takes 0 for "not checked"."""
    assert decode_epochs(WRITTEN.replace(b"1354886215", b"0")) == EPOCHS


@pytest.mark.parametrize(
    "data",
    [b"", b"x\n0\n", b"1\n", WRITTEN[:-8], WRITTEN.replace(b"5285", b"5286"), b"1\n0\n1;0\n"],
)
def test_a_spoilt_file_is_refused(data: bytes) -> None:
    """Cut anywhere, or with another number."""
    with pytest.raises(CodecError):
        decode_epochs(data)
