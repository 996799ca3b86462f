"""The table [serve] of a party.toml: answering over machines, at either end."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class ServeSettings(BaseModel):
    """How this party answers.

    rows: a file with the columns of people that may be asked about; by default the party's table.
    sql: a query for the rows of some people, ``… WHERE customer IN ({ids})``, at the party's `uri`.
    url: an address of this party's own that is sent ``{"ids": […]}`` and answers with
    ``{"rows": [{…}]}``. quota: answers about one person that whoever asks gets in a day. runs: the
    runs whose models may be asked; all that are in the kit without it.
    listen: where a partner waits for label parties. partners: at the label party, where each of
    its partners listens. normalise: as under [align]. deadline: seconds after which an answer does
    without partners. queue: how many requests wait at most. digits: of probabilities that leave.
    askers: who may ask over HTTP, each with the SHA-256 of its token. model: RUN/METHOD of the
    model that answers, read again at SIGHUP.
    """

    model_config = ConfigDict(extra="forbid")

    rows: str | None = None
    sql: str | None = None
    url: str | None = None
    quota: int | None = Field(default=None, ge=1)
    runs: list[str] | None = None
    listen: str | None = None
    partners: dict[str, str] = Field(default_factory=dict)
    normalise: Literal["exact", "text", "number"] = "exact"
    deadline: float = Field(default=0.2, gt=0, le=60)
    queue: int = Field(default=256, ge=1)
    digits: int | None = Field(default=None, ge=1, le=7)
    askers: dict[str, str] = Field(default_factory=dict)
    model: str | None = Field(default=None, pattern="^[^/]+/[^/]+$")

    @model_validator(mode="after")
    def _one_source(self) -> ServeSettings:
        if sum(each is not None for each in (self.rows, self.sql, self.url)) > 1:
            raise ValueError("rows, sql and url are three ways to say one thing. Mend: one of them")
        if self.sql is not None and "{ids}" not in self.sql:
            raise ValueError("sql must say where the ids go. Mend: … WHERE customer IN ({ids})")
        wrong = [name for name, each in self.askers.items() if not _is_digest(each)]
        if wrong:
            raise ValueError(
                f"askers.{wrong[0]} must be the SHA-256 of a token, 64 hexadecimal digits. "
                "Mend: printf %s TOKEN | sha256sum"
            )
        return self


def _is_digest(text: str) -> bool:
    return len(text) == 64 and set(text.lower()) <= set("0123456789abcdef")
