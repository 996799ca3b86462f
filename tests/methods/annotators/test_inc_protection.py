"""What the server gets to see: the same labels whatever the protection, and never a single vote."""

import gc
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.methods.annotators.in_the_clear import Known

from fedmend.errors import PrivacyWarning, Refused
from fedmend.federation import COORDINATOR, Site
from fedmend.federation.engines.local import LocalEngine
from fedmend.methods.annotators.baselines import EM
from fedmend.methods.annotators.inc import InC
from fedmend.methods.annotators.worker import LabelWorker

QUICK: dict[str, Any] = {
    "epochs": 4,
    "bottom": (),
    "embedding": 4,
    "top": (),
    "batch_size": 64,
    "lr": 0.02,
    "crossfit": False,
    "patience": None,
}


def test_he_masks_and_none_give_the_same_labels(crowd_of, clear):
    results = {}
    for secure in ("he", "masks"):
        model = InC(**QUICK, secure=secure)
        results[secure] = model.fit(crowd_of(missing=0.2).fed).posterior_
    with pytest.warns(PrivacyWarning, match="in the clear"):
        model = InC(**QUICK, secure="none")
        results["none"] = model.fit(crowd_of(missing=0.2, policy=clear).fed).posterior_
    np.testing.assert_array_equal(results["he"], results["masks"])
    np.testing.assert_array_equal(results["he"], results["none"])


def test_labels_in_the_clear_are_refused_by_default(crowd_of):
    with pytest.warns(PrivacyWarning), pytest.raises(Refused, match="'label'"):
        InC(**QUICK, secure="none").fit(crowd_of().fed)


def test_a_key_holder_without_labels(crowd_of):
    crowd = crowd_of()
    model = InC(**QUICK, secure="he", label_parties=("p0", "p1"), key_holder="p2").fit(crowd.fed)
    decrypting = {
        entry.sender for entry in crowd.fed.ledger if entry.call.endswith(".decrypt_blinded")
    }
    assert decrypting == {"p2", COORDINATOR}
    assert set(model.expertise_) == {"p0", "p1"}


def test_the_ledger_shows_sums_only(crowd_of):
    crowd = crowd_of()
    InC(**QUICK, secure="he").fit(crowd.fed)
    for party in crowd.fed.names:
        kinds = crowd.fed.ledger.kinds(sender=party)
        assert not kinds & {"label", "row"}
        assert "ciphertext" in kinds
    senders = {e.sender for e in crowd.fed.ledger if e.call.endswith(".decrypt_blinded")}
    assert senders == {"p0", COORDINATOR}


# ------------------------------------------------------------------ taint


class Overheard(LocalEngine):
    """Keeps whatever crosses to the coordinator."""

    heard: list[tuple[str, Any]]

    def _cross(
        self, sender: str, receiver: str, call: str, kind: str, value: Any, opens: str = ""
    ) -> Any:
        crossed = super()._cross(sender, receiver, call, kind, value, opens)
        if receiver == COORDINATOR:
            self.heard.append((call, crossed))
        return crossed


@pytest.mark.parametrize("secure", ["he", "masks"])
def test_nothing_the_server_is_handed_tells_a_single_vote(crowd_of, secure):
    """Every array a party lets out is compared with that party's votes, in whatever form."""
    crowd = crowd_of(rates=(0.3, 0.3, 0.3), rows=400)
    engine = crowd.fed.engine
    engine.__class__ = Overheard
    engine.heard = []
    InC(**QUICK, secure=secure).fit(crowd.fed)
    assert len(engine.heard) > 100
    votes = crowd.votes
    arrays = [
        (call, array)
        for call, value in engine.heard
        if not call.startswith("BottomWorker")
        for array in _arrays(value)
        if array.size >= 400
    ]
    for call, array in arrays:
        flat = array.reshape(-1)[: 400 * 3 if array.size >= 1200 else 400].astype(np.float64)
        for k in range(3):
            said = np.eye(3)[votes[:, k]].reshape(-1) if len(flat) == 1200 else votes[:, k]
            assert abs(np.corrcoef(flat, said)[0, 1]) < 0.15, call
    if secure == "masks":
        assert len(arrays) >= 3 * 4  # votes and evidence of three parties, several times
    # and the comparison notices what it is there for
    said = np.eye(3)[votes[:, 0]].reshape(-1)
    assert abs(np.corrcoef(said * 0.7 - 3, said)[0, 1]) > 0.99


