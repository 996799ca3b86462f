"""FedPSG-PUM: give one party's rows the other party's columns.

    mended = FedPSGPUM().fit(fed)              # telco's columns for the bank's other customers
    model = VFL().fit(mended.federation)       # in which those rows are aligned rows like others

Process I ranks B's columns by how well A's columns speak of them (secure Spearman correlation).
Process II predicts the strong ones by self-training (`vfpum.py`). Process III generates the weak
ones at B (`generation.py`). The merge (`completion.py`) keeps, for every cell at B, where it came
from and how far it deserves trust. A: the party with more rows; B: the party that completes.
"""

from __future__ import annotations

import logging
import secrets
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Self

from fedmend.errors import ConfigError, DataError, FedmendWarning
from fedmend.federation.federation import Federation, require_federation
from fedmend.generate import make
from fedmend.methods.completion.choices import GENERATOR, PAPER, problems
from fedmend.methods.completion.generation import GenerateWorker
from fedmend.methods.completion.mended import Completed, Mended
from fedmend.methods.completion.merging import merge
from fedmend.methods.completion.rows import open_rows
from fedmend.methods.completion.self_training import SelfTraining
from fedmend.methods.completion.thresholds import critical_rho, cv_threshold
from fedmend.methods.completion.vfpum import Outcome, Progress, cross_validated, vfpu_m
from fedmend.secure.correlation import RankCorrelation, rank_correlation

__all__ = ["FedPSGPUM"]

logger = logging.getLogger(__name__)


