"""The console in process: who is let in, every page, every form, and what wrong input does."""

from __future__ import annotations

import datetime
import errno
import html
import json
import os
from urllib.parse import urlencode

import numpy as np
import pytest
from tests.deploy.conftest import Asked
from tests.serve.conftest import serving

from fedmend.console.server import ConsoleServer
from fedmend.deploy import history
from fedmend.deploy.consent import ask, consent, give_answer, open_question
from fedmend.deploy.history import add_rule, decisions
from fedmend.deploy.ledgers import verify_run
from fedmend.deploy.party_file import load_party, rules_of
from fedmend.deploy.rules import Rule, standing
from fedmend.errors import ConfigError, CryptoError, Refused
from fedmend.federation.engines.flare.events import Events
from fedmend.federation.engines.flare.host import Hello
from fedmend.federation.ledger import Ledger
from fedmend.federation.rows import RowAccount
from fedmend.federation.wire import measure

from .conftest import Visitor

PAGES = ("/", "/rules", "/left", "/table", "/models", "/labels", "/ledgers")
HELLO = Hello(
    *("r1", "spring <b>run</b>", ("vfl",), 0, 0.25),
    organisation="City Hospital",
    person="Ada",
    study="readmissions",
)
TOMORROW = datetime.date.today() + datetime.timedelta(days=1)


def asking(kit, hello=HELLO, kinds=("embedding", "count")):
    return Asked(kit, lambda: consent(kit, load_party(kit), hello, kinds))


# ---------------------------------------------------------------- who is let in


def test_what_happens_while_a_page_is_made_is_news_to_it(kit, monkeypatch):
    from fedmend.console import server as room

    template, words, make = room.PAGES["/"]

    def slowly(party):
        shown = make(party)
        Events(kit / "events.jsonl").note("run 'spring' ended: finished")
        return shown

    monkeypatch.setitem(room.PAGES, "/", (template, words, slowly))
    with ConsoleServer(kit) as server:
        page = server.page("/")
        assert "ended: finished" not in page
        assert f'data-state="{server.party.state()}"' not in page


def test_nobody_without_the_link_and_the_link_is_good_for_once(kit):
    with serving(ConsoleServer(kit)) as server:
        visitor = Visitor(server)
        for path in (
            *PAGES,
            "/state",
            "/console.css",
            "/console.js",
            "/?token=x",
            "/?token=%C3%A4",
        ):
            assert visitor.ask("GET", path).status == 403, path
        link = "/?" + server.link.partition("?")[2]
        answer = visitor.enter()
        assert "HttpOnly" in answer.headers["Set-Cookie"]
        assert "SameSite=Strict" in answer.headers["Set-Cookie"]
        assert visitor.ask("GET", link).status == 403
        assert visitor.ask("GET", "/", Cookie=visitor.cookie[:-1] + "x").status == 403
        assert visitor.ask("GET", "/", Cookie="a\x07=;;=").status == 403


def test_only_under_its_own_address(visitor):
    for host in (
        "evil.example",
        f"evil.example:{visitor.address.partition(':')[2]}",
        "127.0.0.1:1",
    ):
        assert visitor.ask("GET", "/", Host=host).status == 403
        assert (
            visitor.ask("POST", "/stop", urlencode({"csrf": visitor.csrf}), Host=host).status == 403
        )


def test_a_form_must_be_one_of_the_consoles_own(visitor):
    def post(body, **headers):
        return visitor.ask("POST", "/rules/new", body, **headers).status

    whole = {"csrf": visitor.csrf, "answer": "no"}
    assert post(urlencode({"answer": "no"})) == 403
    assert post(urlencode(whole | {"csrf": "ä"})) == 403
    assert post(urlencode(whole), Cookie="") == 403
    assert post(urlencode(whole), Origin="http://127.0.0.1:9") == 403
    assert post(urlencode(whole), Origin="null") == 403
    assert post(b"\xff\xfe=1") == 400
    assert post("&".join(f"a{n}=1" for n in range(3000))) == 400
    assert post("x" * (1 << 19)) == 413
    assert load_party(visitor.kit).rule == []
    assert visitor.ask("POST", "/nothing", urlencode(whole)).status == 404
    assert visitor.ask("GET", "/../party.toml").status == 404
    assert visitor.ask("GET", "http://[x").status == 400
    assert post(urlencode(whole), Origin=f"http://{visitor.address}") == 303


