"""What the adversarial generators share: the frame of training, and rows that agree with others.

Missing cells: a generated row is shown to the critic with the gaps of a real one (the masking of
MisGAN, Li et al. 2019), so that the generator learns complete rows from incomplete ones. The real
one is of the same condition: gaps may depend on conditional columns, or else on nothing.

Known columns: a row that knows one conditional category and nothing else is generated under that
condition, and again until it shows the category. Any other row is matched (see `matching`) with
candidates generated under its rarest known category.

What is sampled from is a running average of the generator's weights, at the point of training
where it came closest to held-out rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from fedmend.generate.base import Generator
from fedmend.generate.conditions import Conditions
from fedmend.generate.encoder import Encoded, Raw, Span
from fedmend.generate.heads import Heads
from fedmend.generate.matching import Matcher
from fedmend.generate.training import (
    EMA,
    Progress,
    generator_for,
    held_out,
    seed_parameters,
    train,
)

__all__ = ["Adversarial", "Step", "joint_gap", "settle"]

GUMBEL = 0.2
SAMPLING = ("log-frequency", "frequency")
_CHUNK = 8192
_TRIES = 20
_SCORES = 40
_APART = 25
_SCORED = 2000
_IMPUTED_BY = 20

Step = Callable[[torch.Tensor, torch.Tensor | None, torch.Tensor | None], None]
"""One step of training: real rows, their gaps (None: none), the conditions they were drawn for."""


class Adversarial(Generator):
    """A generator network against its critics; a subclass brings the networks and one step.

    Fitted besides: ``conditions_``, ``history_``.
    """

    impute_draws: ClassVar[int] = 50
    epochs: int
    batch_size: int
    latent: int
    patience: int
    candidates: int
    average: float
    pac: int = 1
    sampling: str = "log-frequency"

    # --- what a subclass says ------------------------------------------------------------

    def _conditional(self) -> list[Span]:
        """The softmax spans that the conditional vector covers."""
        return []

    def _network(self, inputs: int) -> nn.Module:
        """The generator network, from noise and condition to logits."""
        raise NotImplementedError

    def _rivalry(self, network: nn.Module, stream: torch.Generator) -> Step:
        """Make critics and optimisers, and of them a step of training."""
        raise NotImplementedError

    # --- networks ------------------------------------------------------------------------

    def _problems(self) -> list[str]:
        problems = super()._problems()
        if self.pac < 1:
            problems.append(f"pac must be a whole number from 1, got pac={self.pac!r}")
        if self.batch_size < 2:  # batch norm cannot normalise one row
            problems.append(f"batch_size must be 2 or more, got {self.batch_size!r}")
        if self.sampling not in SAMPLING:
            allowed = " or ".join(map(repr, SAMPLING))
            problems.append(f"sampling must be {allowed}, got sampling={self.sampling!r}")
        return problems

    def _build(self) -> dict[str, nn.Module]:
        spans = self._conditional()
        self.heads_ = Heads(self.encoder_, self.device_)
        self.conditions_ = Conditions(spans, self.device_)
        counts = getattr(self, "counts_", None)
        if counts is not None:
            self.conditions_.counts = torch.from_numpy(counts).to(self.device_)
        return {"generator": self._network(self.latent + self.conditions_.width)}

    def _extra(self) -> dict[str, Any]:
        return {"counts": self.conditions_.counts.cpu().numpy()}

    def _set_extra(self, values: dict[str, Any]) -> None:
        self.counts_ = np.array(values["counts"])

    def _rival(self, name: str, module: nn.Module) -> nn.Module:
        """A network that only training needs, seeded and on the device."""
        seed_parameters(module, generator_for(torch.device("cpu"), self.seed, f"init {name}"))
        return module.to(self.device_)

    # --- training -------------------------------------------------------------------------

    def _train(self, rows: Encoded, progress: Progress | None) -> None:
        kept, scored = held_out(rows.n_rows, 0.1, self._numpy_rng("held out"))
        real = torch.from_numpy(rows.values[kept]).to(self.device_)
        gaps = self._gaps(rows.take(kept))
        self.conditions_.fit(real, self.sampling)
        network = self.modules_["generator"]
        average = EMA(network, decay=self.average)
        stream = generator_for(self.device_, self.seed, f"train {self.name}")
        play = self._rivalry(network, stream)
        size = max(1, min(self.batch_size, len(real)) // self.pac) * self.pac

        def step(number: int, batch: torch.Tensor) -> None:
            drawn, wanted = self.conditions_.draw(size, stream)
            play(real[drawn], None if gaps is None else gaps[drawn], wanted)
            average.update()

        steps = self.epochs * max(1, rows.n_rows // size)
        self.history_ = train(
            step,
            itertools.repeat(torch.empty(0)),
            steps=steps,
            modules=[average.average],
            score=self._scorer(average.average, rows.take(scored if len(scored) else kept)),
            every=max(_APART, steps // _SCORES),
            patience=self.patience,
            progress=progress,
        )
        network.load_state_dict(average.average.state_dict())

    def _scorer(self, network: nn.Module, rows: Encoded) -> Callable[[], float]:
        """How far the network's rows are from these; under gaps, from each row's own likeness."""
        real = torch.from_numpy(rows.values).to(self.device_)
        gaps = self._gaps(rows)
        asked = Conditions(self._conditional(), self.device_)
        asked.fit(real, "frequency")
        neutral = torch.from_numpy(self.encoder_.neutral).to(self.device_)

        @torch.no_grad()
        def score() -> float:
            # The same noise every time: what changes is the network.
            stream = generator_for(self.device_, self.seed, f"score {self.name}")
            _, wanted = self.conditions_.draw(_SCORED, stream)
            settle(network, self._inputs(_SCORED, wanted, stream))
            drawn, wanted = asked.draw(_SCORED, stream)
            fake = self._hard(self._make(_SCORED, wanted, stream, network))
            if gaps is None:
                return joint_gap(real, fake)
            return joint_gap(real[drawn], torch.where(gaps[drawn], neutral, fake))

        return score

    def _gaps(self, rows: Encoded) -> torch.Tensor | None:
        """Which coordinates are missing, if any are. **Shape**: (n, width)"""
        if rows.is_complete:
            return None
        return torch.from_numpy(~self.encoder_.spread(rows.observed)).to(self.device_)

    def _inputs(self, n: int, wanted: torch.Tensor | None, stream: torch.Generator) -> torch.Tensor:
        noise = torch.randn(n, self.latent, generator=stream, device=self.device_)
        return torch.cat([noise, self.conditions_.vector(wanted, n)], dim=1)

    def _hard(self, rows: torch.Tensor) -> torch.Tensor:
        """Softmax spans with a single one."""
        hard = rows.clone()
        for span in self.encoder_.spans:
            if span.activation == "softmax":
                part = slice(span.start, span.stop)
                hard[:, part] = F.one_hot(rows[:, part].argmax(1), span.stop - span.start).float()
        return hard

    # --- sampling -------------------------------------------------------------------------

    def _make(
        self,
        n: int,
        wanted: torch.Tensor | None,
        stream: torch.Generator,
        network: nn.Module | None = None,
    ) -> torch.Tensor:
        """Rows under these conditions. **Shape**: (n, width)"""
        network = network or self.modules_["generator"]
        made = [torch.empty(0, self.encoder_.width, device=self.device_)]
        with torch.no_grad():
            for start in range(0, n, _CHUNK):
                part = None if wanted is None else wanted[start : start + _CHUNK]
                logits = network(self._inputs(min(_CHUNK, n - start), part, stream))
                made.append(self.heads_.activate(logits, GUMBEL, stream))
        return torch.cat(made)

    def _under(self, wanted: torch.Tensor, stream: torch.Generator) -> torch.Tensor:
        """Rows under these conditions that show them, as far as the generator ever does."""
        made = self._make(len(wanted), wanted, stream)
        for _ in range(_TRIES):
            wrong = self.conditions_.missed(made, wanted)
            if not len(wrong):
                break
            made[wrong] = self._make(len(wrong), wanted[wrong], stream)
        return made

    def _generate(self, n: int, known: Encoded | None, generator: torch.Generator) -> np.ndarray:
        if known is None:
            free = self._make(n, self.conditions_.natural(n, generator), generator)
            return free.cpu().numpy()
        cells = known.observed.sum(axis=1)
        category = self.conditions_.rarest(known, self.encoder_.spread(known.observed))
        result = torch.empty(n, self.encoder_.width, device=self.device_)

        blank = np.flatnonzero(cells == 0)
        natural = self.conditions_.natural(len(blank), generator) if len(blank) else None
        result[blank] = self._make(len(blank), natural, generator)

        whole = np.append(self._whole_columns(), False)  # the last for category -1
        single = np.flatnonzero((cells == 1) & whole[category])
        if len(single):
            wanted = torch.from_numpy(category[single]).to(self.device_)
            result[single] = self._under(wanted, generator)

        rest = np.flatnonzero((cells > 0) & ~((cells == 1) & whole[category]))
        for rows, pool in self._pools(rest, category[rest], generator):
            result[rows] = Matcher(pool, self.encoder_).draw(known.take(rows), generator)
        return result.cpu().numpy()

    def _imputed(self, known: Raw, draws: int, seed: int) -> Raw:
        if draws <= 1 or not self.encoder_.width:
            return super()._imputed(known, draws, seed)
        rows = self.encoder_.encode(known)
        category = self.conditions_.rarest(rows, self.encoder_.spread(rows.observed))
        stream = generator_for(self.device_, seed, f"impute {self.name}")
        made = {name: np.empty((draws, rows.n_rows)) for name in self.schema_}
        for part, pool in self._pools(np.arange(rows.n_rows), category, stream):
            matcher = Matcher(pool, self.encoder_, neighbours=_IMPUTED_BY)
            picks = matcher.pick(rows.take(part), draws, stream).cpu().numpy()
            for name, numbers in matcher.raw.items():
                made[name][:, part] = numbers[picks].T
        return self.encoder_.average(made)

    def _whole_columns(self) -> np.ndarray:
        """For every condition whether it says all there is to know about its column."""
        sizes = [span.stop - span.start for span in self._conditional()]
        whole = [len(self.encoder_.of(span.column)) == 1 for span in self._conditional()]
        return np.repeat(np.array(whole, dtype=bool), sizes)

    def _pools(
        self, rows: np.ndarray, category: np.ndarray, stream: torch.Generator
    ) -> Iterator[tuple[np.ndarray, torch.Tensor]]:
        """The rows by their condition (-1: none), and candidates generated under it."""
        for wanted in np.unique(category):
            part = rows[category == wanted]
            size = max(self.candidates // 100, round(self.candidates * len(part) / len(rows)), 1)
            conditions = self.conditions_.natural(size, stream)
            if wanted >= 0:
                conditions = torch.full((size,), int(wanted), device=self.device_)
            yield part, self._make(size, conditions, stream)


def joint_gap(real: torch.Tensor, fake: torch.Tensor) -> float:
    """How far apart two samples are in the means and products of all pairs of coordinates.

    A root mean square, in which noise of the real sample is the same for all fakes: what tells
    fakes apart are the relations they get right. **Shape**: (n, width), (m, width) -> ()
    """
    mean = real.mean(0)
    spread = real.std(0, correction=0).clamp(min=0.05)
    ours, theirs = (real - mean) / spread, (fake - mean) / spread
    products = ours.T @ ours / len(real) - theirs.T @ theirs / len(fake)
    return float((products.square().mean() + theirs.mean(0).square().mean()).sqrt())


@torch.no_grad()
def settle(network: nn.Module, inputs: torch.Tensor) -> None:
    """Give batch normalisation the statistics of these inputs under the present weights."""
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            layer.momentum = 1.0
    network.train()
    network(inputs)
    network.eval()
