"""The coordinator's half of split training: steps, validation, early stopping, saving, predicting.

network = SplitNetwork(fed, parties=["bank", "telco"], label_party="bank", config=…)
network.fit([["aligned", 800]])
network.evaluate(fed.on("test"), [["aligned", 200]])

A `Session` is a training (or prediction) under way: workers at the parties, attached to rows.
Plain training runs one epoch after the other (`SplitNetwork.fit`); methods that correct their
targets open a session and do something in between.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import numpy as np

from fedmend.errors import ConfigError, DataError, FedmendWarning, Refused, ResumeError
from fedmend.federation import Each, Federation, WorkerGroup
from fedmend.secure.channel import is_sealed, seal_exchange
from fedmend.split.config import SplitConfig
from fedmend.split.features import (
    ALIGNED,
    ALL,
    Segments,
    batch_sizes,
    check_names,
    is_known,
    kind_of,
    rows_of,
    spans,
)
from fedmend.split.imputed import ROWS_TO_LEARN
from fedmend.split.labels import account_of, warn_of_noise
from fedmend.split.parts import read_json, write_json
from fedmend.split.workers import CANNOT_SEAL, BottomWorker, ServerTop, TopWorker

logger = logging.getLogger(__name__)

PREDICT_ROWS = 4096
ENOUGH_TO_JUDGE = 200
JUDGES = 200
"""So many held-out rows can choose a length, and say how far outputs are to be believed."""
UNJUDGED = 20
"""Epochs where so few rows have a label that none can be held out to choose by."""
OTHER_SEED, LOWER_LR = 1_000_003, 0.3
"""A training that collapsed begins again this far from its seed, in steps so much shorter."""
STATE = "training.json"
Progress = Callable[[str, int, int, dict[str, float]], None]


def epoch_seed(run_seed: int, seed: int, epoch: int) -> int:
    """The seed all parties shuffle an epoch's rows with; it depends on nothing before it."""
    return int(np.random.SeedSequence([run_seed, seed, epoch]).generate_state(1)[0])


