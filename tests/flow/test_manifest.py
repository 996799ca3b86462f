"""The manifest and its hashes: what counts as the same, and what nobody can tell from them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmend.data.table import Table
from fedmend.errors import ResumeError
from fedmend.federation import Federation, Party, Site
from fedmend.flow import Listener
from fedmend.flow.kept import keep_alignment, restore_alignment
from fedmend.flow.manifest import (
    MANIFEST_FILE,
    STAGES,
    Manifest,
    StageEntry,
    fingerprint,
    read_manifest,
)
from fedmend.flow.steps import DigestWorker, Steps
from fedmend.split.parts import write_file
from tests.conftest import texts

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | texts(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts(max_size=3), inner),
    max_leaves=6,
)


@given(st.dictionaries(texts(max_size=4), plain, max_size=4))
def test_a_fingerprint_does_not_depend_on_the_order_of_keys(content) -> None:
    backwards = dict(reversed(content.items()))
    assert fingerprint("train", content, {}) == fingerprint("train", backwards, {})
    assert fingerprint("train", content, {}) != fingerprint("evaluate", content, {})
    more = content | {"another": 1}
    assert (fingerprint("train", more, {}) == fingerprint("train", content, {})) == (
        more == content
    )


def test_lists_and_tuples_are_the_same_settings() -> None:
    assert fingerprint("a", {"bottom": (64, 32)}, {}) == fingerprint("a", {"bottom": [64, 32]}, {})
    assert fingerprint("a", {}, {"x": "1"}) != fingerprint("a", {}, {"x": "2"})


def test_written_and_read(tmp_path) -> None:
    manifest = Manifest(tmp_path, "Ours", "flare", "correct-auto")
    for stage in STAGES:
        manifest.record(StageEntry(stage, outputs={stage: "1"}, settings={"n": (1, 2)}))
    again = read_manifest(tmp_path)
    assert [each.stage for each in again.entries] == list(STAGES)
    assert (again.title, again.engine, again.recipe) == ("Ours", "flare", "correct-auto")
    manifest.record(StageEntry("align", outputs={"align": "2"}))
    assert len(read_manifest(tmp_path).entries) == len(STAGES), "in the place of the earlier one"
    manifest.forget_from("correct")
    kept = [each.stage for each in read_manifest(tmp_path).entries]
    assert sorted(kept) == ["align", "complete", "diagnose"]


@pytest.mark.parametrize("text", ["", "[]", '{"format": 9}', '{"format": 1, "stages": [{"x": 1}]}'])
def test_a_spoilt_manifest_is_told(tmp_path, text) -> None:
    (tmp_path / MANIFEST_FILE).write_text(text)
    with pytest.raises(ResumeError, match="cannot be read: .* Mend: --force starts anew"):
        read_manifest(tmp_path)


def test_no_manifest(tmp_path) -> None:
    with pytest.raises(ResumeError, match=r"has no manifest\.json.*Mend"):
        read_manifest(tmp_path)


# ---------------------------------------------------------------- hashes at the parties


def table(change: str = "") -> Table:
    ids, x = np.arange(6), np.arange(6) * 0.5
    words = pd.Series(["a", "b", None, "a", "b", "a"], dtype=object)
    if change == "cell":
        x[3] += 1e-9
    elif change == "order":
        ids = ids[::-1].copy()
    elif change == "missing":
        words[0] = None
    label = None if change == "label" else "w"
    blocks = {"image": np.full((6, 2, 2), 1.0 if change == "block" else 0.0, np.float32)}
    return Table(ids, {"x": x, "w": words}, label=label, blocks=blocks)


def hashes(folder, change: str = "") -> dict[str, str]:
    fed = Federation(Party("bank", table(change), test=table()), strict=True)
    return Steps(fed, Manifest(folder), Listener()).tables()


def test_every_change_of_a_table_shows(tmp_path) -> None:
    first = hashes(tmp_path)
    assert set(first) == {"tables/bank/train", "tables/bank/test"}
    assert hashes(tmp_path) == first, "of the same run, in another process too"
    for change in ("cell", "order", "missing", "label", "block"):
        other = hashes(tmp_path, change)
        assert other["tables/bank/train"] != first["tables/bank/train"], change
        assert other["tables/bank/test"] == first["tables/bank/test"]


def test_nobody_can_test_a_guess(tmp_path) -> None:
    """The same table has another hash in every run: the key is the party's and stays there."""
    assert hashes(tmp_path / "one") != hashes(tmp_path / "two")
    assert len((tmp_path / "one" / "stages" / "salt" / "bank" / "salt").read_bytes()) == 32


def test_folders_here_and_at_the_parties(make_fed, tmp_path) -> None:
    fed, paths = make_fed(aligned=50), ["stages/align", "stages/none"]
    steps = Steps(fed, Manifest(tmp_path), Listener())
    keep_alignment(fed, tmp_path / "stages" / "align")
    found = steps._outputs(paths)
    theirs = {f"stages/align@{name}" for name in fed.names}
    assert set(found) == {"stages/align/train.kept", *theirs}, "the parties' own is theirs to tell"
    (tmp_path / "stages" / "align" / "telco" / "train.fmw").write_bytes(b"other")
    after = steps._outputs(paths)
    assert [key for key in after if after[key] != found[key]] == ["stages/align@telco"]
    file = tmp_path / "stages" / "align" / "bank" / "train.fmw"
    file.rename(file.with_name("test.fmw"))
    renamed = steps._outputs(paths)
    assert [key for key in after if after[key] != renamed[key]] == ["stages/align@bank"]


def test_what_was_kept_must_fit_the_table(make_fed, tmp_path) -> None:
    fed = make_fed(aligned=50)
    before = {name: fed.engine.site(name).alignments["train"] for name in fed.names}
    keep_alignment(fed, tmp_path)
    assert restore_alignment(fed, tmp_path)
    for name in fed.names:
        now = fed.engine.site(name).alignments["train"]
        assert np.array_equal(now.aligned, before[name].aligned)
        assert np.array_equal(now.unaligned, before[name].unaligned)
    own = before["bank"]
    for aligned, unaligned in ((own.aligned[1:], own.unaligned), (own.aligned, own.aligned)):
        kept = {"aligned": aligned, "unaligned": unaligned}
        write_file(tmp_path / "bank" / "train.fmw", kept)
        with pytest.raises(ResumeError, match="party 'bank': the table 'train' has .* Mend"):
            restore_alignment(fed, tmp_path)
    assert not restore_alignment(fed, tmp_path / "nothing")


def test_of_a_training_that_is_done_a_party_keeps_its_part_and_no_checkpoint(tmp_path):
    site = Site("bank", {"train": Table([1, 2], {"x": [0.5, 1.5]})}, home=tmp_path)
    for name in ("auto/epoch-2.fmw", "auto/part-vfl.fmw", "vfl/epoch-3.fmw"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    DigestWorker(site, keep="salt").forget(["checkpoints/auto", "checkpoints/vfl"])
    left = {str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*.fmw")}
    assert left == {"auto/part-vfl.fmw"} and not (tmp_path / "vfl").exists()
