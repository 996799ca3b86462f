"""What InC and its baselines share: a network with its top at the server, several annotators."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from fedmend._parameters import POSITIVE, Rules, one_of, parameters, wrong_values
from fedmend.errors import ConfigError, DataError
from fedmend.federation import COORDINATOR, Federation, require_federation
from fedmend.federation.labels import keep_probability
from fedmend.learn import metrics
from fedmend.methods.annotators import aggregation as crowd
from fedmend.methods.annotators.session import (
    SECURE,
    Annotators,
    CrowdRoster,
    crowd_roster,
    permitted,
    warn_if_below_chance,
    warn_of_inverters,
)
from fedmend.methods.annotators.worker import LabelWorker
from fedmend.methods.network import NetworkEstimator
from fedmend.split.config import SplitConfig
from fedmend.split.features import ALIGNED
from fedmend.split.label_dp import account_of, without_response
from fedmend.split.parts import read_file, write_file
from fedmend.split.server_top import CANNOT_SEAL, ServerTop
from fedmend.split.session import Session
from fedmend.split.training import Progress, SplitNetwork

POSTERIOR = "posterior.fmw"
Inferred = tuple[np.ndarray, np.ndarray]
"""Training targets, and how likely each class is for each row, both [n, C]."""
RULES: Rules = {
    "secure": one_of(SECURE),
    "label_dp": ("positive or None", lambda value: value is None or value > 0),
    "batch_size": POSITIVE,
}


@parameters
class CrowdEstimator(NetworkEstimator):
    """A network trained on several parties' labels, none of which the server sees on its own.

    bottom, embedding, top …: as in the other estimators; the top is at the server.
    batch_size: rows of a batch, or a share of the training rows if below 1.
    secure: how votes are added up: "he", "masks", or "none" (simulation: needs policies that let
    labels out). key_holder: for "he", the party with the key; by default the first annotator.
    label_dp: epsilon of randomised response at every label party, or None.
    label_parties: whose labels count; by default those of all parties that have some.
    classes: all classes, when some of them may have no vote; by default those voted for.
    seal: None or False; the server reads embeddings, so that they cannot be sealed.
    """

    takes_reference: ClassVar[bool] = True
    _rules: ClassVar[Rules] = {}
    """What the method's own parameters must be."""

    bottom: tuple[int, ...] = (64,)
    embedding: int = 32
    top: tuple[int, ...] = (64,)
    dropout: float = 0.0
    conv: str = "cnn"
    missing_indicator: bool = True
    epochs: int = 100
    batch_size: float = 64
    optimizer: str = "adam"
    lr: float = 1e-3
    weight_decay: float = 1e-4
    precision: str = "float32"
    wire: str = "same"
    seed: int = 0
    secure: str = "he"
    key_holder: str | None = None
    label_dp: float | None = None
    label_parties: Sequence[str] | None = None
    classes: Sequence[Any] | None = None
    seal: bool | None = None

    # ------------------------------------------------------------------ fitting

    def fit(
        self,
        fed: Federation,
        *,
        progress: Progress | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        resume: bool = False,
    ) -> Self:
        """Train on the aligned rows. `progress(stage, done, total, metrics)` is told.

        With `checkpoint` every epoch is kept in that folder; with `resume` it goes on from there.
        """
        require_federation(fed)
        self.require_types()
        self._check()
        rows = fed.alignment.aligned
        roster = crowd_roster(fed, self.label_parties)
        folder = None if checkpoint is None else Path(checkpoint)
        with self._annotators(fed, roster.annotators) as annotators:
            keep = None if folder is None else str(folder)
            votes = annotators.attach(self.classes, self.label_dp, keep)
            counts = annotators.votes()
            self.label_parties_ = roster.annotators
            self.votes_ = votes
            self.agreement_ = warn_if_below_chance(counts)
            self._fit_crowd(fed, roster, annotators, counts, rows, progress, folder, resume)
            self.privacy_ = self._account(annotators)
        return self

    def _fit_crowd(
        self,
        fed: Federation,
        roster: CrowdRoster,
        annotators: Annotators,
        counts: np.ndarray,
        rows: int,
        progress: Progress | None,
        folder: Path | None,
        resume: bool,
    ) -> None:
        """Infer labels first, then train on them for all epochs (the baselines' way)."""
        targets, self.posterior_ = self._inferred(annotators, counts)
        server = self._server(fed, annotators.classes, targets)
        network = self._network(fed, roster, server, rows)
        with network.session([[ALIGNED, rows]]) as session:
            epoch = session.resume(folder) if folder is not None and resume else 0
            for number in range(epoch + 1, self.epochs + 1):
                self._before_epoch(number, session, annotators)
                session.epoch(number)
                network.best_epoch = number
                if progress is not None:
                    progress("train", number, self.epochs, network.history[-1])
                if folder is not None:
                    session.checkpoint(folder, number)
            session.learn_sides()
        self._adopt(fed, network)

    def _inferred(self, annotators: Annotators, counts: np.ndarray) -> Inferred:
        raise NotImplementedError(f"{type(self).__name__} infers no labels")

    def _before_epoch(self, epoch: int, session: Session, annotators: Annotators) -> None:
        """Change the targets for one epoch, if the method does that."""

    def _annotators(self, fed: Federation, parties: list[str]) -> Annotators:
        return Annotators(fed, parties, secure=self.secure, key_holder=self.key_holder)

    def _network(
        self, fed: Federation, roster: CrowdRoster, server: ServerTop, rows: int
    ) -> SplitNetwork:
        self.n_rows_ = rows
        return SplitNetwork(fed, parties=roster.features, server=server, config=self._config())

    def _server(
        self, fed: Federation, classes: Sequence[Any], targets: np.ndarray | None = None
    ) -> ServerTop:
        return ServerTop(
            classes, targets=targets, device=fed.device, seed=fed.seed, own_seed=fed.own_seed
        )

    def _config(self) -> SplitConfig:
        batch = self.batch_size
        if batch < 1:
            batch = max(1, int(batch * getattr(self, "n_rows_", 0)))
        return SplitConfig.of(
            self.get_params() | {"batch_size": int(batch)},
            task="multiclass",
            validation=0.0,
            patience=None,
            # The annotators see to both.
            label_dp=None,
            seal=None,
        )

    def _check(self) -> None:
        problems = self._problems()
        if problems:
            raise ConfigError(problems)
        self._config()

    def _problems(self) -> list[str]:
        problems = wrong_values(self, {**RULES, **self._rules})
        return problems + ([CANNOT_SEAL] if self.seal else [])

    def _account(self, annotators: Annotators) -> dict[str, Any] | None:
        """Under label_dp: epsilon for each label, kept probability, spent by each party so far."""
        if self.label_dp is None:
            return None
        accounts = {party: each for party, each in annotators.epsilon_spent().items() if each}
        if accounts:
            return account_of(accounts)
        kept = keep_probability(self.label_dp, len(annotators.classes))
        return {"epsilon": self.label_dp, "kept": kept, "spent": {}, "new": {}}

    def _hear(self, annotators: Annotators, share_expertise: bool) -> None:
        """What the parties tell in the end, where T was estimated."""
        self.evidence_error_ = annotators.error_bound
        self.expertise_ = {}
        if share_expertise:
            self.expertise_ = annotators.expertise()
            if self.label_dp is not None:
                self.expertise_ = {
                    party: without_response(matrix, self.label_dp)
                    for party, matrix in self.expertise_.items()
                }
        self.standing_ = annotators.standing()
        warn_of_inverters(self.standing_, self.votes_)

    # ------------------------------------------------------------------ using

    def learnt_from(self, fed: Federation) -> list[str]:
        return list(self.label_parties_)

    @property
    def corrected_(self) -> np.ndarray:
        """The likeliest class of every training row, in the common order."""
        assert self.classes_ is not None
        return self.classes_[self.posterior_.argmax(1)]

    def evaluate(
        self, fed: Federation, *, rows: str | None = None, against: str | None = None
    ) -> dict[str, float]:
        """All metrics against the labels of the party `against`, computed there.

        By default against the one party that labels these rows, or, where several do, against
        their majority (rows where that is tied are left out). Rows of one party are judged there.
        """
        holders = self._judges(fed, rows, against)
        probabilities = self.predict_proba(fed, rows=rows)
        if len(holders) > 1:
            return self._against_majority(fed, holders, probabilities)
        (party,) = holders
        assert self.classes_ is not None
        with fed.workers(LabelWorker, parties=[party]) as crew:
            told = crew[party].metrics(probabilities, self.classes_.tolist(), rows == party)
            return dict(told)

    def uncertainty_report(
        self, fed: Federation, *, rows: str | None = None, against: str | None = None
    ) -> dict[str, Any]:
        """As of other methods, against the labels of one party, computed there."""
        holders = self._judges(fed, rows, against)
        party = holders[0] if len(holders) == 1 else fed.label_party  # raises, with the mend
        probabilities = self.predict_proba(fed, rows=rows)
        assert self.classes_ is not None
        with fed.workers(LabelWorker, parties=[party]) as crew:
            return dict(
                crew[party].uncertainty_report(probabilities, self.classes_.tolist(), rows == party)
            )

    def _judges(self, fed: Federation, rows: str | None, against: str | None) -> list[str]:
        """Whose labels predictions of these rows are held against."""
        if rows in fed.names:
            if rows not in fed.label_parties or against not in (None, rows):
                raise DataError(
                    "alone knows these rows, so nobody else's labels say anything of them",
                    party=rows,
                    mend="predict them, or evaluate rows='aligned'",
                )
            return [str(rows)]
        if against is not None:
            return [against]
        return fed.label_parties or [fed.label_party]  # raises, with the mend

    def _against_majority(
        self, fed: Federation, holders: list[str], probabilities: np.ndarray
    ) -> dict[str, float]:
        assert self.classes_ is not None
        with self._annotators(fed, holders) as annotators:
            annotators.attach(self.classes_.tolist(), self.label_dp)
            counts = annotators.votes()
        clear = (counts == counts.max(1, keepdims=True)).sum(1) == 1
        return metrics.classification(counts[clear].argmax(1), probabilities[clear])

    def review_labels(
        self,
        *,
        parties: Sequence[str] | None = None,
        doubt: float = 0.5,
        path: str | os.PathLike[str] | None = None,
    ) -> dict[str, int | None]:
        """Send the corrected labels to the label parties, which compare their own with them.

        The comparison stays with each party (`label_review(site)` there; with `path` also a CSV
        file in its own folder). Returned is how many labels are probably wrong, None where the
        party does not tell. `doubt`: labels less probable than this are suspicious.
        """
        self._require_fit()
        asking = self.label_parties_ if parties is None else list(parties)
        wrong = [party for party in asking if party not in self.label_parties_]
        if wrong:
            raise ConfigError(
                f"{wrong[0]!r} gave no labels. Mend: some of {', '.join(self.label_parties_)}"
            )
        assert self.classes_ is not None
        with self.fed_.workers(LabelWorker, parties=asking) as crew:
            crew.review(self.posterior_.astype(np.float32), self.classes_.tolist(), doubt)
            if path is not None:
                crew.write_review(os.fspath(path))
            told = permitted(crew, asking, "suspicious")
        return {party: told.get(party) for party in asking}

    # ------------------------------------------------------------------ keeping

    def _saved_network(self, fed: Federation, saved: dict[str, Any]) -> SplitNetwork:
        self.n_rows_ = int(saved["rows"])
        if saved.get("alone"):
            party = saved["label_party"]
            return SplitNetwork(
                fed, parties=saved["parties"], label_party=party, config=self._config()
            )
        server = self._server(fed, saved["class_names"])
        return SplitNetwork(fed, parties=saved["parties"], server=server, config=self._config())

    def _save_more(self, folder: Path) -> dict[str, Any]:
        assert self.classes_ is not None
        write_file(folder / COORDINATOR / POSTERIOR, {"posterior": self.posterior_})
        heard: dict[str, Any] = {}
        if self.expertise_ is not None:
            heard = {
                "expertise": {party: matrix.tolist() for party, matrix in self.expertise_.items()},
                "standing": self.standing_,
                "evidence_error": self.evidence_error_,
            }
        return heard | {
            "rows": self.n_rows_,
            "class_names": self.classes_.tolist(),
            "label_parties": self.label_parties_,
            "votes": self.votes_,
            "agreement": vars(self.agreement_),
            "privacy": self.privacy_,
        }

    def _load_more(self, folder: Path, saved: dict[str, Any]) -> None:
        if not saved.get("alone"):
            self.posterior_ = read_file(folder / COORDINATOR / POSTERIOR)["posterior"]
        self.label_parties_ = saved["label_parties"]
        self.votes_ = saved["votes"]
        self.agreement_ = crowd.Agreement(**saved["agreement"])
        self.privacy_ = saved["privacy"]
        if "expertise" in saved:
            self.expertise_ = {
                party: np.asarray(matrix) for party, matrix in saved["expertise"].items()
            }
            self.standing_ = saved["standing"]
            self.evidence_error_ = saved["evidence_error"]
