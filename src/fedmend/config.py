"""federation.toml: what a run is, checked as a whole before anything starts.

Every problem found is in one :class:`ConfigError`, each naming key, value and mend.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedmend._suggest import did_you_mean
from fedmend.config_checks import METHODS, cross_problems
from fedmend.errors import ConfigError
from fedmend.federation.policy import Policy
from fedmend.shapes import HORIZONTAL, shape_of

__all__ = ["Config", "MethodSettings", "PartySettings", "load_config"]

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class RunSettings(_Settings):
    """``[run]``"""

    seed: int = Field(default=0, ge=0)
    seeds: list[Annotated[int, Field(ge=0)]] | None = Field(default=None, min_length=1)
    folder: str | None = None
    device: str = Field(default="cpu", pattern=r"^(cpu|cuda(:\d+)?)$")
    strict: bool = False
    engine: Literal["local", "flare"] = "local"
    shape: Literal["vertical", "horizontal"] | None = None

    @property
    def all_seeds(self) -> list[int]:
        return self.seeds if self.seeds is not None else [self.seed]


class PolicySettings(_Settings):
    """``[party.policy]``: what this party lets out."""

    allow: list[str] | None = None
    refuse: list[str] | None = None
    workers: list[str] | None = None
    min_intersection: int | None = Field(default=None, ge=1)

    def build(self) -> Policy:
        given: dict[str, Any] = self.model_dump(exclude_none=True)
        return Policy(**given)


class PartySettings(_Settings):
    """``[[party]]``: a name, and where its table is."""

    name: Name
    data: str | None = None
    sql: str | None = None
    uri: str | None = None
    id: str | None = None
    label: str | None = None
    kinds: dict[str, str | list[Any]] = Field(default_factory=dict)
    test: str | None = None
    test_sql: str | None = None
    policy: PolicySettings = Field(default_factory=PolicySettings)

    @property
    def has_test(self) -> bool:
        return self.test is not None or self.test_sql is not None


class AlignSettings(_Settings):
    """``[align]``: how the parties find the rows they share."""

    mode: Literal["ecdh", "spu", "same-order"] = "ecdh"
    normalise: Literal["exact", "text"] = "exact"
    order: Literal["auto", "secret", "seeded"] = "auto"
    minimum: int | None = Field(default=None, ge=1)


class MethodSettings(BaseModel):
    """``[method]`` or ``[[method]]``: a name, and any parameter of that estimator."""

    model_config = ConfigDict(extra="allow", strict=True)
    name: str
    title: str | None = None

    @property
    def params(self) -> dict[str, Any]:
        return dict(self.model_extra or {})

    @property
    def shown_as(self) -> str:
        return self.title or METHODS[self.name][0]


class CompleteSettings(BaseModel):
    """``[complete]``: give rows that one party has the other parties' columns, before training.

    Besides its own keys it takes any parameter of the estimator.
    """

    model_config = ConfigDict(extra="allow", strict=True)
    name: str = "fedpsg-pum"
    also_unmended: bool = True
    export: bool = False
    export_format: Literal["parquet", "csv"] = "parquet"
    pairs: bool = True

    @property
    def params(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class EvaluateSettings(_Settings):
    """``[evaluate]``: on which rows, against whose labels, and which metric counts."""

    metrics: list[str] = Field(default_factory=list)
    test_share: float = Field(default=0.25, gt=0, lt=1)
    reference: str | None = None


class FlareSettings(_Settings):
    """``[flare]``: parties on machines of their own. The server runs beside the coordinator.

    on_absent: what to do when a party stops answering. wait_seconds: for parties to connect, and
    to come back. call_timeout: for one call. stall_seconds: without any sign of life.
    """

    host: str = Field(default="localhost", min_length=1)
    port: int = Field(default=8102, gt=0, lt=65536)
    kits: str = "kits"
    on_absent: Literal["stop", "wait", "continue"] = "stop"
    wait_seconds: float = Field(default=300, gt=0)
    call_timeout: float = Field(default=3600, gt=0)
    stall_seconds: float = Field(default=60, gt=0)


class ReportSettings(_Settings):
    """``[report]``"""

    title: str | None = None
    label_review: bool = False


class Config(_Settings):
    """A whole federation.toml."""

    run: RunSettings = Field(default_factory=RunSettings)
    party: list[PartySettings] = Field(min_length=1)
    align: AlignSettings = Field(default_factory=AlignSettings)
    complete: CompleteSettings | None = None
    method: list[MethodSettings] = Field(default_factory=lambda: [MethodSettings(name="vfl")])
    evaluate: EvaluateSettings = Field(default_factory=EvaluateSettings)
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
        return self.run.shape == "horizontal" or self.method[0].name in HORIZONTAL

    @property
    def labellers(self) -> list[str]:
        """The parties with a label column."""
        return [party.name for party in self.party if party.label is not None]

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self.at(self.run.folder or f"runs/{self._source.stem}")

    @property
    def title(self) -> str:
        return self.report.title or " and ".join(party.name for party in self.party)

    def shown(self) -> dict[str, Any]:
        """The settings for the report: as given or by default, without passwords."""
        content = self.model_dump(exclude_none=True)
        for party in content["party"]:
            if "uri" in party:
                party["uri"] = without_password(party["uri"])
        return content


def without_password(uri: str) -> str:
    """A database address as it may be shown."""
    head, at, host = uri.rpartition("@")
    scheme, _, login = head.partition("://")
    if not at or ":" not in login:
        return uri
    return f"{scheme}://{login.partition(':')[0]}:***@{host}"


# ---------------------------------------------------------------- reading


def load_config(path: str | Path) -> Config:
    """Read and check a federation.toml; all its problems come in one ConfigError."""
    path = Path(path)
    raw = _parse(path)
    if isinstance(raw.get("method"), dict):
        raw["method"] = [raw["method"]]
    if "method" not in raw and shape_of(raw) == "horizontal":
        raw["method"] = [{"name": "sage"}]
    problems: list[str] = []
    config: Config | None = None
    try:
        config = Config.model_validate(raw)
    except ValidationError as error:
        problems += [problem_of(each, raw) for each in error.errors()]
    problems += cross_problems(raw)
    if problems or config is None:
        raise ConfigError(list(dict.fromkeys(problems)), source=str(path))
    config._source = path
    return config


def _parse(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        mend = "'fedmend init' writes one to start from"
        raise ConfigError(f"there is no such file. Mend: {mend}", source=str(path)) from None
    except OSError as error:
        raise ConfigError(
            f"cannot be read: {error.strerror}. Mend: name a federation.toml that you may read",
            source=str(path),
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"is not UTF-8 (byte {error.start}). Mend: save it as UTF-8", source=str(path)
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"is not TOML: {error}. Mend: text needs quotes, lists need [ ]", source=str(path)
        ) from error


# ---------------------------------------------------------------- problems of single values

_EXAMPLES = {
    "name": '"bank"', "data": '"bank.csv"', "id": '"customer"', "label": '"default"',
    "party": "[[party]] with a name and data", "seed": "0", "seeds": "[0, 1, 2]",
    "test_share": "0.25", "metrics": '["auc", "accuracy"]', "minimum": "10", "device": '"cpu"',
    "strict": "true", "folder": '"runs/first"', "min_intersection": "10", "title": '"Our run"',
    "reference": '"bank"', "export": "true", "also_unmended": "true", "label_review": "true",
}  # fmt: skip
_MUST_BE = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text in quotes",
    "list_type": "a list in [ ]",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
}


def problem_of(error: Any, raw: Mapping[str, Any]) -> str:
    """One pydantic error as key, value and mend."""
    # A union names its branches in the location; only keys and positions are the file's own.
    location = [part for part in error["loc"] if not _is_branch(part)]
    key, last = key_name(location, raw), str(location[-1])
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    if kind == "missing":
        return f"{key} is missing. Mend: add {last} = {_EXAMPLES.get(last, '…')}"
    if kind == "extra_forbidden":
        return f"{key} = {value!r} is not known: {did_you_mean(last, _known_keys(location))}"
    if kind == "literal_error":
        wanted = f"one of {context['expected']}"
    elif kind == "string_pattern_mismatch":
        wanted = {
            "device": "'cpu', 'cuda' or 'cuda:0'",
            "name": "letters, digits, '-', '_' and '.'",
        }.get(last, "another text")
    elif kind in _MUST_BE:
        wanted = _MUST_BE[kind]
    elif kind == "too_short":
        return f"{key} is empty. Mend: give {_EXAMPLES.get(last, 'at least one')}"
    else:
        wanted = str(error["msg"]).removeprefix("Input should be ").lower()
    mend = f"for instance {last} = {_EXAMPLES[last]}" if last in _EXAMPLES else f"give {wanted}"
    return f"{key} must be {wanted}, however: {value!r}. Mend: {mend}"


def _is_branch(part: Any) -> bool:
    return isinstance(part, str) and (part in ("str", "int") or part.startswith(("list[", "dict[")))


def key_name(location: list[Any], raw: Mapping[str, Any]) -> str:
    """``party[bank].data``: entries of lists are named by their name where they have one."""
    text, here = "", raw
    for part in location:
        try:
            here = here[part]
        except (KeyError, IndexError, TypeError):
            here = {}
        if isinstance(part, int):
            name = here.get("name") if isinstance(here, Mapping) else None
            text += f"[{name if isinstance(name, str) else part + 1}]"
        else:
            text += f".{part}" if text else str(part)
    return text


def _known_keys(location: list[Any]) -> list[str]:
    model: type[BaseModel] = Config
    tables: dict[str, type[BaseModel]] = {
        "run": RunSettings,
        "party": PartySettings,
        "policy": PolicySettings,
        "align": AlignSettings,
        "complete": CompleteSettings,
        "evaluate": EvaluateSettings,
        "report": ReportSettings,
        "flare": FlareSettings,
    }
    for part in location[:-1]:
        model = tables.get(str(part), model)
    return list(model.model_fields)
