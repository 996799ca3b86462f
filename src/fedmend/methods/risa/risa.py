"""RISA, Reliable Imputed-Sample Assisted learning: use the rows only one side has, by evidence.

1. *Impute* (§II-C, `imputation.py`): the mean of a party's overlapping rows is imputed for its
   side of other rows.
2. *Self-train* (§II-C): a split network f_ST labels rows of passive parties where it is sure.
3. *Evidence* (§II-D, `opinions.py`, `heads.py`): every party's head forms an opinion; opinions are
   fused.
4. *Select* (`selection.py`): every E epochs, drop imputed rows of too much uncertainty,
   tau_t = tau_0^(t/T).

`RISA.paper()` is the publication. The default departs where it loses (docs/risa.md): a joint head
beside the parties' own, every head has a loss of its own, columns of passive parties add up to
evidence of their own (`columns.py`), several members learn without a part of the overlapping rows
each (`ensemble.py`), and how they judge the rows they have not seen decides how far each source is
trusted (`trust.py`): not so far that the label party's own opinion would have done better.
`RISA.for_images()` shares what bottoms learn. By default there are no pseudo-labels and no
selection: they gained nothing.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from copy import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd
from torch import Tensor

from fedmend._parameters import (
    POSITIVE_SHARE,
    Rules,
    at_least,
    fits,
    one_of,
    parameters,
    wrong_values,
)
from fedmend._suggest import did_you_mean
from fedmend.errors import ConfigError, DataError
from fedmend.federation import Federation, require_federation
from fedmend.federation.bound import but, declare
from fedmend.methods.network import SplitEstimator
from fedmend.methods.risa.columns import EVERYTHING, RIDGES, models_of
from fedmend.methods.risa.ensemble import deal
from fedmend.methods.risa.heads import Objective
from fedmend.methods.risa.opinions import RULES
from fedmend.methods.risa.selection import falling_threshold
from fedmend.methods.risa.session import EvidenceNetwork, EvidenceSession, How
from fedmend.methods.risa.workers import EvidenceBottomWorker, EvidenceTopWorker
from fedmend.split.config import SplitConfig
from fedmend.split.features import ALIGNED, ALL, is_known
from fedmend.split.session import STATE
from fedmend.split.training import Progress

__all__ = ["RISA", "ImageRISA"]

logger = logging.getLogger(__name__)

# Fewer held-out rows say little about whom to trust, more say nothing new.
HELD_OUT = (100, 1000)
# With batch_size=None: batches of so many rows, or fewer, so that an epoch has some of them.
LARGEST_BATCH, SMALLEST_BATCH, FEWEST_BATCHES = 1024, 16, 10
ADDITIVE_ROUNDS = 25
MOST_TO_CHOOSE = 4000
"""Rows times classes on which the ridge is chosen; it says how large weights are, not how many
rows there are."""


# ---------------------------------------------------------------------------------- coordinator


class Stages:
    """One fit of `network`; `segments` are the overlapping rows, then each party's own.

    calibration: how far each source is trusted, by kind of row. selection: what every selection
    dropped. chosen: per passive party the rows that got a pseudo-label.
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
        if self.model.self_training and not done:
            teacher = self.self_train()
        self.train(teacher)
        if teacher is not None:
            teacher.drop()

    # ------------------------------------------------------------------ stage 1

    def self_train(self) -> EvidenceNetwork:
        """f_ST, a joint head, learns overlapping rows, then labels passive rows it is sure of.

        As published it never sees an imputed side before it judges rows of one party; with a loss
        for every head it also learns overlapping rows with sides taken away.
        """
        model, passive = self.model, self.network.passive
        views = model.objective == "heads"
        objective = Objective(activation="softmax", fused=0.0, joint=1.0, view_dropout=views)
        teacher = EvidenceNetwork(
            self.network.fed,
            parties=self.network.parties,
            label_party=self.network.label_party,
            config=self.network.config,
            how=How(objective, heads=False, joint=True),
        )
        teacher.folder = self.folder
        with teacher.session(self.segments) as session:
            pools, _ = self._labelled(session)
            none = np.zeros(0, np.int64)
            session.set_pools([pools[0], *[none] * len(teacher.parties)])
            for epoch in range(self._resume(session, "self-train") + 1, model.epochs + 1):
                loss = session.epoch(epoch, model.epochs)
                self._after(session, "self-train", epoch, {"loss": loss})
            session.finish()
            for name in passive:
                start, end = session.spans[name]
                session.judge(np.arange(start, end), name)
                found = session.top.make_labels(name, start, model.threshold)
                logger.info("%s: %d of %d rows got a label", name, len(found), end - start)
                self.chosen[name] = found
        return teacher

    # ------------------------------------------------------------------ stage 2

    def train(self, teacher: EvidenceNetwork | None) -> None:
        """Evidential training on overlapping rows, the label party's own, and labelled ones."""
        model, network = self.model, self.network
        with network.session(self.segments) as session:
            pools, held_out = self._labelled(session)
            for number, (name, (start, _)) in enumerate(session.spans.items()):
                if teacher is not None and name in self.chosen:
                    session.top.take_labels(teacher.model, name, start)
                    pools[number] = self.chosen[name]
            if model.members > 1:
                session.top.set_unseen(held_out, deal(held_out, model.members, self._rng()))
            session.set_pools(pools)
            for epoch in range(self._resume(session, "train") + 1, model.epochs + 1):
                loss = session.epoch(epoch, model.epochs)
                network.history.append({"epoch": epoch, "loss": loss})
                self._select(session, epoch)
                self._after(session, "train", epoch, network.history[-1])
            network.best_epoch = len(network.history)
            session.finish()
            if len(held_out):
                session.judge(held_out, ALIGNED, [ALIGNED, *network.parties])
                ridges = self._add(session, held_out)
                self.calibration = session.top.calibrate(held_out)
                for kind, ridge in ridges.items():
                    self.calibration[kind]["ridge"] = ridge

    def _select(self, session: EvidenceSession, epoch: int) -> None:
        """Drop imputed rows of which the network has been too uncertain since the last time."""
        model = self.model
        if model.final_threshold == 1 or epoch % model.select_every or epoch == model.epochs:
            return
        limit = falling_threshold(model.final_threshold, epoch / model.epochs)
        pools = list(session.pools)
        for number, (name, (start, end)) in enumerate(session.spans.items()):
            # Of the rows known to all only those are imputed whose sides a method completed.
            imputed = pools[number] >= (end - self.completed if name == ALIGNED else start)
            asked = pools[number][imputed]
            if not len(asked):
                continue
            kept = session.top.keep_sure(asked, limit, name, start)
            facts = {"before": len(asked), "after": len(kept)}
            self.selection.append({"epoch": epoch, "party": name, "limit": limit} | facts)
            pools[number] = np.concatenate([pools[number][~imputed], kept])
        session.top.forget_doubt()
        session.set_pools(pools)

    # ------------------------------------------------------------------ columns that add up

    def _add(self, session: EvidenceSession, rows: np.ndarray) -> dict[str, float]:
        """Let passive parties learn what their columns add up to, on the rows judged last.

        Returns by kind of row the ridge that counts most; {} where nobody has columns.
        """
        folds = self.model.members
        if self.model.fusion != "pool" or folds < 2:
            return {}
        widths = session.bottoms.additive_columns(rows)
        parties = [name for name, width in widths.items() if width]
        if not parties:
            return {}
        count = min(len(rows), max(500, MOST_TO_CHOOSE // len(self.network.classes)))
        some = np.linspace(0, len(rows) - 1, count).astype(np.int64)
        plan = {group: models_of(RIDGES, range(folds)) for group in (ALIGNED, *parties)}
        found = session.top.additive_shares(self._learn_models(session, rows, some, plan))
        mix = {group: {ridge: share for ridge, share in each} for group, each in found.items()}
        last = [*range(folds), EVERYTHING]
        plan = {group: models_of(list(shares), last) for group, shares in mix.items()}
        scores = self._learn_models(session, rows, np.arange(len(rows)), plan)
        session.top.additive_finish(scores, found)
        for name in parties:
            whole = [
                [[at, mix[group][r]] for at, (fold, r) in enumerate(plan[group], begin) if fold < 0]
                for group, begin in ((ALIGNED, 0), (name, len(plan[ALIGNED])))
            ]
            session.bottoms[name].additive_keep(*whole)
        return {group: max(shares, key=lambda each: shares[each]) for group, shares in mix.items()}

    def _learn_models(
        self,
        session: EvidenceSession,
        rows: np.ndarray,
        places: np.ndarray,
        plan: dict[str, list[tuple[int, float]]],
    ) -> dict[str, Tensor]:
        """Learn all models of a plan at once; returns the parties' last scores."""
        parties = [name for name in plan if name != ALIGNED]
        session.top.additive_begin(
            rows, places, {group: [list(each) for each in models] for group, models in plan.items()}
        )
        scores = {}
        for name in parties:
            models = [*plan[ALIGNED], *plan[name]]
            blocks = [1 + len(parties)] * len(plan[ALIGNED]) + [2] * len(plan[name])
            scores[name] = session.bottoms[name].additive_begin(
                rows[places], [ridge for _, ridge in models], blocks, len(self.network.classes)
            )
        for _ in range(ADDITIVE_ROUNDS):
            slopes = session.top.additive_step(scores)
            scores = {name: session.bottoms[name].additive_step(slopes[name]) for name in parties}
        return scores

    # ------------------------------------------------------------------ both stages

    def _labelled(self, session: EvidenceSession) -> tuple[list[np.ndarray], np.ndarray]:
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
        if self.model.members > 1:
            return pools, overlapping
        if not share:
            return pools, np.zeros(0, np.int64)
        least, most = HELD_OUT
        count = min(max(round(share * len(overlapping)), least), most, len(overlapping) // 3)
        held_out = np.sort(self._rng().permutation(overlapping)[:count])
        pools[0] = np.setdiff1d(pools[0], held_out)
        return pools, held_out

    def _rng(self) -> np.random.Generator:
        return np.random.default_rng([self.network.fed.seed, self.model.seed, 1])

    def _after(
        self, session: EvidenceSession, stage: str, epoch: int, facts: dict[str, float]
    ) -> None:
        if self.folder is not None:
            session.checkpoint(self.folder / stage, epoch, selection=self.selection)
        if self.progress is not None:
            self.progress(stage, epoch, self.model.epochs, facts)

    def _resume(self, session: EvidenceSession, stage: str) -> int:
        """The epoch after which the stage goes on; 0 from its beginning."""
        if self.folder is None or not self.resumed:
            return 0
        saved = session.resume(self.folder / stage)
        if saved is None:
            return 0
        self.selection = saved["selection"]
        return int(saved["epoch"])


# ---------------------------------------------------------------------------------- estimator


TUNING: dict[str, Any] = {
    "party_loss": 0.3,
    "smoothing": 0.0,
    "view_dropout": False,
    "min_overlap": 0.0,
}
_SHARE = ("a number in [0, 1)", lambda value: fits(value, float) and 0 <= value < 1)
_TUNING_RULES: Rules = {
    "party_loss": ("a number of at least 0", lambda value: fits(value, float) and value >= 0),
    "smoothing": _SHARE,
    "view_dropout": ("true or false", lambda value: isinstance(value, bool)),
    "min_overlap": _SHARE,
}
_RULES: Rules = {
    "fusion": one_of(RULES),
    "objective": one_of(("heads", "fused", "joint")),
    "members": at_least(1),
    "share_every": at_least(0),
    "threshold": POSITIVE_SHARE,
    "final_threshold": POSITIVE_SHARE,
    "select_every": at_least(1),
}


@parameters
class RISA(SplitEstimator):
    """Evidential split training with imputed rows.

    fusion: of the sources' opinions. "pool" comes with what tables need: the label party's own head
    has a bottom to itself, trained as Local is (not with share_every), and columns of passive
    parties add up to evidence of their own (with several members). "dempster"; "yager" (published).
    objective: what is trained: "heads" (a loss for the joint head and for every party's own),
    "fused" (published: the fused opinion's alone, without a joint head; mean rows have opinions
    too) or "joint" (the joint head alone: imputation without evidence).
    members: so many networks, each of which learns without a part of the overlapping rows; how
    these are judged says how far each source is trusted, never worse than the label party alone.
    With 1 a share `validation` of those rows is held out instead; 0: all sources are trusted alike.
    share_every: for sides of like shape (halves of images): bottoms are averaged over the parties
    every so many steps, so weights cross, and have one head; 0 is never.
    self_training, threshold: f_ST labels rows of passive parties of which it is at least so sure.
    select_every, final_threshold: every so many epochs (E) imputed rows whose uncertainty is above
    final_threshold^(t/T) (tau_0) leave the training; 1 keeps all.
    batch_size: None is 1,024; where there are few labelled rows a tenth of them, in shorter steps.
    tuning: party_loss (0.3; of each party's own head), smoothing (0; the share of every label that
    is spread over all classes), view_dropout (False; the joint head also learns overlapping rows
    with sides taken away), min_overlap (0; the least share of overlapping rows in a batch).
    Others: as of every split network.
    """

    evidential = True

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        # The paper does not say tau_p, tau_0 and E: 0.9, 0.3 and 5 here.
        "paper": {
            "fusion": "yager",
            "objective": "fused",
            "members": 1,
            "validation": 0.0,
            "self_training": True,
            "threshold": 0.9,
            "final_threshold": 0.3,
        },
        "images": {
            "fusion": "dempster",
            "members": 1,
            "bottom": (),
            "embedding": 256,
            "top": (256,),
            "conv": "whitened",
            "augment": "weak",
            "epochs": 30,
            "batch_size": None,
            "optimizer": "sgd",
            "lr": 0.4,
            "weight_decay": 2e-3,
            "share_every": 5,
            "tuning": {
                "party_loss": 0.1,
                "smoothing": 0.1,
                "view_dropout": True,
                "min_overlap": 0.125,
            },
        },
    }

    fusion: str = "pool"
    objective: str = "heads"
    members: int = 5
    share_every: int = 0
    self_training: bool = False
    threshold: float = 0.95
    select_every: int = 5
    final_threshold: float = 1.0
    tuning: Mapping[str, Any] | None = None

    epochs: int = 20
    batch_size: int | None = 256  # type: ignore[assignment]
    lr: float = 3e-3
    weight_decay: float = 3e-5
    # There are too few overlapping rows to stop by: the schedule ends the training.
    schedule: ClassVar[str] = "one-cycle"  # type: ignore[misc]
    patience: ClassVar[None] = None  # type: ignore[misc]
    metric: ClassVar[None] = None  # type: ignore[misc]
    local_steps: ClassVar[int] = 1  # type: ignore[misc]
    missing_indicator: ClassVar[bool] = True  # type: ignore[misc]

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """As published: mean imputation, plain f_ST, softplus evidence, reduced Yager, Eq. 6."""
        return cls.preset("paper", **changes)

    @classmethod
    def for_images(cls, **changes: Any) -> Self:
        """For photographs of which parties have parts alike: augmented, bottoms shared.

        Bottoms that are not alike go on alone; `share_every=0` shares nothing.
        """
        return cls.preset("images", **changes)

    # ------------------------------------------------------------------ fitting

    def fit(
        self,
        fed: Federation,
        *,
        progress: Progress | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        resume: bool = False,
    ) -> Self:
        """Self-train, then train; `progress(stage, done, total, metrics)` is told."""
        require_federation(fed)
        self.require_types()
        self._check()
        label_party, parties = self._who(fed)
        counts = fed.alignment
        segments: list[list[object]] = [
            [ALIGNED, counts.aligned],
            *([name, counts.unaligned[name]] for name in parties),
        ]
        labelled = counts.aligned + (counts.unaligned[label_party] if label_party in parties else 0)
        network = self._make_network(fed, parties, label_party, self._config(labelled))
        stages = Stages(self, network, segments, progress, checkpoint, resume)
        stages.run()
        self._adopt(fed, network)
        self.calibration_ = stages.calibration
        self.selection_ = stages.selection
        return self

    def _who(self, fed: Federation) -> tuple[str, list[str]]:
        label_party = self.label_party or fed.label_party
        if label_party not in fed.names:
            raise ConfigError(
                f"label_party={label_party!r} is not in the federation. "
                f"Mend: one of {', '.join(fed.names)}"
            )
        parties = self._parties(fed, label_party)
        if not [name for name in parties if name != label_party]:
            raise DataError(
                "no other party has a feature column",
                party=label_party,
                mend="RISA needs a partner; Local trains on one party's columns",
            )
        # The label party's opinion comes first: Yager's rule goes from left to right.
        return label_party, sorted(parties, key=lambda name: name != label_party)

    def _config(self, rows: int | None = None) -> SplitConfig:
        """The settings; rows: so many have a label, for batches of no size of their own."""
        sized = copy(self)
        if self.batch_size is None:
            sized.batch_size = LARGEST_BATCH
            if rows is not None and rows < FEWEST_BATCHES * LARGEST_BATCH:
                sized.batch_size = max(SMALLEST_BATCH, rows // FEWEST_BATCHES)
                # The mean gradient of fewer rows is noisier: a step on it goes less far.
                sized.lr = self.lr * (sized.batch_size / LARGEST_BATCH) ** 0.5
        return SplitEstimator._config(sized)

    def _make_network(
        self, fed: Federation, parties: list[str], label_party: str, config: SplitConfig
    ) -> Any:
        how = self._how()
        return EvidenceNetwork(
            fed, parties=parties, label_party=label_party, config=config, how=how
        )

    def _check(self) -> None:
        """Tell all that is wrong with the parameters in one message."""
        tuned = TUNING | dict(self.tuning or {})
        problems = wrong_values(self, _RULES) + wrong_values(
            SimpleNamespace(**tuned), _TUNING_RULES
        )
        problems += [
            f"tuning has no {name!r}: {did_you_mean(name, list(TUNING))}"
            for name in tuned
            if name not in TUNING
        ]
        try:
            self._config()
        except ConfigError as error:
            problems += error.problems
        if problems:
            raise ConfigError(problems)

    def _how(self) -> How:
        tuned = TUNING | dict(self.tuning or {})
        heads, published = self.objective == "heads", self.objective == "fused"
        objective = Objective(
            fusion=self.fusion,
            activation="exp" if heads else "softplus",
            fused=float(published),
            party=tuned["party_loss"] if heads else 0.0,
            joint=float(not published),
            imputed=published,
            view_dropout=tuned["view_dropout"],
            smoothing=tuned["smoothing"],
        )
        return How(
            objective=objective,
            heads=self.objective != "joint",
            joint=not published,
            least_overlap=tuned["min_overlap"],
            share_every=self.share_every,
            members=self.members,
            solo=heads and self.fusion == "pool" and not self.share_every,
        )

    # ------------------------------------------------------------------ using

    def predict_uncertainty(self, fed: Federation, *, rows: str | None = None) -> np.ndarray:
        """u of each row: 1 is "knows nothing", 0 "certain"; rows as in `predict_proba`."""
        network, segments, table_order = self._ready(fed, rows)
        return network.opinions(fed, segments, table_order=table_order)[1]  # type: ignore[attr-defined]

    def contributions(self, fed: Federation, *, rows: str | None = None) -> pd.DataFrame:
        """Which share of each decision a party carries; rows sum to one, a column per party."""
        network, segments, _ = self._ready(fed, rows)
        found = []
        names = list(network.parties)
        for name, count in segments:
            with network.judged(fed, [[name, count]], explain=True) as session:  # type: ignore[attr-defined]
                (kind,) = session.judge_all()
                known = [each for each in names if is_known(kind if name == ALL else name, each)]
                found.append(session.top.contributions(kind, known))
        return pd.DataFrame(np.concatenate(found), columns=names)

    def carried(self, fed: Federation) -> dict[str, float]:
        """The mean of `contributions` over the rows known to all; no single row's leave."""
        network, segments, _ = self._ready(fed, ALIGNED)
        with network.judged(fed, segments, explain=True) as session:  # type: ignore[attr-defined]
            (kind,) = session.judge_all()
            return dict(session.top.carried(kind, list(network.parties)))

    def made_up(self) -> dict[str, dict[str, int]]:
        """By passive party: its own rows, those that got a label in training, that kept it."""
        network, _, _ = self._ready(self.fed_, ALIGNED)
        with network.judged(self.fed_, []) as session:  # type: ignore[attr-defined]
            found = {party: dict(session.top.made_up(party)) for party in network.passive}
        return {party: counts for party, counts in found.items() if counts}

    def evidence_report(self, fed: Federation) -> dict[str, Any]:
        return {
            "carried": self.carried(fed),
            "trust": {kind: found["trust"] for kind, found in self.calibration_.items()},
            "made_up": self.made_up(),
        }

    def pseudo_labels(self, party: str) -> dict[str, np.ndarray]:
        """Pseudo-labels of a passive party's own rows, in the order of its table.

        label: class numbers; sure: their probability; chosen: rows that got theirs; kept: rows
        still in the training at its end. Not part of a saved model.
        """
        network, _, _ = self._ready(self.fed_, ALIGNED)
        if party not in network.passive:
            raise ConfigError(
                f"passive parties have pseudo-labels, not {party!r}. "
                f"Mend: one of {', '.join(network.passive)}"
            )
        with network.judged(self.fed_, []) as session:  # type: ignore[attr-defined]
            return dict(session.top.pseudo_labels(party))

    def _all_rows(self, fed: Federation) -> list[list[object]]:
        """All rows of the label party; without an alignment all are known to it alone."""
        if fed.is_aligned:
            return super()._all_rows(fed)
        party = str(self.network_.label_party)
        return [[ALL, fed.only(party).roster[party]["rows"]]]

    # ------------------------------------------------------------------ keeping

    def _saved_network(self, fed: Federation, saved: dict[str, Any]) -> Any:
        return self._make_network(fed, saved["parties"], saved["label_party"], self._config())

    def _save_more(self, folder: Path) -> dict[str, Any]:
        return {"calibration": self.calibration_, "selection": self.selection_}

    def _load_more(self, folder: Path, saved: dict[str, Any]) -> None:
        self.calibration_ = saved["calibration"]
        self.selection_ = saved["selection"]


class ImageRISA(RISA):
    """RISA whose defaults are those of the preset "images"; in a file it is `risa-images`."""

    def __init__(self, **params: Any) -> None:
        super().__init__(**{**RISA.PRESETS["images"], **params})


for name in ("risa", "risa-images"):
    # Pseudo-labels are for who asks in one process; a run over machines has no use for them.
    declare(name, EvidenceBottomWorker, but(EvidenceTopWorker, "pseudo_labels"))
