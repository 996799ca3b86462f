"""A fleet: many split networks of one shape, trained side by side as one tensor program.

Comparing methods means many small runs (seeds × settings × methods). One by one they leave a
machine idle between calls; here they share every matrix product, with a leading dimension for the
run. There is no boundary between parties: the numbers are those of the same run over a federation
(the tests compare), the traffic is not. On a GPU a step is one CUDA graph.

    fleet = Fleet(shape, features, groups=21, batch_size=160)   # 5 worlds × 21 runs in each
    fleet.targets[:] = …                                        # soft labels, run by run
    fleet.epoch(1)
    fleet.outputs(test_features).argmax(-1)                     # [worlds, groups, rows]

A *world* is a data set with its own rows and columns (a seed); the runs of a *group* number train
in every world, with the same start and order of rows as the other runs of that world.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from fedmend.errors import ConfigError
from fedmend.learn.nets import Bottom, BottomSpec, Top, TopSpec, initialise
from fedmend.learn.optim import FlatOptimizer, OptimizerSpec
from fedmend.split.features import batch_sizes
from fedmend.split.training import epoch_seed

CHUNK_BYTES = {"cpu": 1 << 20, "cuda": 1 << 31}


@dataclass(frozen=True)
class FleetShape:
    """A split network over numeric columns: as `BottomSpec` and `TopSpec`, for all parties.

    columns: how many each party has, in the order of the features. bottom, top: hidden layers.
    """

    columns: tuple[int, ...]
    classes: int
    bottom: tuple[int, ...] = ()
    embedding: int = 16
    top: tuple[int, ...] = ()

    def bottoms(self) -> list[Bottom]:
        return [
            Bottom(BottomSpec(count, hidden=self.bottom, out=self.embedding))
            for count in self.columns
        ]

    def make_top(self) -> Top:
        return Top(TopSpec((self.embedding,) * len(self.columns), self.top, self.classes))

    def widths(self) -> list[int]:
        """Widths between layers, all parties of a bottom layer side by side."""
        parties = len(self.columns)
        inner = [parties * width for width in (*self.bottom, self.embedding)]
        return [sum(self.columns), *inner, *self.top, self.classes]

    def rectified(self) -> list[bool]:
        """Whether a ReLU follows each layer (a linear top takes embeddings as they are)."""
        return [True] * len(self.bottom) + [bool(self.top)] + [True] * len(self.top) + [False]


class _Space:
    """Where a step on so many rows keeps what it computes.

    Asking for this memory at every step costs a CPU more than the arithmetic. values: what goes
    into each layer and comes out of the last; gradients: of what comes out of each layer.
    """

    def __init__(self, runs: int, rows: int, widths: Sequence[int], like: Tensor) -> None:
        self.values = [like.new_empty(runs, rows, width) for width in widths]
        self.gradients = [like.new_empty(runs, rows, width) for width in widths[1:]]
        self.targets = like.new_empty(runs, rows, widths[-1])


class Fleet:
    """R worlds × G groups of networks, their targets, and one Adam over one flat vector.

    features: [R, N, F], columns in the order of the parties. seeds: for each world the run's and
    the network's seed, which fix the order of rows of every epoch.
    targets: soft labels [R, G, N, C], filled in place by the caller and changed between epochs.
    """

    def __init__(
        self,
        shape: FleetShape,
        features: Tensor,
        groups: int,
        *,
        batch_size: int,
        optimizer: OptimizerSpec | None = None,
        seeds: Sequence[tuple[int, int]] | None = None,
    ) -> None:
        self.shape = shape
        self.spec = optimizer or OptimizerSpec()
        if self.spec.name != "adam":
            raise ConfigError(f"a fleet trains with adam, got {self.spec.name}")
        if features.ndim != 3 or features.shape[2] != sum(shape.columns):
            raise ConfigError(
                f"features of shape {tuple(features.shape)} for {sum(shape.columns)} columns. "
                "Mend: [worlds, rows, columns]"
            )
        self.features = features.contiguous()
        self.worlds, self.rows, _ = features.shape
        self.groups = groups
        self.seeds = list(seeds or [(0, world) for world in range(self.worlds)])
        self.device, self.dtype = features.device, features.dtype
        self.sizes = batch_sizes(self.rows, batch_size)
        runs = self.worlds * groups
        self.targets = torch.zeros(
            self.worlds, groups, self.rows, shape.classes, device=self.device, dtype=self.dtype
        )
        self._allocate(runs)
        self._steps: dict[int, Callable[[Tensor], None]] = {}
        self._spaces: dict[int, _Space] = {}
        self._first_row = torch.arange(self.worlds, device=self.device)[:, None] * self.rows
        self._first_target = torch.arange(runs, device=self.device)[:, None] * self.rows
        for world in range(self.worlds):
            self._start_world(world)

    # ------------------------------------------------------------------ weights

    def _allocate(self, runs: int) -> None:
        widths = self.shape.widths()
        sizes = []
        for fan_in, fan_out in pairwise(widths):
            sizes += [runs * fan_in * fan_out, runs * fan_out]
        zeros = torch.zeros(sum(sizes), device=self.device, dtype=self.dtype)
        self._optimizer = FlatOptimizer([nn.Parameter(zeros)], self.spec)
        self.values, self.gradient = self._optimizer.values, self._optimizer.gradient
        self._weights: list[tuple[Tensor, Tensor]] = []
        self._weight_gradients: list[tuple[Tensor, Tensor]] = []
        for flat, views in (
            (self.values, self._weights),
            (self.gradient, self._weight_gradients),
        ):
            pieces = iter(flat.split(sizes))
            for fan_in, fan_out in pairwise(widths):
                weight = next(pieces).view(runs, fan_in, fan_out)
                views.append((weight, next(pieces).view(runs, 1, fan_out)))
        self._masks = [self._mask(number) for number in range(len(self.shape.bottom) + 1)]

    def _mask(self, layer: int) -> Tensor:
        """Ones where a party's own part of a bottom layer is; the rest must stay zero."""
        parties = len(self.shape.columns)
        widths = (*self.shape.bottom, self.shape.embedding)
        fan_ins = self.shape.columns if layer == 0 else (widths[layer - 1],) * parties
        blocks = [torch.ones(fan_in, widths[layer]) for fan_in in fan_ins]
        return torch.block_diag(*blocks).to(self.device, self.dtype)

    def _start_world(self, world: int) -> None:
        """Fresh weights, the same for all runs of a world."""
        generator = torch.Generator().manual_seed(epoch_seed(*self.seeds[world], 0))
        modules: list[nn.Module] = [*self.shape.bottoms(), self.shape.make_top()]
        for module in modules:
            initialise(module, generator)
        self.load(world, modules[:-1], modules[-1])

    @torch.no_grad()
    def load(
        self,
        world: int,
        bottoms: Sequence[nn.Module],
        top: nn.Module,
        group: int | None = None,
    ) -> None:
        """Set the weights of one run, or of all runs of a world, from ordinary modules."""
        first = world * self.groups + (group or 0)
        runs = slice(first, first + (1 if group is not None else self.groups))
        linear = [[m for m in b.modules() if isinstance(m, nn.Linear)] for b in bottoms]
        for number, layers in enumerate(zip(*linear, strict=True)):
            weight, bias = self._weights[number]
            weight[runs] = torch.block_diag(*[layer.weight.T for layer in layers]).to(weight)
            bias[runs] = torch.cat([layer.bias for layer in layers]).to(bias)
        tops = [m for m in top.modules() if isinstance(m, nn.Linear)]
        for number, layer in enumerate(tops, len(linear[0])):
            weight, bias = self._weights[number]
            weight[runs] = layer.weight.T.to(weight)
            bias[runs] = layer.bias.to(bias)

    def run_weights(self, world: int, group: int) -> list[Tensor]:
        """Weight and bias of every layer of one run, bottom layers block by block."""
        run = world * self.groups + group
        return [part[run] for pair in self._weights for part in pair]

    # ------------------------------------------------------------------ training

    def epoch(self, number: int) -> None:
        """One pass over the rows, for all runs."""
        order = self.order(number)
        at = 0
        for size in self.sizes:
            if size not in self._steps:
                self._steps[size] = self._prepare(size)
            self._steps[size](order[:, at : at + size])
            at += size

    def order(self, epoch: int) -> Tensor:
        """The order of each world's rows in an epoch. **Shape** [R, N]."""
        orders = [
            torch.randperm(
                self.rows, generator=torch.Generator().manual_seed(epoch_seed(*seeds, epoch))
            )
            for seeds in self.seeds
        ]
        return torch.stack(orders).to(self.device)

    def _prepare(self, size: int) -> Callable[[Tensor], None]:
        """How to take a step on so many rows: directly, or on a GPU by replaying a graph."""
        if self.device.type != "cuda":
            return self._step
        numbers = torch.zeros(self.worlds, size, dtype=torch.int64, device=self.device)
        values = self.values.clone()
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
        self.values.copy_(values)
        self._optimizer.restore(moments)

        def replay(rows: Tensor) -> None:
            numbers.copy_(rows)
            graph.replay()

        return replay

    @torch.no_grad()
    def _step(self, rows: Tensor) -> None:
        """Forward, backward and Adam, written out: no graph is recorded. **Shape** rows [R, B]."""
        size = rows.shape[1]
        runs = self.worlds * self.groups
        if size not in self._spaces:
            self._spaces[size] = _Space(runs, size, self.shape.widths(), self.features)
        space = self._spaces[size]
        batch = self.features.flatten(0, 1).index_select(0, (rows + self._first_row).view(-1))
        batch = batch.view(self.worlds, 1, size, -1).expand(-1, self.groups, -1, -1)
        space.values[0].view(self.worlds, self.groups, size, -1).copy_(batch)
        for number, rectify in enumerate(self.shape.rectified()):
            weight, bias = self._weights[number]
            output = torch.baddbmm(bias, space.values[number], weight, out=space.values[number + 1])
            if rectify:
                output.relu_()
        places = rows[:, None].expand(-1, self.groups, -1).reshape(runs, size)
        places = (places + self._first_target).view(-1)
        targets = space.targets.view(-1, self.shape.classes)
        torch.index_select(self.targets.flatten(0, 2), 0, places, out=targets)
        # The gradient of −Σ t log softmax(z) is softmax(z) Σt − t, also for rows without a target.
        gradient = torch.softmax(space.values[-1], -1, out=space.gradients[-1])
        gradient.mul_(space.targets.sum(-1, keepdim=True)).sub_(space.targets).div_(size)
        self._backward(space)
        self._optimizer.step()

    def _backward(self, space: _Space) -> None:
        for number in reversed(range(len(self._weights))):
            gradient, into = space.gradients[number], self._weight_gradients[number]
            torch.bmm(space.values[number].transpose(1, 2), gradient, out=into[0])
            torch.sum(gradient, 1, keepdim=True, out=into[1])
            if number < len(self._masks):
                into[0].mul_(self._masks[number])
            if number:
                before = space.gradients[number - 1]
                torch.bmm(gradient, self._weights[number][0].transpose(1, 2), out=before)
                if self.shape.rectified()[number - 1]:
                    torch.ops.aten.threshold_backward.grad_input(
                        before, space.values[number], 0, grad_input=before
                    )

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
        out = torch.empty(
            self.worlds, len(chosen), n, self.shape.classes, device=self.device, dtype=self.dtype
        )
        per_row = self.worlds * len(chosen) * max(self.shape.widths()) * features.element_size()
        chunk = max(64, CHUNK_BYTES.get(self.device.type, 1 << 20) // max(per_row, 1))
        for at in range(0, n, chunk):
            hidden = features[:, None, at : at + chunk]
            for (weight, bias), rectify in zip(weights, self.shape.rectified(), strict=True):
                hidden = torch.matmul(hidden, weight).add_(bias)
                hidden = hidden.relu_() if rectify else hidden
            out[:, :, at : at + chunk] = torch.softmax(hidden, -1)
        return out