@pytest.mark.parametrize("secure", ["he", "masks"])
def test_the_servers_memory_holds_no_key_and_no_single_vote(crowd_of, monkeypatch, secure):
    """All that can be reached from the server's objects in stage 2, the parties' sides left out."""
    from fedmend.methods.annotators.inc import Correction
    from fedmend.secure.keys import Identity
    from fedmend.secure.seal import Keys

    corrections: list[Correction] = []
    step = Correction.step

    def noted(self: Correction, predicted: np.ndarray) -> float:
        corrections[:] = [self]
        return step(self, predicted)

    monkeypatch.setattr(Correction, "step", noted)
    crowd = crowd_of(rates=(0.3, 0.3, 0.3))
    model = InC(**QUICK, secure=secure)
    reached: list[Any] = []
    everything: list[Any] = []

    def look(stage: str, epoch: int, total: int, facts: dict[str, float]) -> None:
        if stage == "correct":
            reached[:] = _reachable([model, *corrections], stop=(LocalEngine, Site))
            everything[:] = _reachable([model, *corrections], stop=())

    model.fit(crowd.fed, progress=look)
    arrays = [each for each in map(_plain_array, reached) if each is not None]
    assert any(each.shape == (300, 3) for each in arrays), "vote counts and ỹ are there"
    forms = [form for k in range(3) for form in (crowd.votes[:, k], np.eye(3)[crowd.votes[:, k]])]
    for array in arrays:
        assert not any(_same_partition(array, form) for form in forms)
    assert _same_partition(np.eye(3)[crowd.votes[:, 1]] * 0.7 - 3, forms[3]), "it would notice"
    for secret in (Identity, Keys) if secure == "he" else (Identity,):
        assert not any(isinstance(each, secret) for each in reached)
        assert any(isinstance(each, secret) for each in everything), "the parties have them"


def _reachable(roots: list[Any], stop: tuple[type, ...]) -> list[Any]:
    skipped = (type, ModuleType, FunctionType, *stop)
    seen: dict[int, Any] = {}
    queue = list(roots)
    while queue:
        each = queue.pop()
        if id(each) in seen or isinstance(each, skipped):
            continue
        seen[id(each)] = each
        queue += gc.get_referents(each)
    return list(seen.values())


def _plain_array(value: Any) -> np.ndarray | None:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    return value if isinstance(value, np.ndarray) and value.dtype.kind in "biuf" else None


def _same_partition(array: np.ndarray, form: np.ndarray) -> bool:
    """Whether one is a function of the other's values, entry by entry."""
    if array.size != form.size:
        return False
    _, one = np.unique(array.reshape(-1), return_inverse=True)
    _, two = np.unique(form.reshape(-1), return_inverse=True)
    pairs = len(np.unique(one * (two.max() + 1) + two))
    return pairs == one.max() + 1 == two.max() + 1


def _arrays(value: Any) -> Iterator[np.ndarray]:
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, bytes) and len(value) >= 1200:
        yield np.frombuffer(value[:1200], np.uint8)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _arrays(each)
    elif isinstance(value, dict):
        yield from _arrays(list(value.values()))


def test_no_secret_key_crosses(crowd_of, monkeypatch):
    from fedmend.secure import seal
    from fedmend.secure.sums_he import context

    made = []
    generate = seal.SealContext.generate_keys
    monkeypatch.setattr(
        seal.SealContext, "generate_keys", lambda self: made.append(generate(self)) or made[-1]
    )
    crowd = crowd_of()
    engine = crowd.fed.engine
    engine.__class__ = Overheard
    engine.heard = []
    EM(epochs=1, bottom=(), top=(), patience=None, secure="he").fit(crowd.fed)
    assert len(made) == 1  # one key holder
    blobs = [data for _, value in engine.heard for data in _blobs(value)]
    public = context().public_key_bytes(made[0].public)
    assert _middle(public) in b"".join(blobs)  # the comparison finds what did cross
    assert _middle(seal.saved(made[0].secret)) not in b"".join(blobs)


