"""What a party knows of its labels and completed cells, where they are not simply true.

A method that corrects labels leaves with each row how likely what was said of it is, were the row
of each class. Training makes the sayings likely, not the one corrected label: with p the model's
probabilities and L these likelihoods a row's loss is -log sum p_y L_y. A row that all agree on
counts as an ordinary label does, one of which nobody is sure says little, and what the columns say
of the label is left to the model that is trained to find out. (A corrected probability already
contains what the columns of those who corrected say; a model that learns it learns their model.)
One label that is certain is L = 1 for its class and 0 for others, and the loss is cross-entropy.

Labels that are known through randomised response (`federation.labels`) have such likelihoods too:
their noise is known, so the loss is that of what was reported (forward correction), expertise is
read through it, and scores are estimates of those by true labels (`learn.metrics`).

A method that completes rows leaves with each cell how far it deserves trust.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedmend.data.encode import LabelEncoder
from fedmend.data.table import Table
from fedmend.errors import DataError, PrivacyWarning
from fedmend.federation.labels import Noise, relabelled, respond, response_matrix
from fedmend.federation.site import Site

_LABELS = "learn.label_belief"
_CELLS = "learn.cell_confidence"


# ---------------------------------------------------------------------------------- labels


@dataclass(frozen=True)
class LabelLikelihood:
    """How likely what is said of each row is under each class, up to a factor of the row's own.

    **Shape** likelihood [rows of the table, classes].
    """

    classes: tuple[Any, ...]
    likelihood: np.ndarray

    def of(self, classes: Sequence[Any]) -> np.ndarray:
        """For a model of these classes, the largest of each row 1. **Shape** [rows, classes].

        Of a row that belongs to none of them nothing is known.
        """
        place = {value: number for number, value in enumerate(self.classes)}
        found = np.zeros((len(self.likelihood), len(classes)))
        for number, value in enumerate(classes):
            if value in place:
                found[:, number] = self.likelihood[:, place[value]]
        largest = found.max(1, keepdims=True)
        return np.where(largest > 0, found / np.where(largest > 0, largest, 1.0), 1.0)


def keep_likelihood(site: Site, dataset: str, found: LabelLikelihood) -> None:
    """At the party: note how likely the labels of a table are under each class."""
    site.labels.corrected(dataset)
    site.state.setdefault(_LABELS, {})[dataset] = found


def label_likelihood(site: Site, dataset: str) -> LabelLikelihood | None:
    """At the party: what was noted of a corrected table's labels; None for other tables."""
    found = site.state.get(_LABELS, {}).get(dataset)
    return found if isinstance(found, LabelLikelihood) else None


def label_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """The loss of each row: of class numbers [n], or of likelihoods [n, C]. **Shape** [n].

    >>> logits = torch.tensor([[0.0, 0.0], [0.0, 0.0]])
    >>> label_loss(logits, torch.tensor([[0.0, 1.0], [1.0, 1.0]])).exp()
    tensor([2., 1.])
    """
    if not targets.is_floating_point():
        return torch.nn.functional.cross_entropy(logits, targets, reduction="none")
    return -(logits.log_softmax(-1) + targets.log()).logsumexp(-1)


def shares_of(targets: Tensor, classes: int) -> Tensor:
    """The shares of classes among targets, numbers [n] or likelihoods [n, C]. **Shape** [C]."""
    if targets.is_floating_point():
        return (targets / targets.sum(1, keepdim=True)).double().mean(0)
    return torch.bincount(targets, minlength=classes).double() / max(1, len(targets))


def expected(log_p: Tensor, likelihood: Tensor) -> Tensor:
    """What a row's class is, given the model and what was said: p L over its sum. [..., C]

    Cross-entropy with these as fixed targets has the gradient of `label_loss` (the E of EM).
    """
    return (log_p + likelihood.log()).softmax(-1)


# ---------------------------------------------------------------------------------- cells


def keep_confidence(site: Site, dataset: str, confidence: Mapping[str, np.ndarray]) -> None:
    """At the party: note how far each cell of a table is trusted, per column **Shape** [rows]."""
    site.state.setdefault(_CELLS, {})[dataset] = dict(confidence)


def cell_confidence(site: Site, dataset: str) -> dict[str, np.ndarray] | None:
    """At the party: per column of a completed table how far each cell is trusted, 0 to 1.

    **Shape** [rows of the table] each; 1 where the value was observed, 0 where there is none or
    where it says nothing about the row. None for tables without completed rows.
    """
    found = site.state.get(_CELLS, {}).get(dataset)
    return None if found is None else dict(found)


def row_confidence(site: Site, dataset: str) -> np.ndarray | None:
    """The mean of `cell_confidence` over the columns. **Shape** [rows of the table]."""
    cells = cell_confidence(site, dataset)
    return np.mean(list(cells.values()), axis=0) if cells else None


# ---------------------------------------------------------------------------------- reported labels


def without_response(matrix: np.ndarray, epsilon: float) -> np.ndarray:
    """The party's own expertise, from one that was estimated through randomised response."""
    own = matrix @ np.linalg.inv(response_matrix(epsilon, len(matrix)))
    own = np.clip(own, 0.0, None)
    return own / own.sum(1, keepdims=True)


def with_reported_labels(table: Table, epsilon: float, party: str | None = None) -> Table:
    """The table with every label drawn through randomised response, for a party that acts alone.

    Whatever is trained on it, and whatever anybody infers from that, is ε-differentially private
    in each label. Draw once and keep the table: another draw of the same labels costs ε again.
    """
    encoder = _classes_of(table, "auto", party)
    reported = respond(encoder.transform(table.y, party=party), epsilon, len(encoder.classes_))
    return relabelled(table, str(table.label), encoder.classes_, reported)


