"""InC, Initialisation–Correction: several parties label the same rows and all of them err.

Stage 1 trains a consensus classifier on soft labels, the shares of the parties' votes (KL, §3.3).
Stage 2 corrects the labels by EM, one step an epoch (§3.4). E: the classifier's prediction ŷ_i
and what party k's label y_i^k says by its expertise T^k[j, l] = P(says l | true class j) give

    posterior="product"   ỹ_i = softmax(log ŷ_i + Σ_k log T^k[:, y_i^k])            (default)
    posterior="row"       ỹ_i ∝ ŷ_i + Σ_k T^k[y_i^k, :]                  (as published, Eq. 4)

and the classifier trains for an epoch on ỹ (or its likeliest class). M: every label party
estimates its T anew, from ỹ (product) or from ŷ (Eq. 6). The published rule reads T by rows where
its definition asks for columns, and adds probabilities where independent evidence multiplies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch

from fedmend._parameters import Rules, one_of, parameters
from fedmend.errors import ResumeError
from fedmend.federation import COORDINATOR, Federation
from fedmend.federation.bound import but, declare
from fedmend.methods.annotators import aggregation as crowd
from fedmend.methods.annotators.estimator import (
    POSTERIORS,
    Annotators,
    CrowdEstimator,
    Fitting,
    Inferred,
)
from fedmend.methods.annotators.worker import LabelWorker
from fedmend.split.features import ALIGNED, digest_of
from fedmend.split.parts import read_file, write_file
from fedmend.split.training import Session
from fedmend.split.workers import BottomWorker, ServerTop

__all__ = ["InC"]

CORRECTOR = ("bottom", "embedding", "top", "conv")
"""What may differ between the network asked for and the one that corrects the labels."""
PAPER: dict[str, Any] = {
    "bottom": (),
    "embedding": 16,
    "top": (),
    "epochs": 100,
    "initial_epochs": 0.5,
    "batch_size": 0.01,
    "lr": 1e-3,
    "weight_decay": 0.0,
    "patience": None,
    "crossfit": False,
    "posterior": "row",
    "secure": "he",
}
"""50 + 50 epochs, Adam 1e-3, batches of 1 % of the rows. The paper does not give the networks'
sizes; these come near its results."""
CORRECTED = "corrected.fmw"
INITIAL_EPOCHS, CHOSEN_START = 10, 3
"""Of stage 1, at most: with a fixed length, and where held-out votes choose it. Networks that have
not seen a row are more sure of it than they should be after few epochs already."""
PREDICT_ROWS = 1 << 15
LEAST_PROBABILITY = 1e-6
"""Below this a network's probability is rounding, not evidence."""


@dataclass
class Correction:
    """Stage 2's EM, at the server: holds ŷ's successor ỹ and never a single vote.

    counts: votes for each class [n, C]. start: labels to begin with, if not the votes; ŷ is then
    believed as far as it explains the votes (`aggregation.believed`). posterior: ỹ, None before the
    first step. labels: its likeliest classes, those of the votes before. losses: how well the votes
    on each row were explained by what was predicted of it.
    """

    annotators: Annotators
    counts: np.ndarray
    rule: str
    start: np.ndarray | None = None
    posterior: np.ndarray | None = None
    weights: np.ndarray | None = None

    def __post_init__(self) -> None:
        self.labels, self.losses = self.counts.argmax(1), np.zeros(0)

    def step(self, predicted: np.ndarray) -> dict[str, float]:
        """One M- and E-step: the share of corrected labels that changed, and how well the votes
        are explained by what was predicted (`aggregation.held_out_loss`).
        """
        weights = self._weights(predicted)
        self.weights = weights
        evidence = self.annotators.evidence(weights)
        if self.start is not None and weights is not None:
            predicted = crowd.believed(predicted, evidence, crowd.class_shares(weights))
        if self.rule == "product":
            # float32 holds a log-probability to 2^-19, finer than the fixed point it came in.
            updated = crowd.combine(_log(predicted), evidence.astype(np.float32, copy=False))
        else:
            updated = predicted + evidence
            updated /= updated.sum(1, keepdims=True)
        before = self.labels
        self.posterior, self.labels = updated, updated.argmax(1)
        facts = {"changed": float((before != self.labels).mean())}
        if self.rule == "product":
            self.losses = crowd.held_out_losses(predicted, evidence)
            facts["votes_loss"] = float(self.losses.mean())
        return facts

    def _weights(self, predicted: np.ndarray) -> np.ndarray | None:
        """What the M-step counts rows by; None leaves T as it is (identity, at first)."""
        if self.rule != "product":
            return None if self.posterior is None else predicted
        if self.posterior is not None:
            return self.posterior
        if self.start is not None:
            return self.start
        return (predicted + self.counts) / (1 + self.counts.sum(1, keepdims=True))

    def targets(self) -> np.ndarray:
        """What the classifier learns next: ỹ, or where it is a sum its likeliest class."""
        assert self.posterior is not None
        return self.posterior if self.rule == "product" else crowd.hardened(self.posterior)

    def take_up(self, posterior: np.ndarray | None, weights: np.ndarray | None) -> None:
        """Go on from what was kept; T follows from the weights it was last estimated with."""
        self.posterior, self.weights = posterior, weights
        if weights is not None:
            self.annotators.evidence(weights)  # known already; asked for so that T is estimated
        if posterior is not None:
            self.labels = posterior.argmax(1)


