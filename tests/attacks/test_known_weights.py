"""Known or guessable weights: what protects a party comes from its own machine and stays there.

The attacker is whoever takes part: it knows the run's seed and name, every party's name, every
setting of the network, and the code. What it must not be able to do is draw what a party draws.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedmend
import fedmend as fm
from fedmend.audit.known_weights import explained_rows, rebuilt_bottom
from fedmend.deploy.party_file import load_party, open_site
from fedmend.errors import PrivacyWarning, Refused
from fedmend.federation import Federation, Site
from fedmend.federation.engines.flare.host import Hello, PartyHost
from fedmend.federation.engines.flare.messages import read_reply, request
from fedmend.federation.ledger import REPRODUCIBLE, Entry, read_ledger
from fedmend.federation.randomness import SECRET_FILE, wide_seed
from fedmend.generate.registry import class_of, generators, make
from fedmend.generate.vfgain import VFGAIN
from fedmend.methods.horizontal import rounds
from fedmend.secure.align import align
from fedmend.split import workers as split_workers
from fedmend.split.config import Settings, SplitConfig
from fedmend.split.features import BatchOrder
from fedmend.split.parts import part_of
from fedmend.split.workers import BottomWorker

HELLO = Hello("spring", "spring run", ("vfl",), 0, 0.25)
CONFIG = SplitConfig(bottom=(8,), top=(8,), embedding=4, epochs=1)

# ------------------------------------------------------------------ how a party opens its site


@pytest.fixture
def kit(workshop) -> Any:
    """Makes kits of one party: the same files on another machine."""
    workshop.write()

    def make(machine: str, policy: str = "") -> Path:
        folder = workshop.folder / machine
        folder.mkdir()
        (folder / "bank.csv").write_bytes((workshop.folder / "bank.csv").read_bytes())
        (folder / "party.toml").write_text(
            'name = "bank"\ndata = "bank.csv"\nid = "customer"\nlabel = "default"\n' + policy
        )
        return folder

    return make


def opened(kit: Path, **changes: Any) -> Site:
    hello = Hello(**{**vars(HELLO), **changes})
    return open_site(load_party(kit), hello, kit)


def first_weights(site: Site) -> torch.Tensor:
    """What a bottom of this site begins with, made by the worker that VFL uses."""
    handle = site.start("BottomWorker", "train", {"model": "m"})
    site.call(handle, "create", {"config": CONFIG.to_wire()})
    bottom = part_of(site, "m").bottom
    assert bottom is not None
    return torch.cat([value.flatten() for value in bottom.module.state_dict().values()])


def test_two_machines_of_one_run_draw_different_weights(kit) -> None:
    here, there = (first_weights(opened(kit(name))) for name in ("here", "there"))
    known = opened(kit("known", "[policy]\nreproducible = true\n"), reproducible=True)
    drawn = first_weights(known)
    for one, other in ((here, there), (here, drawn), (there, drawn)):
        assert one.shape == other.shape
        assert not (one == other)[one != 0].any()


def test_a_resumed_run_draws_the_same_and_a_new_one_of_its_name_does_not(kit) -> None:
    folder = kit("here")
    first = first_weights(opened(folder))
    assert torch.equal(first_weights(opened(folder, resumed=True)), first)
    assert not torch.equal(first_weights(opened(folder)), first)
    secret = folder / "runs" / HELLO.run / SECRET_FILE
    assert secret.stat().st_mode & 0o077 == 0


def test_seed_and_names_of_a_run_change_nothing_about_what_others_can_know(kit) -> None:
    """A coordinator that resumes a run under any seed only ever gets the party's own randomness."""
    folder = kit("here")
    first = first_weights(opened(folder))
    for seed in range(3):
        again = opened(folder, resumed=True, seed=seed)
        assert again.secret is not None
        assert torch.equal(first_weights(again), first)
        assert not torch.equal(first_weights(opened(folder, run=f"other{seed}", seed=seed)), first)


def test_a_coordinator_cannot_make_a_party_fall_back_to_the_seed(kit) -> None:
    folder = kit("here")
    with pytest.raises(Refused, match=r"compute its rows(?s:.*)reproducible = false"):
        opened(folder, reproducible=True)
    site = opened(folder)
    with pytest.raises(Refused, match="order of the common rows would follow from the run's seed"):
        site.start("PairWorker", "train", {"order_seed": 0})
    site.start("PairWorker", "train", {})
    assert opened(kit("may", "[policy]\nreproducible = true\n")).secret is not None


