"""Shared fixtures: a federation on disk (`workshop`), ones in memory aligned by hand, a browser."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import settings
from hypothesis import strategies as st

if TYPE_CHECKING:  # loads torch, which xdist's first process has no use for
    from fedmend.federation import Federation

# How many examples of a property, but where a test says its own number; machines may be slow.
settings.register_profile("fedmend", max_examples=25, deadline=None)
settings.load_profile("fedmend")

texts = partial(st.text, "aZ09 _.,-'\"\\/\0\n\t\x7féß\u0308漢\uffff😀")
"""Texts of one to four bytes a character, and of what is read otherwise in some format.

Of all characters, as hypothesis has it, the table alone takes seconds to make.
"""


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    """What is imported and rewritten for tests stays: looking through all of it for garbage again
    and again takes half of the time in which they are collected."""
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_itemcollected(item: Any) -> None:
    """Of parameters that hardly differ, some run with `make test` and all of them every week."""
    mark = item.get_closest_marker("daily")
    if mark and item.callspec.id not in mark.args:
        item.add_marker(pytest.mark.slow)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[Any]) -> None:
    """A name that no parameter has would make all of a test's parameters weekly, unnoticed."""
    if any("::" in each for each in config.args):
        return
    lost: dict[str, set[str]] = {}
    for item in items:
        if mark := item.get_closest_marker("daily"):
            test = item.nodeid.partition("[")[0]
            lost.setdefault(test, set(mark.args)).discard(item.callspec.id)
    if wrong := {test: names for test, names in lost.items() if names}:
        raise pytest.UsageError(f"daily names parameters that are not there: {wrong}")


SHARING = ("tests/machines/", "tests/serve/")
"""Folders whose files share what was made once: a federation of processes, trained runs."""
STAGES, SQL = "tests/flow/test_stages.py", "tests/data/test_sql.py"
TOGETHER = {
    "tests/flow/test_report_page.py": STAGES,
    "tests/report/test_browser.py": STAGES,
    "tests/attacks/test_confirmed_addresses.py": SQL,
}
"""Files that share a run, a browser or a database with another: each process would start its own.
"""
LONG = ("tests/test_tutorial.py", "tests/cli/test_demo.py")
"""Files of few tests that take long; others come in the order of how many they have."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Under xdist a file's tests run in one process, and so do those of a folder that shares.

    What they make once (a trained model, a run, processes) would else be made in every process
    that gets one of them. Groups of xdist's own (``loadgroup``) are not seen by pytest 9.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            shared = next((folder for folder in SHARING if file.startswith(folder)), file)
            return TOGETHER.get(shared, shared)

        def _assign_work_unit(self, node: Any) -> None:
            for first in (*LONG, *SHARING):  # at the end one process would wait for the other
                if first in self.workqueue:
                    self.workqueue.move_to_end(first, last=False)
            super()._assign_work_unit(node)

    return ByFile(config, log)


USUAL: list[Any] = []
"""An epoch's steps, how often a training is begun again, folds by which it is calibrated, draws of
an interval of `auto`, and where logistic regression ends, as users have them."""


def trainings_of(steps: int, restarts: int, folds: int, draws: int, end: float) -> Iterator[None]:
    from fedmend.methods.completion.linear import LinearModels
    from fedmend.methods.risa.trust import fit_pool, fit_sources

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedmend.split.scaling.FOLDS", folds)
        patch.setitem(fit_pool.__kwdefaults__, "folds", folds)
        patch.setitem(fit_sources.__kwdefaults__, "folds", min(folds, 3))
        patch.setattr("fedmend.methods.auto.blend.DRAWS", draws)
        patch.setitem(LinearModels.__init__.__kwdefaults__, "tolerance", end)
        for module in ("network", "annotators.estimator"):
            patch.setattr(f"fedmend.methods.{module}.EPOCH_STEPS", steps)
            patch.setattr(f"fedmend.methods.{module}.RESTARTS", restarts)
        yield


@pytest.fixture(scope="session", autouse=True)
def short_trainings():
    """An epoch goes through the rows once, however few, and what came to nothing is not begun
    again: most tests ask what a training does, not how far it gets. For others: `whole_trainings`.
    """
    from fedmend.methods.auto.blend import DRAWS
    from fedmend.methods.completion.linear import LinearModels
    from fedmend.methods.network import EPOCH_STEPS, RESTARTS
    from fedmend.split.scaling import FOLDS

    end = LinearModels.__init__.__kwdefaults__["tolerance"]
    USUAL[:] = EPOCH_STEPS, RESTARTS, FOLDS, DRAWS, end
    yield from trainings_of(1, 0, 2, 40, 0.02)


@pytest.fixture(scope="session", autouse=True)
def quick_disk():
    """Nobody cuts the power here: no file waits until it is on the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_compiler():
    """Torch's optimizers and comparisons, with which ours are compared, load its compiler and its
    distributed tensors and have no use for them: three seconds a process, nine in a new clone.
    """
    import torch.testing._comparison

    unused = ModuleType("torch._dynamo")
    vars(unused).update(graph_break=lambda: None, disable=lambda function, *_, **__: function)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.testing._comparison, "_HAS_DTENSOR", False, raising=False)
        if not torch.cuda.is_available():  # where passes of images are compiled
            patch.setitem(sys.modules, "torch._dynamo", unused)
        yield


