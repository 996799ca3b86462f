"""What the label party does with embeddings when nothing is trained: judge rows, and tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedmend.federation import exposed
from fedmend.learn import metrics
from fedmend.learn.calibration import describe
from fedmend.methods.risa.additive import ALONE
from fedmend.methods.risa.halves import EvidenceTopHalf
from fedmend.methods.risa.opinions import probability
from fedmend.methods.risa.parts import EvidencePart, HeadsPart
from fedmend.methods.risa.top import JOINT
from fedmend.methods.risa.trust import COLUMNS, Trusted, fit_pool, fit_sources, subsets
from fedmend.split.features import ALIGNED
from fedmend.split.label_dp import ToldLabels
from fedmend.split.workers import _numbers

_WITHOUT = "without "


class Judging:
    """The part of `EvidenceTopWorker` that collects outputs of rows and makes opinions of them."""

    half: EvidenceTopHalf
    device: torch.device
    told: ToldLabels | None
    _trains: bool
    _rows_used: np.ndarray
    _outputs: dict[str, list[dict[str, Tensor]]]
    _asked: dict[str, list[np.ndarray]]
    _let_out: Callable[..., None]
    added: dict[str, dict[str, Tensor]]
    _part: Callable[[], EvidencePart]

    def _heads(self) -> HeadsPart:
        raise NotImplementedError

    def _targets(self) -> np.ndarray:
        raise NotImplementedError

    def _likelihoods(self) -> np.ndarray | None:
        raise NotImplementedError

    @exposed(kind="control", takes={"embeddings": "embedding"})
    def take_chunk(
        self,
        rows: np.ndarray,
        known: list[str],
        kinds: list[str],
        embeddings: dict[str, Tensor] | None = None,
        explain: bool = False,
    ) -> None:
        """Judge rows that the parties `known` know, as rows of each of `kinds`.

        explain: also as if each party had not known them, for `contributions`.
        """
        numbers, heads = _numbers(rows, self.device), self._heads()
        sides, stand_ins, added = [], [], {}
        for name, width in zip(heads.names, heads.module.spec.widths, strict=True):
            given = (embeddings or {}).get(name)
            if name == self.half.own:
                given = self._own_side(numbers)
            if given is None:
                stand_in = heads.stand_ins[name].to(self.device, self.half.settings.dtype)
                given = stand_in[None]
            given = given.to(self.device, self.half.settings.dtype)
            sides.append(given[:-1, :width])
            stand_ins.append(given[-1, :width])
            if given.shape[1] > width:
                scores = given[:-1, width:].float()
                if name in self.half.reliable:
                    scores = scores * self.half.reliable[name].index_select(0, numbers)[:, None]
                added[name] = scores.chunk(2, 1)
        who = dict(subsets(heads.names))
        cases = {
            kind: [name in who[kind] and name in known for name in heads.names] for kind in kinds
        }
        if explain:
            cases |= {
                _WITHOUT + party: [name in known and name != party for name in heads.names]
                for party in known
            }
        for case, has in cases.items():
            found = self.half.source_outputs(sides, stand_ins, has, numbers)
            together = ALIGNED in (case, kinds[0])
            for name, (aligned, alone) in added.items():
                if has[heads.names.index(name)]:
                    found[name + COLUMNS] = aligned if together else alone
            self._outputs.setdefault(case, []).append(found)
            self._asked.setdefault(case, []).append(rows)

    def _own_side(self, numbers: Tensor) -> Tensor:
        """This party's embeddings and, where it has learnt that, what its columns add up to."""
        found = self.half.own_embedding(numbers)
        scores, own = self._part().scores, self.half.own_rows
        if scores is None or own is None:
            return found
        added = scores.of(own.batch(numbers[own.slot.index_select(0, numbers) >= 0])).to(found)
        return torch.cat([found, torch.cat([added, added.new_zeros(1, added.shape[1])])], 1)

    @exposed(kind="control", takes={"embeddings": "embedding"})
    def keep_stand_ins(self, embeddings: dict[str, Tensor]) -> None:
        """Keep what stands in for each party, so that rows can be judged without asking it."""
        stand_ins = {name: value[-1].detach().clone() for name, value in embeddings.items()}
        if self.half.own is not None:
            nobody = torch.zeros(0, dtype=torch.int64, device=self.device)
            stand_ins[self.half.own] = self.half.own_embedding(nobody)[-1].clone()
        self._heads().stand_ins = stand_ins

    def _known_of(self, rows: np.ndarray) -> np.ndarray:
        """What is known of the classes of rows: their numbers [n], or likelihoods [n, K]."""
        found = self._likelihoods()
        return self._targets()[rows] if found is None else found[rows]

    @exposed(kind="statistic")
    def calibrate(self, rows: np.ndarray, guard: bool) -> dict[str, Any]:
        """Fit temperature and trust on the collected outputs of these held-out rows."""
        heads = self._heads()
        targets = torch.from_numpy(self._known_of(rows))
        report = {}
        for kind, _ in subsets(heads.names):
            outputs = {name: value.cpu() for name, value in self._collected(kind).items()}
            anchor = self.half.own if kind == ALIGNED else kind
            anchor = anchor if guard and anchor in outputs else None
            if heads.how.fusion == "pool":
                found = self._pooled(kind, outputs, targets, anchor)
            else:
                alike = kind == ALIGNED and heads.module.spec.one_head
                found = fit_sources(heads.how, outputs, targets, anchor=anchor, alike=alike)
            heads.calibration.temperature[kind] = found.temperature
            heads.calibration.centre[kind] = found.centre
            heads.calibration.trust[kind] = found.trust
            if found.bias:
                heads.calibration.bias[kind] = found.bias
            report[kind] = {
                "temperature": found.temperature,
                "trust": found.trust,
                "losses": found.losses,
            }
        return report

    def _pooled(
        self, kind: str, outputs: dict[str, Tensor], targets: Tensor, anchor: str | None
    ) -> Trusted:
        """Powers of a pool; a party's columns speak for it where they have been learnt."""
        together = kind == ALIGNED
        for name, scores in self.added.items():
            if together or name == kind:
                outputs[name + COLUMNS] = scores[ALIGNED if together else ALONE].cpu()
            if together:
                outputs.pop(name, None)
        leading = [name for name in outputs if name.endswith(COLUMNS)]
        if (together or not leading) and self._leader(kind) in outputs:
            leading.append(self._leader(kind))
        if not leading:
            leading = [JOINT] if JOINT in outputs else list(outputs)
        if anchor in leading and len(leading) == 1 and not together:
            anchor = None
        held = {name: 1.0 for name in leading}
        return fit_pool(self._heads().how, outputs, targets, held=held, anchor=anchor)

    def _leader(self, kind: str) -> str:
        return str(self.half.own if kind == ALIGNED else kind)

    @exposed(kind="statistic")
    def metrics(self, kinds: list[str], rows: np.ndarray | None = None) -> dict[str, float]:
        """Metrics of the collected rows against their labels; unlabelled rows left out.

        rows: their numbers, where not all attached rows were collected.
        """
        targets, p, _ = self._against_labels(kinds, rows)
        if self.told is not None and self._trains:  # what is told is predicted
            return metrics.classification(targets, p @ self.told.response)
        return metrics.classification(targets, p, self._noise)

    @exposed(kind="statistic")
    def uncertainty_report(self, kinds: list[str]) -> dict[str, Any]:
        """How much the uncertainty is worth on the collected rows that have a label."""
        targets, p, u = self._against_labels(kinds, None)
        return describe(p, u, targets, noise=self._noise)

    @property
    def _noise(self) -> np.ndarray | None:
        return None if self.told is None else self.told.response

    def _against_labels(
        self, kinds: list[str], rows: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        targets = self._targets() if rows is None else self._targets()[rows]
        judged = [self._judged(kind) for kind in kinds]
        p, u = (np.concatenate(pieces) for pieces in zip(*judged, strict=True))
        known = targets >= 0
        return targets[known], p[known], u[known]

    @exposed(kind="prediction")
    def predictions(self, kinds: list[str], table_order: bool = False) -> dict[str, np.ndarray]:
        """Probabilities [n, C] and uncertainty [n] of the collected rows.

        In the order of the rows' numbers, or in that of this party's table.
        """
        asked = [rows for kind in kinds for rows in self._asked.get(kind, [])]
        judged = [self._judged(kind) for kind in kinds]
        p, u = (np.concatenate(pieces) for pieces in zip(*judged, strict=True))
        self._tell(asked, np.column_stack([p, u]))
        if table_order:
            back = np.argsort(self._rows_used, kind="stable")
            p, u = p[back], u[back]
        return {"probability": p, "uncertainty": u}

    @exposed(kind="statistic")
    def carried(self, kind: str, known: list[str]) -> dict[str, float]:
        """The mean of `contributions` over the rows, by party."""
        mean = self._contributions(kind, known).mean(0)
        return dict(zip(self._heads().names, mean.tolist(), strict=True))

    @exposed(kind="prediction")
    def contributions(self, kind: str, known: list[str]) -> np.ndarray:
        """Which share of the decision each party carries [n, M], rows summing to one.

        How much the likeliest class loses without a party, beside what it loses without others.
        """
        asked = self._asked.get(kind, [])
        found = self._contributions(kind, known)
        self._tell(asked, found)
        return found

    def _tell(self, asked: list[np.ndarray], outputs: np.ndarray) -> None:
        rows = np.concatenate([np.zeros(0, np.int64), *asked])
        self._let_out(self._rows_used[rows], outputs, foreign=self._heads().foreign)

    def _contributions(self, kind: str, known: list[str]) -> np.ndarray:
        p, _ = self._judged(kind)
        best = p.argmax(1)[:, None]
        lost = np.zeros((len(p), len(self._heads().names)), np.float32)
        for number, name in enumerate(self._heads().names):
            if name in known:
                without, _ = self._judged(_WITHOUT + name, calibrated_as=kind)
                lost[:, number] = np.take_along_axis(p - without, best, 1)[:, 0].clip(1e-6)
        return lost / lost.sum(1, keepdims=True).clip(1e-12)

    def _judged(self, kind: str, calibrated_as: str | None = None) -> tuple[np.ndarray, np.ndarray]:
        return self._fused(calibrated_as or kind, self._collected(kind))

    def _fused(self, kind: str, outputs: dict[str, Tensor]) -> tuple[np.ndarray, np.ndarray]:
        """Probabilities and uncertainty of rows of a kind, from each source's outputs."""
        heads = self._heads()
        if not outputs:
            return np.zeros((0, len(heads.labels.classes_)), np.float32), np.zeros(0, np.float32)
        fused = heads.calibration.fuse(heads.how, kind, outputs)
        return probability(fused).cpu().numpy(), fused.uncertainty[:, 0].cpu().numpy()

    def _collected(self, kind: str) -> dict[str, Tensor]:
        """The outputs of all chunks since last asked, by source."""
        chunks = self._outputs.pop(kind, [])
        self._asked.pop(kind, None)
        if not chunks:
            return {}
        return {name: torch.cat([chunk[name] for chunk in chunks]) for name in chunks[0]}
