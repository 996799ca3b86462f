"""The methods everything else must beat."""

from fedmend.methods.baselines.local import Local
from fedmend.methods.baselines.local_vfl import LocalVFL
from fedmend.methods.baselines.vfl import VFL

__all__ = ["VFL", "Local", "LocalVFL"]
