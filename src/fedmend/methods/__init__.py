"""One file per published method, in the paper's order and words; and the baselines."""

from fedmend.methods.baselines import EM, MJ, VFL, Clean, Local, LocalVFL, Random
from fedmend.methods.fedpsg_pum import FedPSGPUM
from fedmend.methods.inc import InC

__all__ = ["EM", "MJ", "VFL", "Clean", "FedPSGPUM", "InC", "Local", "LocalVFL", "Random"]