@pytest.fixture(scope="session", autouse=True)
def commands_read_once():
    """Typer would read the signatures of all commands for each that is called here."""
    import typer.main

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", cache(typer.main.get_command))
        yield


@pytest.fixture(scope="module", autouse=True)
def few_modes(request):
    """A column of numbers has three modes at most: of what generators are asked here, hardly
    anything depends on how many. A file in which it does says ``FEW_MODES = False``."""
    with pytest.MonkeyPatch.context() as patch:
        if getattr(request.module, "FEW_MODES", True):
            patch.setattr("fedmend.generate.codecs._SIZES", (1, 2, 3))
        yield


@pytest.fixture(scope="module")
def whole_trainings(short_trainings):
    """Trainings as users have them: ``pytestmark`` of a file whose models must learn much."""
    yield from trainings_of(*USUAL)


@pytest.fixture
def whole_training(short_trainings):
    """The same for a single test."""
    yield from trainings_of(*USUAL)


@pytest.fixture(scope="module")
def toy_tables():
    """Tables of a handful of rows, to be reckoned by hand: nobody asks how few an answer rests on.

    For tests of something else: an autouse fixture of a folder, or ``pytestmark`` of a file.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedmend.federation.policy.MIN_ROWS", 1)
        yield


@pytest.fixture
def toys(monkeypatch):
    """The same for a single test."""
    monkeypatch.setattr("fedmend.federation.policy.MIN_ROWS", 1)


ORDER = 2**252 + 27742317777372353535851937790883648493
"""Of ristretto255."""
REAL_GROUP = {"attacks", "console", "deploy", "federation", "machines", "secure", "serve"}
"""Rooms that test the protocol itself, or in which another process has its half."""


def room_of(request):
    """Of tests/ROOM/test_file.py."""
    return request.path.relative_to(request.config.rootpath).parts[1]


@pytest.fixture(scope="module", autouse=True)
def empty_pictures(request):
    """A report has its words and places for pictures; tests/report draws them."""
    with pytest.MonkeyPatch.context() as patch:
        if not getattr(request.module, "PICTURES", room_of(request) == "report"):
            patch.setattr("fedmend.report.plots._drawn", lambda figure: "<svg></svg>")
        yield


@pytest.fixture(scope="module", autouse=True)
def quick_group(request):
    """Ids are blinded in numbers modulo the group's order, of the same laws and without a secret.

    A point takes a hundredth of the time, and the protocol is the same: for tests that align some
    hundred rows on their way to something else. A file of other rooms says ``QUICK_GROUP = True``.
    """
    with pytest.MonkeyPatch.context() as patch:
        wanted = getattr(request.module, "QUICK_GROUP", room_of(request) not in REAL_GROUP)
        if wanted and find_spec("rbcl"):  # tests of a GPU run where hardly anything is installed
            import rbcl

            def times(scalar: bytes, point: bytes) -> bytes:
                made = int.from_bytes(scalar, "little") * int.from_bytes(point, "little")
                return (made % ORDER).to_bytes(32, "little")

            one = (1).to_bytes(32, "little")
            patch.setattr(rbcl, "crypto_scalarmult_ristretto255", times)
            patch.setattr(rbcl, "crypto_core_ristretto255_from_hash", lambda it: times(one, it))
        yield


class Workshop:
    """A small federation on disk, to be spoilt in one place at a time."""

    def __init__(self, folder):
        self.folder = folder
        rng = np.random.default_rng(7)
        people = np.arange(1000, 1160)
        income = rng.normal(size=160)
        calls = rng.normal(size=160)
        y = np.where(income + calls + 0.3 * rng.normal(size=160) > 0, "yes", "no")
        job = rng.choice(["clerk", "nurse", "smith"], size=160)
        self.bank = pd.DataFrame({"customer": people, "income": income, "job": job, "default": y})
        self.telco = pd.DataFrame(
            {"customer": people + 60, "calls": np.roll(calls, -60), "minutes": rng.normal(size=160)}
        )
        self.config = folder / "federation.toml"
        self.run = folder / "runs" / "federation"

    def write(self, text: str = "", *, method: str = 'name = "vfl"\nepochs = 2') -> None:
        """Write the tables and the file; ``text`` comes after the parties."""
        self.bank.to_csv(self.folder / "bank.csv", index=False)
        self.telco.to_csv(self.folder / "telco.csv", index=False)
        self.config.write_text(
            '[[party]]\nname = "bank"\ndata = "bank.csv"\nid = "customer"\nlabel = "default"\n\n'
            '[[party]]\nname = "telco"\ndata = "telco.csv"\nid = "customer"\n\n'
            + (f"[[method]]\n{method}\n\n" if method else "")
            + text,
            encoding="utf-8",
        )

    def edit(self, *changes: tuple[str, str]) -> None:
        """Other text in the file."""
        text = self.config.read_text(encoding="utf-8")
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        self.config.write_text(text, encoding="utf-8")

    def add_tests(self, **frames: pd.DataFrame) -> None:
        """Test tables of the parties' own."""
        for name, frame in frames.items():
            frame.to_csv(self.folder / f"{name}-test.csv", index=False)
            self.edit((f'"{name}.csv"', f'"{name}.csv"\ntest = "{name}-test.csv"'))

    def ask_telco(self, query: str, table: pd.DataFrame) -> None:
        """The telco's table in a database."""
        with contextlib.closing(sqlite3.connect(self.folder / "telco.db")) as connection:
            table.to_sql("customers", connection, index=False)
        self.edit(('data = "telco.csv"', f'sql = "{query}"\nuri = "sqlite:///telco.db"'))

    def leftovers(self) -> list[str]:
        """What a run left in runs/, finished or not."""
        return sorted(each.name for each in self.run.parent.glob("*"))


