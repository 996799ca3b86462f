"""Rounds in which no party's weights come to light: the coordinator gets their average only.

Each party keeps what its round led to, scales it by its share of the rows, and puts it into a
secure sum (Bonawitz et al., 2017; `fedmend.secure.sums`). The average is FedAvg's, but for rounding
to 2^-32. With two parties in a round each of them can tell the other's part from the average.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from fedmend.errors import ConfigError
from fedmend.federation import Crew, Each, Federation
from fedmend.federation.worker import exposed
from fedmend.methods.horizontal.federated import FederatedClients
from fedmend.methods.horizontal.rounds import RoundReport, Update, draw_clients, round_generator
from fedmend.methods.horizontal.worker import ClientWorker
from fedmend.secure.sums import SumSession, SumWorker, offer_summand

if TYPE_CHECKING:
    from fedmend.federation.site import Site

__all__ = ["HiddenClientWorker", "HiddenClients"]

UPDATE = "round.update"
# A share of a change of weights; a training that goes further has gone astray.
LIMIT = 4096.0
FRACTION_BITS = 32


class HiddenClientWorker(ClientWorker):
    """A party's side: trains, and lets out sums only."""

    def __init__(self, site: Site, scope: str = "train", *, run: str) -> None:
        super().__init__(site, scope, run=run)
        self._change: Tensor | None = None
        self._number = 0

    @exposed(kind="statistic", takes={"weights": "weights"})
    def train_hidden(self, weights: Tensor, number: int) -> dict[str, Any]:
        """Train on the party's own rows and keep the result; tells rows, steps and measures."""
        trainer, pool = self._ready(number)
        start = weights.to(trainer.device, trainer.settings.dtype)
        generator = round_generator(self._seed, pool.name, number)
        kept = self.site.state.setdefault(self._key, {})
        update = trainer.train(pool, start, generator, state=kept)
        self._change, self._number = update.weights.double() - start.double(), number
        return {"rows": update.rows, "steps": update.steps, "measures": update.measures.cpu()}

    @exposed(kind="control")
    def offer(self, share: float) -> None:
        """Put the kept result, scaled, where a secure sum finds it."""
        if self._change is None:
            raise ConfigError("no round was trained. Mend: call train_hidden(…) first")
        part = self._change * share
        self._require_numbers(part, self._number, LIMIT)
        offer_summand(self.site, UPDATE, part.cpu().numpy(), opens="weights")
        self._change = None


class HiddenClients(FederatedClients):
    """`FederatedClients` that averages under masks ("masks") or encryption ("he")."""

    worker_type: ClassVar[type[ClientWorker]] = HiddenClientWorker

    def __init__(self, fed: Federation, *args: Any, mode: str = "masks", **options: Any) -> None:
        super().__init__(fed, *args, **options)
        problems = []
        if mode not in ("masks", "he"):
            problems.append(f"secure must be 'none', 'masks' or 'he', got {mode!r}")
        if options.get("aggregate") is not None or options.get("extras") is not None:
            problems.append(
                "secure averaging is FedAvg's; this method looks at single parties' updates. "
                "Mend: secure='none', or another method"
            )
        if self.settings.carry_momentum:
            problems.append("carry_momentum sends a party's momentum on. Mend: switch it off")
        if min(self.per_round or len(fed.names), len(fed.names)) < 2:
            problems.append("a sum over one party is that party's. Mend: at least two in a round")
        if problems:
            raise ConfigError(problems)
        self.mode = mode
        self._sessions: dict[tuple[str, ...], SumSession] = {}
        self._summing: Crew | None = None

    def run_round(self) -> RoundReport:
        """Draw parties, let them train, and learn the average of what they know then."""
        number = self.round + 1
        names = draw_clients(self.fed.names, self.per_round, self.seed, number)
        everyone = self._training()
        handles = {name: everyone._handles[name] for name in names}
        drawn = Crew(self.fed.engine, self.worker_type, handles)
        told = drawn.train_hidden(self.weights, number)
        rows = {name: int(told[name]["rows"]) for name in names}
        total = sum(rows.values())
        if total:
            drawn.offer(Each({name: rows[name] / total for name in names}))
            found = self._session(names).sum(
                UPDATE, between=(-LIMIT, LIMIT), fraction_bits=FRACTION_BITS
            )
            change = torch.from_numpy(found.values)
            self.weights = (self.weights.double() + change).to(self.settings.dtype)
        self._arrive(number)
        return RoundReport.of(
            number,
            [
                Update(
                    name,
                    self.weights,
                    rows[name],
                    int(told[name]["steps"]),
                    told[name]["measures"],
                )
                for name in names
            ],
        )

    def _session(self, names: list[str]) -> SumSession:
        """Parties that were drawn together before have exchanged their keys already."""
        if self._summing is None:
            self._summing = self.fed.workers(SumWorker)
        group = tuple(sorted(names, key=self.fed.names.index))
        if group not in self._sessions:
            self._sessions[group] = SumSession(
                self._summing,
                mode=self.mode,  # type: ignore[arg-type]
                parties=group,
            )
        return self._sessions[group]

    def close(self) -> None:
        super().close()
        self._sessions.clear()
        if self._summing is not None:
            self._summing.stop()
            self._summing = None
