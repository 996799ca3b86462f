"""What leaves when something cannot be read is always the same; why is chained, for the log."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fedmend.errors import CryptoError


@contextmanager
def unread(cause: str, party: str = "", sender: str = "") -> Iterator[None]:
    """A message that is refused for `cause`, of which the error itself says nothing."""
    with pytest.raises(CryptoError) as caught:
        yield
    said = re.fullmatch(
        r"party '(\w+)' could not read a message from '(\w+)'; the cause is in its own log\. "
        r"Mend: start the protocol anew; if it happens again, look at who carries the messages",
        str(caught.value),
    )
    assert said is not None, str(caught.value)
    assert party in ("", said[1]) and sender in ("", said[2])
    assert re.search(cause, str(caught.value.__cause__))
