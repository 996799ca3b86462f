"""InC and its baselines for many runs at once: the methods' steps with a leading run dimension.

The same arithmetic as `methods.annotators.inc` and its baselines over a federation (the tests
compare), without the federation. Votes are kept as one-hot rows [E, N, K·C]: then the M-step and
the E-step are one matrix product each, for all runs of a method.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedmend.methods.annotators.aggregation import SMOOTHING
from fedmend.methods.annotators.worker import LOG_FLOOR
from fedmend_bench.inc.networks import BatchedNetworks

CLEAN = "Clean"


@dataclass(frozen=True)
class MethodSpec:
    """How a method gets its targets; `rule` is InC's posterior, None for the baselines.

    part: with crossfit, the half of the rows a helper is trained on (1 or 2), 0 for the result.
    initial: the share of the epochs that is stage 1; with all of them no label is corrected.
    """

    kind: str
    rule: str | None = None
    soft: bool = False
    crossfit: bool = False
    part: int = 0
    initial: float = 0.5


SPECS: dict[str, MethodSpec] = {
    "Random": MethodSpec("random"),
    "MJ": MethodSpec("mj"),
    "EM": MethodSpec("em"),
    "EM soft": MethodSpec("em", soft=True),
    "InC row": MethodSpec("inc", "row"),
    "InC bayes": MethodSpec("inc", "bayes"),
    "InC product": MethodSpec("inc", "product", soft=True),
    "InC product hard": MethodSpec("inc", "product"),
    "InC crossfit": MethodSpec("inc", "product", soft=True, crossfit=True),
    # The paper's Figure 4: one of the two stages alone.
    "InC initialise only": MethodSpec("inc", "product", soft=True, initial=1.0),
    "InC row correct only": MethodSpec("inc", "row", initial=0.0),
    "InC product correct only": MethodSpec("inc", "product", soft=True, initial=0.0),
}
TABLE_METHODS = ("Random", "MJ", "EM", "InC row", "InC product")


@dataclass(frozen=True)
class Outcome:
    """What came out of a method in one setting, world by world."""

    method: str
    setting: str
    accuracy: np.ndarray
    correction: np.ndarray


# ---------------------------------------------------------------------------------- votes


def one_hot(labels: Tensor, classes: int) -> Tensor:
    """float32, all zeros for -1. (torch's own goes by way of int64, eight bytes an entry.)"""
    zeros = torch.zeros(*labels.shape, classes, device=labels.device)
    given = (labels >= 0).float().unsqueeze(-1)
    return zeros.scatter_(-1, labels.clamp_min(0).unsqueeze(-1), given)


class Votes:
    """Votes of E draws, [E, N, K] with -1 for none, as one-hot rows."""

    def __init__(self, votes: np.ndarray, classes: int, device: torch.device) -> None:
        given = torch.from_numpy(votes).to(device)
        self.numbers, self.classes = given, classes
        self.annotators = votes.shape[2]
        said = one_hot(given, classes)
        self.counts = said.sum(2)
        self.said = said.flatten(2)  # [E, N, K·C]

    def soft(self) -> Tensor:
        return self.counts / self.counts.sum(-1, keepdim=True).clamp_min(1)

    def majority(self, generator: torch.Generator) -> Tensor:
        noise = torch.rand(self.counts.shape, generator=generator).to(self.counts.device)
        return (self.counts + 0.5 * noise).argmax(-1)

    def m_step(self, weights: Tensor) -> Tensor:
        """T [E, K, true, said] from how far rows are believed to be of each class [E, N, C]."""
        counts = torch.bmm(weights.transpose(1, 2), self.said)
        counts = counts.unflatten(2, (self.annotators, self.classes)).transpose(1, 2)
        counts = counts + SMOOTHING
        return counts / counts.sum(-1, keepdim=True)

    def evidence(self, matrices: Tensor, rule: str) -> Tensor:
        """What all votes of a row say about its class [E, N, C]."""
        if rule == "product":
            table = matrices.clamp_min(float(np.exp(LOG_FLOOR))).log().transpose(-1, -2)
        elif rule == "row":
            table = matrices
        else:
            table = (matrices / matrices.sum(-2, keepdim=True)).transpose(-1, -2)
        table = table.flatten(1, 2)  # [E, K·C, C]
        if self.said.device.type == "cuda":
            return torch.bmm(self.said, table)
        silent = table.new_zeros(len(table), 1, self.classes)
        rows = torch.cat([table, silent], 1).flatten(0, 1)
        return F.embedding_bag(self._places, rows, mode="sum").view_as(self.counts)

    @cached_property
    def _places(self) -> Tensor:
        """Where each vote's row of evidence is, all draws below each other. **Shape** [E·N, K]."""
        annotator = torch.arange(self.annotators, device=self.numbers.device) * self.classes
        width = self.annotators * self.classes
        places = torch.where(self.numbers >= 0, self.numbers + annotator, width)
        draw = torch.arange(len(places), device=places.device) * (width + 1)
        return (places + draw[:, None, None]).flatten(0, 1)


def dawid_skene(votes: Votes, iterations: int = 100, tolerance: float = 1e-5) -> Tensor:
    """The posterior of every draw, from the votes alone."""
    posterior = votes.soft()
    for _ in range(iterations):
        prior = posterior.sum(1, keepdim=True).clamp_min(1e-9)
        prior = (prior / prior.sum(-1, keepdim=True)).log()
        matrices = votes.m_step(posterior)
        updated = torch.softmax(prior + votes.evidence(matrices, "product"), -1)
        moved = float((updated - posterior).abs_().amax())
        posterior = updated
        if moved < tolerance:
            break
    return posterior


# ---------------------------------------------------------------------------------- one method


class Method:
    """One spec in all worlds and settings: its groups in the networks, ỹ and T.

    Draws are numbered world by world, setting by setting: E = R · S.
    """

    def __init__(
        self, name: str, spec: MethodSpec, groups: list[int], votes: Votes, folds: Tensor | None
    ) -> None:
        self.name, self.spec, self.groups, self.votes = name, spec, groups, votes
        self.folds = folds
        self.posterior: Tensor | None = None

    def correct(self, predicted: Tensor) -> None:
        """InC's M- and E-step for all draws; predicted [E, N, C]."""
        votes, rule = self.votes, str(self.spec.rule)
        if rule == "product":
            weights = self.posterior
            if weights is None:
                counts = votes.counts
                weights = (predicted + counts) / (1 + counts.sum(-1, keepdim=True))
            matrices = votes.m_step(weights)
            logs = predicted.clamp_min(1e-6).log()
            self.posterior = torch.softmax(logs + votes.evidence(matrices, rule), -1)
            return
        if self.posterior is None:
            eye = torch.eye(votes.classes, device=predicted.device)
            matrices = eye.expand(len(predicted), votes.annotators, -1, -1)
        else:
            matrices = votes.m_step(predicted)
        total = predicted + votes.evidence(matrices, rule)
        self.posterior = total / total.sum(-1, keepdim=True)

    def targets(self) -> Tensor:
        assert self.posterior is not None
        if self.spec.soft:
            return self.posterior
        return one_hot(self.posterior.argmax(-1), self.votes.classes)


class BatchedMethods:
    """Clean and the given methods in every world and setting, as one networks.

    votes: [R, S, N, K]; networks: with as many groups as `count_groups` says.
    """

    def __init__(
        self,
        networks: BatchedNetworks,
        votes: np.ndarray,
        y_train: np.ndarray,
        settings: Sequence[str],
        specs: Mapping[str, MethodSpec],
        seed: int = 0,
    ) -> None:
        self.networks, self.settings = networks, list(settings)
        self.truth = torch.from_numpy(y_train).to(networks.device)
        self.votes = Votes(
            votes.reshape(-1, *votes.shape[2:]), networks.shape.classes, networks.device
        )
        self._generator = torch.Generator().manual_seed(seed)
        self._numbers = np.random.default_rng(seed)
        self.methods: list[Method] = []
        at = 1
        for name, spec in specs.items():
            folds = None
            if spec.crossfit:
                shape = (len(self.votes.counts), networks.rows)
                folds = torch.rand(shape, generator=self._generator).to(networks.device) < 0.5
            for part in (0, 1, 2) if spec.crossfit else (0,):
                groups = list(range(at, at + len(settings)))
                own = replace(spec, part=part)
                self.methods.append(Method(name, own, groups, self.votes, folds))
                at += len(settings)
        assert at == networks.groups
        networks.targets[:, 0] = one_hot(self.truth, networks.shape.classes).to(networks.dtype)
        self._start()

    def _put(self, method: Method, targets: Tensor) -> None:
        """Targets [E, N, C] into the networks; helpers see their half only."""
        if method.spec.part:
            assert method.folds is not None
            keep = method.folds if method.spec.part == 1 else ~method.folds
            targets = targets * keep[..., None]
        block = targets.unflatten(0, (self.networks.worlds, len(self.settings)))
        self.networks.targets[:, method.groups] = block.to(self.networks.dtype)

    def _start(self) -> None:
        soft = self.votes.soft()
        known = self.votes.counts.sum(-1, keepdim=True) > 0
        inferred: Tensor | None = None
        for method in self.methods:
            kind = method.spec.kind
            if kind == "mj":
                labels = self.votes.majority(self._generator)
                method.posterior = one_hot(labels, self.votes.classes)
            elif kind == "em":
                inferred = dawid_skene(self.votes) if inferred is None else inferred
                method.posterior = inferred
            elif method.spec.initial == 1:
                method.posterior = soft  # which nothing corrects
            self._put(method, soft if kind in ("inc", "random") else method.targets() * known)

    def train(self, epochs: int) -> None:
        """Half of the epochs for InC's stage 1, half for stage 2; baselines train throughout."""
        for epoch in range(1, epochs + 1):
            for method in self.methods:
                if method.spec.kind == "random":
                    self._put(method, self._turns(epoch))
            self._correct([m for m in self.methods if epoch > int(m.spec.initial * epochs)])
            self.networks.epoch(epoch)
        self._correct([m for m in self.methods if m.spec.initial < 1])

    def _correct(self, those: Sequence[Method]) -> None:
        """A step of stage 2 for those of the methods that have one."""
        for method in [m for m in those if m.spec.rule is not None and m.spec.part == 0]:
            helpers = [m for m in self.methods if m.name == method.name and m is not method]
            predicted = self._predicted(helpers[1] if helpers else method)
            if helpers:
                assert method.folds is not None
                other = self._predicted(helpers[0])
                predicted = torch.where(method.folds[..., None], predicted, other)
            method.correct(predicted)
            for each in (method, *helpers):
                each.posterior = method.posterior
                self._put(each, each.targets())

    def _predicted(self, method: Method) -> Tensor:
        return self.networks.outputs(groups=method.groups).flatten(0, 1)

    def _turns(self, epoch: int) -> Tensor:
        """One-hot labels of the party whose turn each batch is."""
        networks, votes = self.networks, self.votes
        order = networks.order(epoch)
        batch = torch.repeat_interleave(
            torch.arange(len(networks.sizes)), torch.tensor(networks.sizes)
        ).to(networks.device)
        place = torch.empty_like(order).scatter_(1, order, batch.expand_as(order))
        draws = self._numbers.integers(
            votes.annotators, size=(len(votes.counts), len(networks.sizes))
        )
        turns = torch.from_numpy(draws).to(networks.device)
        place = place.repeat_interleave(len(self.settings), 0)
        labels = votes.numbers.gather(2, turns.gather(1, place)[..., None])[..., 0]
        return one_hot(labels, votes.classes)

    # ------------------------------------------------------------------ results

    def outcomes(self, test: Tensor, y_test: np.ndarray) -> list[Outcome]:
        """Accuracy on test rows and of the corrected labels, for all but crossfit's helpers.

        Clean's corrected labels are a ceiling for this network: see `_ceiling`.
        """
        truth = torch.from_numpy(y_test).to(self.networks.device)
        same = self.networks.outputs(test).argmax(-1) == truth[:, None]
        right = same.double().mean(-1).cpu().numpy()  # [R, G]
        ceiling = self._ceiling()
        found = [
            Outcome(CLEAN, setting, right[:, 0], ceiling[:, number])
            for number, setting in enumerate(self.settings)
        ]
        for method in self.methods:
            if method.spec.part:
                continue
            correction = self._correction(method)
            for number, setting in enumerate(self.settings):
                accuracy = right[:, method.groups[number]]
                found.append(Outcome(method.name, setting, accuracy, correction[:, number]))
        return found

    def _ceiling(self) -> np.ndarray:
        """Labels by Bayes' rule from the true error rates and the network that saw the truth."""
        truth = one_hot(self.truth, self.votes.classes).repeat_interleave(len(self.settings), 0)
        predicted = self.networks.outputs(groups=[0])[:, 0].repeat_interleave(len(self.settings), 0)
        evidence = self.votes.evidence(self.votes.m_step(truth), "product")
        best = (predicted.clamp_min(1e-6).log() + evidence).argmax(-1)
        return self._by_setting((best == truth.argmax(-1)).double().mean(-1))

    def _by_setting(self, values: Tensor) -> np.ndarray:
        return values.cpu().numpy().reshape(-1, len(self.settings))

    def _correction(self, method: Method) -> np.ndarray:
        truth = self.truth.repeat_interleave(len(self.settings), 0)
        if method.posterior is None:  # Random takes labels as they come
            given = self.votes.numbers >= 0
            right = ((self.votes.numbers == truth[..., None]) & given).sum((1, 2)) / given.sum(
                (1, 2)
            )
        else:
            right = (method.posterior.argmax(-1) == truth).double().mean(-1)
        return self._by_setting(right)


def count_groups(specs: Mapping[str, MethodSpec], settings: int) -> int:
    """Clean, and each method in each setting; crossfit has two helpers."""
    return 1 + settings * sum(3 if spec.crossfit else 1 for spec in specs.values())