def _classes_of(table: Table, task: str, party: str | None) -> LabelEncoder:
    if table.label is None:
        raise DataError("there is no label column", party=party, mend="fm.read(path, label=…)")
    encoder = LabelEncoder(task).fit(table.y, table.schema[table.label], party=party)
    if encoder.task == "regression":
        raise DataError(
            "randomised response is for classes, and the label is a number",
            party=party,
            column=table.label,
            mend="cut the numbers into classes first, or leave label_dp out",
        )
    return encoder


def ask_for_noise(
    site: Site,
    scope: str,
    epsilon: float,
    *,
    by: str,
    task: str = "auto",
    classes: Sequence[Any] | None = None,
    folder: str | None = None,
) -> dict[str, float]:
    """At the party: from now on its labels are known through randomised response; the account.

    classes: all there are, where a party may have some of them only. folder: where draws are kept
    at a party without a folder of its own.
    """
    dataset = scope.partition("@")[0]
    site.table_of(scope)  # raises where there is no such table
    table = site.tables[dataset]
    if classes is None:  # which classes there are is known to all
        classes = _classes_of(table, task, site.name).classes_
    noise = Noise(tuple(classes), float(epsilon))
    kept = None if folder is None else site.folder(folder)
    site.labels.ask(dataset, noise, by=by, folder=kept)
    return account(site, str(table.label), noise)


def account(site: Site, column: str, noise: Noise) -> dict[str, float]:
    """What may be known of it: ε, how often labels are as they are, ε of all runs and of this."""
    return {
        "epsilon": noise.epsilon,
        "kept": float(noise.response[0, 0]),
        "spent": site.labels.spent(column),
        "new": site.labels.spent_now(column),
    }


@dataclass(frozen=True)
class ReportedLabels:
    """What the workers of a training know of a party's labels, where that is not the labels.

    numbers: reported classes, -1 where there is no label. response: P(reported | label) [C, C].
    """

    classes: tuple[Any, ...]
    numbers: np.ndarray
    response: np.ndarray
    account: dict[str, float]

    @classmethod
    def of(cls, site: Site, scope: str) -> ReportedLabels | None:
        """At the party: its labels of a scope as workers see them; None where they are true."""
        table, dataset = site.table_of(scope), scope.partition("@")[0]
        noise = site.labels.noise(dataset, site.tables[dataset])
        if noise is None:
            return None
        told = account(site, str(table.label), noise)
        return cls(noise.classes, noise.numbers(table.y), noise.response, told)

    @property
    def likelihood(self) -> LabelLikelihood:
        """How likely what was reported of each row is under each class: forward correction.

        (Patrini et al., "Making Deep Neural Networks Robust to Label Noise", CVPR 2017, with a
        noise that is known and not estimated.) A row without a label says nothing.
        """
        lines = np.vstack([self.response.T, np.ones(len(self.classes))])
        return LabelLikelihood(self.classes, lines[self.numbers])


def account_of(told: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """The coordinator's account of reported labels; warns where they were reported before.

    spent: by party the ε of all runs together; new: what of it this run has added.
    """
    first = next(iter(told.values()))
    spent = {party: float(each["spent"]) for party, each in told.items()}
    new = {party: float(each["new"]) for party, each in told.items()}
    warn_of_spending(float(first["epsilon"]), spent)
    return {
        "epsilon": float(first["epsilon"]),
        "kept": float(first["kept"]),
        "spent": spent,
        "new": new,
    }


def in_words(account: Mapping[str, Any]) -> str:
    """An account as sentences.

    >>> told = {"epsilon": 2.0, "kept": 0.88, "spent": {"bank": 2.0}, "new": {"bank": 0.0}}
    >>> in_words(told).partition("). ")[2]
    'Spent by this run: bank ε = 0; by all runs together: bank ε = 2.'
    """
    epsilon, spent = float(account["epsilon"]), account["spent"]
    # Models of earlier versions do not know what their run added.
    new = account.get("new", {})
    text = (
        f"{', '.join(spent)} let the training know labels through randomised response only, drawn "
        f"once (label_dp = {epsilon:g}: each is reported as it is with probability "
        f"{account['kept']:.2f})."
    )
    run = ", ".join(f"{party} ε = {each:g}" for party, each in new.items())
    all_runs = ", ".join(f"{party} ε = {each:g}" for party, each in spent.items())
    by_run = f"Spent by this run: {run}; by" if run else "Spent by"
    return f"{text} {by_run} all runs together: {all_runs}."


def warn_of_spending(epsilon: float, spent: Mapping[str, float]) -> None:
    """Several draws of the same labels add up to less privacy than each of them promises."""
    more = {party: each for party, each in spent.items() if each > epsilon * (1 + 1e-9)}
    if more:
        told = ", ".join(f"{party}: {each:g}" for party, each in more.items())
        warnings.warn(
            f"labels are known with label_dp={epsilon:g}, and were reported before with another ε. "
            f"Together that is ε = {told}. Mend: one label_dp for all trainings on the same "
            "labels, which are then drawn once",
            PrivacyWarning,
            stacklevel=3,
        )


def warn_of_noise(account: Mapping[str, Any]) -> None:
    """Labels stay protected where an earlier training asked for it."""
    warnings.warn(
        f"{', '.join(account['spent'])} lets labels be known through randomised response only, "
        f"since a training asked for label_dp={account['epsilon']:g}; this one learns from "
        "the same draws. Mend: say label_dp here too, or train on labels as they are first; over "
        "machines a party can allow it again with label_dp_only = false in its policy",
        PrivacyWarning,
        stacklevel=3,
    )
