"""The stage of a run that corrects labels: several parties label, one gets the corrected labels.

InC (or another method for several labellers) learns what the true labels probably are. They go
back to one label party, where they stand in place of its own labels in a further table; methods
that learn from one party's labels are then trained on that.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmend._json import write_json
from fedmend.federation import Federation
from fedmend.flow.kept import keep_completion, restore_completion
from fedmend.methods.annotators.corrected import correct_labels
from fedmend.methods.annotators.session import Annotators
from fedmend.methods.registry import METHODS, make
from fedmend.report.labelling import Labelling

if TYPE_CHECKING:
    from fedmend.flow.config import Config
    from fedmend.flow.listening import Listener

__all__ = ["FOLDER", "Corrected", "Correcting", "correct", "corrected_before"]

FOLDER = "stages/correct"
STAGE = "Correcting labels that contradict each other"
_KEPT = "correction.json"


@dataclass(frozen=True)
class Correcting:
    """How labels are corrected, and what is trained on them.

    to: the party that gets the corrected labels. labellers: whose labels count; all by default.
    among: learn in the whole federation ("all"), or among the labellers alone, who may know more
    rows together than everybody does ("labellers"). least: labels believed less than this are
    left out. rows: learn from the rows all parties know ("aligned"), or from completed ones too
    ("completed"). also_uncorrected: train the methods on the labels of `to` as they were, too, to
    compare.
    """

    to: str
    name: str = "inc"
    params: dict[str, Any] = field(default_factory=dict)
    labellers: tuple[str, ...] | None = None
    among: str = "all"
    least: float = 0.0
    rows: str = "aligned"
    also_uncorrected: bool = False

    @classmethod
    def of(cls, config: Config) -> Correcting | None:
        """As a federation.toml has it."""
        given = config.correct
        if given is None:
            return None
        chosen = given.labellers or config.labellers
        return cls(
            to=given.to or chosen[0],
            name=given.name,
            params=given.params,
            labellers=tuple(given.labellers) if given.labellers else None,
            among=given.among,
            least=given.least,
            rows=given.rows,
            also_uncorrected=given.also_uncorrected,
        )

    def estimator(self, seed: int) -> Any:
        """The method that corrects."""
        made = make(self.name, self.params, seed)
        return made.set_params(label_parties=self.labellers) if self.labellers else made

    def learns_on(self, fed: Federation) -> Federation:
        """The parties among which the labels are learnt."""
        if self.among == "all":
            return fed
        asked = fed.label_parties if self.labellers is None else self.labellers
        return fed.only(*asked)

    def trains_on(self, fed: Federation) -> Federation:
        """The parties that are still needed once labels are corrected: no other labels-only one."""
        roster = fed.roster
        return fed.only(
            *(each for each in fed.names if roster[each]["features"] or each == self.to)
        )


@dataclass(frozen=True)
class Corrected:
    """views: the corrected federation without and with completed rows. judge: with the majority
    of the votes as labels, where methods are to be compared."""

    views: dict[bool, Federation]
    judge: Federation | None = None


def correct(
    source: Federation,
    views: Mapping[bool, Federation],
    how: Correcting,
    seed: int,
    work: Path,
    listener: Listener,
    checkpoint: Path,
    *,
    judged: bool = False,
) -> tuple[Corrected, dict[str, Any]]:
    """The federations with corrected labels, without and with completed rows, and what was found.

    source: where the labels are learnt. views: the federation without and with completed rows.
    judged: make a judge too.
    """
    fed = source
    listener.stage(STAGE)
    crossings, crossed = len(fed.ledger), fed.ledger.total_bytes()
    began = time.perf_counter()
    model = how.estimator(seed)
    model.fit(
        source,
        progress=lambda _, done, total, facts: listener.progress("epochs", done, total, facts),
        checkpoint=checkpoint,
        resume=True,
    )
    labelling = None
    if model.expertise_ is not None:
        labelling = Labelling.of(model, model.review_labels())
    done = {
        completed: correct_labels(
            view if how.rows == "completed" else source,
            model,
            to=how.to,
            least=how.least,
            into=view,
        )
        for completed, view in views.items()
    }
    judge = _judge(source, views[False], model, how) if judged else None
    for each in done.values():
        keep_completion(each.federation, work / FOLDER)
    if judge is not None:
        keep_completion(judge, work / FOLDER)
    told = done[how.rows == "completed"]
    found = {
        "method": METHODS[how.name].class_name,
        "parties": list(model.label_parties_),
        "to": how.to,
        "rows": told.rows,
        "rows_of": how.rows,
        "changed": told.changed,
        "filled": told.filled,
        "dropped": told.dropped,
        "least": how.least,
        "labelling": labelling.to_dict() if labelling is not None else None,
        "says": _words(how, told.rows, told.changed, told.filled, told.dropped),
        "history": list(model.history_),
        "seconds": time.perf_counter() - began,
        "crossings": len(fed.ledger) - crossings,
        "bytes": fed.ledger.total_bytes() - crossed,
    }
    datasets = {str(completed): each.federation.dataset for completed, each in done.items()}
    stored = {"datasets": datasets, "judge": judge.dataset if judge else None, "found": found}
    write_json(work / FOLDER / _KEPT, stored)
    corrected = {completed: each.federation for completed, each in done.items()}
    return Corrected(corrected, judge), found


def _judge(source: Federation, view: Federation, model: Any, how: Correcting) -> Federation:
    """The majority of the votes as labels: what no model had a part in, to compare models by."""
    params = model.get_params()
    with Annotators(
        source, model.label_parties_, secure=params["secure"], key_holder=params["key_holder"]
    ) as labellers:
        labellers.attach(model.classes_.tolist(), params["label_dp"])
        counts = labellers.votes()
    clear = (counts == counts.max(1, keepdims=True)).sum(1) == 1
    votes = copy.copy(model)
    votes.posterior_ = np.where(clear[:, None], counts / np.maximum(counts.sum(1), 1)[:, None], 0.0)
    fitted = view if how.rows == "completed" else source
    name = f"{view.dataset}-judge"
    done = correct_labels(fitted, votes, to=how.to, least=1e-6, name=name, into=view)
    return done.federation


def corrected_before(fed: Federation, work: Path) -> tuple[Corrected, dict[str, Any]]:
    """What :func:`correct` has kept, for the parties of `fed`."""
    kept = work / FOLDER
    stored = json.loads((kept / _KEPT).read_text(encoding="utf-8"))
    views = {}
    for completed, dataset in stored["datasets"].items():
        views[completed == "True"] = fed.on(dataset)
        restore_completion(fed.on(dataset), kept)
    judge = fed.on(stored["judge"]) if stored["judge"] else None
    if judge is not None:
        restore_completion(judge, kept)
    return Corrected(views, judge), stored["found"]


def _words(how: Correcting, rows: int, changed: int, filled: int, dropped: int) -> str:
    words = f"{changed:,} of {rows:,} labels of {how.to} were corrected"
    words += f", {filled:,} missing ones filled in" if filled else ""
    return words + (f", {dropped:,} doubtful ones left out" if dropped else "")
