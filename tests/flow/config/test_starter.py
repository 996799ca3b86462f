from __future__ import annotations

import gzip
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from fedmend.data.table import Table
from fedmend.errors import ConfigError
from fedmend.flow.config import load_config
from fedmend.flow.config.sniffing import looked_at
from fedmend.flow.config.starter import starter_text, write_starter
from fedmend.flow.reading import read_party


def test_the_example_is_a_valid_file(tmp_path):
    config = load_config(write_starter(tmp_path / "federation.toml"))
    assert [party.name for party in config.party] == ["bank", "telco"]
    assert [method.name for method in config.method] == ["auto"]
    assert (config.party[0].label, config.party[1].label) == ("default", None)


def test_every_commented_setting_is_valid_too(tmp_path):
    path = write_starter(tmp_path / "federation.toml")
    lines = path.read_text().splitlines()
    bare = [line.removeprefix("# ") if " = " in line or "# [" in line else line for line in lines]
    drop = ("postcode", "[party.kinds]", "drop =", "test_share")
    path.write_text("\n".join(line for line in bare if not line.startswith(drop)))
    config = load_config(path)
    assert config.party[0].test == config.party[1].test == "later.csv"
    assert config.run.seeds == [0, 1, 2] and config.align.normalise == "text"
    assert config.party[0].policy.min_intersection == 10
    assert config.evaluate.metrics == ["auc", "accuracy"]
    assert config.complete is not None and config.complete.export


def test_from_tables_with_a_guessed_id(workshop):
    workshop.write()
    files = [workshop.folder / "bank.csv", workshop.folder / "telco.csv"]
    path = write_starter(workshop.folder / "new.toml", files, label="default")
    config = load_config(path)
    assert [party.data for party in config.party] == ["bank.csv", "telco.csv"]
    assert {party.id for party in config.party} == {"customer"}
    assert "# guessed: all have it" in path.read_text()
    assert config.party[0].label == "default" and config.party[1].label is None


