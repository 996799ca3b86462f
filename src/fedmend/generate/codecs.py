"""How the values of one column become coordinates, and back.

Every codec is fitted on the observed values of one column and knows four things: the pieces
(`Piece`: how many coordinates, which output activation suits them), `encode`, `decode`, and the
neutral coordinates that stand for a missing cell. Values are float64 numbers; a categorical
column comes as codes.

=============  =====================================================================
`Levels`       categories, and numbers with few distinct values: an indicator for each
`Modes`        mode-specific normalisation (CTGAN 4.2), with values of their own for
               spikes and an optional logarithm for long tails (CTAB-GAN 3.3)
`Quantile`     ranks, mapped to a standard normal (TabDDPM 4) or left uniform
`Spiked`       ranks, with indicators for values that many rows share
`MinMax`       linear to an interval (GAIN, TableGAN)
=============  =====================================================================
"""

from __future__ import annotations

from typing import Any

from fedmend.generate.codec import Codec, Levels, MinMax, Piece
from fedmend.generate.codec_modes import Modes
from fedmend.generate.codec_ranks import Quantile, Spiked

__all__ = ["CODECS", "Codec", "Levels", "MinMax", "Modes", "Piece", "Quantile", "Spiked"]

CODECS: dict[str, Any] = {codec.name: codec for codec in (Levels, Modes, Quantile, Spiked, MinMax)}
