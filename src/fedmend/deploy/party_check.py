"""``fedmend party check``: certificate, clock, reachability, table and schema, before anyone waits.

Every check is made and told, whether or not an earlier one failed.
"""

from __future__ import annotations

import datetime
import shutil
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmend._suggest import did_you_mean
from fedmend._version import __version__
from fedmend.data.schema import Schema
from fedmend.deploy.party_file import (
    PARTNERS_FILE,
    PartyFile,
    install_workers,
    load_party,
    read_new,
    unconfirmed,
)
from fedmend.deploy.processes import role_of
from fedmend.deploy.provision import SOON_DAYS
from fedmend.deploy.reach import reach
from fedmend.errors import ConfigError, DataError, FedmendError, FedmendWarning
from fedmend.federation import Policy, Worker
from fedmend.federation.bound import EVERY_RUN, declared
from fedmend.federation.engines.flare.kits import owner_of, server_of
from fedmend.federation.labels import LabelRecords
from fedmend.federation.site import RECORDS
from fedmend.flow.config.references import password_notes
from fedmend.flow.doubts import doubtful_columns
from fedmend.flow.reading import all_problems, read_party
from fedmend.secure.keys import fingerprint, remembered_keys

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

LITTLE_SPACE_BYTES = 1 << 30


@dataclass(frozen=True)
class Check:
    """One thing looked at: "ok", "note" or "problem", and what was found."""

    name: str
    grade: str
    words: str


def check_party(kit: Path, *, seconds: float = 5.0) -> list[Check]:
    """Look at everything a party needs; nothing is changed, nothing leaves."""
    role_of(kit)
    try:
        owner_of(kit), server_of(kit)
    except FedmendError as error:
        return [Check("kit", "problem", str(error))]
    found = [_versions(), *_certificate(kit)]
    wrong, words = reach(kit, seconds)
    found.append(Check("server", "problem" if wrong else "ok", words))
    try:
        file = load_party(kit)
    except FedmendError as error:
        found.append(Check("party.toml", "problem", str(error)))
    else:
        found += _file(kit, file)
        found += _table(file) if not unconfirmed(file) else ()
        found += _labels(kit, file)
    found.append(_space(kit))
    return found


def _versions() -> Check:
    try:
        import nvflare
    except ImportError:
        words = "nvflare is not here. Mend: pip install 'fedmend[flare]'"
        return Check("versions", "problem", words)
    return Check("versions", "ok", f"fedmend {__version__}, nvflare {nvflare.__version__}")


# ---------------------------------------------------------------- certificate and clock


def _certificate(kit: Path) -> Iterator[Check]:
    from cryptography import x509

    startup = kit / "startup"
    try:
        own = x509.load_pem_x509_certificate((startup / "client.crt").read_bytes())
        root = x509.load_pem_x509_certificate((startup / "rootCA.pem").read_bytes())
    except (OSError, ValueError) as error:
        yield Check("certificate", "problem", f"cannot be read: {error}. Mend: ask for a new kit")
        return
    yield from _identity(kit, own, root)
    yield from _dates(own)
    key = startup / "client.key"
    mode = key.stat().st_mode & 0o077 if key.exists() else 0
    if mode:
        words = f"client.key can be read by others (mode {mode:03o}). Mend: chmod 600 client.key"
        yield Check("key", "note", words)


def _identity(kit: Path, own: Certificate, root: Certificate) -> Iterator[Check]:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        PublicFormat,
        load_pem_private_key,
    )
    from cryptography.x509.oid import NameOID

    name = str(own.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)
    try:
        own.verify_directly_issued_by(root)
    except (InvalidSignature, ValueError, TypeError):
        words = f"of {name!r} is not signed by this federation's authority. Mend: ask for a new kit"
        yield Check("certificate", "problem", words)
        return
    try:
        key = load_pem_private_key((kit / "startup" / "client.key").read_bytes(), None).public_key()
    except (OSError, ValueError, TypeError) as error:
        words = f"client.key cannot be read: {error}. Mend: ask for a new kit"
        yield Check("certificate", "problem", words)
        return
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if key.public_bytes(*form) != own.public_key().public_bytes(*form):
        yield Check("certificate", "problem", "client.key belongs to another one. Mend: a new kit")
    elif name != owner_of(kit):
        words = f"is for {name!r}, the kit for {owner_of(kit)!r}. Mend: ask for a new kit"
        yield Check("certificate", "problem", words)
    else:
        yield Check("certificate", "ok", f"of {name!r}, signed by this federation's authority")


