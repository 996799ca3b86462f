"""The top half with its outputs: predictions, metrics, and sides for parties that know no row.

It runs at the label party (`split.TopWorker`), or at the coordinator (`server_top.ServerTop`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fedmend.errors import DataError
from fedmend.learn import metrics
from fedmend.split.halves import TopHalf
from fedmend.split.parts import TopPart
from fedmend.split.sides import Sides

__all__ = ["TopSide"]


class TopSide:
    """The top half with its outputs and metrics; at the label party, or at the coordinator."""

    def __init__(self, half: TopHalf, part: TopPart) -> None:
        self.half = half
        self.part = part
        self.labels = part.labels
        self._outputs: list[np.ndarray] = []
        self._seen: list[dict[str, Tensor]] = []

    def predict_chunk(
        self,
        embeddings: Mapping[str, Tensor],
        numbers: Tensor,
        known: Sequence[str] | None = None,
    ) -> None:
        """known: who knows these rows, where the others' sides are to be guessed."""
        if known is None:
            outputs = self._told(self.half.outputs(embeddings, numbers))
        else:
            assert self.part.sides is not None
            there = self.half.embedded(embeddings, numbers, known)
            draws = self.part.sides.draws(there)
            outputs = torch.stack([self._told(self.half.outputs_of(each)) for each in draws]).mean(
                0
            )
        self._outputs.append(outputs.cpu().numpy())

    def take(self, outputs: Tensor) -> None:
        """Outputs that another model made of the next rows."""
        self._outputs.append(outputs.cpu().numpy())

    def _told(self, outputs: Tensor) -> Tensor:
        return outputs if self.labels.task == "regression" else outputs.softmax(1)

    def see(self, embeddings: Mapping[str, Tensor], numbers: Tensor) -> None:
        """Embeddings of rows that all parties know, to learn their sides from."""
        self._seen.append(self.half.embedded(embeddings, numbers, self.half.names))

    def learn_sides(self, fixed: Mapping[str, Tensor]) -> None:
        """From what was seen; `fixed` stand in for their parties as they are."""
        seen = {name: torch.cat([each[name] for each in self._seen]) for name in self.half.names}
        broken = [name for name, each in seen.items() if not each.isfinite().all()]
        if broken:
            raise DataError(
                f"the training has diverged: embeddings of {', '.join(broken)} are no numbers",
                mend="a smaller lr",
            )
        self.part.sides = Sides.of(seen, fixed)
        self._seen = []

    def take_outputs(self) -> np.ndarray:
        """Probabilities [n, C], or values [n] in the label's own units; collected once."""
        if not self._outputs:
            classes = len(self.labels.classes_)
            return np.zeros((0, classes) if classes else 0, np.float32)
        outputs = np.concatenate(self._outputs)
        self._outputs = []
        if self.labels.task == "regression":
            return self.labels.inverse(outputs[:, 0])
        return outputs

    def metrics(
        self,
        targets: np.ndarray,
        said: np.ndarray | None = None,
        noise: np.ndarray | None = None,
    ) -> dict[str, float]:
        """Metrics of the collected outputs against encoded targets; unlabelled rows left out.

        said: P(said | class) where targets are said at random; what is said is then predicted.
        noise: the same, where metrics by the classes themselves are to be estimated.
        """
        outputs = self.take_outputs()
        if self.labels.task == "regression":
            known = ~np.isnan(targets)
            return metrics.regression(self.labels.inverse(targets[known]), outputs[known])
        known = targets >= 0
        found = outputs[known]
        found = found if said is None else found @ said
        return metrics.classification(targets[known], found, noise)