def test_pages_run_nothing_and_load_nothing_but_their_own(visitor):
    answer = visitor.ask("GET", "/")
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy and "form-action 'self'" in policy
    for path in PAGES:
        text = visitor.get(path)
        assert "style=" not in text and "onclick" not in text and "<style" not in text
    assert ".fields p > label" in visitor.get("/console.css")
    assert "fetch" in visitor.get("/console.js")


def test_only_a_partys_kit(kit, fedmend):
    (kit / "startup" / "fed_client.json").rename(kit / "startup" / "fed_server.json")
    assert "is the kit of a server" in fedmend("console", kit)[2]


def test_a_spoilt_file_is_told_on_every_page(visitor):
    (visitor.kit / "party.toml").write_text('name = "bank"\nlabl = "x"\n')
    for path in PAGES:
        assert "labl" in visitor.get(path) or path in ("/table", "/labels", "/ledgers"), path


# ---------------------------------------------------------------- consent


def test_a_request_in_plain_words_and_a_yes(visitor):
    assert "Nothing waits for an answer" in visitor.get()
    asked = asking(visitor.kit)
    page = html.unescape(visitor.get())
    for words in ("spring <b>run</b>", "person Ada", "organisation City Hospital", "readmissions"):
        assert words in page
    assert "outputs of a party's bottom model" in page and "up to 160" in page
    assert "at least 10 under each answer" in page and "of a processor" in page
    assert "<b>run</b>" not in visitor.get()
    said = visitor.post("/decide", answer="yes", question=open_question(visitor.kit).mark)
    assert "yes: run" in said
    assert asked.outcome() is None
    assert "(console)" in decisions(visitor.kit)[-1].who


def test_no_and_an_answer_to_a_question_that_is_gone(visitor):
    asked = asking(visitor.kit)
    mark = open_question(visitor.kit).mark
    assert "is no answer" in visitor.post("/decide", 422, answer="perhaps", question=mark)
    assert "the day is missing" in visitor.post("/decide", 422, answer="until", question=mark)
    for day, words in (("soon", "is no day"), ("2020-01-01", "is over")):
        assert words in visitor.post("/decide", 422, answer="until", until=day, question=mark)
    assert "nothing waits" in visitor.post("/decide", 422, answer="yes", question="r1 0.0")
    visitor.post("/decide", answer="no", question=mark)
    assert "said no" in str(asked.outcome())
    assert "nothing waits" in visitor.post("/decide", 422, answer="yes", question=mark)


def test_the_first_answer_counts_whichever_face_gave_it(visitor):
    content = {"run": "r1", "title": "t", "methods": ["vfl"], "asked": 1.0}
    (visitor.kit / "question.json").write_text(json.dumps(content))
    give_answer(visitor.kit, True)  # as the terminal does
    said = visitor.post("/decide", 422, answer="no", question=open_question(visitor.kit).mark)
    assert "somebody answered already" in said
    assert (visitor.kit / "answer.txt").read_text() == "yes r1"


