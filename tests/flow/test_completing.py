from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from fedmend.errors import PrivacyWarning, Refused
from fedmend.federation import read_ledger
from fedmend.federation.kinds import KINDS
from fedmend.flow import Listener, execute, plan_of
from fedmend.flow.config import load_config
from fedmend.flow.kept import keep_completion, restore_completion
from fedmend.flow.mending import COMPLETING
from fedmend.report.mending import Mending
from fedmend.report.record import RunRecord
from fedmend.split.labels import cell_confidence, keep_confidence

from .conftest import COMPLETE as ONLY_COMPLETED

COMPLETE = ONLY_COMPLETED.replace("also_unmended = false\n", "")
PAIRS = ("train@bank+shop", "train@bank+telco")
TWO = 'name = "local"\nepochs = 2\n[[method]]\nname = "vfl"\nepochs = 2\npatience = 2'


class Watching(Listener):
    """Collects stages."""

    def __init__(self):
        self.stages, self.heard = [], []

    def stage(self, words):
        self.stages.append(words)

    def progress(self, title, done, total, facts=None):
        self.heard.append((self.stages[-1], title))


@pytest.fixture
def torn(workshop):
    """Telco's calls go with the bank's income, its minutes with nothing."""
    calls = workshop.bank.set_index("customer")["income"]
    rows = workshop.telco["customer"]
    workshop.telco["calls"] += 4 * rows.map(calls).fillna(0.0)
    return workshop


def run(workshop, **options):
    return execute(plan_of(load_config(workshop.config)), workshop.run, **options)


def test_methods_are_trained_without_and_with_completed_rows(torn, pages):
    torn.write("[run]\nstrict = true\n" + COMPLETE, method=TWO)
    listener = Watching()
    record = run(torn, listener=listener)
    assert [each.title for each in record.methods] == ["Local", "VFL", "VFL + completed rows"]
    assert [each.about.endswith("completed rows included") for each in record.methods] == [
        False, False, True,
    ]  # fmt: skip
    assert listener.stages.index(COMPLETING) < listener.stages.index("Training Local")
    assert any(at == COMPLETING for at, _ in listener.heard)
    assert "VFL has AUC" in record.completing() and record.completing() in record.notes

    found = Mending.from_dict(record.mending)
    (pair,) = found.pairs
    bank = record.overview["parties"][0]
    assert (pair.rows_of, pair.columns_of) == ("bank", "telco")
    assert pair.rows == bank["unaligned"]
    assert found.aligned_after == found.aligned_before + pair.rows == bank["rows"]
    assert pair.observed == record.overview["parties"][1]["rows"]
    assert [(each.name, each.group) for each in pair.columns] == [
        ("calls", "strong"), ("minutes", "weak"),
    ]  # fmt: skip
    for column in pair.columns:
        assert column.predicted + column.filled + column.generated == pair.rows
    assert pair.columns[1].share("generated") == 1.0
    assert max(abs(row[0]) for row in pair.rho) == pytest.approx(pair.columns[0].strength)
    assert found.bytes > 0 and found.exported == {}

    # The folder is whole, the completed tables stayed with the parties.
    assert sorted(each.name for each in torn.run.iterdir()) == [
        "federation.toml", "ledger.jsonl", "manifest.json", "metrics.json", "model", "report.html",
        "stages",
    ]  # fmt: skip
    assert RunRecord.load(torn.run).to_dict() == record.to_dict()
    assert 'id="mended"' in (torn.run / "report.html").read_text()
    entries = read_ledger(torn.run / "ledger.jsonl")
    assert not {each.kind for each in entries if each.receiver == "coordinator"} & {"label", "row"}
    assert (torn.run / "model" / "vfl-completed-rows" / "model.json").is_file()


def test_instead_of_the_unmended_federation_and_with_the_tables(torn):
    text = COMPLETE + 'also_unmended = false\nexport = true\nexport_format = "csv"\n'
    torn.write(text, method=TWO)
    record = run(torn)
    assert [each.title for each in record.methods] == ["Local", "VFL + completed rows"]
    pair = Mending.from_dict(record.mending).pairs[0]
    written = pd.read_csv(torn.run / "completed" / "telco" / "completed.csv")
    assert len(written) == pair.rows + pair.observed == record.mending["exported"]["telco"]
    origins = written["calls.origin"].value_counts().to_dict()
    assert origins["observed"] == pair.observed
    assert origins.get("predicted", 0) == pair.columns[0].predicted
    assert origins.get("filled", 0) == pair.columns[0].filled


def test_kept_tables_come_back_as_they_were(make_fed, tmp_path):
    fed = make_fed(aligned=100)
    telco = fed.engine.site("telco")
    rows = np.linspace(0, 1, len(telco.tables["train"]))
    keep_confidence(telco, "train", {"minutes": rows, "plan": rows**2})
    keep_completion(fed, tmp_path)
    before = fed.engine.site("telco").tables["train"]
    other = make_fed(aligned=100, align=False)
    restore_completion(other, tmp_path)
    after = other.engine.site("telco").tables["train"]
    assert after.equals(before) and other.alignment == fed.alignment
    bank = other.engine.site("bank").tables["train"]
    assert bank.label == "y" and bank.equals(fed.engine.site("bank").tables["train"])
    trust = cell_confidence(other.engine.site("telco"), "train")
    assert list(trust) == ["minutes", "plan"]
    np.testing.assert_array_equal(trust["plan"], rows**2)
    assert cell_confidence(other.engine.site("bank"), "train") is None