def test_votes_without_any_column_are_for_dawid_skene(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("ann", "ben", "eve"):
        votes = {"id": range(60), "spam": rng.choice(["no", "yes"], 60)}
        pd.DataFrame(votes).to_csv(tmp_path / f"{name}.csv", index=False)
    files = [tmp_path / f"{name}.csv" for name in ("ann", "ben", "eve")]
    config = load_config(write_starter(tmp_path / "new.toml", files, label="spam"))
    assert [method.name for method in config.method] == ["dawid-skene"]
    assert config.run.leave_out == ["evaluate"]
    columns = pd.DataFrame({"id": range(60), "words": range(60)})
    columns.to_csv(tmp_path / "mail.csv", index=False)
    path = write_starter(tmp_path / "more.toml", [*files, tmp_path / "mail.csv"], label="spam")
    assert [method.name for method in load_config(path).method] == ["auto"]


def test_of_several_shared_columns_the_one_called_id_is_it(workshop):
    workshop.bank = workshop.bank.rename(columns={"customer": "Customer_ID"})
    workshop.write()
    (workshop.folder / "copy.csv").write_bytes((workshop.folder / "bank.csv").read_bytes())
    files = [workshop.folder / "bank.csv", workshop.folder / "copy.csv"]
    config = load_config(write_starter(workshop.folder / "new.toml", files, label="default"))
    assert {party.id for party in config.party} == {"Customer_ID"}


def test_parquet_gzip_and_odd_names(workshop):
    workshop.bank.to_parquet(workshop.folder / 'the "bank" (2).parquet')
    with gzip.open(workshop.folder / "coordinator.csv.gz", "wt") as file:
        workshop.telco.to_csv(file, index=False)
    files = [workshop.folder / 'the "bank" (2).parquet', workshop.folder / "coordinator.csv.gz"]
    elsewhere = workshop.folder / "deep" / "f.toml"
    config = load_config(write_starter(elsewhere, files, id="customer", label="default"))
    assert [party.name for party in config.party] == ["the-bank-2", "coordinator-2"]
    assert [config.at(party.data) for party in config.party] == files


def test_an_existing_file_stays(tmp_path):
    path = tmp_path / "federation.toml"
    path.write_text("mine")
    with pytest.raises(ConfigError, match="exists already. Mend: --force"):
        write_starter(path)
    assert path.read_text() == "mine"
    write_starter(path, force=True)
    assert "[[party]]" in path.read_text()


def problems(workshop, files, **options):
    with pytest.raises(ConfigError) as caught:
        write_starter(workshop.config, [workshop.folder / file for file in files], **options)
    assert not workshop.config.exists()
    return caught.value.problems


def test_what_is_wrong_with_the_tables_is_told_together(workshop):
    workshop.write()
    workshop.config.unlink()
    (workshop.folder / "empty.csv").touch()
    (workshop.folder / "latin.csv").write_bytes(b"id,\xe9\n1,2\n")
    (workshop.folder / "fake.parquet").write_bytes(b"not parquet")
    files = ["absent.csv", "empty.csv", "latin.csv", "fake.parquet", "notes.txt"]
    found = problems(workshop, files, label="default")
    assert len(found) == 4 and all("Mend: " in each for each in found)
    assert "No such file" in found[0] and "is empty" in found[1]
    both = ["bank.csv", "telco.csv"]
    assert "did you mean 'customer'?" in problems(workshop, both, id="custmer", label="x")[0]
    assert problems(workshop, both)[0].startswith("no label was named")
    assert "did you mean 'default'" in problems(workshop, both, label="defaults")[0]
    assert "is the only table" in problems(workshop, ["bank.csv"], label="default")[0]
    twins = ["bank.csv", "copy.csv"]
    (workshop.folder / "copy.csv").write_bytes((workshop.folder / "bank.csv").read_bytes())
    assert "which column is the id?" in problems(workshop, twins)[0]


def test_tables_without_an_id_are_told_what_to_do(tmp_path):
    for name in ("north", "south"):
        text = ",".join(f"pixel-{at}" for at in range(40)) + ",digit\n" + "1," * 40 + "2\n"
        (tmp_path / f"{name}.csv").write_text(text)
    files = [tmp_path / "north.csv", tmp_path / "south.csv"]
    with pytest.raises(ConfigError, match="pixel-5 and 34 more. Mend: .*; tables of different peo"):
        starter_text(tmp_path / "federation.toml", files, label="digit")


def test_parties_are_called_as_their_files_as_far_as_names_go(tmp_path):
    files = [tmp_path / name for name in ("Klinik Süd.csv", "münchen.2.csv", "北.csv")]
    for file in files:
        file.write_text(f"id,{file.stem[0]}\n1,2\n", encoding="utf-8")
    text = starter_text(tmp_path / "federation.toml", files, label="K")
    assert re.findall(r'^name = "(.*?)"', text, re.M)[:3] == ["Klinik-Sud", "munchen", "party"]


def test_several_tables_with_the_label_are_several_labellers(workshop):
    workshop.write()
    other = workshop.bank.assign(
        default=np.where(np.arange(160) % 9, workshop.bank["default"], "no")
    )
    other.to_csv(workshop.folder / "copy.csv", index=False)
    twins = [workshop.folder / "bank.csv", workshop.folder / "copy.csv"]
    path = write_starter(workshop.folder / "new.toml", twins, id="customer", label="default")
    config = load_config(path)
    assert config.labellers == ["bank", "copy"]
    assert config.correct is not None and config.correct.name == "inc"  # as `check` advises
    assert [method.name for method in config.method] == ["auto"]
    assert config.evaluate.reference == "majority"


# ---------------------------------------------------------------- files as people have them


def test_a_table_from_a_german_spreadsheet(tmp_path):
    clinic = "Patient Nr.;Größe;Befund\n0007;1,72;krank\n0008;1,65;gesund\n0010;n/a;krank\n"
    (tmp_path / "klinik.csv").write_bytes(clinic.encode("latin-1"))
    laboratory = "pid\tcalcium\n7\t2.4\n8\t2.2\n9\t2.1\n"
    (tmp_path / "labor.csv").write_bytes(b"\xef\xbb\xbf" + laboratory.encode())
    files = [tmp_path / "klinik.csv", tmp_path / "labor.csv"]
    path = write_starter(tmp_path / "f.toml", files, id=["Patient Nr.", "pid"], label="Befund")
    config = load_config(path)
    one, two = config.party
    assert (one.encoding, one.delimiter, one.decimal) == ("cp1252", ";", ",")
    assert (two.encoding, two.delimiter, two.decimal) == ("utf-8", "\t", ".")
    assert (one.id, two.id, one.label, two.label) == ("Patient Nr.", "pid", "Befund", None)
    assert config.align.normalise == "number"
    clinic, laboratory = (read_party(config, each)[0] for each in config.party)
    assert clinic.frame["Größe"].tolist()[:2] == [1.72, 1.65] and clinic.frame["Größe"].isna()[2]
    assert clinic.ids.tolist() == ["0007", "0008", "0010"] and laboratory.ids.tolist() == [7, 8, 9]


def test_labels_of_different_names(tmp_path):
    (tmp_path / "a.csv").write_text("id,x,said\n1,2,yes\n2,3,no\n")
    (tmp_path / "b.csv").write_text("id,reported\n1,yes\n2,no\n")
    files = [tmp_path / "a.csv", tmp_path / "b.csv"]
    config = load_config(write_starter(tmp_path / "f.toml", files, label=["said", "reported"]))
    assert [party.label for party in config.party] == ["said", "reported"]
    with pytest.raises(ConfigError, match="no table has the label 'reportd'.*'reported'"):
        write_starter(tmp_path / "g.toml", files, label=["said", "reportd"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a,b\n1,2\n", (["a", "b"], {})),
        ("a;b\n1,5;2\n", (["a", "b"], {"delimiter": ";", "decimal": ","})),
        ("a;b\n1.5;2\n", (["a", "b"], {"delimiter": ";"})),
        ("a;b\n1.234;0,4\n5.678;12,5\n9.123;7\n", (["a", "b"], {"delimiter": ";", "decimal": ","})),
        ("a;b\n1.234;0.4\n5.678;1,234\n", (["a", "b"], {"delimiter": ";"})),
        ("a;b\n1.234;2\n5.678;3\n", (["a", "b"], {"delimiter": ";"})),
        ('a,b\n"1,234",2\n', (["a", "b"], {})),
        ('"a;x",b\n"1;2",3\n', (["a;x", "b"], {})),
        ("a|b|c\n1|2|3\n4|5\n", (["a", "b", "c"], {"delimiter": "|"})),
        ("only\n1\n", (["only"], {})),
        ('"a\nb";c\n"x\u2028y";1,5\n', (["a\nb", "c"], {"delimiter": ";", "decimal": ","})),
    ],
)
def test_how_a_file_is_written(tmp_path, text, expected):
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")
    found = looked_at(tmp_path / "t.csv")
    assert (found.header, found.unusual) == expected
    (tmp_path / "t.csv").write_bytes(text.encode("utf-16"))
    found = looked_at(tmp_path / "t.csv")
    assert (found.header, found.unusual) == (expected[0], {"encoding": "utf-16", **expected[1]})


def test_a_line_for_spreadsheets_is_named(tmp_path: Path) -> None:
    for name in ("bank", "telco"):
        (tmp_path / f"{name}.csv").write_text("\ufeffsep=;\nid;x;y\n1;2;3\n", encoding="utf-8")
    files = [tmp_path / "bank.csv", tmp_path / "telco.csv"]
    with pytest.raises(ConfigError, match="first line is .*sep=;.*remove that line. Mend"):
        starter_text(tmp_path / "federation.toml", files, id="id", label="y")


def test_files_that_break_off_are_named(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text("id,z\n1,2\n")
    packed = gzip.compress(b"id,y\n" + bytes(range(48, 123)) * 90)
    broken = {
        "cut.csv.gz": packed[: len(packed) // 2],
        "noise.csv.gz": packed[:12] + bytes(40) + packed[52:],
        "cell.csv": b"id,y\n1," + b"x" * 200_000,
    }
    for name, content in broken.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ConfigError, match=f"{name}: .* Mend: give a readable"):
            starter_text(tmp_path / "f.toml", [tmp_path / name, tmp_path / "b.csv"], label="y")


def test_only_the_beginning_of_a_file_needs_to_be_whole(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("\n\nid,y\n07,n\n" + "08,y\n" * 300 + "09," + "x" * 200_000)
    (tmp_path / "b.csv").write_text("id,z\n7,2\n8\n\n")
    files = [tmp_path / "a.csv", tmp_path / "b.csv"]
    text = starter_text(tmp_path / "f.toml", files, label="y")
    assert 'normalise = "number"' in text


def test_parquet_files_say_which_column_is_the_id(tmp_path: Path) -> None:
    pixels = np.zeros((3, 1, 2, 2), np.uint8)
    left = Table([1, 2, 3], {"y": ["a", "b", "a"]}, label="y", blocks={"image": pixels})
    right = Table([1, 2, 3], {"x": [1.0, 2.0, 3.0]}, blocks={"image": pixels})
    left.to_parquet(tmp_path / "left.parquet", id="person")
    right.to_parquet(tmp_path / "right.parquet", id="patient")
    files = [tmp_path / "left.parquet", tmp_path / "right.parquet"]
    config = load_config(write_starter(tmp_path / "federation.toml", files))
    assert [(party.id, party.label) for party in config.party] == [
        ("person", "y"),
        ("patient", None),
    ]
    # Where they do not say it, an image is no candidate.
    frame = pq.read_table(files[1]).replace_schema_metadata({})
    for file in files:
        columns = frame if file == files[1] else frame.append_column("y", [["a", "b", "a"]])
        pq.write_table(columns.drop_columns(["x"]), file)
    text = starter_text(tmp_path / "federation.toml", files, label="y")
    assert text.count('id = "patient"              # guessed') == 2


def _with_visits(workshop, said=None):
    """The workshop with a label of counts at the bank, and perhaps what telco says of them."""
    rng = np.random.default_rng(2)
    workshop.bank["visits"] = rng.poisson(1.8, len(workshop.bank))
    if said is not None:
        truth = workshop.bank.set_index("customer")["visits"]
        theirs = truth.reindex(workshop.telco["customer"]).array
        workshop.telco["visits"] = said(pd.Series(theirs)).array
    workshop.write()
    return [workshop.folder / "bank.csv", workshop.folder / "telco.csv"]


def test_counts_are_guessed_and_said(workshop):
    files = _with_visits(workshop)
    path = write_starter(workshop.folder / "new.toml", files, id="customer", label="visits")
    assert 'task = "count"               # guessed: whole numbers 0 to' in path.read_text()
    config = load_config(path)
    assert config.task == "count"
    assert all(method.params["task"] == "count" for method in config.method)
    table, _ = read_party(config, config.party[0])
    assert table.schema["visits"].kind == "continuous"
    path.write_text(path.read_text().replace('task = "count"', 'task = "multiclass"'))
    table, _ = read_party(load_config(path), load_config(path).party[0])
    assert table.schema["visits"].kind == "nominal"


def test_classes_of_whole_numbers_are_guessed_and_said(workshop):
    workshop.bank["kind"] = np.arange(160) % 5
    workshop.write()
    files = [workshop.folder / "bank.csv", workshop.folder / "telco.csv"]
    text = starter_text(workshop.folder / "new.toml", files, id="customer", label="kind")
    assert 'task = "multiclass"' in text
    other = starter_text(workshop.folder / "new.toml", files, id="customer", label="default")
    assert "task =" not in other


def test_a_copied_label_is_dropped_and_a_second_annotator_s_kept(workshop):
    files = _with_visits(workshop, said=lambda truth: truth)
    path = write_starter(workshop.folder / "new.toml", files, id="customer", label="visits")
    config = load_config(path)
    assert config.labellers == ["bank"] and config.party[1].drop == ["visits"]
    assert "# guessed: a copy of the other label" in path.read_text()
    files = _with_visits(workshop, said=lambda truth: truth.where(truth != 2, 3))
    config = load_config(write_starter(path, files, id="customer", label="visits", force=True))
    assert config.labellers == ["bank", "telco"] and config.party[1].drop == []
    assert config.task is None
