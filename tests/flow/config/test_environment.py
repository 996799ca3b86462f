"""References to the environment: looked up for the reader, and shown to nobody."""

from __future__ import annotations

import pytest

from fedmend.errors import ConfigError, ReadError
from fedmend.flow.checks import check_data
from fedmend.flow.config import load_config
from fedmend.flow.config.references import look_up
from fedmend.flow.config.rewriting import moved, without_passwords
from fedmend.flow.plan import plan_of
from fedmend.flow.reading import read_parties


def test_references_and_dollar_signs(monkeypatch):
    monkeypatch.setenv("PLACE", "/srv/tables")
    assert look_up("${PLACE}/bank.csv", "data").text == "/srv/tables/bank.csv"
    assert look_up("a$b/$${PLACE}/$$.csv", "data").text == "a$b/${PLACE}/$.csv"
    assert look_up("plain.csv", "data").values == {}


def test_a_password_is_put_into_an_address_as_it_is(monkeypatch):
    monkeypatch.setenv("SECRET", "p@ss/w:rd#%41")
    monkeypatch.setenv("PORT", "5432")
    written = "postgresql://me:${SECRET}@db:${PORT}/x?sslpassword=${SECRET}"
    coded = "p%40ss%2Fw%3Ard%23%2541"
    assert look_up(written, "uri").text == (
        f"postgresql://me:{coded}@db:5432/x?sslpassword={coded}"
    )
    monkeypatch.setenv("ADDRESS", "postgresql://me:p%40ss@db/x")
    assert look_up("${ADDRESS}", "uri").text == "postgresql://me:p%40ss@db/x"


def test_a_variable_that_is_not_set_is_named_with_party_and_key(workshop, monkeypatch):
    monkeypatch.delenv("NOWHERE", raising=False)
    workshop.write()
    workshop.edit(('data = "telco.csv"', 'data = "${NOWHERE}/telco.csv"'))
    config = load_config(workshop.config)
    (problem,) = check_data(config).problems
    assert problem.startswith(
        "party 'telco': data names the environment variable NOWHERE, which is not set. "
        "Mend: export NOWHERE=…"
    )
    with pytest.raises(ReadError, match="NOWHERE"):
        read_parties(config)


def test_what_is_no_reference_is_told_with_all_other_problems(workshop):
    workshop.write()
    workshop.edit(('data = "bank.csv"', 'data = "${MY-BANK}.csv"'))
    query = 'sql = "SELECT \'${DAY}\'"\nuri = "sqlite:///${OPEN"'
    workshop.edit(('data = "telco.csv"', query))
    with pytest.raises(ConfigError) as caught:
        load_config(workshop.config)
    told = "\n".join(caught.value.problems)
    assert "party[bank].data has '${MY-BANK}', which names no environment variable" in told
    assert "party[telco].uri has '${OPEN', which names no environment variable" in told
    assert "party[telco].sql has '${DAY}', but environment variables are looked up in" in told


def test_errors_show_the_reference_and_not_its_value(workshop, monkeypatch):
    monkeypatch.setenv("PLACE", "/nowhere/at/all")
    monkeypatch.setenv("ADDRESS", "postgresql://me:hidden@127.0.0.1:1/x")
    monkeypatch.setenv("SECRET", "also hidden")
    workshop.write()
    workshop.edit(('data = "bank.csv"', 'data = "${PLACE}/bank.csv"'))
    before = 'data = "telco.csv"'
    for uri in ("${ADDRESS}", "postgresql://me:${SECRET}@127.0.0.1:1/x", "sqlite:///${PLACE}/x.db"):
        query = f"sql = 'SELECT 1'\nuri = \"{uri}\""
        workshop.edit((before, query))
        before = query
        bank, telco = check_data(load_config(workshop.config)).problems
        assert "${PLACE}/bank.csv: there is no such file" in bank
        for value in ("nowhere", "hidden", "%20"):
            assert value not in bank + telco
        assert uri.removeprefix("sqlite:///").replace("${SECRET}", "***") in telco


def test_paths_that_begin_with_a_reference_stay_when_a_file_moves(tmp_path):
    party = {"data": "${PLACE}/a.csv", "test": "b.csv", "uri": "sqlite:///${PLACE}/x.db"}
    assert moved(party, tmp_path) == party | {"test": (tmp_path / "b.csv").as_posix()}
    assert moved({"uri": "sqlite:///x.db"}, tmp_path)["uri"] == f"sqlite:///{tmp_path}/x.db"


# ---------------------------------------------------------------- passwords in the file


def test_a_password_in_the_file_is_noted_and_left_out_of_the_copy(workshop):
    workshop.write()
    query = (
        "sql = 'SELECT 1'\n# was postgresql://me:older@host/db\n"
        'uri = "postgresql://me:secret@127.0.0.1:1/db?sslpassword=other"  # secret place'
    )
    workshop.edit(('data = "telco.csv"', query))
    config = load_config(workshop.config)
    (note,) = check_data(config).notes
    assert note.startswith("party 'telco': uri holds a password") and "${PASSWORD_TELCO}" in note
    copy = plan_of(config).text
    assert (
        'uri = "postgresql://me:${PASSWORD_TELCO}@127.0.0.1:1/db?'
        'sslpassword=${PASSWORD_TELCO_2}"  # secret place' in copy
    )
    assert "# was postgresql://me:***@host/db" in copy
    workshop.config.write_text(copy)
    again = load_config(workshop.config)
    assert check_data(again).notes == []
    assert plan_of(again).text == copy
    with pytest.raises(ReadError, match="PASSWORD_TELCO"):
        read_parties(again)


@pytest.mark.parametrize(
    "uri",
    [
        r'"postgresql://me:se\u0063ret@host/db"',
        '"postgresql://me:sec@ret@host/db"',
        "'''postgresql://me:secret@host/db'''",
        '"postgresql://host/db?password=secret&user=me"',
        '"postgresql://me:half${OTHER}secret@host/db"',
    ],
)
def test_however_a_password_is_written_it_does_not_stay(uri):
    copy = without_passwords(f'[[party]]\nname = "1 x"\nuri = {uri}\n')
    assert "ret" not in copy and "${PASSWORD_1_X}" in copy


def test_a_file_without_passwords_is_copied_as_it_is():
    text = '[[party]] # a note\nname = "x"\nuri = "postgresql://me:${PW}@host/db"\n'
    assert without_passwords(text) == text
