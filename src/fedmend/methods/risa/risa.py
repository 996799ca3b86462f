"""RISA, Reliable Imputed-Sample Assisted learning: use the rows only one side has, by evidence.

1. *Impute* (§II-C): the mean of a party's overlapping rows stands in for its side of other rows.
2. *Self-train* (§II-C): a split network f_ST labels rows of passive parties where it is sure.
3. *Evidence* (§II-D): every party's head forms an opinion; opinions are fused.
4. *Select*: every E epochs, drop imputed rows of too much doubt, tau_t = tau_0^(t/T).

`RISA.paper()` is the publication. The default departs where it loses (docs/risa.md): a joint head
beside the parties' own, every head has a loss of its own, columns of passive parties add up to
evidence of their own, several members learn without a part of the overlapping rows each, and how
they judge the rows they have not seen decides how far each source is trusted: not so far that the
label party's own opinion would have done better.
`RISA.for_images()` shares what bottoms learn. By default no labels are made up: it gained nothing.
"""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd

from fedmend.errors import ConfigError, DataError
from fedmend.federation import Federation, require_federation
from fedmend.methods.network import SplitEstimator
from fedmend.methods.risa.presets import PUBLISHED, photographs
from fedmend.methods.risa.selection import MEASURES, RULES, TWO_OPINIONS
from fedmend.methods.risa.session import EvidenceNetwork, How
from fedmend.methods.risa.stages import SELF_TRAINING, Stages
from fedmend.methods.risa.top import Objective
from fedmend.split.features import ALIGNED, ALL, is_known
from fedmend.split.training import Progress, SplitConfig

logger = logging.getLogger(__name__)

SMALLEST_BATCH = 16
"""Batch norm learns little from fewer rows."""


