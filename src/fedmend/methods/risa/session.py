"""The coordinator's half of evidential split training: sessions, and the network they train.

network = EvidenceNetwork(fed, parties=[…], label_party="bank", config=…, how=…)
with network.session(segments) as session:
    session.set_pools([...])            # training rows by segment
    for epoch in range(1, 31):
        session.epoch(epoch, 30)
    session.finish()
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedmend.federation import Federation
from fedmend.methods.risa.heads import JOINT, Objective
from fedmend.methods.risa.workers import EvidenceBottomWorker, EvidenceTopWorker
from fedmend.split.features import (
    ALIGNED,
    ALL,
    Segments,
    batch_sizes,
    check_names,
    is_known,
    spans,
)
from fedmend.split.session import (
    PREDICT_ROWS,
    Crews,
    OpenedSession,
    epoch_seed,
    note_noise,
    tell_labels,
)
from fedmend.split.sharing import Sharing, run_steps
from fedmend.split.training import SplitNetwork

__all__ = ["EvidenceNetwork", "EvidenceSession", "How"]


@dataclass(frozen=True)
class How:
    """How an evidential network is built and trained, beyond what any split network is.

    heads, joint: whether parties have heads of their own, and whether there is a joint one.
    least_overlap: the least share of overlapping rows in a batch. share_every: after so many steps
    bottoms of like shape are averaged over the parties; 0 is never. members: so many networks side
    by side, each of which learns without a part of the overlapping rows. solo: the label party's
    own head has a bottom to itself, which the joint head has no say in.
    """

    objective: Objective = field(default_factory=Objective)
    heads: bool = True
    joint: bool = False
    least_overlap: float = 0.0
    share_every: int = 0
    members: int = 1
    solo: bool = False

    def net(self) -> dict[str, Any]:
        """What the modules are built from, besides what any split network's are."""
        return {name: getattr(self, name) for name in ("heads", "joint", "members", "solo")}


