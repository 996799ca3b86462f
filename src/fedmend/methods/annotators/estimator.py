"""What all methods for several annotators share: secure sums over what these say, and a network.

The coordinator's half (`Annotators`), and the estimator whose top is at the server.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from fedmend._parameters import POSITIVE, Rules, one_of, parameters, wrong_values
from fedmend.errors import AlignmentError, ConfigError, DataError, FedmendWarning, Refused
from fedmend.federation import COORDINATOR, Federation, WorkerGroup, require_federation
from fedmend.federation.labels import keep_probability
from fedmend.learn import metrics
from fedmend.methods.annotators import aggregation as crowd
from fedmend.methods.annotators.worker import NARROW_RING, EvidenceForm, LabelWorker
from fedmend.methods.network import EPOCH_STEPS, RESTARTS, NetworkEstimator
from fedmend.methods.threads import on_few_threads
from fedmend.secure.sums import SumSession
from fedmend.split.config import SplitConfig
from fedmend.split.features import ALIGNED, Segments, digest_of
from fedmend.split.labels import account_of, without_response
from fedmend.split.parts import read_file, read_json, write_file, write_json
from fedmend.split.scaling import Scaling
from fedmend.split.training import (
    Progress,
    Session,
    SplitNetwork,
    collapse_in_words,
    restarted,
)
from fedmend.split.workers import CANNOT_SEAL, ServerTop

POSTERIORS = ("product", "row")
SECURE = ("he", "masks", "none")


def crowd_roster(
    fed: Federation, label_parties: Sequence[str] | None
) -> tuple[list[str], list[str]]:
    """Who holds features and who labels, as all parties tell; `label_parties` chooses."""
    facts = fed.roster
    features = [name for name, each in facts.items() if each["features"]]
    annotators = [name for name, each in facts.items() if each["labelled"]]
    if label_parties is not None:
        wrong = [name for name in label_parties if name not in annotators]
        if wrong:
            raise ConfigError(
                f"label_parties names {', '.join(map(repr, wrong))}, which have no labels. "
                f"Mend: name some of {', '.join(annotators) or '(nobody has labels)'}"
            )
        annotators = [name for name in annotators if name in set(label_parties)]
    return features, annotators


class Annotators:
    """Workers at the label parties, a session of secure sums over them, and what they say.

    with Annotators(fed, parties, secure="masks") as annotators:
        counts = annotators.votes()
        evidence = annotators.evidence(weights)
    """

    def __init__(
        self,
        fed: Federation,
        parties: Sequence[str],
        *,
        secure: str = "he",
        key_holder: str | None = None,
        rule: str = "product",
    ) -> None:
        # Among few annotators, whose sums have 16 bits, a contrast would need 32.
        if rule == "contrast" and EvidenceForm.of("product", len(parties)).span < NARROW_RING:
            rule = "product"
        if len(parties) < 2:
            raise DataError(
                f"{len(parties)} of the parties label; a sum over annotators needs two or more",
                party=parties[0] if parties else None,
                mend="fm.VFL learns from the labels of a single party",
            )
        if key_holder is not None:
            fed.require_party("key_holder", key_holder)
        self.fed = fed
        self.parties = list(parties)
        self.classes: list[Any] = []
        self.error_bound = 0.0
        self._rule = rule
        self._form = EvidenceForm.of(rule, len(parties))
        self._mode: Any = secure
        self._key_holder = key_holder

    def __enter__(self) -> Self:
        everyone = list(self.parties)
        if self._key_holder is not None and self._key_holder not in everyone:
            everyone.append(self._key_holder)
        self._workers = self.fed.workers(
            LabelWorker, parties=everyone, rule=self._rule, annotators=len(self.parties)
        )
        try:
            self._sums = SumSession(
                self._workers, mode=self._mode, parties=self.parties, key_holder=self._key_holder
            )
        except BaseException:
            self._workers.stop()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._workers.stop()

    # ------------------------------------------------------------------ set-up

    def attach(
        self,
        classes: Sequence[Any] | None = None,
        label_dp: float | None = None,
        keep: str | None = None,
    ) -> dict[str, int]:
        """Agree on the classes; returns how many rows each party labels."""
        self.classes = self._agree(classes)
        counts = {
            party: int(self._workers[party].attach(self.classes, label_dp, keep))
            for party in self.parties
        }
        if not any(counts.values()):
            raise DataError(
                "no aligned row has a label", mend="label some of the rows all parties know"
            )
        return counts

    def _agree(self, classes: Sequence[Any] | None) -> list[Any]:
        if classes is not None:
            agreed = list(dict.fromkeys(classes))
            if len(agreed) < 2:
                raise ConfigError(
                    f"classes= names fewer than two classes: {agreed}. Mend: name all there are, "
                    "or leave it out"
                )
        else:
            seen: dict[Any, str] = {}
            for party in self.parties:
                for value in self._workers[party].classes():
                    seen.setdefault(value, party)
            _check_types(seen)
            agreed = sorted(seen)
        if len(agreed) < 2:
            raise DataError(
                f"the labels of {', '.join(self.parties)} have one class only",
                value=agreed[0] if agreed else None,
                mend="name all classes in classes=, or check how the tables were read",
            )
        return agreed

    # ------------------------------------------------------------------ sums

    def votes(self) -> np.ndarray:
        """How many parties say what, row by row. **Shape** [n, C] int64."""
        return self._sums.sum("votes", between=(0, 1)).values

    def turns(self, turns: np.ndarray) -> np.ndarray:
        """The vote of the party whose turn it is, row by row (`turns` holds party numbers)."""
        for number, party in enumerate(self.parties):
            self._workers[party].take_turns(turns, number)
        return self._sums.sum("turns", between=(0, 1)).values

    def evidence(self, weights: np.ndarray | None = None) -> np.ndarray:
        """What all votes together say about each row's true class. **Shape** [n, C] float64.

        By the rule "contrast" compared with the last class, which then has 0 everywhere.
        weights: how likely each class is, by which every party first estimates its T anew.
        """
        given = None if weights is None else weights.astype(np.float32, copy=False)
        total = self._sums.sum("evidence", between=(0, self._form.span), given=given).values
        self.error_bound = self._form.error(len(self.parties))
        evidence = self._form.decode(total, len(self.parties))
        return np.pad(evidence, ((0, 0), (0, len(self.classes) - evidence.shape[1])))

    # ------------------------------------------------------------------ expertise

    def told(self, method: str) -> dict[str, Any]:
        """What the parties whose policies let it out say: "expertise" (T), "standing", …"""
        return permitted(self._workers, self.parties, method)


def orders(fed: Federation, parties: Sequence[str]) -> dict[str, str]:
    """By party, in a word, which rows are aligned and in which order; made-up ones come last."""
    with fed.workers(LabelWorker, parties=parties) as workers:
        return dict(workers.order(fed.alignment.aligned - fed.alignment.completed))


def permitted(workers: WorkerGroup, parties: Sequence[str], method: str) -> dict[str, Any]:
    """Ask each party; who refuses is left out, with a warning."""
    answers = {}
    for party in parties:
        try:
            answers[party] = getattr(workers[party], method)()
        except Refused as refusal:
            warnings.warn(str(refusal), FedmendWarning, stacklevel=4)
    return answers


def warn_if_below_chance(counts: np.ndarray) -> crowd.Agreement:
    """Parties that are right together agree more often than by chance; otherwise say so."""
    found = crowd.agreement(counts)
    if found.pairs == 0:
        warnings.warn(
            "no row has two labels, so that nothing tells good annotators from bad ones but the "
            "model itself. Mend: let some rows be labelled twice",
            FedmendWarning,
            stacklevel=4,
        )
    elif not found.beats_chance:
        warnings.warn(
            f"two labels of a row agree in {found.observed:.1%} of cases, by chance it would be "
            f"{found.chance:.1%}: together the label parties are no better than chance, and "
            "classes may come out swapped. Mend: check the parties' labels, or leave the bad ones "
            "out with label_parties=",
            FedmendWarning,
            stacklevel=4,
        )
    return found


def warn_of_inverters(
    standing: Mapping[str, Mapping[str, float]], votes: Mapping[str, int]
) -> None:
    """Name the parties whose votes are clearly less likely than random ones would be."""
    low = [
        party
        for party, found in standing.items()
        if found["believed"] < found["by_chance"] - 1.5 / np.sqrt(max(votes[party], 1))
    ]
    if low:
        warnings.warn(
            f"the labels of {', '.join(map(repr, low))} are right less often than by chance; they "
            "were used as the evidence they are, turned round. Mend: check how these parties code "
            "their classes",
            FedmendWarning,
            stacklevel=4,
        )


def least_steps(patience: int | None) -> int:
    """Of an epoch: a number of epochs that was asked for is meant as so many passes."""
    return 1 if patience is None else EPOCH_STEPS


def _check_types(seen: Mapping[Any, str]) -> None:
    text = [value for value in seen if isinstance(value, str)]
    other = [value for value in seen if not isinstance(value, str)]
    if text and other:
        raise DataError(
            f"labels are text at {seen[text[0]]!r} ({text[0]!r}) and not at {seen[other[0]]!r}",
            party=seen[other[0]],
            value=other[0],
            mend="write the classes alike at all parties",
        )


# ---------------------------------------------------------------------------------- estimator


class VotesAlone:
    """In the place of a network where there is none: it knows the rows that were voted on."""

    label_party = server = None
    task = "multiclass"
    best_epoch = 0
    privacy: dict[str, Any] | None = None

    def __init__(
        self, scope: str, classes: Sequence[Any], posterior: np.ndarray | None = None
    ) -> None:
        self.scope, self.classes = scope, list(classes)
        self.posterior = np.zeros((0, len(classes))) if posterior is None else posterior
        self.parties: list[str] = []
        self.history: list[dict[str, float]] = []
        self.notes: list[str] = []

    def predict(self, fed: Federation, segments: Segments, **_: Any) -> np.ndarray:
        if fed.scope != self.scope or segments != [[ALIGNED, len(self.posterior)]]:
            raise DataError(
                f"labels were inferred for the {len(self.posterior):,} rows of {self.scope!r} that "
                "were voted on, and without any column nothing is known of others",
                mend="predict these rows, or give a party columns to learn from",
            )
        return _filled(self.posterior)

    def save(self, path: str, member: str = "") -> None:
        """The posterior is kept with the model, and no party has a part of it."""

    def load(self, path: str, member: str = "") -> Self:
        self.posterior = read_file(Path(path) / COORDINATOR / POSTERIOR)["posterior"]
        return self


def _filled(posterior: np.ndarray) -> np.ndarray:
    """A row that nobody labelled is of the classes as they are shared."""
    silent = posterior.sum(1, keepdims=True) == 0
    return np.where(silent, crowd.class_shares(posterior), posterior)


POSTERIOR = "posterior.fmw"
HELD_OUT, JUDGES, MOST_HELD_OUT = 0.15, 100, 0.3
"""The share of rows that choose a length, at least so many rows, at most so large a share."""
LENGTH = "length.json"


class Inferred(NamedTuple):
    """What votes make of each row, all [n, C].

    targets: what a network learns. posterior: how likely each class is. evidence: the
    log-likelihood of the votes under each class, which held-out rows judge a network by.
    """

    targets: np.ndarray
    posterior: np.ndarray
    evidence: np.ndarray


RULES: Rules = {
    "secure": one_of(SECURE),
    "label_dp": ("positive or None", lambda value: value is None or value > 0),
    "batch_size": POSITIVE,
    "patience": ("at least 1 or None", lambda value: value is None or value >= 1),
}


@dataclass(frozen=True)
class Length:
    """So many epochs, after so many restarts.

    scaling: how far what is predicted is to be believed, by kind of row, as a top keeps it.
    """

    epochs: int
    restarts: int = 0
    notes: Sequence[str] = ()
    scaling: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Fitting:
    """What a training has to do with: rows and parties, votes, whom to tell, where it is kept.

    features: the parties with columns. counts: votes for each class [n, C]. resume: go on with what
    is in the folder.
    """

    fed: Federation
    features: list[str]
    annotators: Annotators
    counts: np.ndarray
    progress: Progress | None = None
    folder: Path | None = None
    resume: bool = False


@dataclass(frozen=True)
class Trial:
    """Trains on some of the rows, as often as a training collapses, to find out how long to."""

    model: CrowdEstimator
    at: Fitting
    inferred: Inferred

    def network(self, restarts: int = 0) -> SplitNetwork:
        network, _ = self.model._network(self.at, self.inferred.targets)
        network.config = restarted(network.config, restarts)
        return network

    def length(self, rows: np.ndarray, held: np.ndarray) -> Length:
        said = self.inferred.evidence[held]
        said = said - said.max(1, keepdims=True)  # so that nobody can do better than a loss of 0
        shares = crowd.class_shares(self.inferred.targets[rows])
        least = crowd.held_out_loss(np.broadcast_to(shares, said.shape), said)
        tried: list[tuple[float, int, dict[str, Any]]] = []
        while not tried or (tried[-1][0] >= least and len(tried) <= RESTARTS):
            tried.append(self._one(len(tried), rows, held, said))
        restarts, (_, epochs, scaling) = min(enumerate(tried), key=lambda each: each[1][:2])
        notes = collapse_in_words([loss >= least for loss, *_ in tried])
        return Length(epochs, restarts, notes, scaling)

    def _one(
        self, restarts: int, rows: np.ndarray, held: np.ndarray, said: np.ndarray
    ) -> tuple[float, int, dict[str, Any]]:
        """The smallest loss of the held-out rows, after how many epochs, and how far what the
        network then said of them is to be believed."""
        network, model = self.network(restarts), self.model
        best = (np.inf, 1)
        with network.session([[ALIGNED, len(self.inferred.targets)]], rows) as session:
            session.validation = held
            for epoch in range(1, model.epochs + 1):
                model._before_epoch(epoch, session, self.at.annotators)
                session.epoch(epoch)
                loss = crowd.held_out_loss(session.outputs(held), said)
                if epoch == 1 or loss < best[0]:
                    best = (loss if np.isfinite(loss) else np.inf, epoch)
                    session.bottoms.keep_best()
                    session.top.keep_best()
                if self.at.progress is not None:
                    self.at.progress("length", epoch, model.epochs, {"val_loss": loss})
                if epoch - best[1] >= (model.patience or model.epochs):
                    break
            if not (model.knows_expertise and np.isfinite(best[0])):
                return *best, {}
            session.bottoms.restore_best()
            session.top.restore_best()
            session.learn_imputation()
            session.top.likelihood = crowd.likelihood_of(self.inferred.evidence)
            session.calibrate()
            scaling = session.top.scaling
        return *best, {kind: each.to_wire() for kind, each in scaling.items()}


@parameters
class CrowdEstimator(NetworkEstimator):
    """A network trained on several parties' labels, none of which the server sees on its own.

    bottom, embedding, top …: as in the other estimators; the top is at the server.
    batch_size: rows of a batch, or a share of the training rows if below 1.
    epochs: at most so many; 0 infers labels and trains nothing, where votes will do (`EM`, `MJ`).
    patience: epochs in which held-out rows are not predicted better, before the number of epochs is
    settled; the network is then trained on all rows for as long. None trains for all `epochs`.
    secure: how votes are added up: "masks", "he" (as published; the server learns the same, at
    several times the cost), or "none" (simulation: needs policies that let labels out).
    key_holder: for "he", the party with the key; by default the first annotator.
    label_dp: epsilon of randomised response at every label party, or None.
    label_parties: whose labels count; by default those of all parties that have some.
    classes: all classes, when some of them may have no vote; by default those voted for.
    seal: None or False; the server reads embeddings, so that they cannot be sealed.
    """

    takes_reference: ClassVar[bool] = True
    infers: ClassVar[bool] = False
    """Whether labels come of the votes alone, so that there need not be a network."""
    knows_expertise: ClassVar[bool] = False
    """Whether it is estimated how often which annotator errs, so that votes can be held against
    what is predicted; an error that is taken for the truth makes good predictions look unsure."""
    _rules: ClassVar[Rules] = {}
    """What the method's own parameters must be."""

    bottom: tuple[int, ...] = (64,)
    embedding: int = 32
    top: tuple[int, ...] = (64,)
    conv: str = "cnn"
    epochs: int = 100
    patience: int | None = 5
    batch_size: float = 64
    optimizer: str = "adam"
    lr: float = 1e-3
    weight_decay: float = 1e-4
    seed: int = 0
    secure: str = "masks"
    key_holder: str | None = None
    label_dp: float | None = None
    label_parties: Sequence[str] | None = None
    classes: Sequence[Any] | None = None
    seal: bool | None = None

    # ------------------------------------------------------------------ fitting

    @on_few_threads
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
        features, parties = crowd_roster(fed, self.label_parties)
        if not features and not self.infers:
            raise DataError(
                "no party has a feature column",
                mend="add a party with columns to use; fm.EM and fm.MJ do with votes alone",
            )
        folder = None if checkpoint is None else Path(checkpoint)
        # Half of another fit would be sent to the parties of this one as its corrected labels.
        with self._or_as_before():
            self.n_rows_, self.orders_ = fed.alignment.aligned, orders(fed, parties)
            with self._annotators(fed, parties) as annotators:
                keep = None if folder is None else str(folder)
                self.votes_ = annotators.attach(self.classes, self.label_dp, keep)
                counts = annotators.votes()
                self.label_parties_ = parties
                self.agreement_ = warn_if_below_chance(counts)
                at = Fitting(fed, features, annotators, counts, progress, folder, resume)
                self._fit_crowd(at)
                self.privacy_ = self._account(annotators)
        return self

    def _fit_crowd(self, at: Fitting) -> None:
        """Infer labels first, then train on them (the baselines' way)."""
        inferred = self._inferred(at.annotators, at.counts)
        self.posterior_ = inferred.posterior
        if not at.features or not self.epochs:
            alone: Any = VotesAlone(at.fed.scope, at.annotators.classes, self.posterior_)
            self._adopt(at.fed, alone)
            return
        self._train(at, inferred)

    def _train(self, at: Fitting, inferred: Inferred) -> None:
        """A network that learns the targets, for as long as held-out rows say."""
        trial, folder = Trial(self, at, inferred), at.folder
        length = self._length(trial)
        if folder is not None:
            write_json(folder / COORDINATOR / LENGTH, asdict(length))
        network = trial.network(length.restarts)
        with network.session([[ALIGNED, len(inferred.targets)]]) as session:
            epoch = session.resume(folder) if folder is not None and at.resume else 0
            for number in range(epoch + 1, length.epochs + 1):
                self._before_epoch(number, session, at.annotators)
                session.epoch(number)
                network.best_epoch = number
                if at.progress is not None:
                    at.progress("train", number, length.epochs, network.history[-1])
                if folder is not None:
                    session.checkpoint(folder, number)
            session.learn_imputation()
            session.top.scaling.update(
                {kind: Scaling.from_wire(each) for kind, each in length.scaling.items()}
            )
        network.notes = list(length.notes)
        self._adopt(at.fed, network)

    def _length(self, trial: Trial) -> Length:
        """How long to train, by rows that were held out; all `epochs` where none can be."""
        at = trial.at
        kept = at.folder if at.resume else None
        if self.patience is None:
            return Length(self.epochs)
        if kept is not None and (kept / COORDINATOR / LENGTH).is_file():
            return Length(**read_json(kept / COORDINATOR / LENGTH, "the length"))
        voted = np.flatnonzero(trial.inferred.targets.sum(1) > 0)
        share = min(MOST_HELD_OUT, max(HELD_OUT, JUDGES / len(voted)))
        held = int(share * len(voted))
        if held < 2:
            return Length(self.epochs)
        order = np.random.default_rng([at.fed.seed, self.seed, 4]).permutation(voted)
        return trial.length(order[held:], order[:held])

    def _inferred(self, annotators: Annotators, counts: np.ndarray) -> Inferred:
        raise NotImplementedError(f"{type(self).__name__} infers no labels")

    def _before_epoch(self, epoch: int, session: Session, annotators: Annotators) -> None:
        """Change the targets for one epoch, if the method does that."""

    def _annotators(self, fed: Federation, parties: list[str]) -> Annotators:
        how: dict[str, Any] = {"secure": self.secure, "key_holder": self.key_holder}
        return Annotators(fed, parties, **how, rule="contrast")

    def _network(self, at: Fitting, targets: np.ndarray) -> tuple[SplitNetwork, ServerTop]:
        server = self._server(at.fed, at.annotators.classes, targets)
        network = SplitNetwork(at.fed, parties=at.features, server=server, config=self._config())
        network.votes = digest_of(at.counts)
        return network, server

    def _server(
        self, fed: Federation, classes: Sequence[Any], targets: np.ndarray | None = None
    ) -> ServerTop:
        return ServerTop(
            classes, targets=targets, device=fed.device, seed=fed.seed, own_seed=fed.own_seed
        )

    def _config(self) -> SplitConfig:
        batch = self.batch_size
        params = self.get_params() | ({"epochs": 1} if self.infers and not self.epochs else {})
        params["epoch_steps"] = least_steps(self.patience)
        if batch < 1:
            batch = max(1, int(batch * getattr(self, "n_rows_", 0)))
        return SplitConfig.of(
            params | {"batch_size": int(batch)},
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
        return wrong_values(self, {**RULES, **self._rules}) + ([CANNOT_SEAL] if self.seal else [])

    def _account(self, annotators: Annotators) -> dict[str, Any] | None:
        """Under label_dp: epsilon for each label, kept probability, spent by each party so far."""
        if self.label_dp is None:
            return None
        accounts = {party: each for party, each in annotators.told("epsilon_spent").items() if each}
        if accounts:
            return account_of(accounts)
        kept = keep_probability(self.label_dp, len(annotators.classes))
        return {"epsilon": self.label_dp, "kept": kept, "spent": {}, "new": {}}

    def _hear(self, annotators: Annotators, share_expertise: bool) -> None:
        """What the parties tell in the end, where T was estimated."""
        self.evidence_error_ = annotators.error_bound
        self.expertise_ = {}
        if share_expertise:
            self.expertise_ = annotators.told("expertise")
            if self.label_dp is not None:
                self.expertise_ = {
                    party: without_response(matrix, self.label_dp)
                    for party, matrix in self.expertise_.items()
                }
        self.standing_ = annotators.told("standing")
        warn_of_inverters(self.standing_, self.votes_)

    # ------------------------------------------------------------------ using

    def learnt_from(self, fed: Federation) -> list[str]:
        return list(self.label_parties_)

    @property
    def corrected_(self) -> np.ndarray:
        """The likeliest class of every training row, in the common order."""
        return self.classes_[_filled(self.posterior_).argmax(1)]

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
        return self._told_by(fed, holders[0], "metrics", probabilities, rows)

    def uncertainty_report(
        self, fed: Federation, *, rows: str | None = None, against: str | None = None
    ) -> dict[str, Any]:
        """As of other methods, against the labels of one party, computed there."""
        holders = self._judges(fed, rows, against)
        if len(holders) > 1:
            raise DataError(
                f"several parties have labels: {', '.join(holders)}",
                mend="name the one to judge by: against=…",
            )
        probabilities = self.predict_proba(fed, rows=rows)
        return self._told_by(fed, holders[0], "uncertainty_report", probabilities, rows)

    def _told_by(
        self, fed: Federation, party: str, what: str, probabilities: np.ndarray, rows: str | None
    ) -> dict[str, Any]:
        with fed.workers(LabelWorker, parties=[party]) as group:
            ask = getattr(group[party], what)
            return dict(ask(probabilities, self.classes_.tolist(), rows == party))

    def require_order(self, fed: Federation, parties: Sequence[str]) -> None:
        """That labels would come to the rows they were learnt for: that nothing was aligned anew.

        Models of earlier versions do not know.
        """
        known = {party: self.orders_[party] for party in parties if party in self.orders_}
        changed = [party for party, now in orders(fed, [*known]).items() if now != known[party]]
        if changed:
            raise AlignmentError(
                f"party {changed[0]!r}: the aligned rows are others, or in another order, than "
                f"when {type(self).__name__} learnt their labels. Mend: fit it again after "
                "fm.align, or give the federation that it was fitted on"
            )

    def _ready(
        self, fed: Federation, rows: str | None
    ) -> tuple[SplitNetwork, list[list[object]], bool]:
        found = super()._ready(fed, rows)
        if isinstance(self.network_, VotesAlone) and fed.scope == self.network_.scope:
            self.require_order(fed, self.label_parties_)
        return found

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
        self.require_order(self.fed_, asking)
        with self.fed_.workers(LabelWorker, parties=asking) as workers:
            posterior = _filled(self.posterior_).astype(np.float32)
            workers.review(posterior, self.classes_.tolist(), doubt)
            if path is not None:
                workers.write_review(os.fspath(path))
            told = permitted(workers, asking, "suspicious")
        return {party: told.get(party) for party in asking}

    # ------------------------------------------------------------------ keeping

    def _saved_network(self, fed: Federation, saved: dict[str, Any]) -> Any:
        self.n_rows_ = int(saved["rows"])
        if "votes_of" in saved:
            return VotesAlone(saved["votes_of"], saved["class_names"])
        if saved.get("alone"):
            party = saved["label_party"]
            return SplitNetwork(
                fed, parties=saved["parties"], label_party=party, config=self._config()
            )
        server = self._server(fed, saved["class_names"])
        return SplitNetwork(fed, parties=saved["parties"], server=server, config=self._config())

    def _save_more(self, folder: Path) -> dict[str, Any]:
        write_file(folder / COORDINATOR / POSTERIOR, {"posterior": self.posterior_})
        heard: dict[str, Any] = {}
        if self.expertise_ is not None:
            heard = {
                "expertise": {party: matrix.tolist() for party, matrix in self.expertise_.items()},
                "standing": self.standing_,
                "evidence_error": self.evidence_error_,
            }
        if isinstance(self.network_, VotesAlone):
            heard["votes_of"] = self.network_.scope
        return heard | {
            "rows": self.n_rows_,
            "class_names": self.classes_.tolist(),
            "label_parties": self.label_parties_,
            "orders": self.orders_,
            "votes": self.votes_,
            "agreement": vars(self.agreement_),
            "privacy": self.privacy_,
        }

    def _load_more(self, folder: Path, saved: dict[str, Any]) -> None:
        if not saved.get("alone"):
            self.posterior_ = read_file(folder / COORDINATOR / POSTERIOR)["posterior"]
        self.label_parties_ = saved["label_parties"]
        self.orders_ = saved.get("orders", {})
        self.votes_ = saved["votes"]
        self.agreement_ = crowd.Agreement(**saved["agreement"])
        self.privacy_ = saved["privacy"]
        if "expertise" in saved:
            self.expertise_ = {
                party: np.asarray(matrix) for party, matrix in saved["expertise"].items()
            }
            self.standing_ = saved["standing"]
            self.evidence_error_ = saved["evidence_error"]
