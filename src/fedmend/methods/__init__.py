"""One file per published method, in the paper's order and words; and the baselines."""

from fedmend.methods.baselines import VFL, Local, LocalVFL

__all__ = ["VFL", "Local", "LocalVFL"]
