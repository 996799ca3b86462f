"""What the adversarial generators share: the frame of training, and rows that agree with others.

Missing cells: a generated row is shown to the critic with the gaps of a real one (the masking of
MisGAN, Li et al. 2019), so that the generator learns complete rows from incomplete ones. The real
one is of the same condition: gaps may depend on conditional columns, or else on nothing.

Known columns: a row that knows one conditional category and nothing else is generated under that
condition, and again until it shows the category. Any other row is matched (see `Matcher`) with
candidates generated under its rarest known category.

What is sampled from is a running average of the generator's weights, at the point of training
where it came closest to held-out rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from fedmend._parameters import parameters
from fedmend.generate.base import Generator
from fedmend.generate.codecs import indicators
from fedmend.generate.encoder import Encoded, Encoder, Heads, Raw, Span
from fedmend.generate.training import EMA, Progress, generator_for, held_out, train

# --- conditions -----------------------------------------------------------------------------


class Conditions:
    """CTGAN's conditional vector and training-by-sampling (Xu et al. 2019, section 4.3).

    A condition names one category of one of ``spans``; without spans there are none. All categories
    are numbered through, so that a batch of conditions is one tensor of numbers, drawn with one
    call; the rows that hold each are listed beforehand, so that a matching row is one look-up.
    ``counts`` are the rows per category once `fit` or restored; ``width`` the number of categories.
    """

    def __init__(self, spans: Sequence[Span], device: torch.device) -> None:
        sizes = torch.tensor([span.stop - span.start for span in spans], dtype=torch.int64)
        positions = [np.arange(span.start, span.stop) for span in spans]
        self.width = int(sizes.sum())
        self.device = device
        self.positions = torch.from_numpy(
            np.concatenate([np.empty(0, np.int64), *positions]).astype(np.int64)
        ).to(device)
        self.column = torch.repeat_interleave(torch.arange(len(spans)), sizes).to(device)
        self.counts = torch.ones(self.width, device=device)

    def fit(self, values: torch.Tensor, sampling: str = "log-frequency") -> None:
        """List the rows of every category; ``sampling`` says how often it will be asked for.

        **Shape**: (n, width of a row), missing cells zero
        """
        self.n_rows = len(values)
        held = values[:, self.positions] > 0.5
        self.counts = held.sum(0).float()
        # Categories in order, and within each its rows: one look-up finds the k-th row of any.
        self.rows = held.T.nonzero()[:, 1]
        self.starts = (self.counts.cumsum(0) - self.counts).long()
        by_log = sampling == "log-frequency"
        self.drawn_by = self._weights(self.counts.log1p() if by_log else self.counts)
        self._any = bool(self.counts.any())

    def _weights(self, masses: torch.Tensor) -> torch.Tensor:
        """A probability for every category: columns alike, within a column by mass."""
        if not self.width:
            return masses
        member = F.one_hot(self.column).to(masses.dtype)  # a sum in the same order every time
        return masses / (member @ (masses @ member)).clamp(min=1e-12)

    def draw(self, n: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Row numbers to train on, and the condition each was drawn for.

        A column is drawn evenly, a category by its frequency or the logarithm of it, a row evenly
        among those that hold the category. Where no category is held at all, any row will do.
        """
        if not self._any:
            rows = torch.randint(self.n_rows, (n,), generator=generator, device=self.device)
            return rows, None
        wanted = torch.multinomial(self.drawn_by, n, replacement=True, generator=generator)
        share = torch.rand(n, generator=generator, device=self.device)
        within = (share * self.counts[wanted]).long()
        within = torch.minimum(within, self.counts[wanted].long() - 1)
        return self.rows[self.starts[wanted] + within], wanted

    def natural(self, n: int, generator: torch.Generator) -> torch.Tensor | None:
        """Conditions as frequent as in the table, to sample freely."""
        if not self.counts.any():
            return None
        weights = self._weights(self.counts)
        return torch.multinomial(weights, n, replacement=True, generator=generator)

    def vector(self, wanted: torch.Tensor | None, n: int) -> torch.Tensor:
        """The conditional vector. **Shape**: (n,) -> (n, width)"""
        vector = torch.zeros(n, self.width, device=self.device)
        return vector if wanted is None else vector.scatter_(1, wanted[:, None], 1.0)

    def plane(self, wanted: torch.Tensor | None, n: int, width: int) -> torch.Tensor:
        """Ones where a row has the categories wanted. **Shape**: (n,) -> (n, width of a row)"""
        plane = torch.zeros(n, width, device=self.device)
        return plane if wanted is None else plane.scatter_(1, self.positions[wanted][:, None], 1.0)

    def cross_entropy(self, logits: torch.Tensor, wanted: torch.Tensor | None) -> torch.Tensor:
        """How far the generated categories are from the wanted ones, mean over the rows."""
        if wanted is None:
            return logits.new_zeros(())
        scores = logits[:, self.positions]
        other = self.column != self.column[wanted][:, None]
        return F.cross_entropy(scores.masked_fill(other, -torch.inf), wanted)

    def missed(self, made: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """The rows that do not show the category wanted."""
        other = self.column != self.column[wanted][:, None]
        shown = made[:, self.positions].masked_fill(other, -torch.inf).argmax(1)
        return (shown != wanted).nonzero()[:, 0]

    def rarest(self, known: Encoded, spread: np.ndarray) -> np.ndarray:
        """For every row its known category with the fewest rows, or -1 if none is known.

        ``spread`` (n, width of a row) says which coordinates are observed.
        """
        if not self.width:
            return np.full(known.n_rows, -1)
        positions = self.positions.cpu().numpy()
        held = (known.values[:, positions] > 0.5) & spread[:, positions]
        counts = np.where(held, self.counts.cpu().numpy(), np.inf)
        found: np.ndarray = np.where(held.any(axis=1), counts.argmin(axis=1), -1)
        return found


# --- known columns by matching --------------------------------------------------------------

_CELLS = 20_000_000
_NARROWEST = 0.02


class Matcher:
    """Known columns by matching: a wanted row becomes one of many candidates that agree with it.

    Approximate Bayesian computation with a kernel: every candidate is weighed by how close it comes
    in the known columns, and one is drawn by weight. Exact in the limit of many candidates; with
    few it errs towards rows that are merely similar where something is known. Candidates are laid
    out so that their distances to known rows are two matrix products.

    The distance counts known columns only: half the squared difference of numbers, in the
    candidates' standard deviations, and 1 for a wrong category. The kernel falls off with the
    distance in units of that of the ``neighbours``-th nearest candidate. ``raw`` are the
    candidates as raw numbers.
    """

    def __init__(self, pool: torch.Tensor, encoder: Encoder, neighbours: int = 5) -> None:
        self.pool = pool
        self.encoder = encoder
        self.neighbours = min(neighbours, len(pool))
        self.raw = raw = encoder.decode(pool.cpu().numpy())
        self._sizes = {
            name: len(encoder.schema[name].categories or ()) or 1 for name in encoder.columns
        }
        self._units = {
            name: (float(raw[name].mean()), float(raw[name].std()) or 1.0)
            for name in self._sizes
            if not encoder.schema[name].is_categorical
        }
        self._owner = np.repeat(np.arange(len(self._sizes)), list(self._sizes.values()))
        self._points = self._features(raw)

    def _features(self, raw: Raw) -> torch.Tensor:
        """Standardised numbers and indicators of categories. **Shape**: (n, features)"""
        parts = []
        for name, size in self._sizes.items():
            if name in self._units:
                mean, unit = self._units[name]
                parts.append(((raw[name] - mean) / unit)[:, None].astype(np.float32))
            else:
                parts.append(indicators(raw[name].astype(np.int64), size))
        return torch.from_numpy(np.concatenate(parts, axis=1)).to(self.pool.device)

    def draw(self, known: Encoded, generator: torch.Generator) -> torch.Tensor:
        """A candidate for every known row. **Shape**: (n, width) -> (n, width)"""
        return self.pool[self.pick(known, 1, generator)[:, 0]]

    def pick(self, known: Encoded, draws: int, generator: torch.Generator) -> torch.Tensor:
        """Which candidates are drawn for every known row. **Shape**: (n, width) -> (n, draws)"""
        at_once = max(1, _CELLS // len(self.pool))
        picked = []
        for start in range(0, known.n_rows, at_once):
            rows = np.arange(start, min(start + at_once, known.n_rows))
            weights = self._weights(self.distances(known.take(rows)))
            picked.append(torch.multinomial(weights, draws, True, generator=generator))
        return torch.cat(picked)

    def _weights(self, distance: torch.Tensor) -> torch.Tensor:
        closest = distance.topk(self.neighbours, dim=1, largest=False).values
        nearest, reach = closest[:, :1], closest[:, -1:] - closest[:, :1]
        return torch.exp((nearest - distance) / reach.clamp(min=_NARROWEST))

    def distances(self, known: Encoded) -> torch.Tensor:
        """Of every known row to every candidate, less what is the same for all candidates.

        **Shape**: (n, width) -> (n, candidates)
        """
        wanted = self._features(self.encoder.decode(known.values))
        counts = torch.from_numpy(known.observed[:, self._owner].astype(np.float32))
        counts = counts.to(self.pool.device)
        return counts @ (0.5 * self._points.square()).T - (counts * wanted) @ self._points.T


# --- the frame of training and sampling -----------------------------------------------------

GUMBEL = 0.2
_CHUNK = 8192
_TRIES = 20
_SCORES = 40
_APART = 25
_SCORED = 2000
_IMPUTED_BY = 20

Step = Callable[[torch.Tensor, torch.Tensor | None, torch.Tensor | None], None]
"""One step of training: real rows, their gaps (None: none), the conditions they were drawn for."""


@parameters
class Adversarial(Generator):
    """A generator network against its critics; a subclass brings the networks and one step.

    ``levels``: numbers with at most so many distinct values are treated as categories; ``average``:
    decay of the running average of weights, 0 for none; ``patience``: training stops after so many
    scores (of 40) without a better one, 0 never; ``candidates``: rows generated to match known ones
    with. Fitted besides: ``conditions_``, ``history_``.
    """

    impute_draws: ClassVar[int] = 50
    pac = 1  # rows that are judged together
    sampling = "log-frequency"
    decay = 1e-5  # of weights

    epochs: int = 300
    batch_size: int = 500
    lr: float = 2e-4
    latent: int = 100
    levels: int = 20
    average: float = 0.995
    patience: int = 15
    candidates: int = 20_000

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
        if self.batch_size < 2:  # batch norm cannot normalise one row
            problems.append(f"batch_size must be 2 or more, got {self.batch_size!r}")
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
