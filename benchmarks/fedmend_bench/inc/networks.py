"""Batched networks: many split networks of one shape, trained side by side as one tensor program.

Comparing methods means many small runs (seeds × settings × methods). One by one they leave a
machine idle between calls; here they share every matrix product, with a leading dimension for the
run. There is no boundary between parties: the numbers are those of the same run over a federation
(the tests compare), the traffic is not. On a GPU a step is one CUDA graph.

    networks = BatchedNetworks(shape, features, groups=21, batch_size=160)   # 5 worlds × 21 runs
    networks.targets[:] = …                                        # soft labels, run by run
    networks.epoch(1)
    networks.outputs(test_features).argmax(-1)                     # [worlds, groups, rows]

A *world* is a data set with its own rows and columns (a seed); the runs of a *group* number train
with the same settings in every world. All runs of a world start alike and see the rows in the same
order, as seeds would give them over a federation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedmend.errors import ConfigError
from fedmend.learn.nets import Bottom, BottomSpec, Top, TopSpec, initialise
from fedmend.learn.optim import FlatOptimizer, OptimizerSpec
from fedmend.split.features import batch_sizes
from fedmend.split.training import epoch_seed

CHUNK_BYTES = {"cpu": 1 << 20, "cuda": 1 << 31}


@dataclass(frozen=True)
class NetworkShape:
    """A split network over numeric columns: as `BottomSpec` and `TopSpec`, for all parties.

    columns: how many each party has, in the order of the features. bottom, top: hidden layers.
    """

    columns: tuple[int, ...]
    classes: int
    bottom: tuple[int, ...] = ()
    embedding: int = 16
    top: tuple[int, ...] = ()

    def modules(self) -> list[nn.Module]:
        """The same network as ordinary modules: the bottoms, and the top at the end."""
        specs = [
            BottomSpec(count, hidden=self.bottom, out=self.embedding) for count in self.columns
        ]
        top = TopSpec((self.embedding,) * len(self.columns), self.top, self.classes)
        return [*map(Bottom, specs), Top(top)]

    def widths(self) -> list[int]:
        """Widths between layers, all parties of a bottom layer side by side."""
        parties = len(self.columns)
        inner = [parties * width for width in (*self.bottom, self.embedding)]
        return [sum(self.columns), *inner, *self.top, self.classes]

    def rectified(self) -> list[bool]:
        """Whether a ReLU follows each layer (a linear top takes embeddings as they are)."""
        return [True] * len(self.bottom) + [bool(self.top)] + [True] * len(self.top) + [False]


class BatchedNetworks:
    """R worlds × G groups of networks, their targets, and one Adam for all.

    features: [R, N, F], columns in the order of the parties. seeds: for each world the run's and
    the network's seed, which fix the order of rows of every epoch.
    targets: soft labels [R, G, N, C], filled in place by the caller and changed between epochs.
    """

    def __init__(
        self,
        shape: NetworkShape,
        features: Tensor,
        groups: int,
        *,
        batch_size: int,
        optimizer: OptimizerSpec | None = None,
        seeds: Sequence[tuple[int, int]] | None = None,
    ) -> None:
        if features.ndim != 3 or features.shape[2] != sum(shape.columns):
            raise ConfigError(
                f"features of shape {tuple(features.shape)} for {sum(shape.columns)} columns. "
                "Mend: [worlds, rows, columns]"
            )
        self.shape = shape
        self.features = features.contiguous()
        self.worlds, self.rows, _ = features.shape
        self.groups = groups
        self.seeds = list(seeds or [(0, world) for world in range(self.worlds)])
        self.device, self.dtype = features.device, features.dtype
        self.sizes = batch_sizes(self.rows, batch_size)
        self.targets = features.new_zeros(self.worlds, groups, self.rows, shape.classes)
        runs = self.worlds * groups
        self._weights = [
            (
                nn.Parameter(features.new_zeros(runs, fan_in, fan_out)),
                nn.Parameter(features.new_zeros(runs, 1, fan_out)),
            )
            for fan_in, fan_out in pairwise(shape.widths())
        ]
        parameters = [part for pair in self._weights for part in pair]
        self._optimizer = FlatOptimizer(parameters, optimizer or OptimizerSpec())
        self._masks = [self._mask(number) for number in range(len(shape.bottom) + 1)]
        self._steps: dict[int, Callable[[Tensor], None]] = {}
        self._first_row = torch.arange(self.worlds, device=self.device)[:, None] * self.rows
        self._first_target = torch.arange(runs, device=self.device)[:, None] * self.rows
        for world, each in enumerate(self.seeds):
            # Fresh weights, the same for all runs of a world.
            generator = torch.Generator().manual_seed(epoch_seed(*each, 0))
            self.load(world, [initialise(module, generator) for module in shape.modules()])

    # ------------------------------------------------------------------ weights

    def _mask(self, layer: int) -> Tensor:
        """Ones where a party's own part of a bottom layer is; the rest must stay zero."""
        parties = len(self.shape.columns)
        widths = (*self.shape.bottom, self.shape.embedding)
        fan_ins = self.shape.columns if layer == 0 else (widths[layer - 1],) * parties
        blocks = [torch.ones(fan_in, widths[layer]) for fan_in in fan_ins]
        return torch.block_diag(*blocks).to(self.device, self.dtype)

    @torch.no_grad()
    def load(self, world: int, modules: Sequence[nn.Module], group: int | None = None) -> None:
        """Set the weights of one run, or of all runs of a world, from ordinary modules."""
        first = world * self.groups + (group or 0)
        runs = slice(first, first + (1 if group is not None else self.groups))
        linear = [[m for m in each.modules() if isinstance(m, nn.Linear)] for each in modules]
        layers = [*zip(*linear[:-1], strict=True), *((layer,) for layer in linear[-1])]
        for (weight, bias), parts in zip(self._weights, layers, strict=True):
            weight[runs] = torch.block_diag(*[part.weight.T for part in parts]).to(weight)
            bias[runs] = torch.cat([part.bias for part in parts]).to(bias)

    def run_weights(self, world: int, group: int) -> list[Tensor]:
        """Weight and bias of every layer of one run, bottom layers block by block."""
        run = world * self.groups + group
        return [part[run].detach() for pair in self._weights for part in pair]

    # ------------------------------------------------------------------ training

    def epoch(self, number: int) -> None:
        """One pass over the rows, for all runs."""
        for rows in self.order(number).split(self.sizes, 1):
            size = rows.shape[1]
            if size not in self._steps:
                self._steps[size] = self._prepare(size)
            self._steps[size](rows)

    def order(self, epoch: int) -> Tensor:
        """The order of each world's rows in an epoch. **Shape** [R, N]."""
        generators = [
            torch.Generator().manual_seed(epoch_seed(*seeds, epoch)) for seeds in self.seeds
        ]
        orders = [torch.randperm(self.rows, generator=generator) for generator in generators]
        return torch.stack(orders).to(self.device)

    def _prepare(self, size: int) -> Callable[[Tensor], None]:
        """How to take a step on so many rows: directly, or on a GPU by replaying a graph."""
        if self.device.type != "cuda":
            return self._step
        numbers = torch.zeros(self.worlds, size, dtype=torch.int64, device=self.device)
        values = self._optimizer.values.clone()
        moments = {key: each.clone() for key, each in self._optimizer.state().items()}
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for _ in range(2):
                self._step(numbers)
        torch.cuda.current_stream(self.device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step(numbers)
        self._optimizer.values.copy_(values)
        self._optimizer.restore(moments)

        def replay(rows: Tensor) -> None:
            numbers.copy_(rows)
            graph.replay()

        return replay

    def _step(self, rows: Tensor) -> None:
        """One update of all runs on these rows of each world. **Shape** rows [R, B]."""
        size, runs = rows.shape[1], self.worlds * self.groups
        batch = self.features.flatten(0, 1).index_select(0, (rows + self._first_row).view(-1))
        batch = batch.view(self.worlds, 1, size, -1).expand(-1, self.groups, -1, -1)
        places = rows[:, None].expand(-1, self.groups, -1).reshape(runs, size)
        places = (places + self._first_target).view(-1)
        targets = self.targets.flatten(0, 2).index_select(0, places).view(runs, size, -1)
        hidden = batch.reshape(runs, size, -1)
        for (weight, bias), rectify in zip(self._weights, self.shape.rectified(), strict=True):
            hidden = torch.baddbmm(bias, hidden, weight)
            hidden = hidden.relu_() if rectify else hidden
        self._optimizer.zero_grad()
        # Rows without a target have none to be far from.
        loss = -(targets * F.log_softmax(hidden, -1)).sum() / size
        loss.backward()
        for (weight, _), mask in zip(self._weights, self._masks, strict=False):
            assert weight.grad is not None
            weight.grad.mul_(mask)
        self._optimizer.step()

    # ------------------------------------------------------------------ using

    @torch.no_grad()
    def outputs(
        self, features: Tensor | None = None, groups: Sequence[int] | None = None
    ) -> Tensor:
        """Probabilities of these rows (by default the training rows). **Shape** [R, G, n, C]."""
        features = self.features if features is None else features
        chosen = list(range(self.groups)) if groups is None else list(groups)
        weights = [
            tuple(part.view(self.worlds, self.groups, *part.shape[1:])[:, chosen] for part in pair)
            for pair in self._weights
        ]
        n = features.shape[1]
        out = features.new_empty(self.worlds, len(chosen), n, self.shape.classes)
        per_row = self.worlds * len(chosen) * max(self.shape.widths()) * features.element_size()
        chunk = max(64, CHUNK_BYTES.get(self.device.type, 1 << 20) // max(per_row, 1))
        for at in range(0, n, chunk):
            hidden = features[:, None, at : at + chunk]
            for (weight, bias), rectify in zip(weights, self.shape.rectified(), strict=True):
                hidden = torch.matmul(hidden, weight).add_(bias)
                hidden = hidden.relu_() if rectify else hidden
            out[:, :, at : at + chunk] = torch.softmax(hidden, -1)
        return out
