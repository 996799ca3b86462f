"""The methods everything else must beat."""

from fedmend.methods.baselines.inc_baselines import EM, MJ, Clean, Random
from fedmend.methods.baselines.local import Local
from fedmend.methods.baselines.local_vfl import LocalVFL
from fedmend.methods.baselines.vfl import VFL

__all__ = ["EM", "MJ", "VFL", "Clean", "Local", "LocalVFL", "Random"]
