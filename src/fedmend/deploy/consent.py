"""Consent to a run: one question and one answer, files in the kit, for all faces of a party.

The party's job writes the question and waits. Whoever sits at any screen there answers it: at the
keyboard of ``party start``, with ``party allow | refuse``, or in the console. The first answer
counts. Rules of the party's own file (`deploy.rules`) decide before anybody is asked.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedmend._files import write_whole
from fedmend._json import typed
from fedmend.deploy.history import add_rule, note
from fedmend.deploy.party_file import PartyFile
from fedmend.deploy.rules import WHO, Rule, standing
from fedmend.errors import ConfigError, Refused
from fedmend.federation.engines.flare.events import EVENTS_FILE, Events, printable
from fedmend.federation.engines.flare.host import Hello
from fedmend.federation.engines.flare.kits import owner_of

_QUESTION = "question.json"
_ANSWER = "answer.txt"
TOO_LATE = "that was too late: nobody waits for the answer"


@dataclass(frozen=True)
class Question:
    """What the coordinator asks for, and what that lets out by this party's own installation.

    title, organisation, person, study: the coordinator's words. methods: names that are installed
    here, to which the run is bound. kinds: of the values that may leave by them. until: when the
    question is withdrawn. process: which waits for the answer.
    """

    run: str
    title: str
    methods: tuple[str, ...]
    asked: float
    kinds: tuple[str, ...] = ()
    organisation: str = ""
    person: str = ""
    study: str = ""
    until: float = 0.0
    process: int = 0

    @property
    def words(self) -> str:
        named = printable(", ".join(self.methods)).replace("\n", " ")
        told = f", which lets out {', '.join(self.kinds)}" if self.kinds else ""
        who = [f"{name} {getattr(self, name)!r}" for name in WHO if getattr(self, name)]
        asks = f" for {', '.join(who)}" if who else ""
        return f"run {self.title!r}{asks} with {named or 'no named method'}{told}"

    @property
    def mark(self) -> str:
        """What an answer must name, so that it answers this question and no later one."""
        return f"{self.run} {self.asked}"


def consent(
    kit: Path,
    file: PartyFile,
    hello: Hello,
    kinds: Sequence[str],
    over: Callable[[], bool] = lambda: False,
) -> None:
    """This party's yes to a run: by its rules, by `approve`, or by its people; else `Refused`.

    over: whether the job ended, so that nobody waits for the answer any more.
    """
    rule = standing(file.rule, hello)
    if rule is not None:
        Events(kit / EVENTS_FILE).note(f"by a rule of party.toml: {rule.words}")
    answer = rule.answer if rule is not None else {"always": "yes"}.get(file.approve, "ask")
    if answer == "no":
        raise Refused(file.name, "its rules do not admit such a run", "ask its people")
    if answer == "ask":
        ask(kit, hello, file.approve_seconds, kinds, over)


def ask(
    kit: Path,
    hello: Hello,
    seconds: float,
    kinds: Sequence[str] = (),
    over: Callable[[], bool] = lambda: False,
) -> None:
    """Wait for the yes of this party's people; a no, or silence, is `Refused`."""
    now = time.time()
    who = {name: getattr(hello, name) for name in WHO}
    question = Question(
        *(hello.run, hello.title, hello.methods, now, tuple(kinds)),
        **who,
        until=now + seconds,
        process=os.getpid(),
    )
    (kit / _ANSWER).unlink(missing_ok=True)
    write_whole(kit / _QUESTION, json.dumps(asdict(question)))
    deadline = time.monotonic() + seconds
    answered = False
    try:
        while time.monotonic() < deadline and not over():
            if (kit / _ANSWER).is_file():
                answered = True
                if (kit / _ANSWER).read_text(encoding="utf-8").strip() == f"yes {hello.run}":
                    return
                raise Refused(owner_of(kit), "the people there said no", "ask them why")
            time.sleep(0.2)
        if over():
            raise Refused(owner_of(kit), "nobody waits for an answer any more", "nothing to do")
        raise Refused(
            owner_of(kit),
            f"nobody there said yes within {seconds:.0f} s",
            'ask them to watch their screen, or to set approve = "always" in party.toml',
        )
    finally:
        if answered:
            (kit / _QUESTION).unlink(missing_ok=True)
        else:  # whoever answers it now is told that it was too late
            write_whole(kit / _QUESTION, json.dumps({"withdrawn": question.mark}))
        (kit / _ANSWER).unlink(missing_ok=True)


def open_question(kit: Path) -> Question | None:
    """The question that waits for an answer at this kit."""
    try:
        content = json.loads((kit / _QUESTION).read_text(encoding="utf-8"))
        content |= {name: tuple(content.get(name, ())) for name in ("methods", "kinds")}
        question = typed(Question, content)
        if question.process:  # one that was killed left its question behind
            with contextlib.suppress(PermissionError):  # it is there, and somebody else's
                os.kill(question.process, 0)
        return question
    except (OSError, ValueError, AttributeError, TypeError, RecursionError, OverflowError):
        return None


def give_answer(
    kit: Path,
    yes: bool,
    *,
    mark: str | None = None,
    until: datetime.date | None = None,
    where: str = "terminal",
) -> Question:
    """Answer the open question; the first answer counts.

    mark: of the question that was seen, None for whichever is open. until: say the same yes to
    such runs until this day, as a rule.
    """
    question = open_question(kit)
    if question is None and (kit / _QUESTION).is_file():
        raise ConfigError(f"{TOO_LATE}. Mend: wait until a run asks")
    if question is None or (mark is not None and mark != question.mark):
        raise ConfigError(f"nothing waits for this answer at {kit}. Mend: wait until a run asks")
    rule = _rule_of(question, until) if yes and until is not None else None
    part = kit / f".answer.{secrets.token_hex(4)}"
    part.write_text(f"{'yes' if yes else 'no'} {question.run}", encoding="utf-8")
    try:
        os.link(part, kit / _ANSWER)  # whole, and only where there is none yet
    except FileExistsError:
        raise ConfigError(
            f"somebody answered already: {question.words}. Mend: nothing to do"
        ) from None
    finally:
        part.unlink(missing_ok=True)
    note(kit, f"{'yes' if yes else 'no'} to {question.words}", where=where)
    if rule is not None:
        add_rule(kit, rule, where=where)
    return question


def _rule_of(question: Question, until: datetime.date) -> Rule:
    """The same yes to runs of the same people with no other methods."""
    if until < datetime.date.today():
        raise ConfigError(f"{until} is over. Mend: name a day to come, or none")
    if not question.methods:
        raise ConfigError("a run that names no method gets a yes for once. Mend: name no day")
    who: dict[str, Any] = {name: getattr(question, name) or None for name in WHO}
    return Rule(**who, methods=list(question.methods), answer="yes", until=until)
