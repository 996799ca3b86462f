"""RISA, Reliable Imputed-Sample Assisted learning: use the rows only one side has, by evidence.

1. *Impute* (§II-C, `network.py`): the mean of a party's overlapping rows is imputed for its side of
   other rows.
2. *Self-train* (§II-C): a split network f_ST labels rows of passive parties where it is sure.
3. *Evidence* (§II-D, `opinions.py`, `network.py`): every party's head forms an opinion; opinions
   are fused.
4. *Select* (`training.py`): every E epochs, drop imputed rows of too much uncertainty,
   tau_t = tau_0^(t/T).

`RISA.paper()` is the publication. The default departs where it loses (docs/risa.md): a joint head
beside the parties' own, every head has a loss of its own, columns of passive parties add up to
evidence of their own (`columns.py`), an ensemble of networks learns without a part of the
overlapping rows each, and how they judge the rows they have not seen decides how far each source is
trusted (`trust.py`): not so far that the label party's own opinion would have done better.
`RISA.for_images()` shares what bottoms learn. By default there are no pseudo-labels and no
selection: they gained nothing.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd
from torch import Tensor

from fedmend._parameters import POSITIVE_SHARE, Rules, at_least, one_of, parameters
from fedmend.errors import ConfigError, DataError
from fedmend.federation import Federation, require_federation
from fedmend.federation.bound import but, declare
from fedmend.learn.metrics import expected_error
from fedmend.methods.network import FEW_ROWS, SplitEstimator
from fedmend.methods.risa.columns import EVERYTHING, RIDGES, models_of
from fedmend.methods.risa.network import JOINT, Objective, deal
from fedmend.methods.risa.opinions import RULES
from fedmend.methods.risa.training import batch_make_up
from fedmend.methods.risa.workers import EvidenceBottomWorker, EvidenceTopWorker
from fedmend.methods.threads import on_few_threads
from fedmend.split.config import SplitConfig
from fedmend.split.features import ALIGNED, ALL, Segments, check_names, is_known, spans
from fedmend.split.partial import SharingSession
from fedmend.split.training import (
    STATE,
    Progress,
    SplitNetwork,
    collapse_in_words,
    in_chunks,
    restarted,
)

__all__ = ["RISA", "ImageRISA"]

logger = logging.getLogger(__name__)

# Fewer held-out rows say little about whom to trust, more say nothing new.
HELD_OUT = (100, 1000)
# With batch_size=None: batches of so many rows, or fewer, so that an epoch has some of them.
LARGEST_BATCH, SMALLEST_BATCH, FEWEST_BATCHES = 1024, 16, 10
STEPS_OF_TWO = 10
"""The least steps of an epoch where there are two classes: with twice as many, as of more classes,
an ensemble learns few rows by heart. Batches are a tenth of few rows, so that none comes twice."""
SMALLEST_OF_TWO = 64
# With epochs=None: so many; of few labelled rows an ensemble learns as much in fewer epochs of
# steps twice as long.
EPOCHS, EPOCHS_OF_FEW = 20, 12
EPOCHS_OF_FOLD, BATCH_OF_FOLD = 8, 128
"""Of few rows of more than two classes, where the model is compared and not kept: it says nearly
the same of held-out rows. A batch has ten rows of each class, or more."""
ADDITIVE_ROUNDS = 25
CELLS_TO_CHOOSE, FEWEST_LEFT_OUT = 4000, 100
"""Rows times classes on which the ridge is chosen; it says how large weights are, not how many
rows there are. A few rows that are left out could be told from all of them: none is then."""


@dataclass(frozen=True)
class How:
    """How an evidential network is built and trained, beyond what any split network is.

    heads, joint: whether parties have heads of their own, and whether there is a joint one.
    least_overlap: the least share of overlapping rows in a batch. share_every: after so many steps
    bottoms of like shape are averaged over the parties; 0 is never. members: so many networks side
    by side, each of which learns without a part of the overlapping rows. solo: the label party's
    own head has a bottom to itself, which the joint head has no say in.
    """

    objective: Objective
    heads: bool = True
    joint: bool = True
    least_overlap: float = 0.0
    share_every: int = 0
    members: int = 1
    solo: bool = False


OBJECTIVES = {
    "heads": How(Objective(activation="exp", fused=0.0, party=0.3, joint=1.0, imputed=False)),
    "views": How(
        Objective(
            activation="exp",
            fused=0.0,
            party=0.1,
            joint=1.0,
            imputed=False,
            view_dropout=True,
            smoothing=0.1,
        ),
        least_overlap=0.125,
    ),
    "fused": How(Objective(), joint=False),
    "joint": How(Objective(fused=0.0, joint=1.0, imputed=False), heads=False),
}

# ---------------------------------------------------------------------------------- coordinator


class EvidenceSession(SharingSession):
    """Workers attached to rows numbered 0..n-1, segment after segment.

    spans: per segment the numbers it begins with and ends before. pools: by segment the rows that
    are trained on. explain: rows are also judged as if each party had not known them.
    """

    def __init__(self, *given: Any, explain: bool = False, **options: Any) -> None:
        super().__init__(*given, **options)
        self.spans = {name: (at, end) for name, at, end in spans(self.segments)}
        self.pools: list[np.ndarray] = []
        self.resumed: Mapping[str, Any] = {}
        self._explain = explain

    def _asked(self) -> list[str]:
        """Who has none of the rows is asked nothing: the label party has imputed embeddings."""
        return [
            name
            for name in self.network.passive
            if self._trains or any(is_known(segment, name) for segment in self.spans)
        ]

    def _create_top(self, config: dict[str, Any], widths: list[int]) -> dict[str, Any]:
        shapes = self.bottoms.bottom_shapes() if self.share_every else {}
        return dict(self.top.create(config, list(self.network.parties), widths, shapes))

    def _attached(self) -> None:
        if self.fed.is_aligned and self.fed.alignment.completed:
            found = self.bottoms.confidence()
            self.top.set_reliability({k: v for k, v in found.items() if v is not None})

    def set_pools(self, pools: list[np.ndarray]) -> None:
        """The rows to train on from now on, by segment."""
        config = self.network.config
        self.pools, self.train = pools, np.concatenate(pools)
        size, least = config.settings.batch_size, config.settings.epoch_steps
        if len(self.network.classes) == 2 and config.options["members"] > 1:
            least = min(least, STEPS_OF_TWO)
            size = min(size, max(SMALLEST_OF_TWO, -(-len(self.train) // least)))
        counts, batches = batch_make_up(
            [len(pool) for pool in pools], size, float(config.options["least_overlap"])
        )
        batches = max(batches, least)
        self._batches = int(self.top.set_groups(pools, counts, batches))
        self.bottoms.set_groups(pools, counts, batches)

    def judge(self, rows: np.ndarray, segment: str, kinds: list[str] | None = None) -> None:
        """Let the label party judge these rows, all of one segment, as rows of these kinds."""
        network = self.network
        whose = network.label_party if segment == ALL else segment
        known = [name for name in network.parties if is_known(whose, name)]
        asked = [name for name in self.bottoms if self._trains or name in known]
        for chunk in in_chunks(rows):
            embeddings = {name: self.bottoms[name].embed(chunk) for name in asked}
            kind = whose.partition("@")[0]
            self.top.take_chunk(chunk, known, kinds or [kind], embeddings, self._explain)

    def run(self, rows: np.ndarray) -> None:
        """Let the label party judge these rows, segment by segment."""
        for segment, (start, end) in self.spans.items():
            self.judge(rows[(rows >= start) & (rows < end)], segment)

    def finish(self) -> None:
        """Let the label party keep every party's imputed embedding."""
        self.top.keep_imputed(self.bottoms.embed(np.zeros(0, np.int64)))

    def checkpoint(self, folder: Path, epoch: int, **facts: Any) -> None:
        pools = [pool.tolist() for pool in self.pools]
        super().checkpoint(folder, epoch, pools=pools, **facts)

    def _before_restoring(self, state: Mapping[str, Any]) -> None:
        self.resumed = state
        self.set_pools([np.asarray(pool, np.int64) for pool in state["pools"]])


