"""A run is bound to its methods at the party: a coordinator that says "vfl" gets VFL's workers.

The attacker is the coordinator. It says hello with the name of a harmless method and then asks for
whatever is installed, through the messages that a real party's host answers. Measured is that every
worker, call and column beyond the method is refused, and that the table by which it is refused is
what the methods really use: nothing missing, nothing more.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import fedmend as fm
from fedmend.data.table import Table
from fedmend.deploy.party_file import install_workers, load_party, rules_of
from fedmend.errors import Refused
from fedmend.federation import KINDS, Alignment, Federation, Party, Policy, Worker
from fedmend.federation.bound import EVERY_RUN, Bound, declared, published
from fedmend.federation.engines.flare.host import Hello
from fedmend.methods.registry import ANNOTATED, COMPLETIONS, HORIZONTAL, METHODS, method_class
from fedmend.split.config import SplitConfig

from .reached import hostile

NAMED_ONLY = {"products", "sums", "correlation"}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    install_workers()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fm.errors.FedmendWarning)
        warnings.simplefilter("ignore", fm.errors.PrivacyWarning)
        yield


def people(n: int = 120, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 5))
    x[:, 2:4] += x[:, :2]
    frame = pd.DataFrame(x, columns=list("abcde")).assign(
        debt=rng.integers(0, 900_000, n), y=np.where(x[:, 0] + x[:, 2] > 0, "yes", "no")
    )
    frame.insert(0, "id", np.arange(n) + 1000 * seed)
    return frame


# ------------------------------------------------------------------ what a coordinator is refused


def test_whatever_vfl_does_not_use_is_refused(tmp_path: Path) -> None:
    """a6, a11: a hello that says vfl, and then sums, products, folds, rounds of a client."""
    attacker = hostile(tmp_path, people(), "vfl", label="y")
    own = set(declared()["vfl"].calls) | set(declared()[EVERY_RUN].calls)
    asked = set(Worker.installed()) - own
    assert {"ColumnSumWorker", "BfvWorker", "FoldWorker", "ClientWorker", "RankWorker"} <= asked
    for worker in sorted(asked):
        with pytest.raises(Refused, match=f"{worker} is used by none of the methods of this run"):
            attacker.worker(worker)
    assert not [each for each in attacker.left if each.kind != "control"]
    assert attacker.start("TopWorker", {"model": "m"}).startswith("TopWorker#")


def test_a_method_that_is_not_installed_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="no method 'VLF' is installed here. Mend: did you mean 'vfl"):
        hostile(tmp_path / "a", people(), "VLF")
    with pytest.raises(Refused, match="no method 'every run'"):
        hostile(tmp_path / "b", people(), EVERY_RUN)


def test_a_partys_list_of_methods_counts_and_not_the_coordinators(tmp_path: Path) -> None:
    policy = 'methods = ["vfl", "sums"]'
    with pytest.raises(Refused, match="'fedavg' is not among those it takes part in"):
        hostile(tmp_path / "a", people(), "vfl", "fedavg", label="y", policy=policy)
    attacker = hostile(tmp_path / "b", people(), "vfl", "sums", label="y", policy=policy)
    attacker.worker("ColumnSumWorker", columns=["debt"], per="total")


@pytest.mark.parametrize("name", sorted(NAMED_ONLY))
def test_low_level_protocols_are_for_parties_that_name_them(tmp_path: Path, name: str) -> None:
    with pytest.raises(Refused, match=f"'{name}' is not among those it takes part in"):
        hostile(tmp_path, people(), name)
    assert set(declared()) - set(published()) == NAMED_ONLY | {EVERY_RUN}


@pytest.mark.parametrize("provider", ["integers", "indicators", "fixed-point", "label-votes"])
def test_products_of_a_method_are_of_its_own_columns(tmp_path: Path, provider: str) -> None:
    """A variant: a completing method does use products, but not of columns as they are."""
    attacker = hostile(tmp_path, people(), "fedpsg-pum", label="y", policy="min_intersection = 1")
    rows = np.arange(len(attacker.site.tables["train"]))
    attacker.site.alignments["train"] = Alignment(rows, rows[:0])
    handle = attacker.worker("BfvWorker")
    with pytest.raises(Refused, match=f"products of '{provider}' columns are no part"):
        handle.load(provider=provider, settings={"names": ["debt"]})


def test_embeddings_do_not_pass_a_coordinator_that_has_no_need_to_read_them(
    tmp_path: Path,
) -> None:
    """A variant: the coordinator does not seal, reads embeddings, and sends gradients it chose."""
    how = SplitConfig(bottom=(), embedding=2, top=())
    config = how.to_wire()

    def reach(folder: str, method: str, policy: str = "") -> Any:
        attacker = hostile(tmp_path / folder, people(), method, policy=policy)
        rows = attacker.worker("RosterWorker").rows()["rows"]
        handle = attacker.worker("BottomWorker", model="m")
        handle.create(config=config)
        handle.attach(segments=[["all", rows]], config=config)
        handle.set_order(rows=np.arange(rows))
        return attacker, handle, rows

    attacker, handle, rows = reach("vfl", "vfl")
    for call, given in (
        ("embed", {"rows": np.arange(rows)}),
        ("step", {"epoch": 1}),
        ("finish", {"gradient": torch.ones(rows, 2)}),
    ):
        with pytest.raises(Refused, match="would cross the coordinator in the open"):
            getattr(handle, call)(**given)
    assert not [each for each in attacker.left if each.kind == "embedding"]
    # A method whose top is at the coordinator needs them, and a party may say otherwise.
    for _, handle, rows in (reach("inc", "inc"), reach("open", "vfl", "sealed = []")):
        assert handle.embed(rows=np.arange(rows)).shape == (rows, 2)


def test_people_are_told_what_a_run_lets_out(tmp_path: Path) -> None:
    (tmp_path / "bank.csv").write_text("id,a\n1,2\n")
    (tmp_path / "party.toml").write_text(
        'name = "bank"\ndata = "bank.csv"\nid = "id"\n[policy]\nrefuse = ["weights"]\n'
    )
    file = load_party(tmp_path)

    def told(*methods: str) -> list[str]:
        policy, bound = rules_of(file, Hello("r", "nothing special", methods, 0, 0.2))
        return bound.lets_out(Worker.installed(), policy)

    assert told() == ["count", "statistic", "hashed-id"]
    assert set(told("vfl")) - set(told()) == {"embedding", "gradient", "prediction"}
    assert "prediction" in told("fedavg") and "weights" not in told("fedavg")


def test_in_one_process_a_policy_may_name_methods() -> None:
    from fedmend.methods.auto.folds import FoldWorker

    named, frame = Policy(methods={"vfl"}), people()
    fed = Federation(
        Party("bank", table(frame, "a", "b", label="y"), policy=named),
        Party("telco", table(frame, "c", "d"), policy=named),
    )
    fm.align(fed)
    fm.VFL(epochs=1).fit(fed)
    with pytest.raises(Refused, match="'bank' refused: the worker FoldWorker"):
        fed.workers(FoldWorker)


# ------------------------------------------------------------------ the table is what is used


def table(frame: pd.DataFrame, *columns: str, label: str | None = None) -> Table:
    names = ["id", *columns, *([label] if label else [])]
    return Table.from_frame(frame[names], id="id", label=label)


def federation(method: str, policy: dict[str, Any] | None = None) -> Federation:
    """Parties for a method, bound to it."""
    named = [method, *(TRIED if method == "auto" else ())]
    rules = Policy(**{"methods": set(named)} | (policy or {}))
    frame, test = people(), people(60, 1)
    if method in HORIZONTAL:
        shares = {"north": (people(70, 2), people(40, 3)), "south": (people(70, 4), people(40, 5))}
        parties = [
            Party(
                name,
                table(train, "a", "b", label="y"),
                test=table(held, "a", "b", label="y"),
                policy=rules,
            )
            for name, (train, held) in shares.items()
        ]
        return Federation(*parties)
    if method in ANNOTATED:
        columns: dict[str, list[str]] = {"ward": ["a", "b"], "clinic": ["c", "d"], "archive": []}
        parties = [
            Party(name, table(frame, *has, label="y"), test=table(test, *has, label="y"),
                  policy=rules)
            for name, has in columns.items()
        ]  # fmt: skip
    else:
        parties = [
            Party(
                "bank",
                table(frame.iloc[:90], "a", "b", label="y"),
                test=table(test, "a", "b", label="y"),
                policy=rules,
            ),
            Party(
                "telco",
                table(frame.iloc[30:], "c", "d", "e"),
                test=table(test, "c", "d", "e"),
                policy=rules,
            ),
        ]
    fed = Federation(*parties)
    fm.align(fed)
    fm.align(fed.on("test"))
    for site in fed.engine.sites.values():
        # As between machines: embeddings and gradients in the open are refused.
        site.bound = Bound.to(site.name, named, rules)
        site._binds_itself = False
    return fed


TRIED = ("local", "boosting")
"""What `auto` compares here; parties agree to candidates by name."""
QUICK: dict[str, dict[str, Any]] = {
    "local-trees": {"trees": 2},
    "boosting": {"trees": 2},
    "auto": {
        "candidates": TRIED,
        "folds": 2,
        "settings": {"epochs": 1, "trees": 2},
    },
    "ssl-vfl": {"pretrain_epochs": 1},
    "sfhtl": {"pretrain_epochs": 1},
    "few-shot-vfl": {"rounds": 1, "local_updates": 2},
    "risa-images": {"share_every": 2},
} | {name: {"rounds": 2} for name in HORIZONTAL}
VARIANTS: dict[str, list[dict[str, Any]]] = {
    name: [{}, {"secure": "masks"}] for name in HORIZONTAL if name not in ("feddb", "fedmatch")
} | {name: [{"secure": "masks"}] for name in ANNOTATED}


def use(method: str, params: dict[str, Any], folder: Path) -> Federation:
    """All that a run does with a method: train, measure, predict, keep, hand out, load."""
    kind: Any = method_class(method)
    fed = federation(method, {"foreign_predictions": 9})
    if "seal" in kind().get_params() and method not in ANNOTATED:
        params = {**params, "seal": True}
    params = {**QUICK.get(method, {}), **params}
    if "epochs" in kind.parameter_names():
        params["epochs"] = 1
    model = kind(**params)
    model.fit(fed, checkpoint=folder / "checkpoint")
    test = fed.on("test")
    model.evaluate(test)
    if method not in ANNOTATED:
        model.uncertainty_report(test)
    model.predict_table(test)
    model.save(folder / "model")
    model.hand_out(folder / "model", list(fed.names))
    back = kind.load(folder / "model", fed)
    back.evaluate(test)
    if method in HORIZONTAL:
        back.predict_here(test)
    if method in ("risa", "risa-images"):
        back.carried(test)
    return fed


def started(fed: Federation) -> set[str]:
    calls = [each.call for each in fed.ledger.entries() if not each.note]
    return {call.partition(".")[0] for call in calls if call.endswith(".start")}


@pytest.mark.parametrize("method", list(METHODS))
def test_a_method_uses_what_is_declared_of_it_and_nothing_else(method: str, tmp_path: Path) -> None:
    seen: set[str] = set()
    for number, params in enumerate(VARIANTS.get(method, [{}])):
        # A worker or call that is not declared would be refused here.
        seen |= started(use(method, params, tmp_path / str(number)))
    used = seen - set(declared()[EVERY_RUN].calls)
    if method == "auto":
        used -= {worker for name in TRIED for worker in declared()[name].calls}
    assert used == set(declared()[method].calls)


def test_completing_uses_what_is_declared_of_it_and_nothing_else() -> None:
    """Every model, product and generator of FedPSG-PUM; the slow published products by name."""
    everything = {"allow": frozenset(KINDS), "takes": frozenset(KINDS)}
    seen: set[str] = {"PublishedWorker", "CompletionKeeper"}
    assert not fm.FedPSGPUM(correlation_mode="published").problems()
    for params in (
        {"model": ("linear", "tree"), "correlation_mode": "dealer", "tree": {"trees": 2}},
        {"model": "neural", "neural": {"epochs": 1, "seal": True}, "correlation_mode": "dealer"},
        {"model": "linear", "mode": "plain", "correlation_mode": "bfv"},
        {
            "generator": "vfgain",
            "tau": 1.0,
            "correlation_mode": "dealer",
            "generator_params": {"steps": 3, "seal": True},
        },
    ):
        fed = federation("fedpsg-pum", everything)
        fm.FedPSGPUM(**params).fit(fed)
        seen |= started(fed)
    seen |= started(set_aside())
    assert seen - set(declared()[EVERY_RUN].calls) == set(declared()["fedpsg-pum"].calls)


def set_aside() -> Federation:
    """Columns of one party that lie beyond the aligned rows, and one that changed with them."""
    rng = np.random.default_rng(0)
    n, aligned = 200, 100
    frame = pd.DataFrame({"id": np.arange(n), "steady": rng.normal(size=n)})
    frame["rate"] = rng.uniform(0, 3, n) - 9.0 * (frame.index >= aligned)
    often = np.where(frame.index >= aligned, 0.9, 0.4)
    frame["phone"] = np.where(rng.random(n) < often, "mobile", "fixed")
    other = pd.DataFrame({"id": np.arange(aligned)})
    other["level"] = frame["rate"][:aligned] ** 2 + frame["steady"][:aligned]
    rules = Policy(methods={"fedpsg-pum"})
    fed = Federation(
        Party("bank", Table.from_frame(frame, id="id"), policy=rules),
        Party("telco", Table.from_frame(other, id="id"), policy=rules),
    )
    fm.align(fed)
    fm.FedPSGPUM(model="linear", correlation_mode="dealer").fit(fed)
    return fed


def test_every_method_a_file_may_name_is_declared() -> None:
    stages = {"auto", "correct", "predict", "reference", "label-agreement", "label-skew"}
    assert set(published()) - {"serve"} == set(METHODS) | set(COMPLETIONS) | stages


def test_every_worker_that_can_be_started_belongs_to_somebody() -> None:
    """What nobody declares is a base class, or of the tests."""
    known = {worker for uses in declared().values() for worker in uses.calls}
    ours = [f"fedmend.{room}." for room in ("secure", "learn", "generate", "methods", "flow")]
    own = {
        name: kind
        for name, kind in Worker.installed().items()
        if kind.__module__.startswith(tuple(ours))
    }
    bases = {base.__name__ for kind in own.values() for base in kind.__mro__[1:]}
    assert set(own) - known <= bases