# ------------------------------------------------------------------ behind messages


def greeted(host: PartyHost, **changes: Any) -> Any:
    content = Hello("spring", "t", ("vfl",), 0, 0.25).to_wire() | changes
    return read_reply(host.answer(request("hello", **content)), "bank", "hello")


@pytest.fixture
def host(kit) -> Iterator[Any]:
    made = []

    def start(folder: Path, opener: Any = None) -> PartyHost:
        opener = opener or (lambda hello: open_site(load_party(folder), hello, folder))
        made.append(PartyHost("bank", opener, folder))
        return made[-1]

    yield start
    for each in made:
        each.close("the test ended")


def test_a_host_keeps_its_secret_over_processes_and_out_of_its_answers(host, kit) -> None:
    folder = kit("here")
    weights = []
    for resumed in (False, True):
        one = host(folder)
        answer = greeted(one, resumed=resumed)
        assert answer.keys() == {"party", "version", "session"}
        weights.append(first_weights(one._site))
        one.close("finished")
    assert torch.equal(*weights)
    secret = (folder / "runs" / "spring" / SECRET_FILE).read_bytes()
    written = [path for path in folder.rglob("*") if path.is_file() and path.name != SECRET_FILE]
    assert any(path.suffix == ".jsonl" for path in written)
    for path in written:
        assert secret not in path.read_bytes()
        assert secret.hex() not in path.read_text(errors="replace")


def test_a_host_refuses_a_site_that_anybody_could_rebuild(host, kit) -> None:
    """Whoever opens the site, and whether or not the coordinator asked for it."""
    folder = kit("here")
    careless = host(folder, lambda hello: Site("bank", {}, seed=hello.seed))
    with pytest.raises(Refused, match="random choices are to follow from the run's seed"):
        greeted(careless)
    with pytest.raises(Refused, match="random choices are to follow from the run's seed"):
        greeted(host(folder), reproducible=True)


def noted(path: Path) -> list[Entry]:
    return [entry for entry in read_ledger(path) if entry.note == REPRODUCIBLE]


def test_a_reproducible_run_is_in_the_partys_ledger_and_on_its_screen(host, kit) -> None:
    folder = kit("here", "[policy]\nreproducible = true\n")
    one = host(folder)
    greeted(one, reproducible=True)
    one.close("finished")
    (entry,) = noted(folder / "ledgers" / "spring.jsonl")
    assert (entry.call, entry.receiver, entry.bytes) == ("run", "bank", 0)
    assert "can compute its rows" in (folder / "events.jsonl").read_text()
    usual = host(folder)
    greeted(usual, run="usual")
    usual.close("finished")
    assert noted(folder / "ledgers" / "usual.jsonl") == []


def test_asking_for_it_warns_of_what_it_costs(tmp_path) -> None:
    from fedmend.errors import ConfigError

    with pytest.warns(PrivacyWarning, match="can compute its rows"), pytest.raises(ConfigError):
        Federation.over_flare(tmp_path, reproducible=True)  # there are no kits
    with warnings.catch_warnings(), pytest.raises(ConfigError):
        warnings.simplefilter("error")
        Federation.over_flare(tmp_path)


# ------------------------------------------------------------------ the attack itself


def first_embeddings(host: PartyHost, **changes: Any) -> tuple[np.ndarray, np.ndarray]:
    """What the label party opens of a partner's first batch, and the numbers of its rows."""
    session, number = greeted(host, **changes)["session"], iter(range(1, 10))

    def ask(operation: str, **content: Any) -> Any:
        message = request(operation, session=session, number=next(number), **content)
        return read_reply(host.answer(message), "bank", operation)

    rows = len(host._site.tables["train"])
    handle = ask("start", worker="BottomWorker", scope="train", params={"model": "m"})
    for method, kwargs in (
        ("create", WIDE),
        ("attach", {"segments": [["all", rows]], **WIDE}),
        ("set_order", {"rows": np.arange(rows)}),
    ):
        ask("call", handle=handle, method=method, kwargs=kwargs)
    found = ask("call", handle=handle, method="step", kwargs={"epoch": 5})
    order = BatchOrder(np.arange(rows), len(found), torch.device("cpu"))
    order.start(5)  # all are told in which order an epoch goes through the rows
    return found.numpy(), order.next().numpy()


