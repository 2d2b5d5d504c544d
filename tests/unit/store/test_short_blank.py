"""The end of a log file that no record fits into, however short it is."""

import pytest
from tests.unit.store.stores import Rig


@pytest.mark.parametrize("left", [8, 16, 35, 36, 60])
def test_what_fills_a_file_is_no_message(left: int) -> None:
    """Asked for by its place, it is nothing; it is not damage either."""
    rig = Rig(commit_log_file_bytes=65_536)
    overhead = rig.put(body=b"").end_offset
    end = overhead
    while end + 2 * (overhead + 4_000) < 65_536:
        end = rig.put(body=bytes(4_000)).end_offset
    end = rig.put(body=bytes(65_536 - left - end - overhead)).end_offset
    assert end == 65_536 - left
    behind = rig.put(body=b"in the next file")
    assert behind.physical_offset == 65_536
    assert rig.store.message_at(end) is None
    found = rig.store.message_at(65_536)
    assert found is not None
    assert b"in the next file" in bytes(found)
