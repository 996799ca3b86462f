"""The output activations of a whole row at once, as the encoder's spans ask for them.

A table has dozens of spans; a Python loop over them would dominate a training step. All softmax
spans are normalised together with one scatter and one matrix product.
"""

from __future__ import annotations

import torch

from fedmend.generate.encoder import Encoder

__all__ = ["Heads"]


class Heads:
    """Activations for rows laid out by an encoder, on a device.

    Boolean masks over the coordinates, **shape** (width,): ``softmax``, ``tanh``, ``sigmoid``,
    ``linear``; ``scalar`` is all but softmax. ``span`` and ``sizes`` give each coordinate's span
    and that span's width.
    """

    def __init__(self, encoder: Encoder, device: torch.device) -> None:
        kinds = [span.activation for span in encoder.spans for _ in range(span.start, span.stop)]
        numbers = [n for n, span in enumerate(encoder.spans) for _ in range(span.start, span.stop)]
        self.softmax, self.tanh, self.sigmoid, self.linear = (
            torch.tensor([kind == wanted for kind in kinds], device=device)
            for wanted in ("softmax", "tanh", "sigmoid", "linear")
        )
        self.scalar = ~self.softmax
        self._kinds = set(kinds)  # asked of a tensor, CUDA would stop for the answer
        self.span = torch.tensor(numbers, dtype=torch.int64, device=device)
        self.n_spans = len(encoder.spans)
        widths = [span.stop - span.start for span in encoder.spans]
        self.sizes = torch.tensor(widths, dtype=torch.float32, device=device)[self.span]
        self._start, self._stop = (
            torch.tensor(edges, dtype=torch.int64, device=device)
            for edges in zip(*((span.start, span.stop) for span in encoder.spans), strict=True)
        )
        self._drawn = self.softmax[self._start].float()
        self._before = self._drawn.cumsum(0, dtype=torch.float64) - self._drawn
        self._member = torch.zeros(len(numbers), self.n_spans, device=device)
        self._member[torch.arange(len(numbers), device=device), self.span] = 1.0

    def log_softmax(self, logits: torch.Tensor) -> torch.Tensor:
        """Log-probabilities within every softmax span; 0 at scalar coordinates.

        **Shape**: (n, width) -> (n, width)
        """
        with torch.no_grad():
            floor = torch.full((len(logits), self.n_spans), -torch.inf, device=logits.device)
            index = self.span.expand(len(logits), -1)
            peak = floor.to(logits.dtype).scatter_reduce(1, index, logits.detach(), "amax")
        shifted = logits - peak[:, self.span]
        total = shifted.exp() @ self._member.to(logits.dtype)
        # As a product: the gradient of an index is slow, and on CUDA not the same every time.
        return (shifted - total.log() @ self._member.to(logits.dtype).T) * self.softmax

    def draw(self, weights: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """One category for every softmax span, as indicators; 0 at scalar coordinates.

        **Shape**: (n, width) of weights, not negative, of any sum -> (n, width)
        """
        member = self._member.to(weights.dtype)
        weights = torch.where(self.softmax, weights.clamp(min=1e-30), 0.0)
        totals = (weights @ member).clamp(min=1e-30)
        # Every softmax span adds one to the sums, so that one search finds all categories.
        sums = (weights * (totals.reciprocal() @ member.T)).cumsum(1, dtype=torch.float64)
        lots = torch.rand(len(sums), self.n_spans, generator=generator, device=sums.device)
        at = torch.searchsorted(sums, self._before + lots, right=True)
        at = at.maximum(self._start).minimum(self._stop - 1)
        ones = self._drawn.to(weights.dtype).expand(len(at), -1)
        return torch.zeros_like(weights).scatter_(1, at, ones)

    @staticmethod
    def _gumbel(like: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
        uniform = torch.rand(like.shape, generator=generator, device=like.device, dtype=like.dtype)
        return -torch.log(-torch.log(uniform.clamp(1e-20, 1 - 1e-7)))

    def activate(
        self,
        logits: torch.Tensor,
        gumbel: float | None = None,
        generator: torch.Generator | None = None,
    ) -> torch.Tensor:
        """The row itself: softmax, tanh, sigmoid or nothing, as each span asks.

        With ``gumbel`` (a temperature) softmax spans become relaxed draws instead of probabilities.
        """
        scores = logits
        if gumbel is not None:
            scores = (logits + self._gumbel(logits, generator)) / gumbel
        result = torch.where(self.softmax, self.log_softmax(scores).exp(), logits)
        if "tanh" in self._kinds:
            result = torch.where(self.tanh, logits.tanh(), result)
        if "sigmoid" in self._kinds:
            result = torch.where(self.sigmoid, logits.sigmoid(), result)
        return result

    def cross_entropy(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Summed over the softmax spans, per row; a span of zeros in ``target`` (missing) adds 0.

        **Shape**: (n, width), (n, width) -> (n,)
        """
        return -(self.log_softmax(logits) * target).sum(1)