def test_a_yes_until_a_day_is_a_rule_for_such_runs_only(visitor):
    asked = asking(visitor.kit)
    mark = open_question(visitor.kit).mark
    visitor.post("/decide", answer="until", until=str(TOMORROW), question=mark)
    assert asked.outcome() is None
    file = load_party(visitor.kit)
    (rule,) = file.rule
    assert rule.words == (
        "yes to organisation 'City Hospital', person 'Ada', study 'readmissions', methods vfl "
        f"until {TOMORROW}"
    )
    consent(visitor.kit, file, HELLO, ())  # nobody is asked
    assert "by a rule of party.toml: yes" in (visitor.kit / "events.jsonl").read_text()
    for other in ({"person": "Eve"}, {"methods": ("vfl", "predict")}, {"study": ""}):
        run = Hello(**{**vars(HELLO), **other})
        assert standing(file.rule, run) is None
    # what a question cannot say is not turned into a rule for everybody
    bare = Hello("r2", "bare", (), 0, 0.25)
    asked = asking(visitor.kit, bare)
    mark = open_question(visitor.kit).mark
    words = visitor.post("/decide", 422, answer="until", until=str(TOMORROW), question=mark)
    assert "names no method" in words
    visitor.post("/decide", answer="no", question=mark)
    asked.outcome()


def test_a_question_of_a_process_that_was_killed_is_gone(kit):
    content = {"run": "r1", "title": "t", "methods": [], "asked": 1.0, "process": 2**22 + 7}
    (kit / "question.json").write_text(json.dumps(content))
    assert open_question(kit) is None


def test_a_rehearsal_of_an_audit_stands_beside_the_request(visitor):
    from fedmend.audit.page import write_audit
    from fedmend.audit.result import AuditReport

    reports = [
        AuditReport(method=name, parties=["bank", "telco"], rows=100, facts=[])
        for name in ("VFL", "InC")
    ]
    write_audit(visitor.kit, "trial", reports)
    asked = asking(visitor.kit)
    page = visitor.get()
    assert "VFL, rehearsed in one process with bank, telco (100 rows)" in page
    assert "InC, rehearsed" not in page
    give_answer(visitor.kit, False)
    asked.outcome()


# ---------------------------------------------------------------- rules


def test_rules_are_written_into_the_partys_own_file_with_their_history(visitor):
    path = visitor.kit / "party.toml"
    before = path.read_text() + "# a word of ours\n[policy]\nmin_rows = 12\n"
    path.write_text(before)
    path.chmod(0o600)
    said = visitor.post(
        "/rules/new", study='a "quoted" study', methods="vfl, inc", answer="no", until=str(TOMORROW)
    )
    assert "new rule: no to study" in said and "min_rows" in said
    visitor.post("/rules/new", refuse=["weights", "embedding"])
    assert path.read_text().startswith(before.rstrip()) and path.stat().st_mode & 0o777 == 0o600
    first, second = load_party(visitor.kit).rule
    assert first.study == 'a "quoted" study' and first.until == TOMORROW
    assert second.refuse == ["weights", "embedding"] and second.answer is None
    visitor.post("/rules/drop", number="0", words=first.words)
    assert load_party(visitor.kit).rule == [second] and "# a word of ours" in path.read_text()
    told = decisions(visitor.kit)
    assert [each.what.partition(":")[0] for each in told] == [
        "new rule",
        "new rule",
        "rule taken out",
    ]
    assert told[-1].rules == [second.words] and told[0].rules == [first.words]
    page = html.unescape(visitor.get("/rules"))
    assert "rule taken out: no to study" in page


def test_a_change_with_an_editor_is_noticed(visitor):
    path = visitor.kit / "party.toml"
    path.write_text(path.read_text() + '\n[[rule]]\nanswer = "no"\nstudy = "x"\n')
    assert "somebody, in party.toml itself: other rules; before: none" in visitor.get("/rules")
    visitor.get("/rules")
    assert len(decisions(visitor.kit)) == 1


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "says nothing"),
        ({"answer": "maybe"}, "this is no rule"),
        ({"refuse": "wieghts"}, "unknown kind"),
        ({"answer": "no", "until": "x"}, "is no day"),
        (
            {"answer": "no", "methods": "vlf"},
            "no method 'vlf' is installed here: did you mean 'vfl'",
        ),
        ({"answer": "no", "study": "s" * 300}, "this is no rule"),
    ],
)
def test_what_is_no_rule_changes_nothing(visitor, fields, words):
    before = (visitor.kit / "party.toml").read_text()
    assert words in html.unescape(visitor.post("/rules/new", 422, **fields))
    assert (visitor.kit / "party.toml").read_text() == before and not decisions(visitor.kit)


