import os
import stat
import sys
import tempfile
from pathlib import Path

import pytest

from fedmend.errors import AlignmentError, ConfigError, Refused
from fedmend.federation import Policy
from fedmend.secure import psi_spu
from fedmend.secure.align import align

from .parties import people
from .parties import with_ids as federation

with_spu = pytest.mark.skipif(
    psi_spu.PYTHON_VARIABLE not in os.environ, reason=f"{psi_spu.PYTHON_VARIABLE} is not set"
)


@with_spu
@pytest.mark.slow
def test_spu_finds_the_intersection_and_leaves_nothing_behind():
    before = set(Path(tempfile.gettempdir()).iterdir())
    fed = federation(people(0, 300), people(100, 500)[::-1])
    counts = align(fed, mode="spu")
    assert counts.aligned == 200 and counts.unaligned == {"bank": 100, "telco": 200}
    found = [
        fed.engine.site(name)
        .table_of("train")
        .ids[fed.engine.site(name).alignments["train"].aligned]
        for name in fed.names
    ]
    assert found[0].tolist() == found[1].tolist() != sorted(found[0])
    assert set(found[0]) == set(people(100, 300))
    left = {path.name for path in set(Path(tempfile.gettempdir()).iterdir()) - before}
    assert not [name for name in left if name.startswith("fedmend-spu-") or name.endswith(".trace")]


@with_spu
@pytest.mark.slow
def test_spu_without_a_common_id_says_so():
    with pytest.raises(AlignmentError, match="no id in common"):
        align(federation(people(0, 30), people(50, 80)), mode="spu")


@pytest.mark.parametrize(
    ("python", "address", "said"),
    [
        (None, None, r"party 'bank'.*pip install spu && export FEDMEND_SPU_PY"),
        ("/nowhere/python", None, "is not there"),
        (sys.executable, "no address", "write host:port"),
        (sys.executable, "127.0.0.1:9500", "the same address"),
    ],
)
def test_without_an_interpreter_or_an_address_the_mend_is_named(monkeypatch, python, address, said):
    for name, value in ((psi_spu.PYTHON_VARIABLE, python), (psi_spu.ADDRESS_VARIABLE, address)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=said):
        align(federation(people(0, 30), people(0, 30)), mode="spu")


def test_an_interpreter_without_spu_gives_a_clean_error(monkeypatch):
    monkeypatch.setenv(psi_spu.PYTHON_VARIABLE, sys.executable)
    monkeypatch.delenv(psi_spu.ADDRESS_VARIABLE, raising=False)
    fed = federation(people(0, 30), people(0, 30))
    with pytest.raises(AlignmentError, match="spu failed against .* No module named 'spu'"):
        align(fed, mode="spu")
    assert not fed.is_aligned


def test_three_parties_and_a_policy_against_hashed_ids_are_refused(monkeypatch):
    monkeypatch.setenv(psi_spu.PYTHON_VARIABLE, sys.executable)
    with pytest.raises(ConfigError, match="for two parties, here are 3"):
        align(federation(*([people(0, 30)] * 3)), mode="spu")
    policies = dict.fromkeys(("bank", "telco"), Policy(refuse={"hashed-id"}))
    with pytest.raises(Refused, match="SpuWorker.intersect"):
        align(federation(people(0, 30), people(0, 30), policies=policies), mode="spu")


def test_spu_is_given_digests_in_a_private_file_and_never_an_id(monkeypatch):
    seen = []

    def spy(party, peer, job, folder):
        text = Path(job["input"]).read_text()
        seen.append((party, text, stat.S_IMODE(folder.stat().st_mode)))
        # Both sides hold the same ids here, so what comes out is what went in.
        Path(job["output"]).write_text(text)

    monkeypatch.setenv(psi_spu.PYTHON_VARIABLE, sys.executable)
    monkeypatch.delenv(psi_spu.ADDRESS_VARIABLE, raising=False)
    monkeypatch.setattr(psi_spu, "_run_child", spy)
    assert align(federation(people(0, 30), people(0, 30)), mode="spu").aligned == 30
    texts = {party: text for party, text, _ in seen}
    assert texts["bank"] == texts["telco"] and "person" not in texts["bank"]
    assert {mode for _, _, mode in seen} == {0o700}
    align(federation(people(0, 30), people(0, 30)), mode="spu")
    assert seen[-1][1] != texts["bank"]
