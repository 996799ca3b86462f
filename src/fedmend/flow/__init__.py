"""The stages of a run: from a federation.toml to a folder with models and a report."""

from typing import TYPE_CHECKING, Any

from fedmend.flow.live import Listener
from fedmend.flow.manifest import CONFIG_FILE, read_manifest
from fedmend.flow.plan import Plan, plan_of

if TYPE_CHECKING:
    from fedmend.flow.stages import execute

__all__ = [
    "CONFIG_FILE",
    "Listener",
    "Plan",
    "execute",
    "plan_of",
    "read_manifest",
]


def __getattr__(name: str) -> Any:
    # Torch comes with it, which commands that train nothing should not wait for.
    if name == "execute":
        from fedmend.flow.stages import execute

        return execute
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
