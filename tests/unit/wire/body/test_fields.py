"""Fields of JSON bodies: absent ones, and enumerations as peers write them."""

from enum import IntEnum

import pytest

from cometmq.errors import CodecError
from cometmq.wire.body.fields import enum_field, int_field, str_field


class Color(IntEnum):
    """An enumeration."""

    RED = 0
    BLUE = 1


def test_a_required_field_must_be_there() -> None:
    """The refusal names body and field."""
    for field in (int_field, str_field):
        with pytest.raises(CodecError, match="Body: the required field n is missing"):
            field({"n": None}, "Body", "n")


@pytest.mark.parametrize("value", ["BLUE", "blue", 1, "1"])
def test_an_enumeration_is_read_by_name_or_number(value: object) -> None:
    """In any case, and the number as text too."""
    assert enum_field({"c": value}, "Body", "c", Color, Color.RED) is Color.BLUE


@pytest.mark.parametrize("value", ["green", 7, "7", True, 1.5])
def test_another_value_is_refused(value: object) -> None:
    """With the names there are."""
    with pytest.raises(CodecError, match="RED, BLUE"):
        enum_field({"c": value}, "Body", "c", Color, Color.RED)
