"""Every exception and warning that fedmend raises on purpose.

    FedmendError
    ├── DataError            a table, file, column or value is not what it must be
    │   └── ReadError        a file or query cannot be read at all
    ├── ConfigError          federation.toml or an option is wrong (holds *all* problems)
    ├── AlignmentError       no, or too few, common ids; alignment asked for before it was made
    ├── Refused              a party's policy does not allow this worker or kind of value
    │   ├── TooFewCommon     fewer common ids than a party takes part with
    │   └── TooFewRows       an answer would rest on fewer rows than a party's min_rows
    ├── WireError            bytes that are not a value we admit
    ├── PartyFailed          a worker raised at its party (names party, worker, method, cause)
    ├── PartyAbsent          a party or the server does not answer (killed, cut off, stalled)
    ├── CryptoError          a ciphertext, key or tag that does not check
    ├── NotFitted            predict or save before fit
    ├── ResumeError          a checkpoint that does not belong to this run
    └── MissingExtra         an optional dependency is not installed (names the extra)

A message says what was seen and where — party, column, value — and ends with the mend.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = [
    "AlignmentError",
    "ConfigError",
    "CryptoError",
    "DataError",
    "FedmendError",
    "FedmendWarning",
    "MissingExtra",
    "NotFitted",
    "PartyAbsent",
    "PartyFailed",
    "PrivacyWarning",
    "ReadError",
    "Refused",
    "ResumeError",
    "TooFewCommon",
    "TooFewRows",
    "WireError",
]


class FedmendError(Exception):
    """The root: ``except FedmendError`` catches whatever fedmend raises on purpose."""

    exit_code = 1

    def __reduce__(self) -> tuple[object, ...]:
        # A pool of processes hands errors on by message; most of ours are built from their parts.
        return _as_it_was, (type(self), self.args, self.__dict__)


def _as_it_was(
    kind: type[FedmendError], args: tuple[object, ...], parts: dict[str, object]
) -> FedmendError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(parts)
    return error


class DataError(FedmendError):
    """A table, column or value is not what it must be.

    The parts stay available as attributes, so that `check` can list them and a party
    can be named later by whoever knows it (:meth:`at`).
    """

    exit_code = 3

    def __init__(
        self,
        problem: str,
        *,
        party: str | None = None,
        column: str | None = None,
        value: object = None,
        mend: str | None = None,
    ) -> None:
        self.problem = problem
        self.party = party
        self.column = column
        self.value = value
        self.mend = mend
        super().__init__(problem)

    def at(self, party: str) -> DataError:
        """The same error, with the party named if it was not yet."""
        if self.party is None:
            self.party = party
        return self

    def __str__(self) -> str:
        where = []
        if self.party is not None:
            where.append(f"party {self.party!r}")
        if self.column is not None:
            where.append(f"column {self.column!r}")
        text = f"{', '.join(where)}: {self.problem}" if where else self.problem
        if self.value is not None:
            text += f" (seen: {self.value!r})"
        if self.mend:
            text += f". Mend: {self.mend}"
        return text


class ReadError(DataError):
    """A file or query cannot be read at all."""


class ConfigError(FedmendError):
    """One or more things are wrong with a configuration; all of them are listed."""

    exit_code = 2

    def __init__(self, problems: str | Iterable[str], *, source: str | None = None) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        self.source = source
        head = f"{source}: " if source else ""
        if len(self.problems) == 1:
            text = head + self.problems[0]
        else:
            text = f"{head}{len(self.problems)} problems:\n" + "\n".join(
                f"  {number}. {problem}" for number, problem in enumerate(self.problems, 1)
            )
        super().__init__(text)


class AlignmentError(FedmendError):
    """No, or too few, common ids; or rows were asked for before alignment."""

    exit_code = 4


class Refused(FedmendError):
    """A party's policy does not allow what was asked for; nothing left the party."""

    exit_code = 5

    def __init__(self, party: str, what: str, mend: str) -> None:
        self.party = party
        super().__init__(f"party {party!r} refused: {what}. Mend: {mend}")


class TooFewCommon(Refused):
    """Fewer common ids than a party takes part with (`Policy.min_intersection`)."""


class TooFewRows(Refused):
    """An answer would rest on fewer rows than a party lets one rest on (`Policy.min_rows`)."""


class WireError(FedmendError):
    """Bytes that are not a value we admit, or a value that has no place on the wire."""

    exit_code = 6


class PartyFailed(FedmendError):
    """A worker raised at its party. The cause is chained and named in the message."""

    exit_code = 7

    def __init__(self, party: str, call: str, cause: BaseException) -> None:
        self.party = party
        self.call = call
        super().__init__(f"party {party!r} failed in {call}: {type(cause).__name__}: {cause}")


class PartyAbsent(FedmendError):
    """A party does not answer; what it had in memory is lost, what it had kept is not."""

    exit_code = 9

    def __init__(self, party: str, reason: str, call: str = "") -> None:
        self.party = party
        self.reason = reason
        self.call = call
        during = f" during {call}" if call else ""
        super().__init__(
            f"party {party!r} is absent{during}: {reason}. "
            "Mend: see that it runs ('fedmend party status' there), then 'fedmend run --resume'"
        )


class CryptoError(FedmendError):
    """A ciphertext, key, tag or share that does not check."""

    exit_code = 8


class NotFitted(FedmendError):
    """The estimator has not been fitted yet."""


class ResumeError(FedmendError):
    """A checkpoint that does not belong to this run."""


class MissingExtra(FedmendError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str, needed_for: str) -> None:
        super().__init__(
            f"{needed_for} needs the package {package!r}, which is not installed. "
            f"Mend: pip install 'fedmend[{extra}]'"
        )


class FedmendWarning(UserWarning):
    """Something a user should know but that stops nothing."""


class PrivacyWarning(FedmendWarning):
    """A choice or a situation that reveals more than the default would."""