class RISA(SplitEstimator):
    """Evidential split training with imputed rows.

    fusion: "pool", "dempster", "yager" (published) or "average". activation: of evidence: "exp",
    "softplus" (published) or "relu".
    members: so many networks, each of which learns without a part of the overlapping rows; with 1
    a share `validation` of those is held out from all training.
    solo: the label party's own head has a bottom to itself, so that it is trained as Local is;
    not with share_every.
    additive: with fusion="pool" and several members, columns of passive parties add up to
    evidence of their own.
    joint, party_loss, fused_loss: weights of the joint head's loss (0: no such head), of each
    party's own, and of the fused opinion's (the only published one). kl: of evidence for wrong
    classes. smoothing: the share of every label that is spread over all classes.
    imputed_opinions: stand-ins have opinions (published).
    view_dropout: the joint head also learns overlapping rows with sides taken away.
    self_training: how f_ST learns: "shared" (bottoms and head are shared as by share_every, and
    the label party's own rows take part), "consistency" (every passive party's head on its own;
    strong views of its unlabelled rows must agree with weak ones at least `consistency` sure),
    "views" (a joint head, with view dropout), "published" (without) or "none" (no labels made up).
    warm_start: passive parties go on from f_ST's bottoms.
    threshold, per_class, soft: when a passive row gets a label, and whether it is a soft one.
    rule: of `learn.pseudo`, for that: "probability", "evidential", "cpg" or "cdsc" (the last two,
    SAGE's, compare a party's own head with the joint one: self_training "views" or "published").
    precise: and only where of held-out overlapping rows so labelled that many were right.
    select: "doubt", "uncertainty" (published) or None; every `select_every` epochs, imputed rows
    above final_threshold^(t/T) leave the training; with select_own also those of the label party.
    Of made-up labels no more than a share final_share^(t/T) is kept, the surest (published: 1).
    calibrate, guard: trust of each source from overlapping rows it has not learnt from; never
    worse there than the label party alone.
    min_overlap: least share of overlapping rows in a batch. min_mean_rows: fewest rows in a mean.
    min_batches: fewest batches in an epoch: of few rows they are smaller, and steps shorter.
    nominal: "mean" or "mode" of nominal columns in a mean row.
    share_every: for sides of like shape (halves of images): bottoms are averaged over the parties
    every so many steps, so weights cross, and have one head; 0 is never.
    """

    evidential = True

    def __init__(
        self,
        *,
        epochs: int = 20,
        batch_size: int = 256,
        lr: float = 3e-3,
        weight_decay: float = 3e-5,
        schedule: str = "one-cycle",
        patience: int | None = None,
        fusion: str = "pool",
        activation: str = "exp",
        members: int = 5,
        solo: bool = True,
        additive: bool = True,
        loss: str = "nll",
        joint: float = 1.0,
        party_loss: float = 0.3,
        fused_loss: float = 0.0,
        kl: float = 0.0,
        smoothing: float = 0.0,
        imputed_opinions: bool = False,
        view_dropout: bool = False,
        self_training: str = "none",
        self_epochs: int | None = None,
        consistency: float = 0.95,
        warm_start: bool = False,
        threshold: float = 0.95,
        per_class: bool = False,
        rule: str = "probability",
        precise: bool = True,
        soft: bool = True,
        select: str | None = "doubt",
        select_every: int = 5,
        select_own: bool = False,
        final_threshold: float = 0.5,
        final_share: float = 0.7,
        calibrate: bool = True,
        guard: bool = True,
        min_overlap: float = 0.0,
        min_mean_rows: int = 10,
        min_batches: int = 1,
        nominal: str = "mean",
        share_every: int = 0,
        **params: Any,
    ) -> None:
        super().__init__(
            epochs=epochs,
            batch_size=batch_size,
            lr=lr,
            weight_decay=weight_decay,
            schedule=schedule,
            patience=patience,
            **params,
        )
        self.fusion = fusion
        self.activation = activation
        self.members = members
        self.solo = solo
        self.additive = additive
        self.loss = loss
        self.joint = joint
        self.party_loss = party_loss
        self.fused_loss = fused_loss
        self.kl = kl
        self.smoothing = smoothing
        self.imputed_opinions = imputed_opinions
        self.view_dropout = view_dropout
        self.self_training = self_training
        self.self_epochs = self_epochs
        self.consistency = consistency
        self.warm_start = warm_start
        self.threshold = threshold
        self.per_class = per_class
        self.rule = rule
        self.precise = precise
        self.soft = soft
        self.select = select
        self.select_every = select_every
        self.select_own = select_own
        self.final_threshold = final_threshold
        self.final_share = final_share
        self.calibrate = calibrate
        self.guard = guard
        self.min_overlap = min_overlap
        self.min_mean_rows = min_mean_rows
        self.min_batches = min_batches
        self.nominal = nominal
        self.share_every = share_every

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """As published: mean imputation, plain f_ST, softplus evidence, reduced Yager, Eq. 6.

        The paper does not say tau_p, tau_0 and E: 0.9, 0.3 and 5 here.
        """
        return cls(**PUBLISHED | changes)

    @classmethod
    def for_images(cls, **changes: Any) -> Self:
        """For photographs of which parties have parts alike: augmented, bottoms shared.

        Bottoms that are not alike go on alone. `self_training="shared"` makes labels up as well;
        `share_every=0, self_training="consistency", self_epochs=24` shares nothing.
        """
        return cls(**photographs(changes))

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
        label_party, parties = self._who(fed)
        segments = self._training_rows(fed, label_party)
        labelled = [int(str(rows)) for name, rows in segments if name in (ALIGNED, label_party)]
        config = self._for_rows(sum(labelled))
        network = self._make_network(fed, parties, label_party, config)
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

    def _training_rows(self, fed: Federation, label_party: str) -> list[list[object]]:
        counts, parties = fed.alignment, self._who(fed)[1]
        return [[ALIGNED, counts.aligned], *([name, counts.unaligned[name]] for name in parties)]

    def _for_rows(self, rows: int) -> SplitConfig:
        """The settings for so many rows with a label: `min_batches` of them in an epoch."""
        config = self._config()
        if self.min_batches <= 1:
            return config
        size = max(SMALLEST_BATCH, rows // self.min_batches)
        if size >= self.batch_size:
            return config
        # The mean gradient of fewer rows is noisier: a step on it goes less far.
        lr = self.lr * (size / self.batch_size) ** 0.5
        optimizer = replace(config.settings.optimizer, lr=lr)
        return replace(
            config, settings=replace(config.settings, batch_size=size, optimizer=optimizer)
        )

    def _make_network(
        self, fed: Federation, parties: list[str], label_party: str, config: SplitConfig
    ) -> Any:
        self._check()
        return EvidenceNetwork(
            fed, parties=parties, label_party=label_party, config=config, how=self._how()
        )

    def _how(self) -> How:
        objective = Objective(
            fusion=self.fusion,
            activation=self.activation,
            loss=self.loss,
            fused=self.fused_loss,
            party=self.party_loss,
            joint=self.joint,
            imputed=self.imputed_opinions,
            view_dropout=self.view_dropout,
            kl=self.kl,
            smoothing=self.smoothing,
        )
        return How(
            objective=objective,
            joint=self.joint > 0,
            least_overlap=self.min_overlap,
            min_mean_rows=self.min_mean_rows,
            nominal=self.nominal,
            share_every=self.share_every,
            members=self.members,
            solo=self.solo and not self.share_every,
        )

    def _check(self) -> None:
        problems = []
        if self.self_training not in SELF_TRAINING:
            problems.append(
                f"self_training must be one of {', '.join(SELF_TRAINING)}, "
                f"got {self.self_training!r}"
            )
        if self.rule not in RULES:
            problems.append(f"rule must be one of {', '.join(RULES)}, got {self.rule!r}")
        elif self.rule in TWO_OPINIONS and self.self_training not in ("views", "published"):
            problems.append(
                f"rule={self.rule!r} compares a party's own head with a joint one. "
                "Mend: self_training='views'"
            )
        if self.select is not None and self.select not in MEASURES:
            problems.append(
                f"select must be one of {', '.join(MEASURES)} or None, got {self.select!r}"
            )
        if self.self_training == "shared" and not self.share_every:
            problems.append("self_training='shared' needs share_every of at least 1")
        for name in ("threshold", "consistency", "final_threshold", "final_share"):
            if not 0 < getattr(self, name) <= 1:
                problems.append(f"{name} must be in (0, 1], got {getattr(self, name)}")
        for name in ("select_every", "self_epochs", "min_batches"):
            value = getattr(self, name)
            if value is not None and value < 1:
                problems.append(f"{name} must be at least 1, got {value}")
        if not self.joint and not self.fused_loss and not self.party_loss:
            problems.append("joint, party_loss and fused_loss are all 0: nothing would be trained")
        for made in (self._config, self._how):
            try:
                made()
            except ConfigError as error:
                problems += error.problems
        if problems:
            raise ConfigError(problems)

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

    def uncertainty_report(self, fed: Federation, *, rows: str | None = None) -> dict[str, Any]:
        """What the uncertainty is worth, computed at the label party (see `learn.calibration`)."""
        network, segments, _ = self._ready(fed, rows)
        with network.judged(fed, segments) as session:  # type: ignore[attr-defined]
            return dict(session.top.uncertainty_report(session.judge_all()))

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
        """What the training made up for a passive party's own rows, in the order of its table.

        label: class numbers; sure: their probability; chosen: rows that got theirs; kept: rows
        still in the training at its end. Not part of a saved model.
        """
        network, _, _ = self._ready(self.fed_, ALIGNED)
        if party not in network.passive:
            raise ConfigError(
                f"labels are made up for passive parties, not for {party!r}. "
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
    """RISA whose defaults are those of `RISA.for_images()`; in a file it is `risa-images`."""

    def __init__(self, **params: Any) -> None:
        super().__init__(**photographs(params))