@pytest.mark.daily("True")
@pytest.mark.parametrize("pairs", [True, False])
def test_whom_two_of_three_know_is_joined_not_guessed(torn, pairs):
    known = torn.bank.iloc[:120]
    shop = pd.DataFrame({"customer": known["customer"], "basket": known["income"] + 0.1})
    shop.to_csv(torn.folder / "shop.csv", index=False)
    align = f"[align]\nminimum = 5\npairs = {str(pairs).lower()}\n"
    text = COMPLETE + "also_unmended = false\n" + align
    party = '[[party]]\nname = "shop"\ndata = "shop.csv"\nid = "customer"\n'
    torn.write(text + party, method='name = "vfl"\nepochs = 1')
    record = run(torn)
    rows = {each["name"]: each["rows"] for each in record.overview["parties"]}
    found = {pair.columns_of: pair for pair in Mending.from_dict(record.mending).pairs}
    # Everybody at the bank is whole in the end, but shop's 120 people need no guess by the shop.
    assert record.mending["aligned_after"] == rows["bank"]
    lacking = {"telco": record.overview["parties"][0]["unaligned"]}
    assert found["shop"].rows == (rows["bank"] - rows["shop"] if pairs else lacking["telco"])
    assert found["telco"].rows < lacking["telco"] if pairs else True


@pytest.mark.filterwarnings("ignore:only .* common to:fedmend.errors.PrivacyWarning")
def test_the_published_method_from_a_file_on_a_table_with_missing_cells(workshop):
    """Paillier with a small key; its parties' policies must let differences out, as it says."""
    rng = np.random.default_rng(0)
    income = rng.normal(size=60)
    bank = pd.DataFrame({"customer": range(60), "income": income, "y": income > 0})
    calls = pd.Series(income[:20] + 0.1 * rng.normal(size=20)).mask(np.arange(20) == 3)
    telco = pd.DataFrame({"customer": range(20), "calls": calls})
    for name, frame in (("bank", bank), ("telco", telco)):
        frame.to_csv(workshop.folder / f"{name}.csv", index=False)
    party = '[[party]]\nname = "{0}"\ndata = "{0}.csv"\nid = "customer"\n{1}\n[party.policy]\n{2}'
    preset = (
        '[complete]\npreset = "paper"\nkey_bits = 1024\ngenerator_params = { epochs = 1 }\n'
        '[run]\nleave_out = ["train", "evaluate", "report"]\n'
    )

    def write(policy: str) -> None:
        parties = party.format("bank", 'label = "y"', policy) + party.format("telco", "", policy)
        workshop.config.write_text(parties + preset)

    write("")
    with (
        pytest.warns(PrivacyWarning, match='policy allows the kind .row.*correlation_mode = "bfv"'),
        pytest.raises(Refused, match="allow 'row' in the policy of 'telco'"),
    ):
        run(workshop)
    write(f"allow = {sorted(KINDS)}\n")
    listener = Watching()
    with pytest.warns(PrivacyWarning, match="difference of every row"):
        record = execute(
            plan_of(load_config(workshop.config)), workshop.folder / "again", listener=listener
        )
    assert (COMPLETING, "correlation: differences under Paillier") in listener.heard
    (pair,) = Mending.from_dict(record.mending).pairs
    assert [(each.name, each.group) for each in pair.columns] == [("calls", "strong")]
    assert pair.columns[0].predicted + pair.columns[0].filled == pair.rows


def test_trees_hear_whom_each_partner_knows(torn):
    """What two of three share is found by a run, kept for its resumption, and can be left out."""
    people = torn.bank.iloc[60:]
    shop = pd.DataFrame({"customer": people["customer"], "basket": people["income"] + 0.1})
    shop.iloc[20:].to_csv(torn.folder / "shop.csv", index=False)
    party = '[[party]]\nname = "shop"\ndata = "shop.csv"\nid = "customer"\n'
    trees = 'name = "boosting"\ntrees = 5\nvalidation = 0.0'

    def bins_of_telco(pairs, **options):
        """Bytes of its masked bins, which are as many as the rows it takes part with."""
        torn.write(f"[align]\nminimum = 1\npairs = {pairs}\n" + party, method=trees)
        run(torn, **options)
        kept = {path.stem for path in torn.run.glob("stages/align/bank/*")}
        assert kept == {"train", "test"} | ({*PAIRS} if pairs == "true" else set())
        return max(
            line.bytes
            for line in read_ledger(torn.run / "ledger.jsonl")
            if line.sender == "telco" and line.call == "PassiveTrees.mask_bins"
        )

    assert bins_of_telco("true") > 1.1 * bins_of_telco("false", force=True)
