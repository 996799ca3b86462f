"""Asking the people at a party before a run: a question and an answer, as files in the kit."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fedmend._files import write_whole
from fedmend._json import typed
from fedmend.errors import ConfigError, Refused
from fedmend.federation.engines.flare.events import printable
from fedmend.federation.engines.flare.host import Hello
from fedmend.federation.engines.flare.kits import owner_of

__all__ = ["Question", "ask", "give_answer", "open_question", "party_of"]

_QUESTION = "question.json"
_ANSWER = "answer.txt"


@dataclass(frozen=True)
class Question:
    """What the coordinator asks for, and what that lets out by this party's own installation.

    title: the coordinator's words. methods: names that are installed here, to which the run is
    bound. kinds: of the values that may leave by them.
    """

    run: str
    title: str
    methods: tuple[str, ...]
    asked: float
    kinds: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        named = printable(", ".join(self.methods)).replace("\n", " ")
        told = f", which lets out {', '.join(self.kinds)}" if self.kinds else ""
        return f"run {self.title!r} with {named or 'no named method'}{told}"


def ask(kit: Path, hello: Hello, seconds: float, kinds: Sequence[str] = ()) -> None:
    """Wait for this party's yes; a no, or silence, is `Refused`."""
    question = Question(hello.run, hello.title, hello.methods, time.time(), tuple(kinds))
    (kit / _ANSWER).unlink(missing_ok=True)
    (kit / _QUESTION).write_text(json.dumps(asdict(question)), encoding="utf-8")
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            if (kit / _ANSWER).is_file():
                if (kit / _ANSWER).read_text(encoding="utf-8").strip() == f"yes {hello.run}":
                    return
                raise Refused(party_of(kit), "the people there said no", "ask them why")
            time.sleep(0.2)
        raise Refused(
            party_of(kit),
            f"nobody there said yes within {seconds:.0f} s",
            'ask them to watch their screen, or to set approve = "always" in party.toml',
        )
    finally:
        (kit / _QUESTION).unlink(missing_ok=True)
        (kit / _ANSWER).unlink(missing_ok=True)


def open_question(kit: Path) -> Question | None:
    """The question that waits for an answer at this kit."""
    try:
        content = json.loads((kit / _QUESTION).read_text(encoding="utf-8"))
        content |= {name: tuple(content.get(name, ())) for name in ("methods", "kinds")}
        return typed(Question, content)
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        return None


def give_answer(kit: Path, yes: bool) -> Question:
    """Answer the open question."""
    question = open_question(kit)
    if question is None:
        raise ConfigError(f"nothing waits for an answer at {kit}. Mend: wait until a run asks")
    write_whole(kit / _ANSWER, f"{'yes' if yes else 'no'} {question.run}")
    return question


def party_of(kit: Path) -> str:
    """The party of a kit, by its folder's client file."""
    return owner_of(kit)
