"""One record per method: all that the rest of the package needs to know of it.

File names, pre-flight, advice, ``auto``, costs, report and the tables of the docs are made from
these records, so that a new method is one folder and one record here. What a fitted model can do
is in the contract (`fedmend.methods.contract`), which all of them share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from fedmend._suggest import did_you_mean
from fedmend.errors import ConfigError
from fedmend.methods.costs import Cost, Facts, Rate


@dataclass(frozen=True)
class Record:
    """What a method is.

    name: in a federation.toml. home: the module under `fedmend.methods`, and its class. title: as
    people call it. words: what it does, in a line. annotators: it learns from the labels of several
    parties. classes_only: it cannot learn numbers. partners: columns of other parties matter to it.
    contest: ``auto`` tries it "always", if rows are missing somewhere ("torn"; of labels that are
    numbers "torn numbers") or nowhere ("whole"), or never ("").
    rate: what it costs; None where nobody has measured it. page: of the docs.
    """

    name: str
    home: str
    words: str
    page: str
    title: str = ""
    annotators: bool = False
    classes_only: bool = False
    partners: bool = True
    contest: str = ""
    rate: Rate | None = None

    @property
    def shown(self) -> str:
        return self.title or self.class_name

    @property
    def class_name(self) -> str:
        return self.home.rpartition(":")[2]

    @property
    def family(self) -> str:
        """The folder that holds all of it."""
        return self.home.partition(".")[0]

    @property
    def horizontal(self) -> bool:
        """Whether the parties have the same columns of different people."""
        return self.family == "horizontal"

    def known(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Those of several methods' parameters that this one has."""
        return {key: params[key] for key in params if key in self.load().parameter_names()}

    def load(self) -> Any:
        """The estimator's class."""
        module, _, name = self.home.partition(":")
        return getattr(import_module(f"fedmend.methods.{module}"), name)


def _horizontal(
    name: str,
    home: str,
    words: str,
    *,
    contest: str = "",
    rate: tuple[float, float] | None = None,
    usual: int = 15,
) -> Record:
    """Rounds on rows of the same columns: what travels are models, not rows.

    usual: as many rounds of them are usually the best.
    """
    return Record(
        name,
        f"horizontal.{home}",
        words,
        "sage",
        classes_only=True,
        contest=contest,
        rate=rate
        and Rate(
            *(*rate, 0, 1.3e6),
            lambda facts: facts.in_rounds(usual),
            lambda facts: facts.sent_models(usual),
            32,
        ),
    )


