"""How much memory is left, from files as Linux has them."""

from pathlib import Path

from cometmq.net.memory import available_memory


def test_the_smaller_of_machine_and_container(tmp_path: Path) -> None:
    """Pages of files that can be dropped are not used."""
    machine = tmp_path / "meminfo"
    machine.write_text("MemTotal:  8000 kB\nMemFree: 10 kB\nMemAvailable:    4000 kB\n")
    group = tmp_path / "group"
    assert available_memory(machine, group) == 4000 * 1024
    group.mkdir()
    (group / "memory.current").write_text("1000000\n")
    (group / "memory.max").write_text("max\n")
    assert available_memory(machine, group) == 4000 * 1024
    (group / "memory.max").write_text("1100000\n")
    (group / "memory.stat").write_text("anon 5\nactive_file 1000\ninactive_file 2000\n")
    assert available_memory(machine, group) == 103_000
    assert available_memory(tmp_path / "none", group) == 103_000


def test_elsewhere_nobody_knows(tmp_path: Path) -> None:
    """Then nothing is refused for it."""
    assert available_memory(tmp_path / "none", tmp_path / "none") is None
