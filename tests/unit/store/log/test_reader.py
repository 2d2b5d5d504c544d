"""Walking the log: what is read of a file that is mostly blank."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cometmq.codec.stored_message import encode_message
from cometmq.store.base.disk import RealDisk
from cometmq.store.log.reader import BLOCK_BYTES, LogReader

FILE_BYTES = 256 << 20


@dataclass
class CountedFile:
    """One file of a log that notes how much is read of it."""

    path: str
    start: int = 0
    end: int = FILE_BYTES
    read_bytes: int = 0
    inner: Any = field(default=None)

    @property
    def file(self) -> "CountedFile":
        return self

    def read(self, position: int, length: int) -> bytes:
        data: bytes = self.inner.read(position, length)
        self.read_bytes += len(data)
        return data

    def forget_cached(self, position: int, length: int) -> None:
        self.inner.forget_cached(position, length)

    def next_data(self, position: int) -> int | None:
        place: int | None = self.inner.next_data(position)
        return place

    def file_at(self, physical_offset: int) -> "CountedFile | None":
        return self if physical_offset < self.end else None


def record(position: int) -> bytes:
    return encode_message(
        "t",
        b"body",
        b"",
        queue_id=0,
        flag=0,
        queue_offset=0,
        physical_offset=position,
        sys_flag=0,
        born_timestamp_ms=1,
        born_host=bytes(8),
        store_timestamp_ms=1,
        store_host=bytes(8),
        reconsume_times=0,
        prepared_transaction_offset=0,
    )


def blank_file(path: Path, far: int | None = None) -> CountedFile:
    """A reserved file of 256 MiB with a record in front, and one far behind if asked."""
    disk = RealDisk()
    log = disk.open_log(str(path), FILE_BYTES, create=True)
    log.write(0, record(0))
    if far is not None:
        log.write(far, record(far))
    log.sync()
    log.close()
    inner = disk.open_random(str(path), FILE_BYTES, create=False)
    return CountedFile(str(path), inner=inner)


def walk_to_end(file: CountedFile) -> LogReader:
    log: Any = file
    reader = LogReader(log, 0, FILE_BYTES)
    first = reader.next_record()
    assert first is not None
    assert first.physical_offset == 0
    assert reader.next_record() is None
    return reader


def test_the_blank_rest_of_a_file_is_not_read(tmp_path: Path) -> None:
    """A kill leaves a gibibyte of which the front is written; looking for more reads that only."""
    file = blank_file(tmp_path / "00000000000000000000")
    reader = walk_to_end(file)
    assert reader.resync(FILE_BYTES) is None
    assert file.read_bytes < 32 * BLOCK_BYTES


def test_a_record_far_behind_a_blank_stretch_is_found(tmp_path: Path) -> None:
    """Damage may blank out much; what stands behind it counts all the same."""
    far = 200 << 20
    file = blank_file(tmp_path / "00000000000000000000", far=far)
    reader = walk_to_end(file)
    found = reader.resync(FILE_BYTES)
    assert found is not None
    assert found.physical_offset == far
    assert reader.position == far + found.size
    assert file.read_bytes < 32 * BLOCK_BYTES