WIDE = {"config": replace(CONFIG, bottom=(64,), embedding=32, settings=Settings(64)).to_wire()}


@pytest.mark.parametrize("known", [True, False])
def test_rows_are_solved_for_only_where_weights_follow_from_the_seed(host, kit, known) -> None:
    """By the label party, which has the seed, the name, the settings and one batch of embeddings.

    Measured by the rows of that batch whose every cell it finds to a thousandth of a standard
    deviation, without knowing any: all of a reproducible party's, none of any other's.
    """
    # Open, so that the test can read what the label party finds when it has opened its messages.
    policy = f"[policy]\nsealed = []\nreproducible = {str(known).lower()}\n"
    victim = host(kit("here", policy))
    embeddings, rows = first_embeddings(victim, reproducible=known)
    table = victim._site.tables["train"].features
    part = rebuilt_bottom(BottomWorker, WIDE, "bank", 0, table)
    truth = part.encoder.transform(table.take(rows))
    (numbers, *shares), sure = explained_rows(part.module, embeddings, np.random.default_rng(0))
    right = np.abs(numbers - truth.numeric).max(1) < 1e-3
    for at, each in enumerate(shares):
        right &= each.argmax(1) == truth.codes[:, at]
    assert len(right) == 64
    assert (int(sure.sum()), int((right & sure).sum())) == ((64, 64) if known else (0, 0))


# ------------------------------------------------------------------ every method

QUICK_GROUP = True  # what is drawn for networks is looked at here, not the alignment
QUICK = {"epochs": 1, "bottom": (6,), "embedding": 4, "batch_size": 40}
COMMON = {
    # What these draw is no party's: it is the same for all, or about nothing that is hidden.
    "likely_shares": "weights of a Bayesian bootstrap, with which a label party weighs its models",
    "draws": "spread around an imputed embedding, in predictions",
}


class Drawn:
    """Records what is drawn for networks: weights, noise, masks of generators."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: list[tuple[str, torch.Tensor]] = []
        for owner, names in (
            (torch.Tensor, ("uniform_", "normal_")),
            (torch, ("rand", "randn", "randint", "multinomial")),
        ):
            for name in names:
                monkeypatch.setattr(owner, name, self._recording(getattr(owner, name)))

    def _recording(self, original: Any) -> Any:
        def record(*args: Any, **kwargs: Any) -> Any:
            made = original(*args, **kwargs)
            caller = inspect.currentframe().f_back
            # What torch's own layers hold at first is drawn anew before they are used.
            if not caller.f_globals["__name__"].startswith("torch."):
                # Torch's common generator begins with a number that is the same everywhere.
                assert kwargs.get("generator") is not None, caller.f_code
                self.found.append((caller.f_code.co_name, made.detach().clone()))
            return made

        return record


def drawn_by(fit: Any, fed: Federation, secret: bytes | None) -> list[tuple[str, torch.Tensor]]:
    """Everything drawn while a method is fitted with these secrets at all roles."""
    for number, name in enumerate(fed.names):
        fed.engine.site(name).secret = None if secret is None else bytes([number]) + secret[1:]
    fed.secret = secret
    with pytest.MonkeyPatch.context() as patch:
        recorder = Drawn(patch)
        fit(fed)
    return recorder.found


LIKE_VFL = ("LocalVFL", "FedCVT", "SFHTL", "SSLVFL", "FewShotVFL")
"""Made of VFL's workers: what these draw, VFL draws too."""
METHODS: dict[str, Any] = {
    "VFL": lambda fed: fm.VFL(**QUICK).fit(fed),
    "LocalVFL": lambda fed: fm.LocalVFL(**QUICK).fit(fed),
    "AbsentPartner": lambda fed: fm.AbsentPartner(**QUICK).fit(fed),
    "FedCVT": lambda fed: fm.FedCVT(**QUICK).fit(fed.only("bank", "telco")),
    "SFHTL": lambda fed: fm.SFHTL(**QUICK, pretrain_epochs=1).fit(fed.only("bank", "telco")),
    "SSLVFL": lambda fed: fm.SSLVFL(**QUICK, pretrain_epochs=1).fit(fed),
    "FewShotVFL": lambda fed: fm.FewShotVFL(**QUICK, local_updates=3).fit(fed),
    "RISA": lambda fed: fm.RISA(**QUICK, members=2).fit(fed),
    "completion, neural": lambda fed: fm.FedPSGPUM(
        model="neural",
        neural={"epochs": 1},
        tau=0.0,
        generator_params={"epochs": 1},
        source="bank",
    ).fit(fed.only("bank", "telco")),
    "completion, generated": lambda fed: fm.FedPSGPUM(
        model="linear", tau=1.0, generator_params={"epochs": 1}, source="bank"
    ).fit(fed.only("bank", "telco")),
    "VF-GAIN": lambda fed: vfgain(fed),
}