def _dates(own: Certificate) -> Iterator[Check]:
    now = datetime.datetime.now(datetime.UTC)
    first, last = own.not_valid_before_utc, own.not_valid_after_utc
    if now < first:
        words = f"this machine says {now:%Y-%m-%d %H:%M}, the kit was made {first:%Y-%m-%d %H:%M} "
        yield Check("clock", "problem", words + "(UTC). Mend: set the clock")
    elif now > last:
        words = f"expired on {last:%Y-%m-%d}; this machine says {now:%Y-%m-%d}. Mend: ask for a "
        yield Check("clock", "problem", words + "new kit, or set the clock")
    else:
        days = (last - now).days
        grade = "note" if days < SOON_DAYS else "ok"
        words = f"{now:%Y-%m-%d %H:%M} UTC, within the certificate's time ({days} days left)"
        yield Check("clock", grade, words)


# ---------------------------------------------------------------- the party's own things


def _file(kit: Path, file: PartyFile) -> Iterator[Check]:
    owner = owner_of(kit)
    if file.name != owner:
        words = f"name = {file.name!r}, but the kit is for {owner!r}. Mend: name = {owner!r}"
        yield Check("party.toml", "problem", words)
    else:
        yield from _policy(file, file.policy.build())
    yield from _partners(file)
    for lead in unconfirmed(file):  # called once its people have seen it, and not by this check
        words = f"{lead.words} is not confirmed: nothing is read, and a run is refused. "
        yield Check("party.toml", "problem", words + f"Mend: fedmend party confirm {kit}")
    for words in password_notes(file):
        yield Check("party.toml", "note", words)
    if file.device != "cpu":
        import torch

        if not torch.cuda.is_available():
            words = f'device = {file.device!r}, but torch sees no GPU. Mend: device = "cpu"'
            yield Check("device", "problem", words)


def _partners(file: PartyFile) -> Iterator[Check]:
    """Whom this party lets in, and whose keys it was given rather than told by the coordinator."""
    try:
        remembered = remembered_keys(file.at(PARTNERS_FILE))
    except ConfigError as error:
        yield Check("partners", "problem", str(error))
        return
    named = {*file.partners, *file.keys.pinned}
    if not named and not remembered:
        words = "none is named, and none pinned: whoever the coordinator introduces first is taken "
        words += 'for a partner. Mend: partners = ["…"], and their keys under [keys.pinned]'
        yield Check("partners", "note", words)
        return
    bare = sorted((named or set(remembered)) - file.keys.pinned.keys())
    for name in bare:
        how = "will be believed when first seen"
        if name in remembered:
            how = f"{fingerprint(remembered[name])} was believed when first seen"
        words = f"the key of {name!r} is not pinned ({how}). Mend: ask {name!r} for the line that "
        yield Check("partners", "note", words + "'fedmend party keys' shows there")
    if not bare:
        yield Check("partners", "ok", f"only {', '.join(sorted(named))}, all keys pinned")


