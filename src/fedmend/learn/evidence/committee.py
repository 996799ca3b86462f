"""Several networks in one: each learns without a part of the overlapping rows.

The opinion of the one that has not seen a row says how good opinions are, so no row has to be held
out from the training, and all of them together judge rows better than one. Members share nothing;
a party's bottoms stand side by side in one module, and their embeddings in one message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedmend.learn.nets import Batch, Bottom, BottomSpec

__all__ = ["BottomCommittee", "CommitteeSpec", "bottom_of", "deal"]


@dataclass(frozen=True)
class CommitteeSpec:
    """So many bottoms of one shape."""

    member: BottomSpec
    members: int

    @property
    def out(self) -> int:
        return self.member.out * self.members

    def to_dict(self) -> dict[str, Any]:
        return {"member": self.member.to_dict(), "members": self.members}


class BottomCommittee(nn.Module):
    """Bottoms side by side; their embeddings one after the other."""

    def __init__(self, members: Sequence[Bottom]) -> None:
        super().__init__()
        self.spec = CommitteeSpec(members[0].spec, len(members))
        self.members = nn.ModuleList(members)

    def forward(self, batch: Batch) -> Tensor:
        return torch.cat([member(batch) for member in self.members], 1)


def bottom_of(spec: Mapping[str, Any]) -> Bottom | BottomCommittee:
    """The module a saved spec describes."""
    if "members" not in spec:
        return Bottom(BottomSpec.from_dict(spec))
    one = BottomSpec.from_dict(spec["member"])
    return BottomCommittee([Bottom(one) for _ in range(int(spec["members"]))])


def deal(rows: np.ndarray, members: int, rng: np.random.Generator) -> np.ndarray:
    """Which member does not see each row; as even as can be."""
    return rng.permutation(np.arange(len(rows)) % members)