class Session:
    """Fresh parts when it trains, those of the fitted model otherwise; rows numbered 0..n-1.

    n_rows: how many rows are attached. train, validation: the numbers of those trained on and of
    those held out. diverged: a loss was no number.
    """

    network: Any
    bottoms: WorkerGroup
    top: Any

    def __init__(
        self,
        network: SplitNetwork,
        fed: Federation,
        segments: Segments,
        *,
        train: bool,
        rows: np.ndarray | None = None,
    ) -> None:
        self.network, self.fed = network, fed
        self.segments = [[str(name), int(str(count))] for name, count in segments]
        self.n_rows = 0
        self.train = self.validation = np.zeros(0, np.int64)
        self._trains = train
        self._chosen = rows
        self._known = self._who_knows() if not train and network.guesses(fed) else None
        self.diverged = False
        self._batches = 0
        self._warned: set[str] = set()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            workers = self.network.workers(self.fed, self._asked(), seal=True)
            self.bottoms, self.top = stack.enter_context(workers)
            self._begin()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    @property
    def all_rows(self) -> np.ndarray:
        return np.arange(self.n_rows)

    # ------------------------------------------------------------------ setting up

    def _begin(self) -> None:
        """Labels as `label_dp` says, fresh models, rows, and which of them are held out."""
        network, how = self.network, self.network.config
        config = how.to_wire() if self._trains else how.to_predict()
        if self._trains:
            self.report_labels(self.top)
            made = self.bottoms.create(config)
            widths = [made.get(name, 0) for name in network.parties]
            about = self._create_top(config, widths)
            network.task, network.classes = about["task"], about["classes"]
            self._note_noise(about)
            self._created()
        self.n_rows = int(self.top.attach(self.segments, config, self._trains))
        self.bottoms.attach(self.segments, config)
        self._attached()

    def _create_top(self, config: dict[str, Any], widths: list[int]) -> dict[str, Any]:
        return dict(self.top.create(config, list(self.network.parties), widths))

    def _created(self) -> None:
        """Fresh models are at the parties, which have no rows yet."""

    def _attached(self) -> None:
        """All have their rows."""
        if self._trains:
            usable = self.top.labelled() if self._chosen is None else self._chosen
            self._split(self.all_rows if usable is None else usable)
            self._set_order()

    def report_labels(self, worker: Any) -> None:
        """Let a label party's worker know labels as `label_dp` says, before it trains."""
        network = self.network
        epsilon, party = network.config.label_dp, network.label_party
        if epsilon is None or party is None:
            return
        folder = None if network.folder is None else str(network.folder)
        account = worker.tell_labels(float(epsilon), network.config.task, folder)
        network.privacy = account_of({party: account})

    def _note_noise(self, about: Mapping[str, Any]) -> None:
        """A training that did not ask for it may have to do with randomised labels, too."""
        network = self.network
        asked = network.config.label_dp is not None
        if network.label_party is not None and about["label_dp"] and not asked:
            network.privacy = account_of({network.label_party: about["label_dp"]})
            warn_of_noise(network.privacy)

    def _set_order(self) -> None:
        self._batches = self.top.set_order(self.train)
        self.bottoms.set_order(self.train)

    def _split(self, usable: np.ndarray) -> None:
        network, share = self.network, self.network.config.validation
        if len(usable) < 2:
            raise DataError(
                f"{len(usable)} rows to train on",
                party=network.label_party,
                mend="more labelled rows; LocalVFL and Local also use rows only one party has",
            )
        pool = self._judges(usable)
        if share:
            wanted = JUDGES if network.config.refit else 0
            self.validation = np.sort(self.top.hold_out(pool, share, wanted))
            if not len(self.validation):
                logger.info("%d labelled rows are too few to hold some out", len(pool))
        self.train = np.setdiff1d(usable, self.validation)

    def _judges(self, usable: np.ndarray) -> np.ndarray:
        """The rows of which some are held out to judge by."""
        return usable

    # ------------------------------------------------------------------ steps

    def epoch(self, number: int) -> float:
        """One pass over the training rows, in the order of this epoch; returns the mean loss."""
        network, seed = self.network, self.seed_of(number)
        if not len(self.bottoms):
            self.top.epoch_alone(seed)
        else:
            self.top.start_epoch(seed)
            self._exchange(self.bottoms.step(epoch=seed))
        told = self._told_loss()
        loss = math.nan if told is None else float(told)
        network.history.append({"epoch": number, "loss": loss})
        self.diverged = self.diverged or (told is not None and not math.isfinite(loss))
        if self.diverged and not network.may_restart:
            lr = network.config.settings.optimizer.lr
            self._warn(
                f"the loss of epoch {number} is {loss}: the training has diverged. "
                f"Mend: a smaller lr than {lr:g}",
                "diverged",
            )
        return loss

    def _told_loss(self) -> float | None:
        """The epoch's mean loss; None where the label party's rows are too few to tell it."""
        return cast("float | None", self.top.loss())

    def _exchange(self, embeddings: dict[str, Any]) -> None:
        """An epoch's steps from the first batch's embeddings on."""
        for _ in range(1, self._batches):
            embeddings = self.bottoms.step(Each(self.top.step(embeddings)))
        self.bottoms.finish(Each(self.top.step(embeddings)))

    def seed_of(self, epoch: int) -> int:
        """The seed of an epoch's order of rows."""
        return epoch_seed(self.network.fed.seed, self.network.config.seed, epoch)

    def _warn(self, words: str, about: str) -> None:
        """Once in a training."""
        if about not in self._warned:
            self._warned.add(about)
            warnings.warn(words, FedmendWarning, stacklevel=3)

    # ------------------------------------------------------------------ rows without training

    def run(self, rows: np.ndarray) -> None:
        """Let the top collect its outputs for these row numbers, in chunks."""
        everything: list[tuple[int, int, list[str] | None]] = [(0, self.n_rows, None)]
        for start, end, known in self._known or everything:
            inside = rows if known is None else rows[(rows >= start) & (rows < end)]
            for chunk in in_chunks(inside):
                self._predict(chunk, known)

    def _predict(self, chunk: np.ndarray, known: list[str] | None) -> None:
        if known is None or set(known) == set(self.network.parties):
            if len(self.bottoms):
                self.top.predict_chunk(chunk, self.bottoms.embed(chunk))
            else:
                self.top.predict_chunk(chunk)
            return
        embeddings = {
            name: self.bottoms[name].embed(chunk) for name in self.bottoms if name in known
        }
        self.top.predict_chunk(chunk, embeddings, known)

    def learn_imputation(self) -> None:
        """Let the top learn what to expect of a party that does not know a row.

        From training rows that all parties know: it has their embeddings, and nothing is sent
        that the training did not send.
        """
        network = self.network
        rows = rows_of(self.segments, [ALIGNED], self.train)
        if len(network.parties) < 2 or network.imputes == "own" or len(rows) < 2:
            return
        if len(rows) > ROWS_TO_LEARN:
            rows = np.sort(np.random.default_rng(0).permutation(rows)[:ROWS_TO_LEARN])
        for chunk in in_chunks(rows):
            self.top.see(chunk, self.bottoms.embed(chunk))
        fixed = self.bottoms.fill_embedding() if network.imputes == "fixed" else {}
        self.top.learn_imputation(fixed)
        network.has_imputed = True

    def calibrate(self) -> None:
        """Let the top learn from the held-out rows how far outputs are to be believed.

        By kind of row; where the top can do without other parties, also as if only one party knew
        the rows that all know.
        """
        network = self.network
        if network.task == "regression":
            return
        for name, at, end in spans(self.segments):
            rows = self.validation[(self.validation >= at) & (self.validation < end)]
            self.run(rows)
            self.top.learn_scaling(rows, kind_of(name, network.label_party or ""))
        rows = rows_of(self.segments, [ALIGNED], self.validation)
        without = network.guesses(self.fed) or network.imputes == "own"
        for name in network.parties if without and len(network.parties) > 1 else ():
            for chunk in in_chunks(rows):
                self._predict(chunk, [name])
            self.top.learn_scaling(rows, name)

    def _who_knows(self) -> list[tuple[int, int, list[str] | None]]:
        """(start, end, who knows them) of each segment's row numbers."""
        network = self.network
        found: list[tuple[int, int, list[str] | None]] = []
        for name, at, end in spans(self.segments):
            whose = network.label_party if name == ALL else name
            found.append((at, end, [each for each in network.parties if is_known(whose, each)]))
        return found

    def _asked(self) -> list[str] | None:
        """The passive parties with rows in this session; None asks all."""
        if self._known is None:
            return None
        return list(dict.fromkeys(name for _, _, known in self._known for name in known or ()))

    def outputs(self, rows: np.ndarray | None = None) -> np.ndarray:
        """Probabilities (or values) of these rows, by default of all, as the model is now."""
        self.run(self.all_rows if rows is None else rows)
        return self.top.predictions()

    # ------------------------------------------------------------------ checkpoints

    def _mark(self) -> str:
        """Changes when a checkpoint would not continue the same training."""
        network = self.network
        return network.config.fingerprint(self.n_rows, network.parties) + network.votes

    def checkpoint(self, folder: Path, epoch: int, **facts: Any) -> None:
        """Everything needed to go on after this epoch; `facts` are the method's own (JSON).

        The parties' files first, ours last: a kill in between leaves the one before valid.
        """
        self.bottoms.save_checkpoint(str(folder), epoch)
        self.top.save_checkpoint(str(folder), epoch)
        state = {"fingerprint": self._mark(), "epoch": epoch}
        write_json(folder / STATE, state | self.network.progress_state() | facts)

    def resume(self, folder: Path, at: int | None = None) -> int:
        """Go back to where a checkpoint was made; the epoch, or 0 where there is none.

        at: the epoch to go back to, the last one kept or the one before it.
        """
        if not (folder / STATE).is_file():
            return 0
        state: dict[str, Any] = read_json(folder / STATE, "the checkpoint")
        if state["fingerprint"] != self._mark():
            raise ResumeError(
                f"the checkpoint in {folder} was made with other settings, parties or rows. "
                "Mend: resume with the same ones, or start in another folder"
            )
        self._before_restoring(state)
        epoch = int(state["epoch"]) if at is None else at
        self.bottoms.load_checkpoint(str(folder), epoch)
        self.top.load_checkpoint(str(folder), epoch)
        self.network.take_progress_state(state)
        return epoch

    def _before_restoring(self, state: Mapping[str, Any]) -> None:
        """Take up the method's own facts of a checkpoint."""