_RECORDS = (
    Record(
        "auto",
        "auto.auto:Auto",
        "the methods that fit, each heard as far as held-out rows say",
        "auto",
    ),
    Record(
        "local",
        "vertical.vfl:Local",
        "the label party alone, with its own columns",
        "vfl-baselines",
        partners=False,
        contest="always",
        rate=Rate(0.1, 0.022, 25_000, 2.5, Facts.own, batch=64),
    ),
    Record(
        "local-trees",
        "boosting.secureboost:LocalTrees",
        "the label party alone, boosted trees of its own columns",
        "boosting",
        partners=False,
        contest="always",
        rate=Rate(0.13, 0.024, 10_000, 0, Facts.grown),
    ),
    Record(
        "vfl",
        "vertical.vfl:VFL",
        "all parties together, on the rows known to all",
        "vfl-baselines",
        contest="whole",
        rate=Rate(0.1, 0.048, 0, 540, Facts.exchanged, batch=64),
    ),
    Record(
        "boosting",
        "boosting.secureboost:SecureBoost",
        "boosted trees over all parties, of all labelled rows",
        "boosting",
        contest="always",
        rate=Rate(0.1, 1.7, 0, 6, Facts.summed, Facts.sent_sums),
    ),
    Record(
        "local-vfl",
        "vertical.vfl:LocalVFL",
        "all parties and all labelled rows, zeros where a side is missing",
        "vfl-baselines",
        contest="torn numbers",
        rate=Rate(0.1, 0.044, 0, 520, lambda facts: facts.own() * facts.halves, batch=64),
    ),
    Record(
        "random-match",
        "vertical.vfl:RandomMatch",
        "all labelled rows, a stranger's side where one is missing",
        "vfl-baselines",
    ),
    Record(
        "ssl-vfl",
        "vertical.ssl_vfl:SSLVFL",
        "bottoms pre-trained on all rows without labels, then as vfl",
        "vfl-baselines",
        rate=Rate(0.1, 0.02, 0, 540, Facts.pretrained, Facts.exchanged, 64),
    ),
    Record(
        "sfhtl",
        "vertical.sfhtl:SFHTL",
        "all rows of all parties; missing sides estimated, labels where sure",
        "vfl-baselines",
        classes_only=True,
    ),
    Record(
        "fedcvt",
        "vertical.fedcvt:FedCVT",
        "two parties, all rows; attention estimates missing sides",
        "vfl-baselines",
        classes_only=True,
    ),
    Record(
        "few-shot-vfl",
        "vertical.few_shot:FewShotVFL",
        "parties train almost alone, with a handful of messages",
        "vfl-baselines",
        classes_only=True,
    ),
    Record(
        "risa",
        "risa.risa:RISA",
        "all rows of all parties, missing sides imputed, trusted by evidence",
        "risa",
        classes_only=True,
        contest="torn",
        rate=Rate(0.1, 0.55, 0, 12_500, Facts.weighed, Facts.sent_weighed),
    ),
    Record(
        "risa-images",
        "risa.risa:ImageRISA",
        "risa for photographs: parts alike share what they learn",
        "risa",
        classes_only=True,
        title="RISA for images",
        rate=Rate(0.5, 65.0, 1e8, 400_000, lambda f: (f.shared + f.alone) * f.partners),
    ),
    Record(
        "absent-partner",
        "vertical.absent_partner:AbsentPartner",
        "one model for complete rows and rows of one party",
        "vfl-baselines",
    ),
    Record(
        "clean",
        "annotators.baselines:Clean",
        "one party's labels, taken for the truth; other labels are not looked at",
        "inc",
        classes_only=True,
    ),
    Record(
        "majority",
        "annotators.baselines:MJ",
        "several annotators: the majority of their votes is taken for the truth",
        "inc",
        classes_only=True,
        title="majority vote",
        annotators=True,
        contest="always",
        rate=Rate(0.1, 0.047, 0, 430, Facts.heard, Facts.voted, 64),
    ),
    Record(
        "dawid-skene",
        "annotators.baselines:EM",
        "several annotators: the truth inferred from their votes alone",
        "inc",
        classes_only=True,
        title="Dawid–Skene",
        annotators=True,
        contest="always",
        rate=Rate(0.3, 0.065, 0, 680, lambda f: f.heard(encrypted=40_000), Facts.sent_evidence, 64),
    ),
    Record(
        "random-labeller",
        "annotators.baselines:Random",
        "several annotators: each batch takes one's labels, drawn at random",
        "inc",
        classes_only=True,
        annotators=True,
    ),
    Record(
        "inc",
        "annotators.inc:InC",
        "several annotators, whose labels are corrected while the model learns",
        "inc",
        classes_only=True,
        annotators=True,
        contest="always",
        rate=Rate(1, 0.025, 0, 800, lambda f: f.heard(256, 29), lambda f: f.voted(256, 29), 256),
    ),
    _horizontal(
        "fedavg",
        "baselines:FedAvg",
        "the labelled rows of all parties; unlabelled ones are not used",
        contest="always",
        rate=(0.5, 7.5),
        usual=5,
    ),
    _horizontal(
        "fedprox",
        "baselines:FedProx",
        "as fedavg, each party held near the common model",
        rate=(0.5, 7.5),
        usual=5,
    ),
    _horizontal(
        "fixmatch",
        "baselines:FixMatch",
        "few labels: each party's own model labels its rows",
        contest="always",
        rate=(1.5, 10.0),
    ),
    _horizontal(
        "flexmatch",
        "baselines:FlexMatch",
        "as fixmatch, with less confidence asked of classes learnt late",
    ),
    _horizontal(
        "fedmatch",
        "baselines:FedMatch",
        "few labels: a party's model and those of helpers agree on labels",
    ),
    _horizontal(
        "fedlabel",
        "baselines:FedLabel",
        "few labels: whichever of the two models is surer labels the row",
    ),
    _horizontal(
        "fedloke",
        "baselines:FedLoKe",
        "few labels: a model that stays at the party teaches the common one",
    ),
    _horizontal(
        "feddure",
        "baselines:FedDure",
        "few labels: pseudo-labels weighed by what they do to labelled rows",
    ),
    _horizontal(
        "feddb",
        "baselines:FedDB",
        "few labels: predictions freed from each party's share of the classes",
    ),
    _horizontal(
        "sage",
        "sage:SAGE",
        "few labels: both models label rows, corrected by the gap between them",
        contest="always",
        rate=(1.5, 14.0),
    ),
)

FOLDS, BUDGET = 5, 120.0
"""What `auto` does by default."""
WITHOUT_REFIT, SENT_IN_FOLD, HEARD = 0.55, 0.7, 0.6
"""What candidates take of their seconds in a fold, where trees and networks stop sooner and do not
train again on all rows; of their bytes, most of which are RISA's, which does neither; and of all
candidates those that are heard."""

