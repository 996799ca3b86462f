"""Files that are there whole or not at all: written beside their place, then moved into it."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from fedmend.errors import ConfigError


@contextmanager
def beside(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A file to write to that takes the place of `path` if all goes well, and else is gone."""
    target = Path(path)
    # The ending says to whoever looks through the folder: not finished, not to be read.
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        yield part
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def write_whole(
    path: str | os.PathLike[str],
    content: str | bytes,
    *,
    private: bool = False,
    lasting: bool = False,
) -> Path:
    """Write a file and its folder.

    private: nobody else on this machine can read it, at no time. lasting: it is on the disk when
    this returns, so that a power cut does not take it back.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700 if private else 0o777)
    data = content.encode("utf-8") if isinstance(content, str) else content
    with beside(target) as part:
        flags, mode = os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666
        with os.fdopen(os.open(part, flags, mode), "wb") as file:
            file.write(data)
            if lasting:
                file.flush()
                os.fsync(file.fileno())
    return target


def held(path: Path, taken: str) -> TextIO:
    """A file that nobody else holds as long as it is open; `taken` is said where one does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise ConfigError(taken) from None
    return file