class EvidenceNetwork(SplitNetwork):
    """An evidential split model over `parties`, its heads at `label_party`."""

    bottom_worker = EvidenceBottomWorker  # type: ignore[assignment]
    top_worker = EvidenceTopWorker  # type: ignore[assignment]
    label_party: str

    def __init__(self, fed: Federation, *, how: How, **given: Any) -> None:
        super().__init__(fed, **given)
        check_names(self.parties, (ALIGNED, ALL, JOINT))
        self.how = how

    def session(self, segments: Segments) -> EvidenceSession:  # type: ignore[override]
        """A training under way."""
        return EvidenceSession(self, self.fed, segments, train=True)

    # ------------------------------------------------------------------ using it

    def judged(
        self, fed: Federation, segments: Segments, *, explain: bool = False
    ) -> EvidenceSession:
        """A session, to be entered, in which the label party judges rows that it is given."""
        return EvidenceSession(self, fed, segments, train=False, explain=explain)

    def evaluate(self, fed: Federation, segments: Segments) -> dict[str, float]:
        """Metrics over these rows, computed at the label party."""
        with self.judged(fed, segments) as session:
            return dict(session.top.metrics(session.judge_all()))

    def uncertainty_report(self, fed: Federation, segments: Segments) -> dict[str, Any]:
        """What the uncertainty over these rows is worth, computed at the label party."""
        with self.judged(fed, segments) as session:
            return dict(session.top.uncertainty_report(session.judge_all()))

    def predict(
        self, fed: Federation, segments: Segments, *, table_order: bool = False
    ) -> np.ndarray:
        """Probabilities [n, C]."""
        return self.opinions(fed, segments, table_order=table_order)[0]

    def opinions(
        self, fed: Federation, segments: Segments, *, table_order: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Probabilities [n, C] and uncertainty [n]."""
        with self.judged(fed, segments) as session:
            found = session.top.predictions(session.judge_all(), table_order)
        return found["probability"], found["uncertainty"]

    def drop(self) -> None:
        """Let every party forget its part."""
        with Crews(self, self.fed) as (bottoms, top):
            bottoms.drop()
            top.drop()


class EvidenceSession(OpenedSession):
    """Workers attached to rows numbered 0..n-1, segment after segment.

    spans: per segment the numbers it begins with and ends before.
    """

    def __init__(
        self,
        network: EvidenceNetwork,
        fed: Federation,
        segments: Segments,
        *,
        train: bool,
        explain: bool = False,
    ) -> None:
        self.network = network
        self.segments = [[str(name), int(str(count))] for name, count in segments]
        self.spans = {name: (at, end) for name, at, end in spans(segments)}
        self.n_rows = max((end for _, end in self.spans.values()), default=0)
        self.pools: list[np.ndarray] = []
        self._trains = train
        self._explain = explain
        # Who has none of the rows is asked nothing: the label party has imputed embeddings.
        asked = [name for name in network.passive if train or self._has_rows(name)]
        self._crews = Crews(network, fed, asked)
        self._steps = 0
        self._sharing: Sharing | None = None

    def _begin(self) -> None:
        network = self.network
        config = replace(network.config, options=network.how.net()).to_wire()
        if self._trains:
            tell_labels(network, self.top)
            made = self.bottoms.create(config)
            widths = [made.get(name, 0) for name in network.parties]
            shapes = self.bottoms.bottom_shapes() if network.how.share_every else {}
            objective = network.how.objective.to_dict()
            about = self.top.create(config, objective, list(network.parties), widths, shapes)
            network.task, network.classes = about["task"], about["classes"]
            note_noise(network, about)
        self.top.attach(self.segments, config, self._trains)
        self.bottoms.attach(self.segments, config)
        fed = self._crews.fed
        if fed.is_aligned and fed.alignment.completed:
            found = self.bottoms.confidence()
            self.top.set_reliability({k: v for k, v in found.items() if v is not None})

    def _has_rows(self, party: str) -> bool:
        return any(is_known(segment, party) for segment in self.spans)

    # ------------------------------------------------------------------ training

    def set_pools(self, pools: list[np.ndarray]) -> None:
        """The rows to train on from now on, by segment."""
        self.pools = pools
        least = self.network.how.least_overlap
        self._steps = int(self.top.set_pools(pools, least))
        self.bottoms.set_pools(pools, least)

    def epoch(self, number: int, epochs: int) -> float:
        """One pass over the training rows; returns the mean loss."""
        seed = epoch_seed(self.network.fed.seed, self.network.config.seed, number)
        done = [(number - 1) / epochs, number / epochs]
        if self.network.how.share_every and self._sharing is None:
            self.share()
        self.top.start_epoch(seed, done)
        embeddings = self.bottoms.step(epoch=seed, done=done)
        every = self.network.how.share_every
        share = self.share if every else None
        run_steps(self.bottoms, self.top, self._steps, embeddings, every, share)
        told = self.top.loss()
        return math.nan if told is None else float(told)

    def share(self) -> None:
        """All parties of like bottoms go on with one."""
        network = self.network
        if self._sharing is None:
            self._sharing = Sharing(self.bottoms, self.top, network.label_party)
        pools = list(zip(self.pools, self.spans, strict=True))
        rows = {
            name: sum(len(pool) for pool, segment in pools if is_known(segment, name))
            for name in network.parties
        }
        self._sharing.share(rows)

    def judge(self, rows: np.ndarray, segment: str, kinds: list[str] | None = None) -> None:
        """Let the label party judge these rows, all of one segment, as rows of these kinds."""
        network = self.network
        kind = network.label_party if segment == ALL else segment.partition("@")[0]
        whose = network.label_party if segment == ALL else segment
        known = [name for name in network.parties if is_known(whose, name)]
        asked = [name for name in self.bottoms if self._trains or name in known]
        at = 0
        for size in batch_sizes(len(rows), PREDICT_ROWS):
            chunk = rows[at : at + size]
            embeddings = {name: self.bottoms[name].embed(chunk) for name in asked}
            self.top.take_chunk(chunk, known, kinds or [kind], embeddings, self._explain)
            at += size

    def judge_all(self) -> list[str]:
        """Let the label party judge all rows; returns their kinds, in order."""
        for segment, (start, end) in self.spans.items():
            self.judge(np.arange(start, end), segment)
        label_party = self.network.label_party
        return [
            label_party if segment == ALL else segment.partition("@")[0] for segment in self.spans
        ]

    def finish(self) -> None:
        """Let the label party keep every party's imputed embedding."""
        self.top.keep_imputed(self.bottoms.embed(np.zeros(0, np.int64)))

    # ------------------------------------------------------------------ checkpoints

    @property
    def _mark(self) -> str:
        network = self.network
        how = [f"{key}={value}" for key, value in sorted(asdict(network.how).items())]
        return network.config.fingerprint(self.n_rows, [*network.parties, *how])

    def checkpoint(self, folder: Path, epoch: int, **facts: Any) -> None:
        """Everything needed to go on after this epoch; `facts` are the method's own (JSON)."""
        pools = [pool.tolist() for pool in self.pools]
        self.write_checkpoint(folder, epoch, history=self.network.history, pools=pools, **facts)

    def resume(self, folder: Path) -> dict[str, Any] | None:
        """Go back to where a checkpoint was made; its facts, or None where there is none."""
        state = self.read_checkpoint(folder)
        if state is None:
            return None
        self.set_pools([np.asarray(pool, np.int64) for pool in state["pools"]])
        epoch = int(state["epoch"])
        self.bottoms.load_checkpoint(str(folder), epoch)
        self.top.load_checkpoint(str(folder), epoch)
        self.network.history = state["history"]
        return state