class EvidenceNetwork(SplitNetwork):
    """An evidential split model over `parties`, its heads at `label_party`."""

    bottom_worker = EvidenceBottomWorker
    top_worker = EvidenceTopWorker
    session_type = EvidenceSession
    imputes = "own"
    label_party: str

    def __init__(self, fed: Federation, **given: Any) -> None:
        super().__init__(fed, **given)
        check_names(self.parties, (ALIGNED, ALL, JOINT))

    def asking(
        self, fed: Federation, segments: Segments, *, explain: bool = False
    ) -> EvidenceSession:
        """A session, to be entered, in which the label party judges rows that it is given."""
        return EvidenceSession(self, fed, segments, train=False, explain=explain)

    def predict(
        self, fed: Federation, segments: Segments, *, table_order: bool = False
    ) -> np.ndarray:
        """Probabilities [n, C]."""
        return self.opinions(fed, segments, table_order=table_order)[0]

    def opinions(
        self, fed: Federation, segments: Segments, *, table_order: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Probabilities [n, C] and uncertainty [n]."""
        with self.judged(fed, segments) as top:
            found = top.predictions(table_order)
        return found["probability"], found["uncertainty"]

    def drop(self) -> None:
        """Let every party forget its part."""
        with self.workers(self.fed) as (bottoms, top):
            bottoms.drop()
            top.drop()


@dataclass
class Stages:
    """One fit of `network`; `segments` are the overlapping rows, then each party's own.

    folder: of its checkpoints; resumed: it goes on with what is there. calibration: how far each
    source is trusted, by kind of row. collapsed: rows known to all are judged no better than the
    shares of the classes would. selection: what every selection dropped. chosen: per passive party
    the rows that got a pseudo-label.
    """

    model: RISA
    network: EvidenceNetwork
    segments: list[list[object]]
    progress: Progress | None
    folder: Path | None
    resumed: bool
    calibration: dict[str, Any] = field(default_factory=dict)
    collapsed: bool = False
    selection: list[dict[str, Any]] = field(default_factory=list)
    chosen: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.network.folder = self.folder
        self.completed = self.network.fed.alignment.completed

    def run(self) -> None:
        teacher = None
        done = self.resumed and self.folder is not None and (self.folder / "train" / STATE).exists()
        if self.model.threshold is not None and not done:
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
        model, network = self.model, self.network
        views = model.objective in ("heads", "views")
        objective = Objective(activation="softmax", fused=0.0, joint=1.0, view_dropout=views)
        teacher = EvidenceNetwork(
            network.fed,
            parties=network.parties,
            label_party=network.label_party,
            config=replace(network.config, options=asdict(How(objective, heads=False))),
        )
        teacher.folder = self.folder
        with teacher.session(self.segments) as session:
            pools, _ = self._labelled(session)
            session.set_pools([pools[0], *(pool[:0] for pool in pools[1:])])
            self._epochs(session, "self-train")
            session.finish()
            for name in network.passive:
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
            self._epochs(session, "train")
            network.best_epoch = len(network.history)
            self.collapsed = session.diverged
            if self.collapsed and network.may_restart:
                return
            session.finish()
            if len(held_out):
                session.judge(held_out, ALIGNED, [ALIGNED, *network.parties])
                ridges = self._add(session, held_out)
                self.calibration = session.top.calibrate(held_out)
                self.collapsed = self.calibration[ALIGNED].pop("collapsed")
                for kind, ridge in ridges.items():
                    self.calibration[kind]["ridge"] = ridge

    def _select(self, session: EvidenceSession, epoch: int) -> None:
        """Drop imputed rows of which the network has been too uncertain since the last time."""
        model = self.model
        epochs = self.network.config.epochs
        if model.final_threshold == 1 or epoch % model.select_every or epoch == epochs:
            return
        limit = float(model.final_threshold ** (epoch / epochs))
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
        count = max(500, CELLS_TO_CHOOSE // len(self.network.classes))
        if len(rows) < count + FEWEST_LEFT_OUT:
            count = len(rows)
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
        labelled = session.all_rows if labelled is None else labelled
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
            session.top.will_calibrate(overlapping)
            return pools, overlapping
        if not share:
            return pools, np.zeros(0, np.int64)
        least, most = HELD_OUT
        count = min(max(round(share * len(overlapping)), least), most, len(overlapping) // 3)
        held_out = np.sort(self._rng().permutation(overlapping)[:count])
        session.top.will_calibrate(held_out)
        pools[0] = np.setdiff1d(pools[0], held_out)
        return pools, held_out

    def _rng(self) -> np.random.Generator:
        return np.random.default_rng([self.network.fed.seed, self.model.seed, 1])

    def _epochs(self, session: EvidenceSession, stage: str) -> None:
        """All epochs of a stage; where it is resumed, those that are left."""
        epoch, epochs = 0, self.network.config.epochs
        if self.folder is not None and self.resumed:
            epoch = session.resume(self.folder / stage)
            self.selection = list(session.resumed.get("selection", self.selection))
        for number in range(epoch + 1, epochs + 1):
            session.epoch(number)
            if session.diverged and session.network.may_restart:
                return
            if stage == "train":
                self._select(session, number)
            if self.folder is not None:
                session.checkpoint(self.folder / stage, number, selection=self.selection)
            if self.progress is not None:
                self.progress(stage, number, epochs, session.network.history[-1])


# ---------------------------------------------------------------------------------- estimator


@parameters
class RISA(SplitEstimator):
    """Evidential split training with imputed rows.

    fusion: of the sources' opinions. "pool" comes with what tables need: the label party's own head
    has a bottom to itself, trained as Local is (not with share_every), and columns of passive
    parties add up to evidence of their own (in an ensemble). "dempster"; "yager" (published).
    objective: what is trained: "heads" (a loss for the joint head and for every party's own),
    "views" (the same for images: the joint head also learns overlapping rows with sides taken away,
    a tenth of every label is spread over all classes, parties' own losses count less, an eighth of
    a batch is overlapping rows), "fused" (published: the fused opinion's alone, without a joint
    head; mean rows have opinions too) or "joint" (the joint head: imputation without evidence).
    members: an ensemble of so many networks, each of which learns without a part of the overlapping
    rows; how these are judged says how far each source is trusted, never worse than the label party
    alone. With 1 a share `validation` of those rows is held out instead; 0: all are trusted alike.
    share_every: for sides of like shape (halves of images): bottoms are averaged over the parties
    every so many steps, so weights cross, and have one head; 0 is never.
    threshold: f_ST gives rows of passive parties a pseudo-label where it is at least so sure
    (tau_p); None makes none.
    final_threshold: every `select_every` (E) epochs imputed rows whose uncertainty is above
    final_threshold^(t/T) (tau_0) leave the training; 1 keeps all.
    epochs: None is 20; of an ensemble with fewer than 1,000 labelled rows 12, at twice `lr`.
    batch_size: None is 1,024; where there are few labelled rows a tenth of them, in shorter steps.
    Others: as of every split network.
    """

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        # The paper does not say tau_p, tau_0 and E: 0.9, 0.3 and 5 here.
        "paper": {
            "fusion": "yager",
            "objective": "fused",
            "members": 1,
            "validation": 0.0,
            "threshold": 0.9,
            "final_threshold": 0.3,
        },
        "images": {
            "fusion": "dempster",
            "objective": "views",
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
        },
    }

    fusion: str = "pool"
    objective: str = "heads"
    members: int = 5
    share_every: int = 0
    threshold: float | None = None
    final_threshold: float = 1.0
    select_every: int = 5

    epochs: int | None = None  # type: ignore[assignment]
    batch_size: int | None = 256  # type: ignore[assignment]
    lr: float = 3e-3
    weight_decay: float = 3e-5
    # There are too few overlapping rows to stop by: the schedule ends the training.
    schedule: ClassVar[str] = "one-cycle"  # type: ignore[misc]
    patience: ClassVar[None] = None  # type: ignore[misc]
    refit: ClassVar[bool] = False  # type: ignore[misc]

    _network_type: ClassVar[type[SplitNetwork]] = EvidenceNetwork
    _compared = 0  # the number of classes, where the model is not kept
    _rules: ClassVar[Rules] = {
        "fusion": one_of(RULES),
        "objective": one_of(tuple(OBJECTIVES)),
        "members": at_least(1),
        "share_every": at_least(0),
        "threshold": ("in (0, 1] or None", lambda sure: sure is None or 0 < sure <= 1),
        "final_threshold": POSITIVE_SHARE,
        "select_every": at_least(1),
    }

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

    def shorten(self, classes: int, rows: int) -> int:
        self._compared = classes
        return 1

    @on_few_threads
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
        label_party = self._label_party(fed)
        parties = self._parties(fed, label_party)
        counts = fed.alignment
        segments: list[list[object]] = [
            [ALIGNED, counts.aligned],
            *([name, counts.unaligned[name]] for name in parties),
        ]
        labelled = counts.aligned + (counts.unaligned[label_party] if label_party in parties else 0)
        config, collapsed = self._config(labelled), list[bool]()
        for number in range(1 + config.restarts):
            again = restarted(config, number)
            network: Any = self._make_network(fed, parties, label_party, again)
            network.may_restart = number < config.restarts
            folder = None if checkpoint is None else Path(checkpoint)
            if folder is not None and number:
                folder = folder / f"restart-{number}"
            stages = Stages(self, network, segments, progress, folder, resume)
            stages.run()
            collapsed.append(stages.collapsed)
            if not stages.collapsed or not network.may_restart:
                break
            network.drop()
        network.notes = collapse_in_words(collapsed)
        self._adopt(fed, network)
        self.calibration_ = stages.calibration
        self.selection_ = stages.selection
        return self

    def _parties(self, fed: Federation, label_party: str) -> list[str]:
        parties = super()._parties(fed, label_party)
        if parties == [label_party]:
            raise DataError(
                "no other party has a feature column",
                party=label_party,
                mend="RISA needs a partner; Local trains on one party's columns",
            )
        # The label party's opinion comes first: Yager's rule goes from left to right.
        return sorted(parties, key=lambda name: name != label_party)

    def _config(self, rows: int | None = None) -> SplitConfig:
        """The settings; rows: so many have a label, where length and batches go by them."""
        sized = type(self)(**self.get_params())
        if self.epochs is None:
            few = self.members > 1 and rows is not None and rows < FEW_ROWS
            sized.epochs, sized.lr = (EPOCHS_OF_FEW, 2 * self.lr) if few else (EPOCHS, self.lr)
            if few and self._compared > 2 and self.batch_size is not None:
                size = min(self.batch_size, max(BATCH_OF_FOLD, 10 * self._compared))
                sized.epochs, sized.batch_size = EPOCHS_OF_FOLD, size
        if self.batch_size is None:
            sized.batch_size = LARGEST_BATCH
            if rows is not None and rows < FEWEST_BATCHES * LARGEST_BATCH:
                sized.batch_size = max(SMALLEST_BATCH, rows // FEWEST_BATCHES)
                # The mean gradient of fewer rows is noisier: a step on it goes less far.
                sized.lr = self.lr * (sized.batch_size / LARGEST_BATCH) ** 0.5
        return SplitEstimator._config(sized)

    def _least_steps(self) -> int:
        # Batches of no size of their own are made so small that an epoch has some.
        return 1 if self.batch_size is None else super()._least_steps()

    def _options(self) -> dict[str, Any]:
        how = OBJECTIVES[self.objective]
        solo = how.heads and how.joint and self.fusion == "pool" and not self.share_every
        own: Any = {"members": self.members, "share_every": self.share_every, "solo": solo}
        selects = self.final_threshold < 1
        objective = replace(how.objective, fusion=self.fusion, selects=selects)
        return asdict(replace(how, objective=objective, **own))

    # ------------------------------------------------------------------ using

    def opinion_mass(self, fed: Federation, *, rows: str | None = None) -> np.ndarray:
        """u of each row's opinion (§II-D), the mass that it gives to no class: 1 knows nothing.

        Not the error rate: evidence for several classes leaves little of it.
        """
        network, segments, table_order = self._ready(fed, rows)
        return network.opinions(fed, segments, table_order=table_order)[1]  # type: ignore[attr-defined]

    def contributions(self, fed: Federation, *, rows: str | None = None) -> pd.DataFrame:
        """Which share of each decision a party carries; rows sum to one, a column per party."""
        network, segments, _ = self._ready(fed, rows)
        found = []
        names = list(network.parties)
        for name, count in segments:
            with network.asking(fed, [[name, count]], explain=True) as session:  # type: ignore[attr-defined]
                session.run(session.all_rows)
                kind = network.label_party if name == ALL else str(name).partition("@")[0]
                known = [each for each in names if is_known(kind if name == ALL else name, each)]
                found.append(session.top.contributions(kind, known))
        return pd.DataFrame(np.concatenate(found), columns=names)

    def _in_full(
        self, fed: Federation, segments: list[list[object]], known: list[str]
    ) -> tuple[np.ndarray, np.ndarray | None, dict[str, np.ndarray]]:
        """By evidence: contributions of its own."""
        outputs = self.network_.predict(fed, segments)
        undecided = expected_error(outputs)
        carried = self.contributions(fed, rows=str(segments[0][0]))
        return outputs, undecided, {name: carried[name].to_numpy() for name in known}

    def carried(self, fed: Federation) -> dict[str, float]:
        """The mean of `contributions` over the rows known to all; no single row's leave."""
        network, segments, _ = self._ready(fed, ALIGNED)
        with network.asking(fed, segments, explain=True) as session:  # type: ignore[attr-defined]
            session.run(session.all_rows)
            return dict(session.top.carried(ALIGNED, list(network.parties)))

    def mass(self, fed: Federation) -> float:
        """The mean of `opinion_mass` over the rows known to all; no single row's leave."""
        network, segments, _ = self._ready(fed, ALIGNED)
        with network.asking(fed, segments) as session:  # type: ignore[attr-defined]
            session.run(session.all_rows)
            return float(session.top.mass())

    def made_up(self) -> dict[str, dict[str, int]]:
        """By passive party: its own rows, those that got a label in training, that kept it."""
        network, _, _ = self._ready(self.fed_, ALIGNED)
        with network.asking(self.fed_, []) as session:  # type: ignore[attr-defined]
            found = {party: dict(session.top.made_up(party)) for party in network.passive}
        return {party: counts for party, counts in found.items() if counts}

    def evidence_report(self, fed: Federation) -> dict[str, Any]:
        return {
            "carried": self.carried(fed),
            "mass": self.mass(fed),
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
        with network.asking(self.fed_, []) as session:  # type: ignore[attr-defined]
            return dict(session.top.pseudo_labels(party))

    def _all_rows(self, fed: Federation) -> list[list[object]]:
        """All rows of the label party; without an alignment all are known to it alone."""
        if fed.is_aligned:
            return super()._all_rows(fed)
        party = str(self.network_.label_party)
        return [[ALL, fed.only(party).roster[party]["rows"]]]

    # ------------------------------------------------------------------ keeping

    def _save_more(self, folder: Path) -> dict[str, Any]:
        return {"calibration": self.calibration_, "selection": self.selection_}

    def _load_more(self, folder: Path, saved: dict[str, Any]) -> None:
        self.calibration_ = saved["calibration"]
        self.selection_ = saved["selection"]


class ImageRISA(RISA):
    """RISA whose defaults are those of the preset "images"; in a file it is `risa-images`."""

    def __init__(self, **params: Any) -> None:
        super().__init__(**{**RISA.PRESETS["images"], **params})


# Of tops that judge, predict and impute in another way.
PLAIN_CALLS = (
    "collapsed",
    "epoch_alone",
    "hold_out",
    "learn_imputation",
    "learn_scaling",
    "predict_chunk",
    "see",
    "set_order",
)
for name in ("risa", "risa-images"):
    # Pseudo-labels are for who asks in one process; a run over machines has no use for them.
    declare(
        name,
        but(EvidenceBottomWorker, "fill_embedding", "set_order"),
        but(EvidenceTopWorker, "pseudo_labels", *PLAIN_CALLS),
    )