def vfgain(fed: Federation) -> None:
    pair = fed.only("bank", "telco")
    model = VFGAIN(steps=3, batch_size=40, embedding=3).fit(pair, a="bank", b="telco")
    model.impute(pair, seed=1)


def world(make_fed: Any, make_frame: Any) -> Federation:
    fed = make_fed(make_frame(160), aligned=120, test=make_frame(40, seed=1))
    for view in (fed, fed.on("test")):
        align(view.only("bank", "telco"))
    return fed


@pytest.mark.daily("AbsentPartner", "RISA", "completion, generated", "VF-GAIN")
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in LIKE_VFL else ()) for name in METHODS],
)
@pytest.mark.filterwarnings("ignore::fedmend.errors.FedmendWarning")
def test_what_a_method_draws_follows_from_secrets_alone(name, make_fed, make_frame) -> None:
    """Four fits: by the seed, by secrets, by other secrets, and by the first ones again."""
    one, other = bytes(range(32)), bytes(reversed(range(32)))
    seeded, first, second, again = (
        drawn_by(METHODS[name], world(make_fed, make_frame), secret)
        for secret in (None, one, other, one)
    )
    assert len(first) == len(again) > 3
    for (caller, drawn), (_, repeated) in zip(first, again, strict=True):
        assert torch.equal(drawn, repeated), f"{caller} does not go on when resumed"
    for known in (seeded, second):
        for (caller, drawn), (_, guessed) in zip(first, known, strict=False):
            if caller in COMMON or drawn.shape != guessed.shape or drawn.numel() < 4:
                continue
            assert not torch.equal(drawn, guessed), f"{caller} draws what others can draw"
    assert {caller for caller, _ in first} - COMMON.keys()


@pytest.mark.daily("ctgan", "gain", "tabddpm", "tablegan", "vae")
@pytest.mark.parametrize("name", sorted(set(generators()) - {"vfgain"}))
def test_what_a_generator_draws_follows_from_all_of_its_seed(name) -> None:
    """B trains one on its own rows; its networks, noise and masks are B's alone."""
    rng = np.random.default_rng(0)
    table = fm.Table(np.arange(60), {"x": rng.normal(size=60), "k": rng.choice(list("abc"), 60)})
    settings = inspect.signature(class_of(name)).parameters.keys()
    quick = {key: 2 for key in ("epochs", "steps", "impute_draws") if key in settings}
    drawn = []
    for secret in (bytes(32), bytes(31) + b"1", bytes(32)):
        with pytest.MonkeyPatch.context() as patch:
            recorder = Drawn(patch)
            made = make(name, **quick, seed=wide_seed(secret, "generator")).fit(table)
            made.sample(8)
        drawn.append([each for each in recorder.found if each[1].numel() > 8])
    first, other, again = drawn
    assert len(first) > 3
    for (caller, one), (_, two), (_, three) in zip(first, other, again, strict=False):
        assert torch.equal(one, three), caller
        assert one.shape != two.shape or not torch.equal(one, two), caller


@pytest.mark.filterwarnings("ignore::fedmend.errors.FedmendWarning")
def test_the_top_at_the_coordinator_is_its_own(make_fed, make_frame) -> None:
    """Parties are sent gradients; by a top that they know these would tell the others' votes."""
    frame = make_frame(120)
    frame["z"] = frame["y"]
    columns = {"bank": ["a", "b", "y"], "telco": ["c", "d", "y"], "shop": ["e", "y"]}
    found = []
    for secret in (None, bytes(32), bytes(range(32)), bytes(32)):
        fed = make_fed(frame, columns=columns)
        fed.secret = secret  # the coordinator's alone
        with pytest.MonkeyPatch.context() as patch:
            made: list[torch.Tensor] = []
            original = split_workers.initialise

            def initialise(
                module: Any, generator: Any, made: Any = made, do: Any = original
            ) -> Any:
                done = do(module, generator)
                made.append(torch.cat([each.detach().flatten() for each in done.parameters()]))
                return done

            patch.setattr(split_workers, "initialise", initialise)
            fm.InC(**QUICK).fit(fed)
        found.append(torch.cat(made))
    seeded, first, second, again = found
    assert torch.equal(first, again)
    assert not torch.equal(first, seeded)
    assert not torch.equal(first, second)


