"""Files are there whole or not at all."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from fedmend._files import beside, write_whole


def test_what_fails_half_way_leaves_what_was_there(tmp_path: Path) -> None:
    path = write_whole(tmp_path / "deep" / "a.txt", "before")
    with pytest.raises(RuntimeError), beside(path) as part:
        part.write_text("half")
        raise RuntimeError
    assert path.read_text() == "before"
    assert [each.name for each in path.parent.iterdir()] == ["a.txt"]


@pytest.mark.parametrize(("private", "mode"), [(True, 0o600), (False, 0o644)])
def test_private_files_are_for_their_owner_alone(tmp_path: Path, private: bool, mode: int) -> None:
    path = write_whole(tmp_path / "keys" / "secret", b"\x00key", private=private, lasting=True)
    assert path.read_bytes() == b"\x00key"
    assert stat.S_IMODE(path.stat().st_mode) & 0o77 == mode & 0o77
    assert not private or stat.S_IMODE(path.parent.stat().st_mode) == 0o700
