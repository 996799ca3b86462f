"""FedPSG-PUM: give one party's rows the other party's columns.

    mended = FedPSGPUM().fit(fed)              # telco's columns for the bank's other customers
    model = VFL().fit(mended.federation)       # in which those rows are aligned rows like others

Process I ranks B's columns by how well A's columns speak of them (secure Spearman correlation) and
screens both (`screening.py`). Process II predicts the strong ones by self-training
(`self_training.py`) with models of B's columns (`targets.py`; `linear.py`, `trees.py`,
`neural.py`, weighed by `stacking.py`). Process III generates the weak ones at B (`generation.py`).
The merge (`merging.py`) keeps, for every cell at B, where it came from and how far it deserves
trust. A: the party with more rows; B: the party that completes.
"""

from __future__ import annotations

import inspect
import os
import secrets
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self, get_args

import pandas as pd

from fedmend._parameters import (
    POSITIVE_SHARE,
    SHARE,
    Rules,
    at_least,
    one_of,
    parameters,
    wrong_values,
)
from fedmend._suggest import did_you_mean
from fedmend.errors import ConfigError, DataError, FedmendWarning
from fedmend.federation.federation import Federation, require_federation
from fedmend.generate import make
from fedmend.generate.registry import class_of, known_generators
from fedmend.methods.completion.generation import DRAWS, GenerateWorker
from fedmend.methods.completion.merging import FORMATS, MergeWorker, merge, open_rows
from fedmend.methods.completion.screening import critical_rho, cv_threshold
from fedmend.methods.completion.self_training import (
    CONFIDENCE,
    FAMILIES,
    Outcome,
    Progress,
    SelfTraining,
    cross_validated,
    family_of,
    vfpu_m,
)
from fedmend.methods.completion.targets import MODES
from fedmend.methods.contract import Estimator
from fedmend.methods.threads import on_few_threads
from fedmend.secure.correlation import RankCorrelation, Strength, rank_correlation
from fedmend.secure.inner_product import Mode
from fedmend.secure.published import LEAST_KEY_BITS

__all__ = ["Completed", "FedPSGPUM"]

LEVEL = 0.05  # of the significance that parts strong from weak columns
FOLDS = 2  # fifths of the aligned rows by which several models are weighed for numeric columns
# A's columns say next to nothing of weak columns: longer training adds nothing to them.
GENERATOR_PARAMS: dict[str, dict[str, Any]] = {"vae": {"epochs": 30}}

RULES: Rules = {
    "direction": one_of(("a-to-b", "both")),
    "strength": one_of(get_args(Strength)),
    "tau": (
        "a number in [-1, 1], 'significance' or 'cv'",
        lambda tau: tau in ("significance", "cv") if isinstance(tau, str) else -1 <= tau <= 1,
    ),
    "protocol": one_of(("inner-product", "published")),
    "correlation_mode": one_of(get_args(Mode)),
    "key_bits": (
        f"a multiple of 256 from {LEAST_KEY_BITS} on",
        lambda bits: bits >= LEAST_KEY_BITS and not bits % 256,
    ),
    "mode": one_of(MODES),
    "rounds": at_least(1),
    "alpha": SHARE,
    "k": POSITIVE_SHARE,
    "confidence": one_of(CONFIDENCE),
    "min_skill": ("1 at most, or None", lambda least: least is None or least <= 1),
}


@dataclass
class Completed:
    """What the coordinator knows of one party's columns for another party's rows."""

    a: str
    b: str
    correlation: RankCorrelation
    tau: float
    strong: list[str]
    weak: list[str]
    kinds: dict[str, str]
    outcome: Outcome = field(default_factory=Outcome)
    cells: dict[str, dict[str, float]] = field(default_factory=dict)


