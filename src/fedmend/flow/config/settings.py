"""The tables of a federation.toml, their keys and defaults."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from fedmend.data.sql import without_password
from fedmend.federation.policy import Policy
from fedmend.methods.registry import HORIZONTAL, METHODS, contestants, make

AUTO = "auto"
"""A method chosen by cross-validation."""
CORRECTED = " + corrected labels"
"""How methods trained on a mended federation are shown."""
MAJORITY = "majority"
"""What evaluate.reference is called when the parties' votes decide."""
WEIGHTS = "weight_column"
"""The parameter of methods that weight rows."""
PARTIES_IN_A_TITLE = 4

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]


def slug_of(title: str) -> str:
    """A title as the name of a file."""
    return re.sub(r"[^A-Za-z0-9]+", "-", title).strip("-").lower()


def party_name_of(text: str) -> str:
    """Any text as a party's name may be: "Klinik Süd" is "Klinik-Sud"."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", plain).strip("-_.")


def title_of(names: Sequence[str]) -> str:
    """What a run is called where nobody says: "a and b", "a, b and 10 more"."""
    if len(names) > PARTIES_IN_A_TITLE:
        names = [*names[:2], f"{len(names) - 2} more"]
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _WithParameters(BaseModel):
    """Besides its own keys such a table takes any parameter of the estimator that it names."""

    model_config = ConfigDict(extra="allow", strict=True)
    name: str

    @property
    def params(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class RunSettings(_Settings):
    """``[run]``

    reproducible: over machines, let all random choices follow from the seed as in one process. It
    is for comparing runs on data that everybody may see: others can then compute a party's rows.
    """

    seed: int = Field(default=0, ge=0)
    seeds: list[Annotated[int, Field(ge=0)]] | None = Field(default=None, min_length=1)
    folder: str | None = None
    device: str = Field(default="cpu", pattern=r"^(cpu|cuda(:\d+)?)$")
    strict: bool = False
    engine: Literal["local", "flare"] = "local"
    shape: Literal["vertical", "horizontal"] | None = None
    leave_out: list[Literal["diagnose", "complete", "correct", "train", "evaluate", "report"]] = (
        Field(default_factory=list)
    )
    keep_stages: bool = True
    reproducible: bool = False

    @property
    def all_seeds(self) -> list[int]:
        return self.seeds if self.seeds is not None else [self.seed]


class PolicySettings(_Settings):
    """``[party.policy]``: what this party lets out."""

    allow: list[str] | None = None
    refuse: list[str] | None = None
    sealed: list[str] | None = None
    workers: list[str] | None = None
    min_intersection: int | None = Field(default=None, ge=1)
    reproducible: bool | None = None
    label_epsilon: float | None = Field(default=None, gt=0)
    label_dp_only: bool | None = None
    true_test_labels: bool | None = None
    methods: list[str] | None = None
    takes: list[str] | None = None
    predictions: int | None = Field(default=None, ge=0)
    foreign_predictions: int | None = Field(default=None, ge=0)
    min_rows: int | None = Field(default=None, ge=1)
    label_sums: bool | None = None

    def build(self) -> Policy:
        given: dict[str, Any] = self.model_dump(exclude_none=True)
        return Policy(**given)


class PartySettings(_Settings):
    """``[[party]]``: a name, where its table is, and how it is written.

    task: what the label is, for all methods; without it the values decide. drop: columns that are
    left out. encoding, delimiter, decimal: of CSV files. missing: what stands in empty cells
    besides nothing, NA, NaN and null; [] if those are values.
    """

    name: Name
    data: str | None = None
    sql: str | None = None
    uri: str | None = None
    id: str | None = None
    label: str | None = None
    task: Literal["binary", "multiclass", "regression", "count"] | None = None
    kinds: dict[str, str | list[Any]] = Field(default_factory=dict)
    drop: list[str] = Field(default_factory=list)
    encoding: str = "utf-8"
    delimiter: str = Field(default=",", min_length=1, max_length=1)
    decimal: Literal[".", ","] = "."
    missing: list[str] | None = None
    test: str | None = None
    test_sql: str | None = None
    policy: PolicySettings = Field(default_factory=PolicySettings)

    @property
    def has_test(self) -> bool:
        return self.test is not None or self.test_sql is not None


class AlignSettings(_Settings):
    """``[align]``: how the parties find the rows they share.

    pairs: with three parties and more, find what two of them share, too, where something is made
    of it: trees learn from rows that some partners know, and a person whom two know is joined by a
    completion and not guessed twice.
    """

    mode: Literal["ecdh", "spu", "same-order"] = "ecdh"
    normalise: Literal["exact", "text", "number"] = "exact"
    order: Literal["auto", "secret", "seeded"] = "auto"
    minimum: int | None = Field(default=None, ge=1)
    pairs: bool = True

    @property
    def how(self) -> dict[str, Any]:
        """As `fedmend.align` takes it."""
        return self.model_dump(exclude_none=True, exclude={"pairs"})


class MethodSettings(_WithParameters):
    """``[method]`` or ``[[method]]``: a name, and any parameter of that estimator."""

    title: str | None = None

    @property
    def shown_as(self) -> str:
        return self.title or (METHODS[self.name].shown if self.name in METHODS else self.name)


class AutoSettings(MethodSettings):
    """``[[method]]`` with ``name = "auto"``: how a method is chosen.

    candidates: names of methods, or None for those that fit. folds: of the cross-validation.
    budget: seconds for all of it; two folds of every candidate are always finished. Parameters
    are for every candidate that has such a parameter.
    """

    name: str = AUTO
    candidates: list[str] | None = Field(default=None, min_length=1)
    folds: int = Field(default=5, ge=2)
    budget: float = Field(default=120.0, gt=0)

    def names(self, *, horizontal: bool, several: bool, **more: bool | None) -> Sequence[str]:
        """The methods worth trying, the cheapest first. several: parties label. more: if known."""
        return self.candidates or contestants(horizontal=horizontal, annotators=several, **more)


class CompleteSettings(_WithParameters):
    """``[complete]``: give rows that one party has the other parties' columns, before training.

    also_unmended: train the methods without the completed rows too, to compare. export: every
    completing party writes its table into its folder.
    """

    name: str = "fedpsg-pum"
    also_unmended: bool = True
    export: bool = False
    export_format: Literal["parquet", "csv"] = "parquet"


class CorrectSettings(_WithParameters):
    """``[correct]``: make one party's labels of what several parties say, before training.

    to: the party that gets the corrected labels, the first annotator by default. labellers: whose
    labels count; all by default. among: learn in the whole federation ("all"), or among the
    annotators only, who may know more rows together than everybody does ("labellers"). least:
    labels less likely than this are left out. rows: learn from the rows all parties know
    ("aligned"), or from completed ones too ("completed"). also_uncorrected: train the methods on
    the labels of `to` as they were, too, to compare.
    """

    name: str = "inc"
    to: str = ""
    labellers: list[str] | None = Field(default=None, min_length=2)
    among: Literal["all", "labellers"] = "all"
    least: float = Field(default=0.0, ge=0, lt=1)
    rows: Literal["aligned", "completed"] = "aligned"
    also_uncorrected: bool = False

    def estimator(self, seed: int) -> Any:
        """The method that corrects."""
        made = make(self.name, self.params, seed)
        return made.set_params(label_parties=tuple(self.labellers)) if self.labellers else made


class PredictSettings(_Settings):
    """``[predict]``: parties that get what they need to predict their own rows by themselves."""

    alone: list[str] = Field(default_factory=list)


class EvaluateSettings(_Settings):
    """``[evaluate]``: on which rows, against whose labels, and which metric counts."""

    metrics: list[str] = Field(default_factory=list)
    test_share: float = Field(default=0.25, gt=0, lt=1)
    reference: str | None = None


class FlareSettings(_Settings):
    """``[flare]``: parties on machines of their own. The server runs beside the coordinator.

    on_absent: what to do when a party stops answering. wait_seconds: for parties to connect, and
    to come back. call_timeout: for one call. stall_seconds: without any sign of life. keep_jobs: of
    how many finished runs the server keeps FLARE's jobs. organisation, person, study: who asks, for
    the parties' people and their rules.
    """

    host: str = Field(default="localhost", min_length=1)
    port: int = Field(default=8102, gt=0, lt=65536)
    kits: str = "kits"
    on_absent: Literal["stop", "wait", "continue"] = "stop"
    wait_seconds: float = Field(default=300, gt=0)
    call_timeout: float = Field(default=3600, gt=0)
    stall_seconds: float = Field(default=60, gt=0)
    keep_jobs: int = Field(default=5, ge=0)
    organisation: str = Field(default="", max_length=200)
    person: str = Field(default="", max_length=200)
    study: str = Field(default="", max_length=200)

    @property
    def asker(self) -> dict[str, str]:
        """Who asks, as the parties are told."""
        return {name: getattr(self, name) for name in ("organisation", "person", "study")}


class ReportSettings(_Settings):
    """``[report]``"""

    title: str | None = None
    label_review: bool = False


def _kind_of_method(given: Any) -> str:
    name = given.get("name") if isinstance(given, dict) else getattr(given, "name", None)
    return "dict[auto]" if name == AUTO else "dict[method]"


class Config(_Settings):
    """A whole federation.toml."""

    recipe: str | None = None
    run: RunSettings = Field(default_factory=RunSettings)
    party: list[PartySettings] = Field(default_factory=list)
    align: AlignSettings = Field(default_factory=AlignSettings)
    complete: CompleteSettings | None = None
    correct: CorrectSettings | None = None
    method: list[
        Annotated[
            Annotated[AutoSettings, Tag("dict[auto]")]
            | Annotated[MethodSettings, Tag("dict[method]")],
            Discriminator(_kind_of_method),
        ]
    ] = Field(default_factory=lambda: [MethodSettings(name="vfl")], min_length=1)
    evaluate: EvaluateSettings = Field(default_factory=EvaluateSettings)
    predict: PredictSettings = Field(default_factory=PredictSettings)
    report: ReportSettings = Field(default_factory=ReportSettings)
    flare: FlareSettings = Field(default_factory=FlareSettings)

    _source: Path = Path("federation.toml")

    @property
    def source(self) -> Path:
        return self._source

    def at(self, path: str) -> Path:
        """A path of the file, which is relative to the file itself."""
        return self._source.parent / path

    @property
    def horizontal(self) -> bool:
        """Whether the parties have the same columns of different people."""
        if self.run.shape is not None:
            return self.run.shape == "horizontal"
        return self.method[0].name in HORIZONTAL

    @property
    def labellers(self) -> list[str]:
        """The parties with a label column."""
        return [party.name for party in self.party if party.label is not None]

    @property
    def test_share(self) -> float:
        """How much of tables without test tables no model learns from: all learn where nothing is
        evaluated."""
        return 0.0 if "evaluate" in self.run.leave_out else self.evaluate.test_share

    @property
    def task(self) -> str | None:
        """What the label is, where the file says so beside it."""
        return next((party.task for party in self.party if party.task is not None), None)

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self.at(self.run.folder or f"runs/{self._source.stem}")

    @property
    def title(self) -> str:
        return self.report.title or title_of([party.name for party in self.party])

    def shown(self) -> dict[str, Any]:
        """The settings for the report: as given or by default, without passwords."""
        content = self.model_dump(exclude_none=True)
        content["party"] = [party.model_dump(exclude_defaults=True) for party in self.party]
        for party in content["party"]:
            if "uri" in party:
                party["uri"] = without_password(party["uri"])
        return content


TABLES: dict[str, type[BaseModel]] = {
    "run": RunSettings,
    "party": PartySettings,
    "policy": PolicySettings,
    "align": AlignSettings,
    "complete": CompleteSettings,
    "correct": CorrectSettings,
    "predict": PredictSettings,
    "evaluate": EvaluateSettings,
    "report": ReportSettings,
    "flare": FlareSettings,
}
"""What stands under which name."""
