"""A training (or prediction) under way: workers at the parties, attached to rows.

Plain training runs one epoch after the other (`SplitNetwork.fit`); methods that correct their
targets open a session and do something in between.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from fedmend.errors import DataError, FedmendWarning, ResumeError
from fedmend.federation import Crew, Federation
from fedmend.secure.channel import is_sealed, seal_exchange
from fedmend.split.features import ALIGNED, ALL, Segments, batch_sizes, is_known, rows_of, spans
from fedmend.split.label_dp import account_of, warn_of_noise
from fedmend.split.parts import read_json, write_json
from fedmend.split.sharing import run_steps
from fedmend.split.sides import MOST_ROWS

if TYPE_CHECKING:
    from fedmend.split.training import SplitNetwork

logger = logging.getLogger(__name__)

PREDICT_ROWS = 4096
ENOUGH_TO_JUDGE = 200
STATE = "training.json"


def epoch_seed(run_seed: int, seed: int, epoch: int) -> int:
    """The seed all halves shuffle an epoch's rows with; it depends on nothing that went before."""
    return int(np.random.SeedSequence([run_seed, seed, epoch]).generate_state(1)[0])


def tell_labels(network: Any, worker: Any) -> None:
    """Let a label party's worker know labels as `label_dp` says, before it trains."""
    epsilon, party = network.config.label_dp, network.label_party
    if epsilon is None or party is None:
        return
    folder = None if network.folder is None else str(network.folder)
    account = worker.tell_labels(float(epsilon), network.config.task, folder)
    network.privacy = account_of({party: account})


def note_noise(network: Any, about: Mapping[str, Any]) -> None:
    """A training that did not ask for it may have to do with labels told at random, too."""
    if network.config.label_dp is None and network.label_party is not None and about["label_dp"]:
        network.privacy = account_of({network.label_party: about["label_dp"]})
        warn_of_noise(network.privacy)


class Crews:
    """Bottom workers at the passive parties and the top worker at the label party, then stopped."""

    def __init__(self, network: Any, fed: Federation, asked: list[str] | None = None) -> None:
        self.fed = fed
        self.network = network
        # Who is not in the federation is not asked; the top has imputed embeddings.
        passive = [name for name in network.passive if name in fed.names]
        self.asked = passive if asked is None else [name for name in passive if name in asked]

    def __enter__(self) -> tuple[Crew, Any]:
        network = self.network
        self._bottoms = self.fed.workers(
            network.bottom_worker, parties=self.asked, model=network.model
        )
        self._top: Crew | None = None
        if network.label_party is None:
            return self._bottoms, network.server
        self._top = self.fed.workers(
            network.top_worker, parties=[network.label_party], model=network.model
        )
        return self._bottoms, self._top[network.label_party]

    def seal(self) -> None:
        """What the parties exchange from now on goes in boxes, if that is asked for."""
        if self._top is not None and is_sealed(self.fed, self.network.config.seal):
            seal_exchange(self._bottoms, self._top)

    def __exit__(self, *exc: object) -> None:
        self._bottoms.stop()
        if self._top is not None:
            self._top.stop()


class OpenedSession:
    """Starts workers at the parties, prepares them, and stops them at the end."""

    network: Any
    bottoms: Crew
    top: Any
    _crews: Any

    def __enter__(self) -> Self:
        self.bottoms, self.top = self._crews.__enter__()
        try:
            self._crews.seal()
            self._begin()
        except BaseException:
            self._crews.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._crews.__exit__(None, None, None)

    def _begin(self) -> None:
        """What comes before the first step."""
        raise NotImplementedError

    # ------------------------------------------------------------------ checkpoints

    @property
    def _mark(self) -> str:
        """Changes when a checkpoint would not continue the same training."""
        raise NotImplementedError

    def write_checkpoint(self, folder: Path, epoch: int, **facts: Any) -> None:
        """The parties' files first, ours last: a kill in between leaves the one before valid."""
        self.bottoms.save_checkpoint(str(folder), epoch)
        self.top.save_checkpoint(str(folder), epoch)
        write_json(folder / STATE, {"fingerprint": self._mark, "epoch": epoch} | facts)

    def read_checkpoint(self, folder: Path) -> dict[str, Any] | None:
        """What was written to the coordinator's file; None where there is none."""
        if not (folder / STATE).is_file():
            return None
        state: dict[str, Any] = read_json(folder / STATE, "the checkpoint")
        if state["fingerprint"] != self._mark:
            raise ResumeError(
                f"the checkpoint in {folder} was made with other settings, parties or rows. "
                "Mend: resume with the same ones, or start in another folder"
            )
        return state