def test_modules_that_only_the_partys_own_process_can_import_are_no_hindrance(visitor):
    path = visitor.kit / "party.toml"
    path.write_text('modules = ["only_elsewhere"]\n' + path.read_text())
    assert "new rule: no to methods vfl" in visitor.post("/rules/new", answer="no", methods="vfl")


def test_a_rule_that_is_another_by_now_is_not_taken_out(visitor):
    add_rule(visitor.kit, Rule(answer="no"), where="test")
    for number, words in (("0", "yes to every run"), ("7", "no to every run"), ("x", "")):
        assert "have changed" in visitor.post("/rules/drop", 422, number=number, words=words)
    assert len(load_party(visitor.kit).rule) == 1


def test_a_file_that_writes_rules_in_another_way_is_left_alone(visitor):
    path = visitor.kit / "party.toml"
    path.write_text('rule = [{answer = "no"}]\n' + path.read_text())
    assert "cannot be changed from here" in visitor.post("/rules/new", 422, answer="ask")
    words = "no to every run"
    assert "cannot be changed" in visitor.post("/rules/drop", 422, number="0", words=words)


def test_which_rule_decides_and_what_it_withholds(kit):
    def rules(*given):
        text = (kit / "party.toml").read_text()
        (kit / "rules.toml").write_text(text + "".join(f"\n{each.text}" for each in given))
        return load_party(kit / "rules.toml")

    no, ask_me = Rule(answer="no"), Rule(answer="ask", methods=["vfl", "inc"])
    over = Rule(answer="yes", until=datetime.date(2020, 1, 1))
    yes = Rule(answer="yes", methods=["vfl"], refuse=["embedding"])
    file = rules(no, ask_me, over)
    assert standing(file.rule, HELLO) == ask_me
    with pytest.raises(Refused, match="its rules do not admit such a run"):
        consent(kit, rules(no, over), HELLO, ())
    file = rules(no, yes)
    consent(kit, file, HELLO, ())
    assert "embedding" not in rules_of(file, HELLO)[0].may_leave
    more = Hello(**{**vars(HELLO), "methods": ("vfl", "predict")})
    assert standing(file.rule, more) == no  # a yes is for no other methods
    assert "embedding" in rules_of(file, more)[0].may_leave
    with pytest.raises(ConfigError, match="says nothing"):
        (kit / "party.toml").write_text(
            'name = "bank"\ndata = "bank.csv"\n[[rule]]\nperson = "x"\n'
        )
        load_party(kit)


# ---------------------------------------------------------------- what left, table


def crossed(kit, name="r1"):
    ledger = Ledger(kit / "ledgers" / f"{name}.jsonl")
    sent = np.zeros((64, 8), np.float32)
    for _ in range(3):
        ledger.record("bank", "coordinator", "W.step", "embedding", measure(sent))
    ledger.record("bank", "coordinator", "W.sums", "statistic", measure(1.0))
    ledger.record("bank", "coordinator", "W.labels", "label", measure(1), note="refused")
    ledger.record("coordinator", "bank", "W.step", "gradient", measure(sent))
    ledger.close()
    return ledger.path


def test_what_left_by_recipient_with_rows_and_a_verified_chain(visitor):
    assert "No run has asked" in visitor.get("/left")
    path = crossed(visitor.kit)
    account = RowAccount("bank", 2, file=visitor.kit / "records" / "rows-asked.jsonl", run="r1")
    table = visitor.server.party.table()
    account.admit("W.sums", table, np.arange(40))
    account.admit("W.sums", table, np.arange(20))
    page = visitor.get("/left")
    assert "3 batches of embeddings" in page and ">192<" in page and "gradient" not in page
    assert "1 batch of labels in the clear asked for and refused" in page
    assert "3 lines" not in page and "4 lines, all as written" in page
    assert ">2</td>" in page and ">20</td>" in page and ">40</td>" in page
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:1] + lines[2:]))
    assert "not as it was written: line 2" in visitor.get("/left")


