"""Tabular generators behind one interface: fit, sample, impute, save and load.

>>> from fedmend.generate import generators, make
>>> generators()
['ctgan', 'tablegan', 'ctabgan', 'vae', 'tabddpm', ...]
"""

from fedmend.generate.base import Generator
from fedmend.generate.registry import generators, make

load = Generator.load
"""The generator that `Generator.save` wrote, of whichever class."""

__all__ = ["Generator", "generators", "load", "make"]