@parameters
class FedPSGPUM(Estimator):
    """Completes rows that only one party has with the other parties' columns, at those parties.

    direction: "a-to-b" completes the rows of the party with most rows of its own (or of `source`),
    "both" those of every party. With more than two parties, pair by pair.
    strength, tau: what makes a column of B strong: "max-abs", "mean-abs" or "mean" (as published)
    of its correlations above a number, above the critical value of "significance" (Holm-corrected
    over all pairs, at 0.05), or above the number that "cv" finds.
    protocol, correlation_mode: of the correlation; key_bits: of its key in the mode "published".
    mode: of the models' products.
    model: "linear", "tree", "neural", or several of them, which are then stacked.
    linear, tree, neural: arguments for the families.
    rounds, alpha, k, confidence: of the self-training (T, threshold, share, rule).
    beyond: models use A's columns also where they lie, on the rows only A has, beyond what they
    are on the aligned rows; otherwise columns that do so by a quarter of their range or more, on
    average, are left out (`.left_out_`), and in those that do so a little lines end there. If
    others are distributed otherwise too (`.changed_`), what those left out explain of B's numbers
    is not learnt from them.
    generator, generator_params, condition: of the weak columns; with a condition ten generated
    values a cell are averaged. generator_params: None for the generator's own defaults, but 30
    epochs of "vae"; {"preset": "paper"} for its published settings.
    min_skill: completed columns enter `.federation` if their predictions spare at least this share
    of the error of the mean (or of the classes' shares) on rows held out; below they are missing
    there, as generated ones are, and only exported. None: all enter.

    Fitted: ``federation``, the same parties on their mended tables, in which the completed rows are
    aligned; ``pairs_``, per (A, B) what was done with B's columns for A's rows.
    """

    predicts: ClassVar[bool] = False
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        # The texts give no number for alpha; for tau they ask for a test or for cross-validation.
        "paper": {
            "strength": "mean",
            "tau": "cv",
            "protocol": "published",
            "correlation_mode": "published",
            "model": "linear",
            "linear": {"alpha": 0.1},
            "beyond": True,
            "rounds": 5,
            "alpha": 0.0,
            "k": 0.25,
            "confidence": "published",
            "generator": "ctgan",
            "condition": False,
            "min_skill": None,
        }
    }

    direction: str = "a-to-b"
    source: str | None = None
    strength: str = "max-abs"
    tau: float | str = "significance"
    protocol: str = "inner-product"
    correlation_mode: str = "bfv"
    key_bits: int = 2048
    mode: str = "dealer"
    model: str | Sequence[str] = ("linear", "tree")
    linear: Mapping[str, Any] | None = None
    tree: Mapping[str, Any] | None = None
    neural: Mapping[str, Any] | None = None
    rounds: int = 1
    alpha: float = 0.8
    k: float = 0.25
    confidence: str = "spread"
    beyond: bool = False
    generator: str = "vae"
    generator_params: Mapping[str, Any] | None = None
    condition: bool = True
    min_skill: float | None = 0.1
    seed: int = 0

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """The published choices, with these changes."""
        return cls.preset("paper", **changes)

    # ------------------------------------------------------------------ the algorithm

    @on_few_threads
    def fit(self, fed: Federation, *, progress: Progress | None = None) -> Self:
        """Complete the rows; `progress(stage, done, total, metrics)` is told."""
        require_federation(fed)
        self.require_types()
        self._check()
        run = f"mended-{secrets.token_hex(6)}"
        sources = self._sources(fed)
        pairs: dict[tuple[str, str], Completed] = {}
        for a in sources:
            for b, view in open_rows(fed, a, run).items():
                with view.workers(GenerateWorker, parties=[b], run=run, a=a) as workers:
                    # B may know all of A's rows from an alignment of the two
                    if view.alignment.unaligned[a]:
                        pairs[a, b] = self._complete(view, workers[b], a, b, run, progress)
        self.federation = merge(fed, run, sources, f"{fed.dataset}-{run}", self.min_skill)
        self.fed_, self.run_, self.pairs_ = fed, run, pairs
        return self

    def _complete(
        self, view: Federation, at_b: Any, a: str, b: str, run: str, progress: Progress | None
    ) -> Completed:
        """All of B's columns for A's rows."""
        training = self._training(run, progress)
        done = self._screen(view, a, b, at_b.columns(), training)
        if done.strong:
            done.outcome = vfpu_m(view, a, b, done.strong, **training)
        for name, why in done.outcome.failed.items():
            warnings.warn(
                f"party {b!r}, column {name!r}: could not be predicted ({why}) and was "
                "generated instead. Mend: name another model for it (`model`, in a file "
                "`complete.model`)",
                FedmendWarning,
                stacklevel=4,
            )
        if left := [*done.weak, *done.outcome.failed]:
            self._generate(view, at_b, done, left)
        done.cells = at_b.summary()
        return done

    def _screen(
        self, view: Federation, a: str, b: str, kinds: dict[str, str], training: dict[str, Any]
    ) -> Completed:
        """Process I: which of B's columns are strong."""
        if not kinds:
            raise DataError(
                "has no column that could be completed",
                party=b,
                mend="give it columns with one value a row besides the label",
            )
        tell = training["progress"]
        found = rank_correlation(
            view,
            a,
            b,
            protocol=self.protocol,  # type: ignore[arg-type]
            mode=self.correlation_mode,  # type: ignore[arg-type]
            strength=self.strength,  # type: ignore[arg-type]
            key_bits=self.key_bits,
            progress=None
            if tell is None
            else lambda what, done, total: tell(f"correlation: {what}", done, total, {}),
        )
        if self.tau == "significance":
            tau = critical_rho(found.indicators.to_numpy(), found.n, LEVEL)
        elif self.tau == "cv":
            errors = cross_validated(view, a, b, found.order, **training)
            tau = cv_threshold(found.strengths, errors)
        else:
            tau = float(self.tau)
        strong = [name for name in found.order if found.strengths[name] > tau]
        if not strong:
            warnings.warn(
                f"no column of {b!r} is stronger than tau = {tau:.3g}, so all are generated. "
                "Mend: a smaller tau, or tau='cv'",
                FedmendWarning,
                stacklevel=5,
            )
        weak = [name for name in found.order if name not in strong]
        return Completed(a, b, found, tau, strong, weak, kinds)

    def _training(self, run: str, progress: Progress | None) -> dict[str, Any]:
        """What every call of Process II, VFPU-M, is told."""
        # Held-out rows stop boosting too early where a few outliers make up most of the error.
        tree = {"validation": 0.0, **(self.tree or {})}
        params = {"linear": self.linear, "tree": tree, "neural": self.neural}
        judged = self.min_skill is not None
        return {
            "run": run,
            "how": SelfTraining(
                self.rounds, self.alpha, self.k, self.confidence, self.seed, judged, FOLDS
            ),
            "families": self._families(),
            "params": {name: dict(given) for name, given in params.items() if given},
            "options": {"mode": self.mode, "beyond": self.beyond},
            "progress": progress,
        }

    def _generate(self, view: Federation, at_b: Any, done: Completed, names: list[str]) -> None:
        """Process III: columns that A's say little of, or that no model could learn."""
        given = self.generator_params
        if given is None:
            given = GENERATOR_PARAMS.get(self.generator, {})
        params = {"seed": self.seed, **given}
        if self.generator != "vfgain":
            careful = bool(done.outcome.left_out)
            at_b.generate(names, self.generator, params, self.condition, careful)
            return
        model: Any = make(self.generator, **params)
        model.fit(view, a=done.a, b=done.b, columns=list(done.kinds))
        key = f"known-{secrets.token_hex(6)}" if self.condition else None
        if key is not None:
            at_b.offer(names, key)
        # A's rows have an order of the run already
        draws = DRAWS if self.condition else 1
        made = model.impute(view, draws=draws, given=key, order="kept")
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
        if self.source is not None:
            fed.require_party("source", self.source)
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
        if problems := self.problems():
            raise ConfigError(problems)

    def problems(self) -> list[str]:
        """All that is wrong with the arguments, those that are handed on included."""
        families = self._families()
        found = wrong_values(self, {**RULES, "generator": one_of(known_generators())})
        if not families or not set(families) <= set(FAMILIES) or len(set(families)) < len(families):
            found.append(
                f"model must be one or several of {', '.join(FAMILIES)}, got {self.model!r}"
            )
        # Of what is handed on it would be told after hours of training.
        for family in set(families) & set(FAMILIES):
            known = inspect.signature(family_of(family)).parameters.values()
            own = [each.name for each in known if each.kind is each.KEYWORD_ONLY]
            own += ["beyond", "mode"]
            found += [
                f"{family}: there is no argument {name!r}: {did_you_mean(name, own)}"
                for name in getattr(self, family) or {}
                if name not in own
            ]
        if self.generator in known_generators() and self.generator_params:
            names = [*class_of(self.generator).parameter_names(), "preset"]
            wrong = [name for name in self.generator_params if name not in names]
            found += [
                f"generator_params: {self.generator} has no parameter {name!r}: "
                f"{did_you_mean(name, names)}"
                for name in wrong
            ]
            if not wrong:
                try:
                    make(self.generator, **self.generator_params)._check_params()
                except ConfigError as error:
                    found += [f"generator_params: {problem}" for problem in error.problems]
        return found

    # ------------------------------------------------------------------ what there is to look at

    def _pairs(self) -> dict[tuple[str, str], Completed]:
        self._require_fit()
        return self.pairs_

    @property
    def correlation_(self) -> dict[tuple[str, str], RankCorrelation]:
        """Per pair (A, B) the correlations of Process I."""
        return {pair: done.correlation for pair, done in self._pairs().items()}

    @property
    def strong_(self) -> dict[tuple[str, str], list[str]]:
        """Per pair B's columns that were to be predicted, strongest first."""
        return {pair: done.strong for pair, done in self._pairs().items()}

    @property
    def weak_(self) -> dict[tuple[str, str], list[str]]:
        """Per pair B's columns that were generated because they are weak."""
        return {pair: done.weak for pair, done in self._pairs().items()}

    @property
    def failed_(self) -> dict[tuple[str, str], dict[str, str]]:
        """Per pair the strong columns that no model could learn, and why."""
        return {pair: done.outcome.failed for pair, done in self._pairs().items()}

    @property
    def left_out_(self) -> dict[tuple[str, str], list[str]]:
        """Per pair A's columns that models did not see: its other rows lie beyond the aligned."""
        return {pair: done.outcome.left_out for pair, done in self._pairs().items()}

    @property
    def changed_(self) -> dict[tuple[str, str], list[str]]:
        """Per pair, where columns are left out, A's others that are distributed otherwise too."""
        return {pair: done.outcome.changed for pair, done in self._pairs().items()}

    def summary(self) -> pd.DataFrame:
        """One line per completed column: strength, how it was made, cells by origin, confidence."""
        rows = []
        for (a, b), done in self._pairs().items():
            for name in done.correlation.order:
                fate = "strong" if name in done.strong else "weak"
                rows.append(
                    {
                        "rows of": a,
                        "column of": b,
                        "column": name,
                        "kind": done.kinds[name],
                        "strength": float(done.correlation.strengths[name]),
                        "group": "failed" if name in done.outcome.failed else fate,
                        "rounds": len(done.outcome.joined.get(name, [])),
                        **done.cells[name],
                    }
                )
        return pd.DataFrame(rows)

    def export(self, path: str | os.PathLike[str], format: str = "parquet") -> dict[str, int]:
        """Every completing party writes its table, origins beside, into its own folder `path`."""
        if format not in FORMATS:
            raise ConfigError(f"format must be one of {', '.join(FORMATS)}, got {format!r}")
        pairs = self._pairs()
        written = {}
        for b in dict.fromkeys(b for _, b in pairs):
            of = [a for a, other in pairs if other == b]
            with self.fed_.workers(MergeWorker, parties=[b], run=self.run_) as workers:
                written[b] = int(workers[b].export(os.fspath(path), format, of))
        return written
