"""Ledgers of a run after it: compared, verified, and handed to who has to look after them.

An export is one JSON file with a ledger's lines (or a party's whole account, from its console),
what they say in words, and a signature of the party by the key that stands for it: a
data-protection officer needs nothing else to read it, and `fedmend ledger FILE --verify` to know
whose it is and that it is whole.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from fedmend._json import plain, write_json
from fedmend._suggest import did_you_mean
from fedmend._version import __version__
from fedmend.deploy.party_file import PARTY_FILE, PartyFile, load_party, own_identity
from fedmend.errors import ConfigError, CryptoError, DataError
from fedmend.federation.ledger import (
    COORDINATOR,
    CUT_OFF,
    SESSION,
    Chain,
    inspect_bytes,
    inspect_ledger,
)
from fedmend.federation.reconcile import compare_heads, reconcile
from fedmend.flow.manifest import MANIFEST_FILE, hash_of, read_manifest
from fedmend.report.banner import banner_of
from fedmend.report.page import LEDGER_FILE
from fedmend.report.words import what_was_seen
from fedmend.secure.keys import fingerprint, verify_signature

LEDGERS_FOLDER = "ledgers"
"""In a run folder: what the parties wrote themselves."""
EXPORT_FORMAT = "fedmend ledger export 1"
ACCOUNT_FORMAT = "fedmend account 1"
_MEND = (
    "Mend: take what was altered from a backup, or a copy from whoever has one; ask whose ledger "
    "it is what happened"
)


def reconcile_run(run: Path, own: list[str]) -> list[str]:
    """Compare the ledger of a run with those of its parties: what to say, or every difference."""
    chains = _chains(run, own)
    if len(chains) < 2:
        raise ConfigError(
            f"{run} holds no ledger of a party. Mend: --with bank=FILE, the copy that the bank "
            "has in ledgers/ of its kit"
        )
    ours = chains[COORDINATOR].entries
    said, wrong = [], _flaws(chains)
    heads, _ = compare_heads(chains)
    for party in [each for each in chains if each != COORDINATOR]:
        found = reconcile(ours, party, chains[party].entries)
        problems = [each for each in found if each.grade != "explained"]
        said.append(f"{party}: {len(problems)} differences" if problems else f"{party}: agrees")
        said += [
            f"  explained by a call that was not answered: {each.words}"
            for each in found
            if each.grade == "explained"
        ]
        wrong += [f"{each.party}, {each.grade}: {each.words}" for each in problems]
    wrong += [f"{each.party}, {each.grade}: {each.words}" for each in heads]
    return _told(run, said, wrong)


def verify_run(run: Path, own: list[str]) -> list[str]:
    """Whether ledgers are as they were written: what to say, or every line that is not."""
    if run.is_file() and run.suffix == ".json":
        return _verify_export(run)
    chains = _chains(run, own)
    said, wrong = [], _flaws(chains)
    for role, chain in chains.items():
        whole = "is not as it was written" if chain.flaws else "is whole"
        head = f"{chain.head.lines:,} lines, the last with the hash {chain.head.hash[:16]}…"
        said.append(f"the ledger of {_named(role)} {whole}: {head}")
        said += [
            f"  {entry.bytes:,} bytes of a line that was cut off (by a kill, or a full disk) were "
            f"dropped at {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(entry.time))}"
            for entry in chain.entries
            if entry.note == CUT_OFF
        ]
    heads, compared = compare_heads(chains)
    wrong += [f"{each.party}, {each.grade}: {each.words}" for each in heads]
    recorded = _recorded(run)
    if recorded is not None and recorded != hash_of(run / LEDGER_FILE):
        wrong.append(f"{MANIFEST_FILE} has another {LEDGER_FILE}: lines were added or cut off")
    if compared:
        said.append(f"{compared - len(heads)} of {compared} heads that others were told agree")
    elif recorded is None:
        said.append(
            "nobody here was told a head of it: an end that was cut off would not be noticed. "
            "Mend: --with bank=FILE, the ledger of another party of the run"
        )
    return _told(run, said, wrong)


def _told(run: Path, said: list[str], wrong: list[str]) -> list[str]:
    if wrong:
        error = ConfigError(wrong, source=str(run))
        for each in [*said, _MEND]:
            error.add_note(each)
        raise error
    return said


def _named(role: str) -> str:
    return "the coordinator" if role == COORDINATOR else role


def _chains(run: Path, own: list[str]) -> dict[str, Chain]:
    """The ledgers there are, by whose they are; a run folder has copies of its parties'."""
    first = inspect_ledger(run / LEDGER_FILE if run.is_dir() else run)
    found = {COORDINATOR if run.is_dir() else _owner(run, first): first}
    for path in sorted((run / LEDGERS_FOLDER).glob("*.jsonl")):
        found[path.stem] = inspect_ledger(path)
    entries = first.entries
    roles = {role for each in entries for role in (each.sender, each.receiver) if role}
    for pair in own:
        party, equals, file = pair.partition("=")
        if not equals:
            raise ConfigError(f"--with {pair!r} names no party. Mend: --with bank=ledger.jsonl")
        if party not in roles:
            hint = did_you_mean(party, roles)
            raise ConfigError(f"--with {party}: {run} has no such party: {hint}")
        found[party] = inspect_ledger(file)
    return found