def in_chunks(rows: np.ndarray) -> list[np.ndarray]:
    """Row numbers in pieces that are predicted at once."""
    sizes = batch_sizes(len(rows), PREDICT_ROWS)
    return np.split(rows, np.cumsum(sizes)[:-1]) if sizes else []


class AlignedJudges(Session):
    """A session that holds out aligned rows, as far as there are enough of them.

    On rows of one party alone it does not show what the others are worth.
    """

    def _judges(self, usable: np.ndarray) -> np.ndarray:
        aligned = rows_of(self.segments, [ALIGNED], usable)
        enough = self.network.config.validation * len(aligned) >= ENOUGH_TO_JUDGE
        return aligned if enough else usable


@dataclass(frozen=True)
class _Tried:
    """A training that ended; loss: of the rows it was judged by, if it was."""

    config: SplitConfig
    history: list[dict[str, float]]
    epoch: int
    loss: float
    judged: bool
    collapsed: bool


def restarted(config: SplitConfig, number: int) -> SplitConfig:
    """The settings of the so manieth restart: other weights, shorter steps."""
    if not number:
        return config
    optimizer = config.settings.optimizer
    slower = replace(optimizer, lr=optimizer.lr * LOWER_LR**number)
    return replace(
        config,
        seed=config.seed + OTHER_SEED * number,
        settings=replace(config.settings, optimizer=slower),
    )