METHODS = {record.name: record for record in _RECORDS}
ANNOTATED = tuple(name for name, record in METHODS.items() if record.annotators)
"""Methods that learn from the labels of several parties."""
HORIZONTAL = tuple(name for name, record in METHODS.items() if record.horizontal)
COMPLETIONS = {
    "fedpsg-pum": Record(
        "fedpsg-pum",
        "completion.fedpsg_pum:FedPSGPUM",
        "rows of one party get the columns of the other",
        "fedpsg-pum",
        title="FedPSG-PUM",
        rate=Rate(
            *(0.0, 200.0, 0, 2e5),
            lambda facts: facts.filled_in(6, 0.68, 2.8, 1.5),
            lambda facts: facts.filled_in(15, 1, 65, 0.003),
        ),
    )
}

PUBLIC = {record.class_name: record for record in (*_RECORDS, *COMPLETIONS.values())}
"""By the names of their classes: what `fedmend` itself has."""


def record_of(name: str) -> Record:
    """The record of a method or completion."""
    found = METHODS.get(name) or COMPLETIONS.get(name)
    if found is None:
        raise ConfigError(f"{name!r} is not a method: {did_you_mean(name, METHODS)}")
    return found


def method_class(name: str) -> Any:
    """The estimator of a method's name."""
    if name not in METHODS:
        raise ConfigError(f"{name!r} is not a method: {did_you_mean(name, METHODS)}")
    return METHODS[name].load()


def make(name: str, params: Mapping[str, Any], seed: int | None = None) -> Any:
    """A method or completion as a file gives it: a preset, if it names one, and what it changes."""
    found = record_of(name).load()
    changes = dict(params)
    preset = changes.pop("preset", None)
    made = found(**changes) if preset is None else found.preset(preset, **changes)
    return made if seed is None or "seed" not in made.get_params() else made.set_params(seed=seed)


def contestants(
    *, horizontal: bool, annotators: bool, torn: bool | None = None, numbers: bool | None = None
) -> tuple[str, ...]:
    """The methods that ``auto`` compares in such a federation, the cheapest first.

    torn: rows are missing somewhere. numbers: the label is one. None of what is not known yet, so
    that it may be either.
    """
    when = ["always", *["torn"] * (torn is not False), *["whole"] * (torn is not True)]
    if numbers is not False and torn is not False:
        when.append("torn numbers")
    return tuple(
        record.name
        for record in _RECORDS
        if record.contest in when
        and record.horizontal == horizontal
        and record.annotators == annotators
        and not (numbers and record.classes_only)
    )


def estimate(name: str, facts: Facts, params: Mapping[str, Any] | None = None) -> Cost:
    """Seconds and bytes of a method, with its default settings but for those of a file."""
    if params:
        given = make(name, params).get_params()
        party = given.get("label_party")
        facts = replace(facts, asked=given, labellers=(party,) if party else facts.labellers)
    if name == "auto":
        return _of_auto(facts)
    rate = record_of(name).rate
    if rate is None:
        raise ConfigError(f"what {name!r} costs was not measured. Mend: the rate of its record")
    return rate.of(facts)


def rated(name: str, facts: Facts) -> bool:
    """Whether somebody has measured what a method costs on such a federation."""
    if facts.pictures:
        return name == "risa-images"
    return name == "auto" or record_of(name).rate is not None


def _of_auto(facts: Facts) -> Cost:
    """All candidates in every fold that the budget has room for, and what is heard on all rows."""
    horizontal = facts.aligned is None
    several = not horizontal and len(facts.labellers) > 1
    numbers = facts.classes == 1
    names = facts.asked.get("candidates") or contestants(
        horizontal=horizontal, annotators=several, torn=facts.alone > 0, numbers=numbers
    )
    tried = [METHODS[name] for name in names]
    able = [each for each in tried if not (numbers and each.classes_only)]
    given, plain = facts.asked.get("settings") or {}, replace(facts, asked={})
    once = [estimate(each.name, plain, each.known(given)) for each in able if each.rate is not None]
    # One of a contest is trained in the end; of a model that chooses itself what is heard, and in
    # folds without training again on all rows.
    picked = horizontal or several
    share, sent = (1.0, 1.0) if picked else (WITHOUT_REFIT, SENT_IN_FOLD)
    most, budget = facts.asked.get("folds", FOLDS), facts.asked.get("budget", BUDGET)
    total = sum(once, start=Cost(0.0, 0))
    folds = min(most, max(2.0, budget / max(share * total.seconds, 1.0)))
    heard = 1 / max(1, len(once)) if picked else HEARD
    seconds, size = folds * share + heard, folds * sent + heard
    return Cost(seconds * total.seconds, int(size * total.bytes))