def test_a_clients_batches_and_views_are_its_own() -> None:
    """In horizontal training the first weights are everybody's; what is done with them is not."""
    rng = np.random.default_rng(0)
    table = fm.Table(np.arange(40), {"x": rng.normal(size=40), "y": ["no", "yes"] * 20}, label="y")
    plans = []
    for secret in (None, bytes(32), bytes(range(32)), bytes(32)):
        fed = Federation(*(fm.Party(name, table) for name in "ab"))
        for name in "ab":
            fed.engine.site(name).secret = secret
        made: list[torch.Tensor] = []
        with pytest.MonkeyPatch.context() as patch:
            original = rounds.make_plan

            def make_plan(*args: Any, made: Any = made, do: Any = original) -> Any:
                made.append(do(*args).labelled)
                return do(*args)

            patch.setattr(rounds, "make_plan", make_plan)
            fm.FedAvg(rounds=1, epochs=1, batch_size=10, hidden=(4,)).fit(fed)
        plans.append(torch.cat(made))
    seeded, first, second, again = plans
    assert torch.equal(first, again)
    assert not torch.equal(first, seeded)
    assert not torch.equal(first, second)


# ------------------------------------------------------------------ every other source

SOURCES = re.compile(
    r"manual_seed\(|np\.random\.(?!Generator|SeedSequence\()|\bseed\(\)|random_state=|"
    r"^(import|from) random\b",
    re.MULTILINE,
)
# Where a stream begins outside of `federation/randomness.py`, and why nobody is protected by it.
KNOWN = {
    "data/": "simulated scenarios, crowds and clients: no party is there",
    "cli/demo.py": "a simulation",
    "audit/": "attackers' own draws, in a rehearsal",
    "preflight/curve.py": "the coordinator's: which of all rows a learning curve is made of",
    "methods/auto/folds.py": "folds: over the common order told to all, of own rows by number",
    "methods/auto/blend.py": "a label party's intervals; nothing is hidden by it",
    "generate/training.py": "`numpy_for`: seeds that are not wide",
    "methods/risa/columns.py": "a label party weighs its own models; nothing is hidden by it",
    "methods/horizontal/rounds.py": "the coordinator's: who takes part in a round",
    "methods/horizontal/networks.py": "the first weights, which the coordinator sends to all",
    "methods/horizontal/local_methods.py": "a small helper net at a client, which never leaves it",
    "methods/boosting/boost.py": "B's own held-out rows, of which A is not told",
    "methods/completion/neural.py": "the coordinator's: numbered rows held out, told to both",
    "methods/vertical/few_shot.py": "k-means begins with a number from the party's own stream",
    "split/workers.py": "the coordinator's own: numbered rows held out of the sums it trains on",
    "split/training.py": "the coordinator's: which embeddings are looked at for imputed ones",
    "split/imputed.py": "the spread of an imputed embedding in predictions, at the top's own party",
    "methods/annotators/estimator.py": "the coordinator's: rows that choose a length",
    "methods/annotators/inc.py": "the coordinator's: halves of the rows it knows sums of",
    "methods/risa/risa.py": "the coordinator's: numbered rows held out, told to all",
    "methods/annotators/baselines.py": "the coordinator's: orders of its own training",
}


def test_every_other_stream_is_known_and_hides_nothing() -> None:
    """Whoever adds a stream to the package says here why it is not a secret of a party."""
    root = Path(fedmend.__file__).parent
    found = set()
    for path in root.rglob("*.py"):
        name = path.relative_to(root).as_posix()
        code = "\n".join(
            line.partition("#")[0] for line in path.read_text(encoding="utf-8").splitlines()
        )
        if name != "federation/randomness.py" and SOURCES.search(code):
            found.add(next((known for known in KNOWN if name.startswith(known)), name))
    assert found == set(KNOWN)