def _policy(file: PartyFile, policy: Policy) -> Iterator[Check]:
    """A name on a list that nobody has would be missed only when a run is refused."""
    yield Check("party.toml", "ok", f"lets out {', '.join(sorted(policy.may_leave))}")
    install_workers(file.modules)
    methods = [each for each in declared() if each != EVERY_RUN]
    ruled = frozenset(name for rule in file.rule for name in rule.methods or ()) or None
    for what, listed, known, words in (
        ("worker", policy.workers, [*Worker.installed()], "lets only {} be started"),
        ("method", policy.methods, methods, "takes part in {} only"),
        ("method", ruled, methods, "has rules about {}"),
    ):
        if listed is None:
            continue
        wrong = sorted(listed - set(known))
        for name in wrong:
            hint = f"no {what} {name!r} is installed here: {did_you_mean(name, known)}"
            where = "rule.methods" if listed is ruled else f"policy.{what}s"
            yield Check("party.toml", "problem", f"{where}: {hint}")
        if not wrong:
            yield Check("party.toml", "ok", words.format(", ".join(sorted(listed))))
    if policy.methods is None:
        words = "takes part in every published method of this installation (methods under [policy] "
        yield Check("party.toml", "ok", words + "would name those it agreed to)")


def _noting(read: Callable[[], Any]) -> tuple[Any, list[str]]:
    """What is read, and what was warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FedmendWarning)
        found = read()
    return found, [
        str(each.message) for each in caught if issubclass(each.category, FedmendWarning)
    ]


def _table(file: PartyFile) -> Iterator[Check]:
    try:
        (train, test), notes = _noting(lambda: read_party(file, file))
    except DataError:
        for problem in all_problems(file, file):
            yield Check("table", "problem", str(problem))
        return
    except FedmendError as error:
        yield Check("table", "problem", str(error))
        return
    label = f", label {train.label}" if train.label else ""
    more = f"; test table of {len(test):,}" if test is not None else ""
    words = f"{len(train):,} rows, {len(train.feature_names)} columns{label}{more}"
    yield Check("table", "ok", words)
    kinds = Counter(column.kind for column in train.schema.values())
    yield Check("schema", "ok", ", ".join(f"{count} {kind}" for kind, count in kinds.items()))
    if test is not None:
        absent = [name for name in train.feature_names if name not in test.names]
        if absent:
            words = (
                f"the test table lacks {', '.join(absent[:5])}. Mend: give both the same columns"
            )
            yield Check("schema", "problem", words)
    for words in dict.fromkeys([*notes, *doubtful_columns(train, file.name, task=file.task)]):
        yield Check("table", "note", words)
    if file.new is not None:
        yield from _new(file, train.features.schema)


def _labels(kit: Path, file: PartyFile) -> Iterator[Check]:
    """What was told of labels at random, over all runs, and how far that may go."""
    try:
        records = LabelRecords(file.name, kit / RECORDS)
    except DataError as error:
        yield Check("labels", "problem", str(error))
        return
    ceiling = file.policy.build().label_epsilon
    for column in records.columns():
        spent = records.spent(column)
        grade = "note" if spent >= ceiling else "ok"
        words = f"{column}: told at random with ε = {spent:g} in all runs together, of {ceiling:g}"
        yield Check("labels", grade, words + (" (nothing more can be)" if grade == "note" else ""))
        for each in records.spendings:
            if each["column"] == column:
                run = f"run {each['run']}" if each.get("run") else "a run"
                words = f"{each['time'][:10]}, {run}: {each['ids']:,} labels with ε = "
                yield Check("labels", "ok", f"{column}: {words}{each['epsilon']:g}")


def _new(file: PartyFile, schema: Schema) -> Iterator[Check]:
    """The rows to predict, as a question for predictions would read them."""
    try:
        rows, notes = _noting(lambda: read_new(file, schema))
    except FedmendError as error:
        yield Check("new rows", "problem", str(error))
        return
    yield Check("new rows", "ok", f"{len(rows):,} rows to predict")
    for words in notes:
        yield Check("new rows", "note", words)


def _space(kit: Path) -> Check:
    free = shutil.disk_usage(kit).free
    grade = "note" if free < LITTLE_SPACE_BYTES else "ok"
    mend = ". Mend: make room, models and ledger are kept here" if grade == "note" else ""
    return Check("disk", grade, f"{free / (1 << 30):.1f} GB free{mend}")