def collapse_in_words(collapsed: Sequence[bool]) -> list[str]:
    """What people should know of trainings one after the other, as far as they collapsed."""
    if not any(collapsed):
        return []
    again = len(collapsed) - 1
    text = (
        "The training collapsed: held-out rows were predicted no better than by the shares of the "
        f"classes alone. It began again {'once' if again == 1 else f'{again} times'} with other "
        "weights and a lower lr"
    )
    if collapsed[-1]:
        return [f"{text}, to no avail: these columns may say nothing of the label."]
    return [f"{text}, and then learnt."]


class Judged:
    """A model of several parties whose outputs are at the label party: what is asked of them.

    model: under which name the parties keep their parts. privacy: under label_dp ε, how often
    labels are reported as they are, and the ε spent so far. notes: what happened in the training
    that people should know, as sentences. stays: why nothing that could decide leaves the label
    party.
    """

    stays: ClassVar[str] = ""

    def __init__(self, fed: Federation, label_party: Any, kind: str) -> None:
        self.fed = fed
        self.label_party = label_party
        self.model = f"{kind}-{secrets.token_hex(6)}"
        self.task = ""
        self.classes: list[Any] = []
        self.history: list[dict[str, float]] = []
        self.best_epoch = 0
        self.privacy: dict[str, Any] | None = None
        self.notes: list[str] = []

    @property
    def passive(self) -> list[str]:
        names: Sequence[str] = self.parties  # type: ignore[attr-defined]
        return [name for name in names if name != self.label_party]

    def take_about(self, about: Mapping[str, Any]) -> None:
        self.task, self.classes = about["task"], about["classes"]

    def workers(
        self, fed: Federation, asked: list[str] | None = None
    ) -> AbstractContextManager[tuple[WorkerGroup, Any]]:
        """Workers at the passive parties (of which `asked`) and the one where the labels are."""
        raise NotImplementedError

    def save(self, path: str, member: str = "") -> None:
        """Every party saves its own part under this name, whole or as a member of a model."""
        with self.workers(self.fed) as (passive, active):
            passive.save(path, member)
            active.save(path, member)

    def load(self, path: str, member: str = "") -> Self:
        with self.workers(self.fed) as (passive, active):
            passive.load(path, member)
            active.load(path, member)
            self.take_about(active.about())
        return self

    def hand_out(self, path: str, party: str, manifest: dict[str, Any]) -> None:
        """Let the label party predict without its partners, by the model under this name."""
        if party != self.label_party:
            raise Refused(
                str(self.label_party),
                self.stays,
                f"predict at {self.label_party!r}, or a method whose top can be handed out",
            )
        with self.workers(self.fed, []) as (_, active):
            active.save_manifest(path, manifest)

    def judged(self, fed: Federation, segments: Segments) -> AbstractContextManager[Any]:
        """The label party's worker, which has collected the outputs of all of these rows."""
        raise NotImplementedError

    def evaluate(self, fed: Federation, segments: Segments) -> dict[str, float]:
        """Metrics over these rows, computed at the label party."""
        with self.judged(fed, segments) as top:
            return dict(top.metrics())

    def uncertainty_report(self, fed: Federation, segments: Segments) -> dict[str, Any]:
        """What the uncertainty of the predictions is worth, computed at the label party."""
        with self.judged(fed, segments) as top:
            return dict(top.uncertainty_report())

    def predict(
        self, fed: Federation, segments: Segments, *, table_order: bool = False
    ) -> np.ndarray:
        """Probabilities [n, C], or values [n] for regression."""
        with self.judged(fed, segments) as top:
            return top.predictions(table_order)

    def leave_outputs(self, fed: Federation, segments: Segments, name: str) -> None:
        """Let the label party keep, under this name, what the model says of these rows."""
        with self.judged(fed, segments) as top:
            top.leave_outputs(name)


