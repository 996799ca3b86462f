"""The stages of a run: from a federation.toml to a folder with models and a report."""

from fedmend.flow.live import Listener
from fedmend.flow.manifest import CONFIG_FILE, Manifest, StageEntry, read_manifest
from fedmend.flow.plan import Method, Plan, plan_of
from fedmend.flow.stages import execute

__all__ = [
    "CONFIG_FILE",
    "Listener",
    "Manifest",
    "Method",
    "Plan",
    "StageEntry",
    "execute",
    "plan_of",
    "read_manifest",
]
