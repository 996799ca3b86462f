"""Audit: rehearse a method on a copy of a federation, and attack what crossed."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from fedmend._parameters import Parameters, Rules, at_least, parameters, wrong_values
from fedmend._suggest import did_you_mean
from fedmend.audit.columns_from_embeddings import ColumnsFromEmbeddings
from fedmend.audit.columns_from_products import ColumnsFromProducts
from fedmend.audit.context import Attack, Context, NotApplicable
from fedmend.audit.known_weights import KnownWeights
from fedmend.audit.labels_from_bottom import LabelsFromBottom
from fedmend.audit.labels_from_gradients import LabelsFromGradients
from fedmend.audit.membership import Membership
from fedmend.audit.recorder import Observations, Observed, rehearsal
from fedmend.audit.result import AuditReport
from fedmend.audit.statement import statement
from fedmend.audit.trees import ColumnsFromTrees, LabelsFromCuts
from fedmend.audit.votes_from_sums import VotesFromSums
from fedmend.errors import ConfigError
from fedmend.federation import Federation, require_federation
from fedmend.methods.contract import Estimator
from fedmend.secure.align import align
from fedmend.split.training import Progress

ATTACKS: dict[str, type[Attack]] = {
    "gradients": LabelsFromGradients,
    "bottom": LabelsFromBottom,
    "embeddings": ColumnsFromEmbeddings,
    "weights": KnownWeights,
    "votes": VotesFromSums,
    "membership": Membership,
    "products": ColumnsFromProducts,
    "trees": ColumnsFromTrees,
    "cuts": LabelsFromCuts,
}
"""The attacks by the names they are asked for with."""

_RULES: Rules = {
    "looks": at_least(1),
    "known_rows": at_least(20),
    "repeats": at_least(1),
    "most_rows": at_least(50),
    "known_labels": ("numbers from 2 on", lambda value: bool(value) and min(value) >= 2),
}


@parameters
class Audit(Parameters):
    """Measures what curious roles can infer from what a method shows them.

        report = fm.Audit().run(fed, fm.VFL(epochs=20))
        print(report)

    The method is trained in this process on a copy of the federation: all its tables must be here,
    so it is for a party's own or public data, or with the consent of all. The federation itself,
    its ledger and what its parties keep are left as they are.

    looks: epochs of messages an attacker keeps. known_labels: labelled examples of each class that
    a party has, one figure for each number. known_rows: rows of which an attacker knows the other
    party's columns. repeats: draws of examples. most_rows: on how many rows a guess is scored.
    attacks: some of "gradients", "bottom", "embeddings", "weights", "votes", "membership",
    "products", "trees" and "cuts"; by default all of them. They and the model are judged by
    true labels, whatever a method's label_dp lets it know.
    """

    looks: int = 10
    known_labels: Sequence[int] = (10, 40)
    known_rows: int = 200
    repeats: int = 5
    most_rows: int = 3000
    attacks: Sequence[str] | None = None
    seed: int = 0

    def run(
        self,
        fed: Federation,
        method: Any,
        *,
        compare: Mapping[str, Any] | None = None,
        progress: Progress | None = None,
    ) -> AuditReport:
        """Train `method` (which stays unfitted) and attack it; with `compare` again under these
        parameters of the method, so that the price and the effect of a defence stand side by side.

        compare: parameters of the method. progress: told as by `fit`, and of every attack.
        """
        require_federation(fed)
        changed = self.compared(method, compare or {})
        report = self._audit(fed, _clone(method), progress)
        if changed is not None:
            report.other = self._audit(fed, changed, progress)
            told = dict(compare or {}).items()
            report.other.option = ", ".join(f"{key}={value}" for key, value in told)
        return report

    def compared(self, method: Any, compare: Mapping[str, Any]) -> Any | None:
        """The method that `run` compares with, None where nothing is to be compared.

        All that is wrong with its settings, or with the audit's, is raised.
        """
        if not isinstance(method, Estimator):
            raise ConfigError(
                f"an audit takes a method, not a {type(method).__name__}. Mend: Audit().run(fed, "
                "fm.VFL())"
            )
        self._check()
        if not compare:
            return None
        changed = _clone(method).set_params(**compare)
        changed.check_params()
        return changed

    # ------------------------------------------------------------------ one method

    def _audit(self, fed: Federation, method: Any, progress: Progress | None) -> AuditReport:
        began = time.perf_counter()
        attacks: list[Attack] = []
        seen = Observations(fed.dataset, 0, self.looks)

        def hear(call: Observed) -> None:
            seen.hear(call)
            for attack in attacks:
                attack.hear(call)

        copy = rehearsal(fed, [hear])
        if not copy.is_aligned and not method.horizontal:
            align(copy)
        seen.aligned = copy.alignment.aligned if copy.is_aligned else 0
        attacks += [ATTACKS[name](seen) for name in self.attacks or ATTACKS]
        facts = _audible(method)
        model = method.fit(copy, progress=progress)
        entries = copy.ledger.entries()
        seen.training = False
        if model.predicts and not model.horizontal:
            model.predict(copy)
        report = AuditReport(
            method=type(method).__name__,
            params=method.get_params(),
            parties=list(fed.names),
            rows=seen.aligned or sum(each["rows"] for each in copy.roster.values()),
            readings=statement(entries, rows=seen.aligned or None),
            facts=facts,
        )
        context = Context(copy, model, self, report.facts)
        for number, attack in enumerate(attacks):
            if progress is not None:
                progress(f"attack: {attack.name}", number, len(attacks), {})
            try:
                report.findings += attack.run(context)
            except NotApplicable as why:
                report.left_out[attack.name] = str(why)
        if seen.unread:
            calls = ", ".join(sorted(seen.unread))
            report.facts.append(f"no attack looked at what crossed by {calls}")
        report.scores, report.scored_on = _scores(model, copy)
        report.seconds = time.perf_counter() - began
        return report

    def _check(self) -> None:
        self.require_types()
        problems = wrong_values(self, _RULES) + [
            f"attacks: {name!r} is not one: {did_you_mean(name, ATTACKS)}"
            for name in self.attacks or ()
            if name not in ATTACKS
        ]
        if problems:
            raise ConfigError(problems)


def _clone(method: Any) -> Any:
    return type(method)(**method.get_params())


def _audible(method: Any) -> list[str]:
    """Have sums made under masks, which the coordinator opens from messages; says so."""
    if method.get_params().get("secure") != "he":
        return []
    method.set_params(secure="masks")
    return [
        "rehearsed with secure='masks' in place of 'he': the coordinator learns the same sums, and "
        "nobody else does"
    ]


def _scores(model: Any, fed: Federation) -> tuple[dict[str, float], str]:
    """The model's own scores, on test rows where all parties have some, else on its own rows.

    By true labels, as attacks are judged: a score that is estimated from randomised labels scatters
    by more than a defence costs.
    """
    if not model.predicts:
        return {}, ""
    sites = fed.engine.sites  # type: ignore[attr-defined]  # a rehearsal's is always local
    for site in sites.values():
        site.show_labels()
    tested = all(len(site.tables.get("test", ())) for site in sites.values())
    where = fed.on("test") if tested else fed
    if not where.label_parties:
        return {}, ""
    if fed.is_aligned and not where.is_aligned:
        align(where)
    found = {name: float(value) for name, value in model.evaluate(where).items()}
    return found, "test rows" if tested else "the rows it was trained on"