class SplitNetwork(Judged):
    """A split model over the feature parties `parties`, its top at `label_party` or `server`.

    history: one dict per epoch (epoch, loss, val_<metric>…); best_epoch: the one whose weights
    are kept.

    Methods with a protocol of their own put in their workers and their session.

    imputes: the embedding of a party that does not know a row is "learnt" from those that do
    (`imputed.py`), "fixed" where the top was trained with the party's fill row, "asked" of the
    party itself as long as it is there, or the top's "own" business where it can do without.
    has_imputed: whether the top has learnt them. folder: where parties without a home keep what
    belongs to this training. votes: in a word, what soft labels at the server are made of.
    """

    imputes: ClassVar[str] = "learnt"
    bottom_worker: ClassVar[type[BottomWorker]] = BottomWorker
    top_worker: ClassVar[type[TopWorker]] = TopWorker
    session_type: ClassVar[type[Session]] = Session

    def __init__(
        self,
        fed: Federation,
        *,
        parties: list[str],
        label_party: str | None = None,
        server: ServerTop | None = None,
        config: SplitConfig,
    ) -> None:
        if (label_party is None) == (server is None):
            raise ConfigError("the labels are at a party or at the server: give one of the two")
        if server is not None and config.seal:
            raise ConfigError(CANNOT_SEAL)
        check_names(parties)
        super().__init__(fed, label_party, "split")
        self.parties = parties
        self.server = server
        self.config = config
        self.has_imputed = False
        self.progress: Progress | None = None
        self.resuming = False
        self.folder: Path | None = None
        self.votes = ""
        self.may_restart = False
        self._best = math.inf

    def guesses(self, fed: Federation) -> bool:
        """Whether the top imputes embeddings of parties that do not know a row, unasked."""
        if self.imputes == "asked" and all(name in fed.names for name in self.parties):
            return False
        return self.has_imputed and self.imputes != "own"

    @contextmanager
    def workers(
        self, fed: Federation, asked: list[str] | None = None, *, seal: bool = False
    ) -> Iterator[tuple[WorkerGroup, Any]]:
        """Bottom workers at the passive parties and the top worker at the label party.

        asked: of the passive parties; by default all. Who is not in the federation is not asked;
        the top has imputed embeddings. seal: what they exchange crosses encrypted, if that is
        asked for.
        """
        passive = [name for name in self.passive if name in fed.names]
        passive = passive if asked is None else [name for name in passive if name in asked]
        with fed.workers(self.bottom_worker, parties=passive, model=self.model) as bottoms:
            if self.label_party is None:
                yield bottoms, self.server
                return
            party = [self.label_party]
            with fed.workers(self.top_worker, parties=party, model=self.model) as tops:
                if seal and is_sealed(fed, self.config.seal):
                    seal_exchange(bottoms, tops)
                yield bottoms, tops[self.label_party]

    # ------------------------------------------------------------------ training

    def fit(
        self,
        segments: Segments,
        *,
        progress: Progress | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        resume: bool = False,
    ) -> Self:
        """Train on these rows. With `resume`, go on from the checkpoint if there is one.

        A training collapses that diverges, or that predicts held-out rows no better than the shares
        of the classes do: it begins again with other weights and shorter steps (`restarts`). With
        `refit` the best of them then trains on all rows, as long as held-out rows chose.
        """
        self.progress, self.folder = progress, Path(checkpoint) if checkpoint is not None else None
        asked, tried = self.config, list[_Tried]()
        for number in range(1 + asked.restarts):
            self.config, self.may_restart = restarted(asked, number), number < asked.restarts
            tried.append(self._attempt(segments, f"restart-{number}" if number else "", resume))
            if not tried[-1].collapsed:
                break
        best = min(tried, key=lambda each: (each.collapsed, each.loss))
        self.notes = collapse_in_words([each.collapsed for each in tried])
        self.may_restart = False
        if best.judged and asked.refit:
            self.config = replace(
                best.config, refit=False, validation=0.0, epochs=max(1, best.epoch), patience=None
            )
            self._attempt(segments, "refit", resume)
        elif best is not tried[-1]:
            self.config = best.config
            self._attempt(segments, "again", resume)
        self.config, self.history, self.best_epoch = asked, best.history, best.epoch
        return self

    def _attempt(self, segments: Segments, stage: str, resume: bool) -> _Tried:
        """One training, in a folder of its own beneath the checkpoint's."""
        folder = None if self.folder is None else self.folder / stage
        self.resuming = resume and folder is not None and (folder / STATE).is_file()
        self.history, self.best_epoch, self._best = [], 0, math.inf
        with self.session(segments) as session:
            epoch, epochs = 0, self.config.epochs
            judged = len(session.validation) > 0
            if self.config.refit and self.config.validation and not judged:
                epochs = min(epochs, UNJUDGED)
            if folder is not None and resume:
                epoch = session.resume(folder)
            while epoch < epochs and not self._out_of_patience(epoch):
                epoch += 1
                session.epoch(epoch)
                if session.diverged and self.may_restart:
                    break
                self._judge(epoch, session)
                if self.progress is not None:
                    self.progress(stage or "train", epoch, epochs, self.history[-1])
                if folder is not None:
                    session.checkpoint(folder, epoch)
            collapsed = session.diverged
            if judged and not (session.diverged and self.may_restart):
                session.bottoms.restore_best()
                session.top.restore_best()
                if self.config.restarts and not collapsed:
                    session.run(session.validation)
                    collapsed = session.top.collapsed(session.validation, session.train)
            if not (collapsed and self.may_restart):
                session.learn_imputation()
                if judged:
                    session.calibrate()
        loss = self._best if judged and not session.diverged else math.inf
        return _Tried(self.config, self.history, self.best_epoch, loss, judged, collapsed)

    def session(self, segments: Segments, rows: np.ndarray | None = None) -> Any:
        """A training under way, epoch by epoch, for methods whose targets change in between.

        rows: the row numbers to train on; by default all that have a label. With

            with network.session(segments) as session:
                session.epoch(1)
                server.set_targets(correct(session.outputs()))
                session.epoch(2)
        """
        return self.session_type(self, self.fed, segments, train=True, rows=rows)

    def _judge(self, epoch: int, session: Session) -> None:
        """Validate, and remember the weights if they are the best so far."""
        if not len(session.validation):
            self.best_epoch = epoch
            return
        session.run(session.validation)
        scores = session.top.metrics(session.validation)
        self.history[-1] |= {f"val_{name}": value for name, value in scores.items()}
        loss = scores[self._loss]
        if self.best_epoch == 0 or loss < self._best:
            self._best = min(math.inf, loss)  # a loss that is no number is as bad as any
            self.best_epoch = epoch
            session.bottoms.keep_best()
            session.top.keep_best()

    @property
    def _loss(self) -> str:
        """What held-out rows are judged by."""
        if self.task == "regression":
            return "rmse"
        return "log_loss" if self.server is not None else "calibrated_loss"

    def _out_of_patience(self, epoch: int) -> bool:
        patience = self.config.patience
        return patience is not None and epoch - self.best_epoch >= patience

    def progress_state(self) -> dict[str, Any]:
        """What a checkpoint keeps of the loop itself."""
        return {"best_epoch": self.best_epoch, "best": self._best, "history": self.history}

    def take_progress_state(self, saved: Mapping[str, Any]) -> None:
        self.history = saved["history"]
        self.best_epoch, self._best = saved["best_epoch"], saved["best"]

    # ------------------------------------------------------------------ using it

    @contextmanager
    def judged(self, fed: Federation, segments: Segments) -> Iterator[Any]:
        """The top, which has collected its outputs for all of these rows."""
        with self.session_type(self, fed, segments, train=False) as session:
            session.run(session.all_rows)
            yield session.top

    def hand_out(self, path: str, party: str, manifest: dict[str, Any]) -> None:
        """Let a party keep, beside its part under this name, what it needs to predict alone."""
        with self.workers(self.fed, [party]) as (bottoms, top):
            if party == self.label_party:
                top.save_manifest(path, manifest)
                return
            at_party = bottoms[party]
            at_party.take_top(top.give_top())
            at_party.save(path)
            at_party.save_manifest(path, manifest)

    def take_about(self, about: Mapping[str, Any]) -> None:
        super().take_about(about)
        self.has_imputed = bool(about["imputes"])
