"""The parameters that all methods of horizontal federations share, checked, and what they make."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Self

from fedmend.errors import ConfigError
from fedmend.federation import Federation
from fedmend.learn.optim import OptimizerSpec
from fedmend.methods.contract import Estimator
from fedmend.methods.horizontal.federated import FederatedClients
from fedmend.methods.horizontal.hidden import HiddenClients
from fedmend.methods.horizontal.local_methods import LocalMethod
from fedmend.methods.horizontal.networks import NetSpec
from fedmend.methods.horizontal.rounds import Aggregate, Pool, RoundSettings
from fedmend.methods.horizontal.simulator import Simulator

__all__ = ["HorizontalSettings"]

SECURE = ("none", "masks", "he")
NETS = ("auto", "mlp", "cnn", "resnet8")


class HorizontalSettings(Estimator):
    """How parties with the same columns train one model: parameters, and rounds made of them.

    net: "auto" (a table: "mlp"; images: "resnet8"), "mlp", "cnn" or "resnet8"; hidden: layers of
    an mlp. rounds: rounds of averaging; per_round: parties drawn for each, None for all.
    epochs, labelled_batch, unlabelled_batch: a party's round is `epochs` times one unlabelled row
    in every labelled_batch, or `steps_per_epoch` steps, each of both batches.
    warmup: the first so many rounds learn from labelled rows only, so that pseudo-labels come from
    a model that knows something already (ours; see docs/sage.md for when it pays).
    carry_momentum: the momentum goes from party to party (the authors' quirk; for the simulator).
    average_rounds: the model told, saved and predicted with is the mean of the common models over
    about so many rounds (newer ones count more), which swings less from round to round; training
    goes on from the last one. None: the last one (ours; see docs/sage.md for when it pays).
    prox: FedProx's pull towards the round's common model.
    noise, drop: strong views of table rows, standard deviations of noise and share of cells lost;
    flip: images may be mirrored.
    secure: "none" (the coordinator sees every party's weights), or "masks" or "he": it learns their
    average only, by a secure sum. Not for methods that look at single updates (FedDB, FedMatch).
    watch: a further table of the parties ("test") on which accuracy is told after every round.
    label_dp: ε of randomised response at every party, through which alone the training knows its
    labels, or None. Drawn once, and kept; what was told with which ε is `privacy_`.
    """

    paper_rounds: ClassVar[int] = 300

    def __init__(
        self,
        *,
        net: str = "auto",
        hidden: tuple[int, ...] = (64,),
        rounds: int = 50,
        per_round: int | None = None,
        warmup: int = 0,
        epochs: int = 5,
        labelled_batch: int = 32,
        unlabelled_batch: int = 64,
        steps_per_epoch: int | None = None,
        optimizer: str = "sgd",
        lr: float = 0.05,
        momentum: float = 0.9,
        weight_decay: float = 1e-4,
        carry_momentum: bool = False,
        average_rounds: int | None = None,
        prox: float = 0.0,
        noise: float = 0.3,
        drop: float = 0.4,
        flip: bool = True,
        precision: str = "float32",
        secure: str = "none",
        watch: str | None = None,
        seed: int = 0,
        label_dp: float | None = None,
    ) -> None:
        self.net = net
        self.hidden = hidden
        self.rounds = rounds
        self.per_round = per_round
        self.warmup = warmup
        self.epochs = epochs
        self.labelled_batch = labelled_batch
        self.unlabelled_batch = unlabelled_batch
        self.steps_per_epoch = steps_per_epoch
        self.optimizer = optimizer
        self.lr = lr
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.carry_momentum = carry_momentum
        self.average_rounds = average_rounds
        self.prox = prox
        self.noise = noise
        self.drop = drop
        self.flip = flip
        self.precision = precision
        self.secure = secure
        self.watch = watch
        self.seed = seed
        self.label_dp = label_dp

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """The settings of SAGE's authors for CIFAR-10, quirks included."""
        params: dict[str, Any] = {
            "net": "resnet8",
            "rounds": cls.paper_rounds,
            "per_round": 8,
            "epochs": 5,
            "labelled_batch": 128,
            "unlabelled_batch": 256,
            "optimizer": "sgd",
            "lr": 0.1,
            "momentum": 0.9,
            "weight_decay": 1e-4,
            "carry_momentum": True,
        }
        return cls(**(params | changes))

    # ------------------------------------------------------------------ a method's own part

    def _method(self) -> LocalMethod:
        """What a party does in a round."""
        raise NotImplementedError(f"{type(self).__name__} has no local method")

    def _aggregate(self) -> Aggregate | None:
        """How updates become the next model; None averages them by rows (FedAvg)."""
        return None

    def _settings(self) -> RoundSettings:
        optimizer = OptimizerSpec(self.optimizer, self.lr, self.weight_decay, self.momentum)
        return RoundSettings(
            epochs=self.epochs,
            labelled_batch=self.labelled_batch,
            unlabelled_batch=self.unlabelled_batch,
            steps_per_epoch=self.steps_per_epoch,
            optimizer=optimizer,
            prox=self.prox,
            carry_momentum=self.carry_momentum,
            warmup=self.warmup,
            precision=self.precision,
        )

    def _check(self) -> None:
        """Raise all that is wrong with the parameters at once."""
        problems = []
        for name in ("rounds", "per_round", "average_rounds"):
            value = getattr(self, name)
            if value is not None and value < 1:
                problems.append(f"{name} must be at least 1, got {value}")
        if self.warmup >= self.rounds > 0:
            problems.append(f"warmup must be below rounds, got {self.warmup} and {self.rounds}")
        if self.net not in NETS:
            problems.append(f"net must be one of {', '.join(NETS)}, got {self.net!r}")
        if self.noise < 0 or not 0 <= self.drop < 1:
            problems.append(
                f"noise must not be negative and drop lie in [0, 1), got {self.noise} and "
                f"{self.drop}"
            )
        if self.label_dp is not None and not 0 < self.label_dp < math.inf:
            problems.append(f"label_dp must be a positive ε or None, got {self.label_dp}")
        if self.secure not in SECURE:
            problems.append(f"secure must be one of {', '.join(SECURE)}, got {self.secure!r}")
        elif self.secure != "none" and self._aggregate() is not None:
            problems.append(
                f"secure = {self.secure!r}: {type(self).__name__} looks at single parties' "
                "updates. Mend: secure='none', or another method"
            )
        if self.secure != "none" and self.carry_momentum:
            problems.append("secure and carry_momentum: momentum would go from party to party")
        for make in (self._settings, self._method):
            try:
                make()
            except ConfigError as error:
                problems += error.problems
        if problems:
            raise ConfigError(problems)

    # ------------------------------------------------------------------ rounds

    def _clients(self, fed: Federation, common: dict[str, Any] | None = None) -> FederatedClients:
        server = self._aggregate()
        send = getattr(server, "send", None)
        options: dict[str, Any] = {}
        if self.secure != "none":
            options["mode"] = self.secure
        clients: FederatedClients = (HiddenClients if options else FederatedClients)(
            fed,
            self._method(),
            self._settings(),
            net=self.net,
            hidden=self.hidden,
            per_round=None if self.per_round is None else min(self.per_round, len(fed.names)),
            seed=self.seed,
            aggregate=server,
            extras=None if send is None else lambda name: send(clients.weights),
            noise=self.noise,
            drop=self.drop,
            flip=self.flip,
            common=common,
            average_rounds=self.average_rounds,
            label_dp=self.label_dp,
            **options,
        )
        return clients

    def simulator(
        self, pools: Sequence[Pool], net: NetSpec, *, device: str = "auto", mode: str = "auto"
    ) -> Simulator:
        """The same rounds without parties, on one device: for benchmarks and large studies.

        Labels are taken as the pools have them: label_dp is the parties' own doing.
        """
        server = self._aggregate()
        send = getattr(server, "send", None)
        simulator = Simulator(
            pools,
            net,
            self._method(),
            self._settings(),
            per_round=self.per_round,
            seed=self.seed,
            device=device,
            mode=mode,
            aggregate=server,
            extras=None if send is None else lambda name: send(simulator.weights),
            average_rounds=self.average_rounds,
        )
        return simulator
