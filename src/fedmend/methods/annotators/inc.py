"""InC, Initialisation–Correction: several parties label the same rows and all of them err.

Stage 1 trains a consensus classifier on soft labels, the shares of the parties' votes (KL, §3.3).
Stage 2 corrects the labels by EM, one step an epoch (§3.4). E: the classifier's prediction ŷ_i
and what party k's label y_i^k says by its expertise T^k[j, l] = P(says l | true class j) give

    posterior="product"   ỹ_i = softmax(log ŷ_i + Σ_k log T^k[:, y_i^k])            (default)
    posterior="row"       ỹ_i ∝ ŷ_i + Σ_k T^k[y_i^k, :]                  (as published, Eq. 4)
    posterior="bayes"     ỹ_i ∝ ŷ_i + Σ_k T^k[:, y_i^k] / Σ_j T^k[j, y_i^k]

and the classifier trains for an epoch on ỹ (or its likeliest class). M: every label party
estimates its T anew, from ỹ (product) or from ŷ (Eq. 6). The published rule reads T by rows where
its definition asks for columns, and adds probabilities where independent evidence multiplies.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from fedmend.errors import FedmendWarning, ResumeError
from fedmend.federation import COORDINATOR, Federation
from fedmend.methods.annotators import aggregation as crowd
from fedmend.methods.annotators.annotators import RULES, CrowdRoster, Labellers
from fedmend.methods.annotators.estimator import CrowdEstimator
from fedmend.methods.annotators.stages import CALM_EPOCHS, Classifier, Correction
from fedmend.split.features import ALIGNED
from fedmend.split.parts import read_file, write_file
from fedmend.split.training import Progress

logger = logging.getLogger(__name__)

CORRECTOR = ("bottom", "embedding", "top", "dropout", "conv", "missing_indicator")
"""What may differ between the network asked for and the one that corrects the labels."""


class InC(CrowdEstimator):
    """Learns from several noisy labellers, and says which labels are probably wrong.

    initial_epochs: epochs of stage 1; by default half of `epochs`.
    posterior: "product", "row" (published) or "bayes".
    targets: what stage 2 trains on, ỹ itself ("soft") or its likeliest class ("hard", published);
    by default soft with "product", and hard with the sums, whose ỹ is no sharper than the votes.
    crossfit: take ŷ of a row from a network that was not trained on it (three networks).
    corrector: shape of another network whose ŷ corrects the labels, say {"bottom": (64,),
    "embedding": 32, "top": (64,)}; the one asked for is trained beside it on what comes out.
    tolerance: correction ends once fewer labels than this share change in three epochs running;
    training goes on. 0 never ends it early.
    share_expertise: ask the label parties for their T when done.
    The other parameters are those of `CrowdEstimator`.

    Fitted: `posterior_` [n, C], `corrected_` [n], `expertise_` {party: [C, C]}, `standing_`
    (how far a party's votes are believed, and by chance), `agreement_`, `evidence_error_`,
    `privacy_`, and the other estimators' attributes.
    """

    def __init__(
        self,
        *,
        initial_epochs: int | None = None,
        posterior: str = "product",
        targets: str | None = None,
        crossfit: bool = False,
        corrector: Mapping[str, Any] | None = None,
        tolerance: float = 0.0,
        share_expertise: bool = True,
        **params: Any,
    ) -> None:
        super().__init__(**params)
        self.initial_epochs = initial_epochs
        self.posterior = posterior
        self.targets = targets
        self.crossfit = crossfit
        self.corrector = corrector
        self.tolerance = tolerance
        self.share_expertise = share_expertise

    @classmethod
    def paper(cls, model: Literal["lr", "mlp"] = "lr", **changes: Any) -> Self:
        """The published rule and settings: 50 + 50 epochs, Adam 1e-3, batches of 1 % of the rows.

        The paper does not give the networks' sizes; these come near its results.
        """
        preset: dict[str, Any] = {
            "bottom": (),
            "embedding": 16,
            "top": () if model == "lr" else (32,),
            "missing_indicator": False,
            "epochs": 100,
            "initial_epochs": 50,
            "batch_size": 0.01,
            "lr": 1e-3,
            "weight_decay": 0.0,
            "posterior": "row",
            "targets": "hard",
        }
        return cls(**preset | changes)

    # ------------------------------------------------------------------ the two stages

    def _fit_crowd(
        self,
        fed: Federation,
        roster: CrowdRoster,
        labellers: Labellers,
        counts: np.ndarray,
        rows: int,
        progress: Progress | None,
        folder: Path | None,
        resume: bool,
    ) -> None:
        if self._targets == "soft" and self.posterior != "product":
            warnings.warn(
                f"targets='soft' with posterior={self.posterior!r}: each epoch trains on labels "
                "less sharp than its own predictions, and all classes may end up alike. "
                "Mend: targets='hard', or posterior='product'",
                FedmendWarning,
                stacklevel=3,
            )
        soft = crowd.soft_labels(counts)
        correction = Correction(labellers, counts, self.posterior)
        with ExitStack() as stack:
            classifier = self._classifier(stack, fed, roster, labellers.classes, soft)
            done = 0
            if folder is not None and resume:
                done = classifier.resume(folder)
                self._resume(correction, classifier, folder, done)
            for epoch in range(done + 1, self.epochs + 1):
                facts = {"stage": 1.0 if epoch <= self._first else 2.0}
                if epoch > self._first and correction.calm < CALM_EPOCHS:
                    facts["changed"] = self._correct(correction, classifier)
                facts = classifier.epoch(epoch) | facts
                classifier.session.network.history[-1] = facts
                classifier.session.network.best_epoch = epoch
                if progress is not None:
                    stage = "initialise" if epoch <= self._first else "correct"
                    progress(stage, epoch, self.epochs, facts)
                if folder is not None:
                    self._keep(correction, folder, epoch)
                    classifier.checkpoint(folder, epoch)
            if correction.calm < CALM_EPOCHS or correction.posterior is None:
                correction.step(classifier.predicted())
            classifier.session.learn_sides()
            network = classifier.session.network
        assert correction.posterior is not None
        self.posterior_ = correction.posterior
        self._hear(labellers, self.share_expertise)
        self._adopt(fed, network)

    def _correct(self, correction: Correction, classifier: Classifier) -> float:
        """E and M, and new targets."""
        first = correction.posterior is None
        changed = correction.step(classifier.predicted())
        calm = changed < self.tolerance and not first
        correction.calm = correction.calm + 1 if calm else 0
        if correction.calm == CALM_EPOCHS:
            logger.info("correction ends: %.2g of the labels changed", changed)
        classifier.set_targets(correction.targets(self._targets))
        return changed

    @property
    def _targets(self) -> str:
        return self.targets or ("soft" if self.posterior == "product" else "hard")

    @property
    def _first(self) -> int:
        return self.epochs // 2 if self.initial_epochs is None else self.initial_epochs

    def _classifier(
        self,
        stack: ExitStack,
        fed: Federation,
        roster: CrowdRoster,
        classes: Sequence[Any],
        soft: np.ndarray,
    ) -> Classifier:
        helpers: list[np.ndarray | None] = [] if self.corrector is None else [None]
        if self.crossfit:
            known = np.flatnonzero(soft.sum(1) > 0)
            in_one = np.random.default_rng([fed.seed, self.seed, 2]).random(len(known)) < 0.5
            helpers = [known[in_one], known[~in_one]]
        members = []
        for rows, shape in [(None, {}), *((rows, self._corrector_shape) for rows in helpers)]:
            server = self._server(fed, classes, soft)
            network = self._network(fed, roster, server, len(soft))
            network.config = replace(network.config, **shape)
            session = network.session([[ALIGNED, len(soft)]], rows)
            members.append((stack.enter_context(session), server))
        return Classifier(members[0], members[1:])

    @property
    def _corrector_shape(self) -> dict[str, Any]:
        given = dict(self.corrector or {})
        return given | {key: tuple(given[key]) for key in ("bottom", "top") if key in given}

    def _labellers(self, fed: Federation, parties: list[str]) -> Labellers:
        return Labellers(
            fed,
            parties,
            secure=self.secure,
            key_holder=self.key_holder,
            rule=self.posterior,
        )

    def _problems(self) -> list[str]:
        problems = super()._problems()
        if self.posterior not in RULES:
            problems.append(f"posterior must be one of {', '.join(RULES)}, got {self.posterior!r}")
        if self.targets not in (None, "soft", "hard"):
            problems.append(f"targets must be 'soft' or 'hard', got {self.targets!r}")
        if not 0 <= self._first <= self.epochs:
            problems.append(
                f"initial_epochs must lie in 0 … epochs={self.epochs}, got {self._first}"
            )
        wrong = [key for key in self.corrector or {} if key not in CORRECTOR]
        if wrong:
            problems.append(
                f"corrector: some of {', '.join(CORRECTOR)} make its shape, got {wrong[0]!r}"
            )
        if self.tolerance < 0:
            problems.append(f"tolerance must not be negative, got {self.tolerance}")
        return problems

    # ------------------------------------------------------------------ keeping

    def _keep(self, correction: Correction, folder: Path, epoch: int) -> None:
        state = {
            "params": self._mark(),
            "posterior": correction.posterior,
            "weights": correction.weights,
            "calm": correction.calm,
        }
        write_file(folder / COORDINATOR / f"correction-{epoch}.fmw", state)
        (folder / COORDINATOR / f"correction-{epoch - 2}.fmw").unlink(missing_ok=True)

    def _resume(
        self, correction: Correction, classifier: Classifier, folder: Path, epoch: int
    ) -> None:
        """ỹ and T as they were."""
        if epoch == 0:
            return
        state = read_file(folder / COORDINATOR / f"correction-{epoch}.fmw")
        if state["params"] != self._mark():
            raise ResumeError(
                f"the checkpoint in {folder} was made with other settings: {state['params']}. "
                "Mend: resume with the same ones, or start in another folder"
            )
        correction.take_up(state["posterior"], state["weights"], int(state["calm"]))
        if correction.posterior is not None:
            classifier.set_targets(correction.targets(self._targets))

    def _mark(self) -> str:
        """The settings a resumed run must share, besides the network's."""
        names = ("posterior", "_targets", "crossfit", "tolerance", "label_dp")
        settings = [f"{name}={getattr(self, name)!r}" for name in names]
        settings += [f"corrector={self._corrector_shape!r}"] if self.corrector else []
        return ", ".join([*settings, f"initial_epochs={self._first}"])