def _middle(data: bytes) -> bytes:
    return data[len(data) // 2 : len(data) // 2 + 64]


def _blobs(value: Any) -> Iterator[bytes]:
    if isinstance(value, bytes):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _blobs(each)


# ------------------------------------------------------------------ fixed point


def test_the_stated_error_holds(crowd_of):
    """The server's sum of log-likelihood rows against the exact one."""
    from fedmend.methods.annotators.estimator import Annotators

    crowd = crowd_of(missing=0.1)
    weights = np.random.default_rng(0).dirichlet([1, 1, 1], 300).astype(np.float32)
    with Annotators(crowd.fed, ["p0", "p1", "p2"], secure="masks") as annotators:
        annotators.attach()
        summed = annotators.evidence(weights)
        bound = annotators.error_bound
    exact = Known(crowd.votes)(weights)
    assert bound == 3 * 2.0**-11
    assert np.abs(summed - exact).max() <= bound
    assert np.abs(summed - exact).max() > 0


@given(
    rule=st.sampled_from(["product", "row"]),
    annotators=st.integers(2, 200),
    seed=st.integers(0, 2**32 - 1),
)
def test_evidence_survives_its_fixed_point(rule, annotators, seed):
    """Any number of annotators: sums fit their words and are as close as stated."""
    from fedmend.methods.annotators.worker import LOG_FLOOR, EvidenceForm

    form = EvidenceForm.of(rule, annotators)
    rng = np.random.default_rng(seed)
    low, high = (LOG_FLOOR, 0.0) if rule == "product" else (0.0, 1.0)
    evidence = rng.uniform(low, high, (annotators, 50))
    evidence[0, :2] = low, high
    sent = np.stack([form.encode(each) for each in evidence])
    assert sent.dtype == form.dtype
    assert sent.max() <= form.span
    summed = form.decode(sent.astype(np.int64).sum(0), annotators)
    rounding = 1e-6 * annotators * (high - low)
    assert np.abs(summed - evidence.sum(0)).max() <= form.error(annotators) + rounding
    assert form.error(annotators) <= 0.01
    if form.bits < 16:
        assert annotators * form.span < 1 << 16


@pytest.mark.parametrize("annotators", [2, 50])
def test_what_a_vote_is_summed_as(annotators):
    from fedmend.methods.annotators.worker import LOG_FLOOR, EvidenceForm

    def summed(matrix, rule):
        form = EvidenceForm.of(rule, annotators)
        return form.decode(form.table(matrix, rule), 1), 2 * form.error(1) + 1e-6

    matrix = np.array([[0.9, 0.1], [0.3, 0.7]])
    none = [0.0, 0.0]
    logs = np.vstack([np.log(matrix).T, none])
    for rule, expected in {
        "row": np.vstack([matrix, none]),
        "product": logs,
        "contrast": logs[:, :1] - logs[:, 1:],
    }.items():
        found, error = summed(matrix, rule)
        np.testing.assert_allclose(found, expected, rtol=0, atol=error)
    sure, error = summed(np.eye(2), "product")
    worst = np.array([[0.0, LOG_FLOOR], [LOG_FLOOR, 0.0], none])
    np.testing.assert_allclose(sure, worst, rtol=0, atol=error)
    furthest, error = summed(np.eye(2), "contrast")
    np.testing.assert_allclose(furthest.ravel(), [-LOG_FLOOR, LOG_FLOOR, 0], rtol=0, atol=error)


# ------------------------------------------------------------------ why sums are opened


def equations(top: torch.nn.Module, embeddings: torch.Tensor, shares: torch.Tensor) -> Any:
    """What a step tells a server that is told the gradient of its weights, and no share of a vote.

    It knows the embeddings of the batch and its weights θ: with J = ∂logits/∂θ the gradient of the
    loss is Jᵀ(ŷ − p), so that Jᵀp = Jᵀŷ − gradient. **Shape** Jᵀ [weights, batch · classes].
    """
    weights, outputs = list(top.parameters()), top(embeddings)

    def slopes(value: torch.Tensor) -> torch.Tensor:
        found = torch.autograd.grad(value, weights, retain_graph=True)
        return torch.cat([each.flatten() for each in found])

    jacobian = torch.stack([slopes(each) for each in outputs.flatten()])
    loss = -(shares * outputs.log_softmax(1)).sum()
    known = jacobian.T @ outputs.softmax(1).flatten() - slopes(loss)
    return jacobian.T.detach().numpy(), known.detach().numpy()


@pytest.mark.parametrize(("hidden", "epochs"), [(None, 4), (16, 1)])
def test_gradients_alone_would_tell_every_vote(hidden, epochs):
    # docs/decisions/2026-11-16-sums-of-votes.md: a linear top of 9 inputs with batches of 30 needs
    # 30 / (9 + 1) epochs and one to spare, a hidden layer one, with more weights than unknowns
    torch.manual_seed(0)
    rows, classes, batch, wide, people = 60, 3, 30, 9, 4
    top = torch.nn.Linear(wide, classes).double()
    if hidden:
        layers = torch.nn.Linear(wide, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, classes)
        top = torch.nn.Sequential(*layers).double()
    said = torch.randint(0, classes, (rows, people))
    counts = torch.nn.functional.one_hot(said, classes).sum(1)
    left, right = [np.kron(np.eye(rows), np.ones(classes))], [np.ones(rows)]  # shares add up to 1
    for _ in range(epochs):
        embeddings = torch.randn(rows, wide, dtype=torch.float64)
        for some in torch.randperm(rows).split(batch):
            slopes, known = equations(top, embeddings[some], counts[some] / people)
            placed = np.zeros((len(slopes), rows, classes))
            placed[:, some] = slopes.reshape(len(slopes), len(some), classes)
            left.append(placed.reshape(len(slopes), -1))
            right.append(known)
    found = np.linalg.lstsq(np.concatenate(left), np.concatenate(right), rcond=None)[0]
    assert (np.rint(people * found.reshape(rows, classes)) == counts.numpy()).all()


def test_the_word_of_an_order_tells_no_ids_and_no_single_row(crowd_of):
    """Who guesses all ids cannot make it, and nobody is known again by a word of a few rows."""

    def words(counts: range) -> list[str]:
        fed = crowd_of(rows=60, reproducible=False).fed
        with fed.workers(LabelWorker, parties=["p0"]) as workers:
            return [workers["p0"].order(count) for count in counts]

    first = words(range(13))
    assert len(set(first)) == 3 and len(set(first[:11])) == 1, "of 10, 11 and 12 rows"
    assert not set(first) & set(words(range(13))), "the same ids under another key"
