"""One folder per family of methods, each with all of its papers; and what families share.

Estimators are here by the names of their classes, as the records (`registry`) have them; each loads
when it is first used.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    from fedmend.methods.registry import PUBLIC

    if name in PUBLIC:
        return PUBLIC[name].load()
    raise AttributeError(f"module 'fedmend.methods' has no attribute {name!r}")
