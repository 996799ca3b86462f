"""RISA's stages, top to bottom: self-training of f_ST, then evidential training with selection."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmend.errors import DataError
from fedmend.learn.metrics import better
from fedmend.methods.risa.additive_workers import learn_additive
from fedmend.methods.risa.committee import deal
from fedmend.methods.risa.selection import TWO_OPINIONS, final_threshold
from fedmend.methods.risa.session import EvidenceNetwork, EvidenceSession
from fedmend.methods.risa.top import Objective
from fedmend.split.features import ALIGNED
from fedmend.split.session import STATE
from fedmend.split.training import Progress

if TYPE_CHECKING:
    from fedmend.methods.risa.risa import RISA

logger = logging.getLogger(__name__)

SELF_TRAINING = ("shared", "consistency", "views", "published", "none")
# Fewer held-out rows say little about whom to trust, more say nothing new.
HELD_OUT = (100, 1000)


class Stages:
    """One fit of `network`; `segments` are the overlapping rows, then each party's own.

    calibration: how far each source is trusted, by kind of row. selection: what every selection
    dropped. chosen: per passive party the rows that got a label.
    """

    def __init__(
        self,
        model: RISA,
        network: EvidenceNetwork,
        segments: list[list[object]],
        progress: Progress | None,
        checkpoint: str | os.PathLike[str] | None,
        resume: bool,
    ) -> None:
        self.model = model
        self.network = network
        self.segments = segments
        self.progress = progress
        self.completed = network.fed.alignment.completed
        self.folder = network.folder = Path(checkpoint) if checkpoint is not None else None
        self.resumed = resume
        self.calibration: dict[str, Any] = {}
        self.selection: list[dict[str, Any]] = []
        self.chosen: dict[str, np.ndarray] = {}

    def run(self) -> None:
        teacher = None
        done = self.resumed and self.folder is not None and (self.folder / "train" / STATE).exists()
        if self.model.self_training != "none" and not done:
            teacher = self.self_train()
        self.train(teacher)
        if teacher is not None:
            teacher.drop()

    # ------------------------------------------------------------------ stage 1

    def self_train(self) -> EvidenceNetwork:
        """f_ST learns, mostly from overlapping rows, then labels passive rows it is sure of."""
        model, passive = self.model, self.network.passive
        consistent = model.self_training == "consistency"
        shared = model.self_training == "shared"
        two = model.rule in TWO_OPINIONS
        objective = Objective(
            activation=model.activation if model.rule == "evidential" else "softmax",
            fused=0.0,
            party=1.0,
            joint=1.0,
            imputed=not shared,
            view_dropout=model.self_training == "views",
            consistency=model.consistency if consistent else 0.0,
        )
        how = replace(
            self.network.how,
            heads=consistent or shared or two,
            joint=not (consistent or shared),
            objective=objective,
            share_every=self.network.how.share_every if shared else 0,
            members=1,
            solo=False,
        )
        epochs = model.self_epochs or model.epochs
        teacher = EvidenceNetwork(
            self.network.fed,
            parties=passive if consistent else self.network.parties,
            label_party=self.network.label_party,
            config=self.network.config,
            how=how,
        )
        teacher.folder = self.folder
        with teacher.session(self.segments) as session:
            pools, held_out = self._labelled(session, hold_out=True)
            for number, (name, (start, end)) in enumerate(session.spans.items()):
                if name in passive:
                    pools[number] = np.arange(start, end) if consistent else np.zeros(0, np.int64)
                elif name != ALIGNED and not shared:
                    pools[number] = np.zeros(0, np.int64)
            session.set_pools(pools)
            for epoch in range(self._resume(session, "self-train") + 1, epochs + 1):
                loss = session.epoch(epoch, epochs)
                self._after(session, "self-train", epoch, epochs, {"loss": loss})
            session.finish()
            if model.calibrate and len(held_out):
                session.judge(held_out, ALIGNED, [ALIGNED, *teacher.parties])
                session.top.calibrate(held_out, False)
            self._make_labels(session, held_out)
        return teacher

    def _make_labels(self, session: EvidenceSession, held_out: np.ndarray) -> None:
        model = self.model
        choice = {
            "threshold": model.threshold,
            "per_class": model.per_class,
            "soft": model.soft,
            "rule": model.rule,
        }
        for name in self.network.passive:
            start, end = session.spans[name]
            if model.precise and len(held_out):
                session.judge(held_out, ALIGNED, [name])
                session.top.be_precise(name, held_out, model.threshold)
            session.judge(np.arange(start, end), name)
            self.chosen[name] = session.top.make_labels(name, start, choice)
            logger.info("%s: %d of %d rows got a label", name, len(self.chosen[name]), end - start)

    # ------------------------------------------------------------------ stage 2

    def train(self, teacher: EvidenceNetwork | None) -> None:
        """Evidential training on overlapping rows, the label party's own, and labelled ones."""
        model, network = self.model, self.network
        with network.session(self.segments) as session:
            pools, held_out = self._labelled(session)
            if teacher is not None and model.warm_start:
                session.bottoms.start_from(teacher.model)
            for number, (name, (start, _)) in enumerate(session.spans.items()):
                if teacher is not None and name in self.chosen:
                    session.top.take_labels(teacher.model, name, start)
                    pools[number] = self.chosen[name]
            self._deal(session, held_out, pools)
            session.set_pools(pools)
            epoch, watches = self._resume(session, "train"), self._watches(held_out)
            while epoch < model.epochs and not (watches and self._out_of_patience(epoch)):
                epoch += 1
                loss = session.epoch(epoch, model.epochs)
                network.history.append({"epoch": epoch, "loss": loss})
                if watches:
                    self._judge(session, held_out, epoch)
                self._select(session, epoch)
                self._after(session, "train", epoch, model.epochs, network.history[-1])
            if watches:
                session.bottoms.restore_best()
                session.top.restore_best()
            else:
                network.best_epoch = len(network.history)
            session.finish()
            if model.calibrate and len(held_out):
                session.judge(held_out, ALIGNED, [ALIGNED, *network.parties])
                additive = self._add(session, held_out)
                self.calibration = session.top.calibrate(held_out, model.guard)
                for kind, found in additive.items():
                    self.calibration[kind]["ridge"] = found

    def _add(self, session: EvidenceSession, rows: np.ndarray) -> dict[str, float]:
        """Passive parties' columns add up to evidence; by kind of row how strongly it is held."""
        model = self.model
        if not model.additive or model.fusion != "pool" or model.members < 2:
            return {}
        return learn_additive(session, rows, model.members)

    def _watches(self, held_out: np.ndarray) -> bool:
        """Whether rows held out tell when to stop."""
        return self.model.patience is not None and len(held_out) > 0

    def _out_of_patience(self, epoch: int) -> bool:
        patience = self.model.patience
        return patience is not None and epoch - self.network.best_epoch >= patience

    def _judge(self, session: EvidenceSession, held_out: np.ndarray, epoch: int) -> None:
        """Remember the weights if they are the best so far."""
        model, network = self.model, self.network
        session.judge(held_out, ALIGNED)
        scores = session.top.metrics([ALIGNED], held_out)
        network.history[-1] |= {f"val_{name}": value for name, value in scores.items()}
        watched = f"val_{model.metric or 'log_loss'}"
        best = network.history[network.best_epoch - 1][watched] if network.best_epoch else np.nan
        if better(model.metric or "log_loss", network.history[-1][watched], best):
            network.best_epoch = epoch
            session.bottoms.keep_best()
            session.top.keep_best()

    def _select(self, session: EvidenceSession, epoch: int) -> None:
        """Drop imputed rows of which the network has been too unsure since the last time."""
        model = self.model
        if model.select is None or epoch % model.select_every or epoch == model.epochs:
            return
        limit = final_threshold(model.final_threshold, epoch / model.epochs)
        share = final_threshold(model.final_share, epoch / model.epochs)
        pools = list(session.pools)
        for number, (name, (start, end)) in enumerate(session.spans.items()):
            # Completed rows that have a label are the label party's own.
            if name in (ALIGNED, self.network.label_party) and not model.select_own:
                continue
            # Of the rows known to all only those are imputed whose sides a method completed.
            imputed = pools[number] >= (end - self.completed if name == ALIGNED else start)
            asked = pools[number][imputed]
            if not len(asked):
                continue
            kept = session.top.keep_sure(asked, limit, model.select, name, start, share)
            facts = {"before": len(asked), "after": len(kept)}
            self.selection.append({"epoch": epoch, "party": name, "limit": limit} | facts)
            pools[number] = np.concatenate([pools[number][~imputed], kept])
        session.top.forget_doubt()
        session.set_pools(pools)

    # ------------------------------------------------------------------ both

    def _labelled(
        self, session: EvidenceSession, *, hold_out: bool = False
    ) -> tuple[list[np.ndarray], np.ndarray]:
        """Labelled rows by segment, without those held out; and the overlapping ones to judge by.

        These are held out from all training or, where there are several members, from one each.
        """
        labelled = session.top.labelled()
        pools = [
            labelled[(labelled >= start) & (labelled < end)]
            for start, end in session.spans.values()
        ]
        known = session.spans[ALIGNED][1] - self.completed
        overlapping, share = pools[0][pools[0] < known], self.model.validation
        if len(overlapping) < 2:
            raise DataError(
                f"{len(overlapping)} overlapping rows with a label: nothing ties the sides",
                party=self.network.label_party,
                mend="more common rows; Local trains on one party's columns",
            )
        if self.model.members > 1 and not hold_out:
            return pools, overlapping
        if not share:
            return pools, np.zeros(0, np.int64)
        rng = self._rng()
        least, most = HELD_OUT
        count = min(max(round(share * len(overlapping)), least), most, len(overlapping) // 3)
        held_out = np.sort(rng.permutation(overlapping)[:count])
        pools[0] = np.setdiff1d(pools[0], held_out)
        return pools, held_out

    def _deal(
        self, session: EvidenceSession, overlapping: np.ndarray, pools: list[np.ndarray]
    ) -> None:
        """Which member learns without each overlapping row, and without each made-up label.

        Who has learnt a made-up label is no judge of it.
        """
        members, rng = self.model.members, self._rng()
        if members < 2:
            return
        made_up = [
            pool
            for pool, name in zip(pools, session.spans, strict=True)
            if name in self.chosen and len(pool)
        ]
        dealt = [deal(rows, members, rng) for rows in (overlapping, *made_up)]
        session.top.set_unseen(np.concatenate([overlapping, *made_up]), np.concatenate(dealt))

    def _rng(self) -> np.random.Generator:
        return np.random.default_rng([self.network.fed.seed, self.model.seed, 1])

    def _after(
        self,
        session: EvidenceSession,
        stage: str,
        epoch: int,
        epochs: int,
        facts: dict[str, float],
    ) -> None:
        if self.folder is not None:
            network = self.network
            session.checkpoint(
                self.folder / stage, epoch, selection=self.selection, best=network.best_epoch
            )
        if self.progress is not None:
            self.progress(stage, epoch, epochs, facts)

    def _resume(self, session: EvidenceSession, stage: str) -> int:
        """The epoch after which the stage goes on; 0 from its beginning."""
        if self.folder is None or not self.resumed:
            return 0
        saved = session.resume(self.folder / stage)
        if saved is None:
            return 0
        self.selection = saved["selection"]
        self.network.best_epoch = saved["best"]
        return int(saved["epoch"])