@pytest.fixture
def fedmend(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """A command as its console script runs it: exit code, what it printed, and to stderr."""
    from fedmend.cli import main

    def run(*words: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
            sys.exit(0)
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


@pytest.fixture
def workshop(tmp_path):
    return Workshop(tmp_path)


@pytest.fixture(scope="session")
def make_workshop():
    return Workshop


@pytest.fixture
def pages():
    """For tests that look into the report of a run."""


@pytest.fixture
def bare_report(request, monkeypatch):
    """A run's report is an empty page, unless a test asks for `pages`: drawing takes longer than
    all other stages of a small run."""
    if "pages" not in request.fixturenames:
        empty_reports(monkeypatch)


def empty_reports(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        "fedmend.flow.stages.write_report",
        lambda folder: (folder / "report.html").write_text("<html></html>"),
    )


def frame_of(n: int = 240, seed: int = 0, task: str = "binary") -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.normal(size=(n, 5)), columns=list("abcde"))
    frame["city"] = rng.choice(["Ulm", "Bonn", "Kiel"], n)
    signal = frame["a"] + frame["d"] + (frame["city"] == "Ulm") * 1.5
    if task == "regression":
        frame["y"] = 10 + 3 * signal + rng.normal(size=n) * 0.1
    elif task == "multiclass":
        frame["y"] = np.array(["low", "mid", "high"])[np.digitize(signal, [-0.5, 1.0])]
    else:
        frame["y"] = np.where(signal > 0.5, "yes", "no")
    return frame


COLUMNS = {"bank": ["a", "b", "y"], "telco": ["c", "d"], "shop": ["e", "city"]}


def fed_of(
    frame: pd.DataFrame | None = None,
    *,
    aligned: int | None = None,
    test: pd.DataFrame | None = None,
    columns: dict[str, list[str]] = COLUMNS,
    strict: bool = True,
    align: bool = True,
    **options: Any,
) -> Federation:
    """Parties with rows in orders of their own; the first `aligned` ids known to all of them.

    The rest of the rows is the label party's alone.
    """
    from fedmend.data.table import Table
    from fedmend.federation import Federation, Party

    frame = frame_of() if frame is None else frame
    aligned = len(frame) if aligned is None else aligned
    tables: dict[str, dict[str, Table]] = {name: {} for name in columns}
    orders: dict[str, dict[str, np.ndarray]] = {}
    for dataset, rows in (("train", frame), ("test", test)):
        if rows is None:
            continue
        known = aligned if dataset == "train" else len(rows)
        orders[dataset] = {}
        for number, (name, names) in enumerate(columns.items()):
            count = len(rows) if "y" in names else known
            order = np.random.default_rng(number).permutation(count)
            label = "y" if "y" in names else None
            picked = rows.iloc[order][names].reset_index(drop=True)
            tables[name][dataset] = Table(order, picked, label=label)
            orders[dataset][name] = order
    parties = [
        Party(name, each.pop("train"), **each, policy=options.pop(f"policy_{name}", None))
        for name, each in tables.items()
    ]
    fed = Federation(*parties, strict=strict, **options)
    if align:
        for dataset, by_party in orders.items():
            align_by_hand(fed, dataset, by_party, aligned if dataset == "train" else None)
    return fed


def align_by_hand(
    fed: Federation, dataset: str, orders: dict[str, np.ndarray], aligned: int | None
) -> None:
    from fedmend.federation import Alignment, AlignmentCounts

    unaligned = {}
    for name, order in orders.items():
        position = np.argsort(order)  # position[id] is the row of that id
        known = len(order) if aligned is None else aligned
        split = Alignment(position[:known], position[known:])
        fed.engine.site(name).alignments[dataset] = split
        unaligned[name] = len(split.unaligned)
    known = min(len(order) for order in orders.values()) if aligned is None else aligned
    fed.on(dataset).note_alignment(AlignmentCounts(known, unaligned))


@pytest.fixture(scope="session")
def make_frame() -> Callable[..., pd.DataFrame]:
    return frame_of


@pytest.fixture(scope="session")
def make_fed() -> Callable[..., Federation]:
    return fed_of


@pytest.fixture
def steady_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Randomised response from a seed: what is learnt from told labels is the same in every run."""
    draws = np.random.default_rng(0).bytes
    monkeypatch.setattr("fedmend.federation.labels.urandom", draws)


# ---------------------------------------------------------------- a database


@pytest.fixture(scope="session")
def postgresql(tmp_path_factory):
    """The address of a PostgreSQL server of our own, where its programs are installed."""
    places = [Path(found).resolve().parent] if (found := shutil.which("initdb")) else []
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    programs = next((each for each in places if (each / "pg_ctl").exists()), None)
    if programs is None:
        pytest.skip("no PostgreSQL server programs (initdb, pg_ctl) on this machine")
    as_user = {"user": 65534, "group": 65534} if os.geteuid() == 0 else {}  # it refuses to be root
    home = Path("/tmp") if as_user else tmp_path_factory.mktemp("pg")
    home = home / f"fedmend-test-pg-{os.getpid()}"
    home.mkdir(mode=0o700)
    if as_user:
        os.chown(home, 65534, 65534)

    def run(program, *words):
        command = [programs / program, "-D", home / "db", *words]
        quiet = {"stdout": subprocess.DEVNULL, "timeout": 60}
        subprocess.run(command, check=True, cwd=home, **quiet, **as_user)

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    try:
        run("initdb", "-U", "bank", "-A", "trust", "--no-sync")
        options = f"-p {port} -k {home} -c listen_addresses=127.0.0.1 -c fsync=off"
        run("pg_ctl", "-o", options, "-l", home / "log", "-w", "start")
        yield f"postgresql://bank:hidden@127.0.0.1:{port}/postgres"
        run("pg_ctl", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(home, ignore_errors=True)


# ---------------------------------------------------------------- a browser

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--window-size=1000,1200",
]  # fmt: skip


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    """Headless Chromium, where it is installed, once for all tests that open pages."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("chromium and chromedriver are not installed: the report is not opened")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    profile = tmp_path_factory.mktemp("profile")
    for flag in [*FLAGS, f"--user-data-dir={profile}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with pytest.MonkeyPatch.context() as patch:
        # The driver is on this machine: no proxy may stand between.
        patch.setenv("NO_PROXY", "localhost,127.0.0.1")
        service = webdriver.ChromeService(executable_path=driver, env=dict(os.environ))
        session = webdriver.Chrome(options=options, service=service)
        yield session
        session.quit()


@pytest.fixture
def browser(chromium):
    """As it was when it began: an empty page on a screen of its size, and nothing logged."""
    chromium.get("about:blank")
    chromium.set_window_size(1000, 1200)
    chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
    for kind in ("browser", "performance"):
        chromium.get_log(kind)
    return chromium