@dataclass
class Best:
    """What explained the votes best so far: its losses row by row, after which epoch, and its ỹ."""

    losses: np.ndarray | None = None
    epoch: int = 0
    posterior: np.ndarray | None = None

    def hear(self, correction: Correction, epoch: int) -> None:
        least = np.inf if self.losses is None else self.losses.mean()
        if correction.losses.mean() < least:
            self.losses, self.epoch = correction.losses, epoch
            self.posterior = correction.posterior


class Classifier:
    """The network under training, and those whose ŷ corrects the labels if that is not it.

    One helper is a corrector of another shape. Two see half of the rows each (crossfit), and ŷ of
    a row comes from the one that was not trained on it.
    """

    def __init__(
        self,
        main: tuple[Session, ServerTop] | None,
        helpers: Sequence[tuple[Session, ServerTop]] = (),
    ) -> None:
        self._all = [*helpers] if main is None else [main, *helpers]
        self._asked = [session for session, _ in helpers or self._all]
        self.session = self._all[0][0]

    def epoch(self, number: int) -> dict[str, float]:
        for session, _ in reversed(self._all):
            session.epoch(number)
        return self.session.network.history[-1]

    def set_targets(self, targets: np.ndarray) -> None:
        for _, server in self._all:
            server.set_targets(targets)

    def predicted(self) -> np.ndarray:
        """ŷ of all rows."""
        one, two = self._asked[0], self._asked[-1]
        outputs = _outputs(one, one.all_rows)
        if one is two:
            return outputs
        seen = np.unique(one.train)
        outputs[seen] = _outputs(two, seen)
        return outputs

    def checkpoint(self, folder: Path, epoch: int) -> None:
        for number, (session, _) in reversed(list(enumerate(self._all))):
            session.checkpoint(_part(folder, number), epoch)

    def resume(self, folder: Path) -> int:
        epoch = self.session.resume(folder)
        if epoch:
            for number, (session, _) in enumerate(self._all[1:], 1):
                session.resume(_part(folder, number), epoch)
        return epoch


def _log(predicted: np.ndarray) -> np.ndarray:
    return torch.from_numpy(predicted).float().clamp_min(LEAST_PROBABILITY).log_().numpy()


def _outputs(session: Session, rows: np.ndarray) -> np.ndarray:
    """As `session.outputs`, in larger pieces: this is asked for in every epoch."""
    for at in range(0, len(rows), PREDICT_ROWS):
        chunk = rows[at : at + PREDICT_ROWS]
        session.top.predict_chunk(chunk, session.bottoms.embed(chunk))
    return session.top.predictions()


def _part(folder: Path, number: int) -> Path:
    return folder if number == 0 else folder / f"helper-{number}"