def _owner(path: Path, chain: Chain) -> str:
    """Whose ledger a file is: a party's has sessions of that party only."""
    begun = {each.receiver for each in chain.entries if each.note.startswith(f"{SESSION} ")}
    return begun.pop() if len(begun) == 1 and path.name != LEDGER_FILE else COORDINATOR


def _flaws(chains: dict[str, Chain]) -> list[str]:
    return [
        f"{role}, line {flaw.line:,}: {flaw.words}"
        for role, chain in chains.items()
        for flaw in chain.flaws
    ]


def _recorded(run: Path) -> str | None:
    """The hash of the ledger from which the run's report was made."""
    if not (run / MANIFEST_FILE).is_file():
        return None
    report = read_manifest(run).find("report")
    return None if report is None else report.inputs.get(LEDGER_FILE)


# ---------------------------------------------------------------- exports


def export_ledger(ledger: Path, out: Path, force: bool = False) -> str:
    """Write a party's ledger as a signed file; the fingerprint of the key that signed it."""
    kit = ledger.resolve().parent.parent
    if not (kit / PARTY_FILE).is_file():
        raise ConfigError(
            f"{ledger} lies in no kit, whose key could sign it. Mend: name a file in ledgers/ of "
            "a party's kit"
        )
    if out.exists() and not force:
        raise ConfigError(f"{out} exists already. Mend: --force to overwrite it, or another name")
    chain = inspect_ledger(ledger)
    if chain.flaws:
        raise ConfigError(_flaws({str(ledger): chain}))
    file = load_party(kit)
    content: dict[str, Any] = {
        "format": EXPORT_FORMAT,
        "fedmend": __version__,
        "party": file.name,
        "ledger": ledger.name,
        "exported": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "in words": _in_words(chain),
        "lines": ledger.read_text(encoding="utf-8").splitlines(),
        "head": list(chain.head),
    }
    made = signed(content, file)
    write_json(out, made)
    return fingerprint(bytes.fromhex(made["key"]))


def signed(content: dict[str, Any], file: PartyFile) -> dict[str, Any]:
    """The content with the party's key and its signature, as a file of it will be read again."""
    identity, _, _ = own_identity(file)
    content = plain(content) | {"key": identity.signing_key.hex()}
    return content | {"signature": identity.sign(_canonical(content)).hex()}


def _in_words(chain: Chain) -> list[str]:
    said = [banner_of(chain.entries).left]
    for saw in what_was_seen(chain.entries):
        said += [saw.headline, *saw.sentences()]
    return said


def _canonical(content: dict[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def _verify_export(path: Path) -> list[str]:
    try:
        content = json.loads(path.read_bytes().decode())
        signature, key = bytes.fromhex(content.pop("signature")), bytes.fromhex(content["key"])
        if content["format"] == ACCOUNT_FORMAT:
            lines, heads = content["ledgers"], {}
        elif content["format"] == EXPORT_FORMAT:
            name = str(content["ledger"])
            lines, heads = {name: content["lines"]}, {name: tuple(content["head"])}
        else:
            raise ValueError(f"it is of the format {content['format']!r}")
        chains = {
            f"{content['party']}, {name}": inspect_bytes(
                "".join(f"{line}\n" for line in each).encode()
            )
            for name, each in lines.items()
        }
        party = str(content["party"])
        others = [name for name, head in heads.items() if chains[f"{party}, {name}"].head != head]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(
            f"{path} is no export of a ledger: {error}",
            mend="name a file that 'fedmend ledger … --export' has written",
        ) from error
    if not verify_signature(key, _canonical(content), signature):
        raise CryptoError(
            f"{path} was altered after it was signed. Mend: ask {party!r} to export it again"
        )
    wrong = _flaws(chains) + [f"{name}: the head is another" for name in others]
    if wrong:
        raise ConfigError(wrong, source=str(path))
    count = sum(chain.head.lines for chain in chains.values())
    return [
        f"signed by {party}, {content.get('exported')}: {count:,} lines, all as written",
        f"by the key {fingerprint(key)}; compare it by telephone with what 'fedmend party "
        f"keys' shows at {party}",
        *(str(each) for each in content["in words"]),
    ]