class FedPSGPUM(Mended):
    """Completes rows that only one party has with the other parties' columns, at those parties.

    direction: "a-to-b" completes the rows of the party with most rows of its own (or of `source`),
    "both" those of every party. With more than two parties, pair by pair.
    strength, tau, level: what makes a column of B strong: "max-abs", "mean-abs" or "mean" (as
    published) of its correlations above a number, above the critical value of "significance"
    (Holm-corrected over all pairs, at `level`), or above the number that "cv" finds.
    protocol, correlation_mode: of the correlation; mode: of the models' products.
    model: "linear", "tree", "neural", or several of them, which are then stacked.
    linear, tree, neural: arguments for the families.
    rounds, alpha, k, confidence: of the self-training (T, threshold, share, rule).
    held_out, folds: the share of aligned rows by which several models are weighed, and how many
    such shares at most, one after the other, for numeric columns.
    beyond: models use A's columns also where they lie, on the rows only A has, beyond what they
    are on the aligned rows; otherwise columns that do so by a quarter of their range or more, on
    average, are left out (`.left_out_`), and in those that do so a little lines end there. If
    others are distributed otherwise too (`.changed_`), what those left out explain of B's numbers
    is not learnt from them.
    own_columns: strong columns of B help to predict each other, by their current guesses.
    chain: columns one after the other, strongest first, each finished one helping the next.
    order: "predict-first" or "generate-first" (all generated, then the strong ones predicted with
    the generated columns as B's own).
    generator, generator_params, condition, draws: of the weak columns; with a condition `draws`
    generated values a cell are averaged. generator_params: None for the generator's
    own defaults, but 30 epochs of "vae".
    ordinal: ordinal targets as "classes" or "ranks". clip: numbers stay in the observed range.
    min_skill: completed columns enter `.federation` if their predictions spare at least this share
    of the error of the mean (or of the classes' shares) on rows held out; below they are missing
    there, as generated ones are, and only exported. None: all enter.
    row_order: of A's rows, as B numbers them: "secret", or "seeded" to repeat a simulation;
    "auto" is seeded where all parties are in one process.
    min_rows: fewest aligned rows.
    """

    def __init__(
        self,
        *,
        direction: str = "a-to-b",
        source: str | None = None,
        strength: str = "max-abs",
        tau: float | str = "significance",
        level: float = 0.05,
        protocol: str = "inner-product",
        correlation_mode: str = "bfv",
        mode: str = "dealer",
        model: str | Sequence[str] = ("linear", "tree"),
        linear: Mapping[str, Any] | None = None,
        tree: Mapping[str, Any] | None = None,
        neural: Mapping[str, Any] | None = None,
        rounds: int = 1,
        alpha: float = 0.8,
        k: float = 0.25,
        confidence: str = "spread",
        kappa: float = 1.0,
        held_out: float = 0.2,
        folds: int = 2,
        beyond: bool = False,
        own_columns: bool = False,
        chain: bool = False,
        order: str = "predict-first",
        generator: str = "vae",
        generator_params: Mapping[str, Any] | None = None,
        condition: bool = True,
        draws: int = 10,
        ordinal: str = "classes",
        clip: bool = True,
        min_skill: float | None = 0.1,
        row_order: str = "auto",
        min_rows: int = 10,
        seed: int = 0,
    ) -> None:
        self.direction = direction
        self.source = source
        self.strength = strength
        self.tau = tau
        self.level = level
        self.protocol = protocol
        self.correlation_mode = correlation_mode
        self.mode = mode
        self.model = model
        self.linear = linear
        self.tree = tree
        self.neural = neural
        self.rounds = rounds
        self.alpha = alpha
        self.k = k
        self.confidence = confidence
        self.kappa = kappa
        self.held_out = held_out
        self.folds = folds
        self.beyond = beyond
        self.own_columns = own_columns
        self.chain = chain
        self.order = order
        self.generator = generator
        self.generator_params = generator_params
        self.condition = condition
        self.draws = draws
        self.ordinal = ordinal
        self.clip = clip
        self.min_skill = min_skill
        self.row_order = row_order
        self.min_rows = min_rows
        self.seed = seed

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """The published choices; the numbers that the texts leave open are tau = 0, alpha = 0."""
        return cls(**{**PAPER, **changes})

    # ------------------------------------------------------------------ the algorithm

    def fit(self, fed: Federation, *, progress: Progress | None = None) -> Self:
        """Complete the rows; `progress(stage, done, total, metrics)` is told."""
        require_federation(fed)
        self.require_types()
        self._check()
        run = f"mended-{secrets.token_hex(6)}"
        seeded = self.row_order == "seeded" or (self.row_order == "auto" and fed.reproducible)
        sources = self._sources(fed)
        self.pairs_: dict[tuple[str, str], Completed] = {}
        views = {}
        for a in sources:
            views[a] = open_rows(fed, a, run, seeded=seeded)
            for b, view in views[a].items():
                with view.workers(GenerateWorker, parties=[b], run=run, a=a) as crew:
                    # B may know all of A's rows from an alignment of the two
                    if view.alignment.unaligned[a]:
                        self.pairs_[a, b] = self._complete(view, crew[b], a, b, run, progress)
        self.fed_, self.run_ = fed, run
        name = f"{fed.dataset}-{run}"
        self.federation = merge(fed, run, list(views), name, self.min_skill)
        return self

    def _complete(
        self, view: Federation, at_b: Any, a: str, b: str, run: str, progress: Progress | None
    ) -> Completed:
        """All of B's columns for A's rows."""
        done = self._correlate(view, a, b, at_b.columns(), run, progress)
        if self.order == "generate-first":
            self._generate(view, at_b, done, list(done.kinds), condition=False)
        done.outcome = self._predict(view, done, run, progress)
        left = [*done.weak, *done.outcome.failed]
        for name, why in done.outcome.failed.items():
            warnings.warn(
                f"party {b!r}, column {name!r}: could not be predicted ({why}) and was "
                "generated instead. Mend: name another model for it (`model`, in a file "
                "`complete.model`)",
                FedmendWarning,
                stacklevel=3,
            )
        if left and self.order == "predict-first":
            self._generate(view, at_b, done, left, condition=self.condition)
        done.cells = at_b.summary()
        return done

    # ------------------------------------------------------------------ Process I

    def _correlate(
        self,
        view: Federation,
        a: str,
        b: str,
        kinds: dict[str, str],
        run: str,
        progress: Progress | None,
    ) -> Completed:
        if not kinds:
            raise DataError(
                "has no column that could be completed",
                party=b,
                mend="give it columns with one value a row besides the label",
            )
        found = rank_correlation(
            view,
            a,
            b,
            protocol=self.protocol,  # type: ignore[arg-type]
            mode=self.correlation_mode,  # type: ignore[arg-type]
            strength=self.strength,  # type: ignore[arg-type]
            min_rows=self.min_rows,
            progress=_three(progress, "correlation"),
        )
        tau = self._threshold(view, a, b, found, run, progress)
        strong = [name for name in found.order if found.strengths[name] > tau]
        if not strong:
            warnings.warn(
                f"no column of {b!r} is stronger than tau = {tau:.3g}, so all are generated. "
                "Mend: a smaller tau, or tau='cv'",
                FedmendWarning,
                stacklevel=4,
            )
        weak = [name for name in found.order if name not in strong]
        return Completed(a, b, found, tau, strong, weak, kinds)

    def _threshold(
        self,
        view: Federation,
        a: str,
        b: str,
        found: RankCorrelation,
        run: str,
        progress: Progress | None,
    ) -> float:
        if self.tau == "significance":
            return critical_rho(found.indicators.to_numpy(), found.n, self.level)
        if self.tau == "cv":
            errors = cross_validated(
                view, a, b, found.order, parts=3, **self._training(run, progress)
            )
            return cv_threshold(found.strengths, errors)
        return float(self.tau)

    # ------------------------------------------------------------------ Process II

    def _predict(
        self, view: Federation, done: Completed, run: str, progress: Progress | None
    ) -> Outcome:
        strong, first = done.strong, self.order == "generate-first"
        settings = self._training(run, progress)
        if not self.chain:
            own = list(done.kinds) if first else strong if self.own_columns else []
            guessed = own if first else []
            if not strong:
                return Outcome()
            return vfpu_m(view, done.a, done.b, strong, own=own, guessed=guessed, **settings)
        outcome, finished = Outcome(), list(done.weak) if first else []
        for name in strong:
            part = vfpu_m(view, done.a, done.b, [name], own=finished, guessed=finished, **settings)
            outcome.left_out, outcome.changed = part.left_out, part.changed
            outcome.failed |= part.failed
            outcome.joined |= part.joined
            outcome.errors |= part.errors
            if name not in part.failed:
                finished = [*finished, name]
        return outcome

    def _training(self, run: str, progress: Progress | None) -> dict[str, Any]:
        """What every call of VFPU-M is told."""
        # Held-out rows stop boosting too early where a few outliers make up most of the error.
        tree = {"validation": 0.0, **(self.tree or {})}
        params = {"linear": self.linear, "tree": tree, "neural": self.neural}
        return {
            "run": run,
            "how": self._self_training(),
            "families": self._families(),
            "params": {name: dict(given) for name, given in params.items() if given},
            "options": {"mode": self.mode, "ordinal": self.ordinal, "beyond": self.beyond},
            "progress": progress,
        }

    def _self_training(self) -> SelfTraining:
        return SelfTraining(
            self.rounds,
            self.alpha,
            self.k,
            self.confidence,
            self.kappa,
            self.held_out,
            self.clip,
            self.seed,
            judged=self.min_skill is not None,
            folds=self.folds,
        )

    # ------------------------------------------------------------------ Process III

    def _generate(
        self, view: Federation, at_b: Any, done: Completed, names: list[str], *, condition: bool
    ) -> None:
        given = self.generator_params
        if given is None:
            given = GENERATOR.get(self.generator, {})
        params = {"seed": self.seed, **given}
        if self.generator != "vfgain":
            careful = bool(done.outcome.left_out)
            at_b.generate(names, self.generator, params, condition, self.draws, careful)
            return
        model: Any = make(self.generator, **params)
        model.fit(view, a=done.a, b=done.b, columns=list(done.kinds))
        key = f"known-{secrets.token_hex(6)}" if condition else None
        if key is not None:
            at_b.offer(names, key)
        # A's rows have an order of the run already
        made = model.impute(view, draws=self.draws, given=key, order="kept")
        at_b.adopt(names, made.name)

    # ------------------------------------------------------------------ checks

    def _families(self) -> list[str]:
        return [self.model] if isinstance(self.model, str) else list(self.model)

    def _sources(self, fed: Federation) -> list[str]:
        """The parties whose rows are completed."""
        if len(fed.names) < 2:
            raise ConfigError(
                "a federation of one party has nothing to complete. Mend: two or more"
            )
        counts = fed.alignment.unaligned
        if self.source is not None and self.source not in fed.names:
            raise ConfigError(
                f"source={self.source!r} is not in the federation. Mend: one of "
                + ", ".join(fed.names)
            )
        if self.direction == "both":
            found = [name for name in fed.names if counts[name]]
        else:
            most = self.source or max(fed.names, key=lambda name: counts[name])
            found = [most] if counts[most] else []
        if not found:
            raise DataError(
                "no party has rows that the others lack, so there is nothing to complete",
                party=self.source,
                mend="train on the federation as it is",
            )
        return found

    def _check(self) -> None:
        found = problems(self.get_params(), self._families(), self._self_training())
        if found:
            raise ConfigError(found)


def _three(progress: Progress | None, stage: str) -> Any:
    if progress is None:
        return None
    return lambda what, done, total: progress(f"{stage}: {what}", done, total, {})