@parameters
class InC(CrowdEstimator):
    """Learns from several noisy annotators, and says which labels are probably wrong.

    initial_epochs: epochs of stage 1, or their share of `epochs` below 1; by default half of them,
    at most 3, or 10 where the length is fixed.
    posterior: "product", or "row" (published). Stage 2 trains on ỹ itself with "product", and on
    its likeliest class with the sum, whose ỹ is no sharper than the votes (published).
    crossfit: take ŷ of a row from one of two networks, the one that was not trained on it. With the
    product and `patience` they begin with Dawid–Skene's labels and correct them until they explain
    the votes no better; a network of its own then learns what came out, as the baselines' do.
    corrector: shape of another network whose ŷ corrects the labels, say {"bottom": (64,),
    "embedding": 32, "top": (64,)}; the one asked for is trained beside it on what comes out.
    share_expertise: ask the label parties for their T when done.
    The other parameters are those of `CrowdEstimator`.

    Fitted: `posterior_` [n, C], `corrected_` [n], `expertise_` {party: [C, C]}, `standing_`
    (how likely a party's votes are, and by chance), `agreement_`, `evidence_error_`,
    `privacy_`, and the other estimators' attributes.
    """

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": PAPER,
        "paper-mlp": {**PAPER, "top": (32,)},
    }
    _rules: ClassVar[Rules] = {"posterior": one_of(POSTERIORS)}
    knows_expertise: ClassVar[bool] = True

    epochs: int = 40
    batch_size: float = 256
    initial_epochs: float | None = None
    posterior: str = "product"
    crossfit: bool = True
    corrector: Mapping[str, Any] | None = None
    share_expertise: bool = True

    @classmethod
    def paper(cls, model: Literal["lr", "mlp"] = "lr", **changes: Any) -> Self:
        """The published rule and settings, with a linear network or one hidden layer."""
        return cls.preset("paper" if model == "lr" else "paper-mlp", **changes)

    # ------------------------------------------------------------------ the two stages

    def _fit_crowd(self, at: Fitting) -> None:
        if self._chooses:
            inferred, before = self._inferred_by_columns(at)
            self.posterior_ = inferred.posterior
            self._hear(at.annotators, self.share_expertise)
            self._train(at, inferred)
            self.history_ = [*before, *self.history_]
            return
        correction = Correction(at.annotators, at.counts, self.posterior)
        with ExitStack() as stack:
            classifier = self._classifier(stack, at, crowd.soft_labels(at.counts))
            self._correct(correction, classifier, at)
            classifier.session.learn_imputation()
            network = classifier.session.network
        assert correction.posterior is not None
        self.posterior_ = correction.posterior
        self._hear(at.annotators, self.share_expertise)
        self._adopt(at.fed, network)

    def _inferred_by_columns(self, at: Fitting) -> tuple[Inferred, list[dict[str, float]]]:
        """From Dawid–Skene's labels on, what networks that have not seen a row say of it, too.

        Where their predictions do not explain the votes better than the shares of the classes do,
        by more than a standard error, Dawid–Skene's labels stay.
        """
        annotators, counts = at.annotators, at.counts
        kept = None if at.folder is None else at.folder / COORDINATOR / CORRECTED
        if kept is not None and at.resume and kept.is_file():
            state = read_file(kept)
            if state.get("votes") != digest_of(counts):
                raise ResumeError(
                    f"the checkpoint in {at.folder} was made with other votes, or by an earlier "
                    "version. Mend: resume with the same ones, or start in another folder"
                )
            annotators.evidence(state["posterior"])  # as it was, for T
            return Inferred(**{name: state[name] for name in Inferred._fields}), state["history"]
        known = counts.sum(1, keepdims=True) > 0
        votes_alone, evidence, _ = crowd.dawid_skene(counts, annotators.evidence)
        shares = crowd.class_shares(votes_alone * known)
        plain = crowd.held_out_losses(np.broadcast_to(shares, counts.shape), evidence)
        correction = Correction(annotators, counts, self.posterior, votes_alone * known)
        with ExitStack() as stack:
            classifier = self._classifier(stack, at, votes_alone * known)
            apart = None if at.folder is None else at.folder / "correction"
            best = self._correct(correction, classifier, replace(at, folder=apart))
            history = list(classifier.session.network.history)
        posterior = votes_alone
        if best.losses is not None and crowd.clearly_less(best.losses, than=plain):
            assert best.posterior is not None
            posterior = best.posterior
        found = Inferred(posterior * known, posterior, annotators.evidence(posterior))
        if kept is not None:
            facts = {"history": history, "votes": digest_of(counts)}
            write_file(kept, found._asdict() | facts)
        return found, history

    def _correct(self, correction: Correction, classifier: Classifier, at: Fitting) -> Best:
        """Both stages; where a length is chosen, what explained the votes best."""
        best, done, folder = Best(), 0, at.folder
        if folder is not None and at.resume:
            done = classifier.resume(folder)
            best = self._resume(correction, classifier, folder, done)
        for epoch in range(done + 1, self.epochs + 1):
            facts = {"stage": 1.0 if epoch <= self._first else 2.0}
            if epoch > self._first:
                facts |= correction.step(classifier.predicted())
                classifier.set_targets(correction.targets())
                if self._chooses:
                    best.hear(correction, epoch - 1)
                    if epoch - 1 - best.epoch >= (self.patience or self.epochs):
                        return best
            facts = classifier.epoch(epoch) | facts
            classifier.session.network.history[-1] = facts
            classifier.session.network.best_epoch = epoch
            if at.progress is not None:
                stage = "initialise" if epoch <= self._first else "correct"
                at.progress(stage, epoch, self.epochs, facts)
            if folder is not None:
                self._keep(correction, best, folder, epoch)
                classifier.checkpoint(folder, epoch)
        correction.step(classifier.predicted())
        if self._chooses:
            best.hear(correction, self.epochs)
        return best

    @property
    def _first(self) -> int:
        if self.initial_epochs is None:
            return min(CHOSEN_START if self._chooses else INITIAL_EPOCHS, self.epochs // 2)
        share = 0 < self.initial_epochs < 1
        return int(self.initial_epochs * self.epochs if share else self.initial_epochs)

    @property
    def _chooses(self) -> bool:
        """Whether predictions by networks that have not seen a row choose the length."""
        return self.crossfit and self.patience is not None and self.posterior == "product"

    def _classifier(self, stack: ExitStack, at: Fitting, soft: np.ndarray) -> Classifier:
        helpers: list[np.ndarray | None] = [] if self.corrector is None else [None]
        if self.crossfit:
            known = np.flatnonzero(soft.sum(1) > 0)
            in_one = np.random.default_rng([at.fed.seed, self.seed, 2]).random(len(known)) < 0.5
            helpers = [known[in_one], known[~in_one]]
        networks = []
        main: list[tuple[np.ndarray | None, dict[str, Any]]] = [] if self._chooses else [(None, {})]
        for rows, shape in [*main, *((rows, self._corrector_shape) for rows in helpers)]:
            network, server = self._network(at, soft)
            network.config = replace(network.config, **shape)
            session = network.session([[ALIGNED, len(soft)]], rows)
            networks.append((stack.enter_context(session), server))
        if self._chooses:
            return Classifier(None, networks)
        return Classifier(networks[0], networks[1:])

    @property
    def _corrector_shape(self) -> dict[str, Any]:
        given = dict(self.corrector or {})
        return given | {key: tuple(given[key]) for key in ("bottom", "top") if key in given}

    def _annotators(self, fed: Federation, parties: list[str]) -> Annotators:
        options = {"secure": self.secure, "key_holder": self.key_holder, "rule": self.posterior}
        return Annotators(fed, parties, **options)  # type: ignore[arg-type]

    def _problems(self) -> list[str]:
        problems = super()._problems()
        given = self.initial_epochs
        if given is not None and not (0 <= given < 1 or given in range(self.epochs + 1)):
            problems.append(
                f"initial_epochs must be in 0 … epochs={self.epochs}, or a share below 1, got "
                f"{given}. Mend: initial_epochs = 0.5 goes with any length"
            )
        wrong = [key for key in self.corrector or {} if key not in CORRECTOR]
        if wrong:
            problems.append(
                f"corrector: some of {', '.join(CORRECTOR)} make its shape, got {wrong[0]!r}"
            )
        return problems

    # ------------------------------------------------------------------ keeping

    def _keep(self, correction: Correction, best: Best, folder: Path, epoch: int) -> None:
        state = {
            "best": [best.losses, best.epoch, best.posterior],
            "params": self._mark(),
            "posterior": correction.posterior,
            "weights": correction.weights,
        }
        write_file(folder / COORDINATOR / f"correction-{epoch}.fmw", state)
        (folder / COORDINATOR / f"correction-{epoch - 2}.fmw").unlink(missing_ok=True)

    def _resume(
        self, correction: Correction, classifier: Classifier, folder: Path, epoch: int
    ) -> Best:
        """ỹ and T as they were."""
        if epoch == 0:
            return Best()
        state = read_file(folder / COORDINATOR / f"correction-{epoch}.fmw")
        if state["params"] != self._mark():
            raise ResumeError(
                f"the checkpoint in {folder} was made with other settings: {state['params']}. "
                "Mend: resume with the same ones, or start in another folder"
            )
        correction.take_up(state["posterior"], state["weights"])
        if correction.posterior is not None:
            classifier.set_targets(correction.targets())
        return Best(*state["best"])

    def _mark(self) -> str:
        """The settings a resumed run must share, besides the network's."""
        names = ("posterior", "crossfit", "patience", "label_dp")
        settings = [f"{name}={getattr(self, name)!r}" for name in names]
        settings += [f"corrector={self._corrector_shape!r}"] if self.corrector else []
        return ", ".join([*settings, f"initial_epochs={self._first}"])


declare("inc", BottomWorker, but(LabelWorker, "take_turns"), reader=True)