def test_my_table_its_problems_and_a_preview(visitor):
    add_rule(visitor.kit, Rule(answer="no", methods=["vfll"]), where="test")
    page = visitor.get("/table")
    assert "rule.methods: no method" in page
    assert "160 rows, 2 columns, label default" in page and "localhost:1 " in page
    assert "nurse" in page and ">nominal<" in page
    (visitor.kit / "bank.csv").write_text("customer,income\n1,2\n1,3\n")
    page = visitor.get("/table")
    assert "problem" in page and "The first rows" not in page


def test_what_is_not_confirmed_is_not_read(visitor):
    path = visitor.kit / "party.toml"
    table = 'data = "bank.csv"'
    path.write_text(path.read_text().replace(table, 'sql = "SELECT 1"\nuri = "sqlite:///x.db"'))
    page = visitor.get()
    assert "This is where it should lead" in page and "sqlite:///x.db" in page
    assert "confirm it first" in visitor.post("/start", 422)
    assert "leads elsewhere by now" in visitor.post("/confirm", 422, leads="0")
    from fedmend.deploy.party_file import unconfirmed

    leads = " ".join(lead.digest for lead in unconfirmed(load_party(visitor.kit)))
    assert "confirmed: a change" in visitor.post("/confirm", leads=leads)
    assert not unconfirmed(load_party(visitor.kit))


# ---------------------------------------------------------------- live, start, stop


def test_the_state_changes_with_what_happens(visitor):
    before = visitor.get("/state")
    Events(visitor.kit / "events.jsonl").note("a <i>word</i>")
    assert visitor.get("/state") != before
    page = visitor.get()
    assert "a &lt;i&gt;word" in page and "does not run" in page
    crossed(visitor.kit)
    assert "→ W.sums: statistic" in visitor.get()


def test_a_party_that_does_not_run_cannot_be_stopped(visitor):
    assert "was not running" in visitor.post("/stop", 422)


# ---------------------------------------------------------------- models, labels, export


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("", ["whoever can use this machine", "as often as they like", "all below that are not"]),
        (f'[serve]\nquota = 3\nruns = ["r1"]\naskers.crm = "{"a" * 64}"\n',
         ["crm, each by a token", "3 answers about one person a day", "those of r1"]),
        ("partners", ["who has the labels among telco, by its cert"]),
        ('partners\n[policy]\nmethods = ["vfl"]\n', ["nobody: methods under [policy] does not"]),
    ],
)  # fmt: skip
def test_who_may_ask_a_model_and_how_often(visitor, lines, words):
    file = visitor.kit / "party.toml"
    text = file.read_text() + lines.replace("partners", 'partners = ["telco"]')
    file.write_text(text.replace('label = "default"\n', "") if "partners" in lines else text)
    page = html.unescape(visitor.get("/models"))
    assert all(each in page for each in words), page


def test_a_model_is_revoked_and_put_back(visitor):
    part = visitor.kit / "runs" / "r1" / "vfl" / "part.fmw"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * 2000)
    assert "2.0 kB" in visitor.get("/models")
    assert "nobody is answered" in visitor.post("/models/revoke", run="r1", method="vfl")
    assert not part.exists() and (visitor.kit / "revoked/r1/vfl/part.fmw").is_file()
    for run, method in (("r1", "vfl"), ("..", "startup"), ("r1", "../../startup"), ("", "")):
        assert "to be moved" in visitor.post("/models/revoke", 422, run=run, method=method)
    assert "is back" in visitor.post("/models/back", run="r1", method="vfl")
    assert part.is_file()
    assert [each.what for each in decisions(visitor.kit)] == [
        "revoked: vfl of r1", "put back: vfl of r1",
    ]  # fmt: skip


def test_models_of_a_run_whose_name_begins_with_no_letter_are_revoked(visitor):
    """The folder was called Übung."""
    (visitor.kit / "runs" / "-bung-1a2b" / "vfl").mkdir(parents=True)
    assert "nobody" in visitor.post("/models/revoke", run="-bung-1a2b", method="vfl")