class Session(OpenedSession):
    """Fresh parts when it trains, those of the fitted model otherwise; rows numbered 0..n-1.

    n_rows: how many rows are attached. train, validation: the numbers of those trained on and of
    those held out.
    """

    network: SplitNetwork

    def __init__(
        self,
        network: SplitNetwork,
        fed: Federation,
        segments: Segments,
        *,
        train: bool,
        rows: np.ndarray | None = None,
    ) -> None:
        self.network = network
        self.n_rows = 0
        self.train = self.validation = np.zeros(0, np.int64)
        self._segments = [list(segment) for segment in segments]
        self._trains = train
        self._chosen = rows
        guesses = not train and network.guesses(fed)
        self._spans = self._guessed_spans() if guesses else None
        self._crews = Crews(network, fed, self._asked())
        self._batches = 0
        self._diverged = False

    @property
    def all_rows(self) -> np.ndarray:
        return np.arange(self.n_rows)

    # ------------------------------------------------------------------ steps

    def epoch(self, number: int) -> float:
        """One pass over the training rows, in the order of this epoch; returns the mean loss."""
        network = self.network
        seed = self.seed_of(number)
        if not len(self.bottoms):
            self.top.epoch_alone(seed)
        else:
            self.top.start_epoch(seed)
            self._exchange(self.bottoms.step(epoch=seed))
        told = self.top.loss()
        loss = math.nan if told is None else float(told)
        network.history.append({"epoch": number, "loss": loss})
        if told is not None and not math.isfinite(loss) and not self._diverged:
            self._diverged = True
            lr = network.config.settings.optimizer.lr
            warnings.warn(
                f"the loss of epoch {number} is {loss}: the training has diverged. "
                f"Mend: a smaller lr than {lr:g}",
                FedmendWarning,
                stacklevel=2,
            )
        return loss

    def _exchange(self, embeddings: dict[str, Any]) -> None:
        run_steps(self.bottoms, self.top, self._batches, embeddings)

    def seed_of(self, epoch: int) -> int:
        """The seed of an epoch's order of rows."""
        return epoch_seed(self.network.fed.seed, self.network.config.seed, epoch)

    def run(self, rows: np.ndarray) -> None:
        """Let the top collect its outputs for these row numbers, in chunks."""
        everything: list[tuple[int, int, list[str] | None]] = [(0, self.n_rows, None)]
        for start, end, known in self._spans or everything:
            inside = rows if known is None else rows[(rows >= start) & (rows < end)]
            at = 0
            for size in batch_sizes(len(inside), PREDICT_ROWS):
                self._predict(inside[at : at + size], known)
                at += size

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

    def learn_sides(self) -> None:
        """Let the top learn what to expect of a party that does not know a row.

        From training rows that all parties know: it has their embeddings, and nothing is sent
        that the training did not send.
        """
        network = self.network
        rows = rows_of(self._segments, [ALIGNED], self.train)
        if len(network.parties) < 2 or network.stand_ins == "own" or len(rows) < 2:
            return
        if len(rows) > MOST_ROWS:
            rows = np.sort(np.random.default_rng(0).permutation(rows)[:MOST_ROWS])
        at = 0
        for size in batch_sizes(len(rows), PREDICT_ROWS):
            chunk = rows[at : at + size]
            self.top.see(chunk, self.bottoms.embed(chunk))
            at += size
        self.top.learn_sides(self.bottoms.stand_in() if network.stand_ins == "fixed" else {})
        network.has_sides = True

    def _guessed_spans(self) -> list[tuple[int, int, list[str] | None]]:
        """(start, end, who knows them) of each segment's row numbers."""
        network = self.network
        found: list[tuple[int, int, list[str] | None]] = []
        for name, at, end in spans(self._segments):
            whose = network.label_party if name == ALL else name
            found.append((at, end, [each for each in network.parties if is_known(whose, each)]))
        return found

    def _asked(self) -> list[str] | None:
        """The passive parties with rows in this session; None asks all."""
        if self._spans is None:
            return None
        return list(dict.fromkeys(name for _, _, known in self._spans for name in known or ()))

    def outputs(self, rows: np.ndarray | None = None) -> np.ndarray:
        """Probabilities (or values) of these rows, by default of all, as the model is now."""
        self.run(self.all_rows if rows is None else rows)
        return self.top.predictions()

    # ------------------------------------------------------------------ setting up

    def _begin(self) -> None:
        network, config = self.network, self.network.config.to_wire()
        if self._trains:
            tell_labels(network, self.top)
            made = self.bottoms.create(config)
            widths = [made.get(name, 0) for name in network.parties]
            logger.debug("embedding widths %s", widths)
            about = self.top.create(config, list(network.parties), widths)
            network.task, network.classes = about["task"], about["classes"]
            note_noise(network, about)
            self._created()
        self.n_rows = int(self.top.attach(self._segments, config, self._trains))
        self.bottoms.attach(self._segments, config)
        if not self._trains:
            return
        usable = self.top.labelled() if self._chosen is None else self._chosen
        self._split(self.all_rows if usable is None else usable)
        self._set_order()

    def _created(self) -> None:
        """Fresh models are at the parties, which have no rows yet."""

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
            self.validation = np.sort(self.top.hold_out(pool, share))
            if not len(self.validation):
                logger.info("%d labelled rows are too few to hold some out", len(pool))
        self.train = np.setdiff1d(usable, self.validation)

    def _judges(self, usable: np.ndarray) -> np.ndarray:
        """The rows of which some are held out to judge by."""
        return usable

    # ------------------------------------------------------------------ checkpoints

    @property
    def _mark(self) -> str:
        return self.network.config.fingerprint(self.n_rows, self.network.parties)

    def checkpoint(self, folder: Path, epoch: int, **facts: Any) -> None:
        """Everything needed to go on after this epoch; `facts` are the method's own (JSON)."""
        self.write_checkpoint(folder, epoch, **self.network.progress_state() | facts)

    def resume(self, folder: Path, at: int | None = None) -> int:
        """Go back to where a checkpoint was made; the epoch, or 0 where there is none.

        at: the epoch to go back to, the last one kept or the one before it.
        """
        state = self.read_checkpoint(folder)
        if state is None:
            return 0
        epoch = int(state["epoch"]) if at is None else at
        self.bottoms.load_checkpoint(str(folder), epoch)
        self.top.load_checkpoint(str(folder), epoch)
        self.network.take_progress_state(state)
        return epoch


class AlignedJudges(Session):
    """A session that holds out aligned rows, as far as there are enough of them.

    On rows of one party alone it does not show what the others are worth.
    """

    def _judges(self, usable: np.ndarray) -> np.ndarray:
        aligned = rows_of(self._segments, [ALIGNED], usable)
        enough = self.network.config.validation * len(aligned) >= ENOUGH_TO_JUDGE
        return aligned if enough else usable
