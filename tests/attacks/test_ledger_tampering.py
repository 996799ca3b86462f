"""A party, or who can write to its disk, makes a crossing disappear from a ledger.

The attack took one line of kind `row` out of a ledger file; nobody noticed. Here the attacker
may take out, change, move, double and add lines, cut the end off, or write the whole chain anew.
Measured: the share of such changes that go unnoticed, which must be none; a wrongly accused
untouched ledger would count as well.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmend.errors import DataError
from fedmend.federation import Ledger, read_ledger
from fedmend.federation.ledger import Measure, inspect_ledger
from fedmend.federation.reconcile import compare_heads

SUMS = Measure("3", "int64", 44, "")


def written(path, kinds=("statistic", "row", "masked", "count", "prediction", "weights")):
    ledger = Ledger(path)
    for kind in kinds:
        ledger.record("bank", "coordinator", "X.y", kind, SUMS)
    head = ledger.head()
    ledger.close()
    return head


@pytest.fixture
def path(tmp_path):
    written(tmp_path / "ledger.jsonl")
    return tmp_path / "ledger.jsonl"


def lines_of(path):
    return path.read_text().splitlines(keepends=True)


def flaws(path, lines):
    path.write_text("".join(lines))
    return [(flaw.line, flaw.words) for flaw in inspect_ledger(path).flaws]


def test_an_untouched_ledger_is_whole(path):
    assert flaws(path, lines_of(path)) == []
    assert [entry.kind for entry in read_ledger(path)][1] == "row"


def test_a_line_taken_out_is_named_and_the_rest_not_accused(path):
    lines = lines_of(path)
    kept = [line for line in lines if '"row"' not in line]
    ((at, words),) = flaws(path, kept)
    assert (at, words) == (2, "number 2 is missing before it: it has number 3")
    with pytest.raises(DataError, match=r"line 2: number 2 is missing.*Mend"):
        read_ledger(path)
    assert flaws(path, lines[2:]) == [(1, "2 lines are missing before it: it has number 3")]


def test_a_changed_line_is_named(path):
    lines = lines_of(path)
    lines[1] = lines[1].replace('"row"', '"masked"')
    ((at, words),) = flaws(path, lines)
    assert (at, words.startswith("was changed")) == (2, True)


def test_a_changed_line_with_a_hash_that_fits_breaks_the_next(path, tmp_path):
    """The attacker makes a chain of its own up to the line it changed, and puts the rest behind."""
    forged = tmp_path / "forged.jsonl"
    written(forged, ("statistic", "masked"))
    ((at, words),) = flaws(path, lines_of(forged) + lines_of(path)[2:])
    assert (at, words.startswith("was changed, or the one before it")) == (3, True)


def test_swapped_lines_are_named(path):
    lines = lines_of(path)
    lines[1], lines[3] = lines[3], lines[1]
    found = flaws(path, lines)
    assert found
    assert all("stands out of its place" in words for _, words in found)
    assert {2, 4} <= {at for at, _ in found}


def test_a_line_put_in_is_named(path, tmp_path):
    lines = lines_of(path)
    ((at, words),) = flaws(path, [*lines[:3], lines[2], *lines[3:]])
    assert (at, words) == (4, "has number 3, which stands before it already")
    other = tmp_path / "other.jsonl"
    written(other, ("control_", "count", "masked"))
    assert flaws(path, [*lines[:3], lines_of(other)[2], *lines[3:]])


def test_two_values_under_one_name_do_not_fool_the_chain(path):
    """What a lenient reader of JSON takes is the last of two; the hash is over the text."""
    lines = lines_of(path)
    lines[1] = lines[1].replace('"kind": "row"', '"kind": "row", "kind": "masked"')
    assert [at for at, _ in flaws(path, lines)] == [2]


@settings(max_examples=150)
@given(st.data())
def test_no_change_of_bytes_before_the_last_line_goes_unnoticed(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    head = written(path)
    raw = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, 10**6)) % (len(raw) - 1)
    match data.draw(st.sampled_from(["change", "remove", "add"])):
        case "change":
            raw[at] ^= data.draw(st.integers(1, 255))
        case "remove":
            del raw[at : at + data.draw(st.integers(1, 3000))]
        case "add":
            raw[at:at] = data.draw(st.binary(min_size=1, max_size=30))
    path.write_bytes(bytes(raw))
    found = inspect_ledger(path)
    assert found.flaws or not found.holds(head)


# ---------------------------------------------------------------- the end, or all of it


def told(path, head, sender="bank"):
    """The ledger of somebody who was told a head."""
    ledger = Ledger(path)
    ledger.record(sender, "telco", "ledger", "control", Measure("", "", 0, ""), note=head.note)
    ledger.close()
    return inspect_ledger(path)


def test_an_end_cut_off_is_noticed_by_whoever_was_told_the_head(path, tmp_path):
    head = inspect_ledger(path).head
    telco = told(tmp_path / "telco.jsonl", head)
    assert compare_heads({"bank": inspect_ledger(path), "telco": telco}) == ([], 1)
    assert flaws(path, lines_of(path)[:-2]) == []  # by itself it is a ledger
    (found,), _ = compare_heads({"bank": inspect_ledger(path), "telco": telco})
    assert (found.party, found.grade) == ("bank", "head")
    assert "there is no such line" in found.words


def test_a_chain_written_anew_is_noticed_by_whoever_was_told_the_head(path, tmp_path):
    telco = told(tmp_path / "telco.jsonl", inspect_ledger(path).head)
    path.unlink()
    written(path, ("statistic", "masked", "masked", "count", "prediction", "weights"))
    assert inspect_ledger(path).flaws == []
    (found,), _ = compare_heads({"bank": inspect_ledger(path), "telco": telco})
    assert "line 6 of the ledger of bank" in found.words


def test_a_ledger_that_went_on_still_has_the_heads_it_gave(path, tmp_path):
    telco = told(tmp_path / "telco.jsonl", inspect_ledger(path).head)
    written(path)
    assert compare_heads({"bank": inspect_ledger(path), "telco": telco}) == ([], 1)
    assert inspect_ledger(path).head.lines == 12


# ---------------------------------------------------------------- going on


@pytest.mark.parametrize("lost", [1, 2, 40, 200])
def test_a_line_cut_off_by_a_kill_is_survived_and_named(path, lost):
    raw = path.read_bytes()
    path.write_bytes(raw[:-lost])
    if lost > 1:
        with pytest.raises(DataError, match="line 6: was cut off while it was written"):
            read_ledger(path)
    written(path, ("gradient", "count"))
    kinds = [entry.note or entry.kind for entry in read_ledger(path)]
    whole = ["statistic", "row", "masked", "count", "prediction"]
    assert kinds == [*whole, "weights" if lost == 1 else "cut", "count", "gradient"]


@pytest.mark.parametrize(
    "content", [b"\x89\x00\xff", b"text\n", b"[1]\n", b'{"number": 1}\n', b'{"time": 1}', b"\n\n"]
)
def test_nobody_goes_on_with_a_file_that_is_no_ledger(tmp_path, content):
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"is not a ledger entry.*Mend: put the file elsewhere"):
        Ledger(path)
    assert path.read_bytes() == content
    with pytest.raises(DataError, match="is not a ledger entry"):
        read_ledger(path)


@pytest.mark.parametrize(
    "change",
    [{"count": "3"}, {"bytes": -1}, {"time": None}, {"sender": 7}, {"more": 1}, {"count": 1e999}],
    ids=str,
)
def test_a_line_of_the_wrong_shape_is_no_entry(path, change):
    lines = lines_of(path)
    lines[2] = json.dumps(json.loads(lines[2]) | change) + "\n"
    assert [at for at, words in flaws(path, lines) if "is not a ledger entry" in words] == [3]