def test_what_the_disk_refuses_is_told_on_the_page(visitor, monkeypatch):
    def full(*given, **more):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "party.toml")

    with monkeypatch.context() as patch:
        patch.setattr(history, "write_whole", full)
        page = visitor.post("/rules/new", 500, answer="no", methods="vfl")
    assert "No space left on device" in page and "party.toml" in page and "Mend: room" in page
    crossed(visitor.kit)
    for theirs in ("x" * 5000, "~nobody-of-this-name/ledger.jsonl"):
        page = visitor.post("/ledgers/compare", 500, run="r1", theirs=theirs)
        assert "not finished: " in page and "Mend" in page


def test_labels_in_doubt_are_decided_into_a_file(visitor):
    folder = visitor.kit / "runs" / "r1" / "inc"
    folder.mkdir(parents=True)
    (folder / "label_review.csv").write_text(
        "id,label,corrected,probability,label_probability,suspicious\n"
        "7,no,yes,0.93,0.07,True\n8,yes,yes,0.8,0.8,False\n'=9,no,yes,0.99,0.01,True\n"
    )
    page = visitor.get("/labels")
    assert "2 left, 0 decided" in page and "93 %" in page and 'name="row:=9"' in page
    page = visitor.post("/labels/decide", run="r1", method="inc", **{"row:=9": "accept"})
    assert "1 corrected labels accepted, 0 rejected" in page and "1 left, 1 decided" in page
    kept = (visitor.kit / "labels-reviewed.csv").read_text().splitlines()
    assert kept[1].startswith("r1,inc,'=9,no,yes,accept,")
    for fields in ({"row:8": "accept"}, {"row:7": "perhaps"}, {}, {"row:=9": "reject"}):
        visitor.post("/labels/decide", 422, run="r1", method="inc", **fields)
    visitor.post("/labels/decide", 422, run="r2", method="inc", **{"row:7": "accept"})
    visitor.post("/labels/decide", run="r1", method="inc", **{"row:7": "reject"})
    assert len((visitor.kit / "labels-reviewed.csv").read_text().splitlines()) == 3


def test_ledgers_are_compared_with_the_coordinators(visitor):
    ours = crossed(visitor.kit)
    theirs = visitor.kit / "from the coordinator" / "ledger.jsonl"
    theirs.parent.mkdir()
    theirs.write_bytes(ours.read_bytes())
    said = visitor.post("/ledgers/compare", 200, run="r1", theirs=str(theirs))
    assert "bank: agrees" in said
    theirs.unlink()
    less = Ledger(theirs)
    less.record("bank", "coordinator", "W.sums", "statistic", measure(1.0))
    less.close()
    said = visitor.post("/ledgers/compare", 422, run="r1", theirs=str(theirs))
    assert "bank, missing" in said
    for fields in ({"run": "r9", "theirs": "x"}, {"run": "r1"}, {"run": "r1", "theirs": "/x"}):
        visitor.post("/ledgers/compare", 422, **fields)


def test_the_export_is_signed_and_every_change_is_noticed(visitor, tmp_path):
    crossed(visitor.kit)
    add_rule(visitor.kit, Rule(answer="no", study="x"), where="test")
    answer = visitor.ask("POST", "/ledgers/export", urlencode({"csrf": visitor.csrf}))
    assert answer.status == 200 and "attachment" in answer.headers["Content-Disposition"]
    path = tmp_path / "account.json"
    path.write_text(answer.text)
    said = "\n".join(verify_run(path, []))
    assert "signed by bank" in said and "batches of embeddings" in said
    content = json.loads(answer.text)
    assert content["rules"] == ["no to study 'x'"] and content["history"][0]["what"]
    content["rules"] = []
    path.write_text(json.dumps(content))
    with pytest.raises(CryptoError, match="altered after it was signed"):
        verify_run(path, [])


def test_ask_writes_a_whole_question(kit):
    with pytest.raises(Refused, match="nobody there said yes"):
        ask(kit, HELLO, 0.1)
