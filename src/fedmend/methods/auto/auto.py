"""``auto``: the methods that fit a federation, heard as far as held-out rows say they should be.

All candidates train on the first fold, then all on the second, and so on, until the folds or the
time are at their end. What they say of held-out rows stays at the label party, which weighs it
(`blend`), separately for rows that partners know and for rows that only it knows, so that a partner
is heard where it helps and nowhere else. The candidates that are heard are then trained on all
rows. How well all of this does is told of folds that had no part in the choice.

What each role learns besides what the candidates' own pages say
- The coordinator: weights and scores of the candidates, as statistics over all held-out rows.
- Partners: which rows of the common order are held out together.
"""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from fedmend._parameters import POSITIVE, Rules, at_least, check_values, one_of, parameters
from fedmend.errors import ConfigError, FedmendError, FedmendWarning, ResumeError
from fedmend.federation import Federation, WorkerGroup, require_federation
from fedmend.learn.metrics import LOWER_IS_BETTER, pretty, score_text
from fedmend.methods.auto.folds import fold, forget, number_folds
from fedmend.methods.auto.worker import ALONE, SHARED, BlendWorker
from fedmend.methods.network import LabelledEstimator
from fedmend.methods.registry import METHODS, contestants, make
from fedmend.methods.threads import on_few_threads
from fedmend.split.features import ALIGNED, ALL, Segments, among, is_known
from fedmend.split.parts import read_json, write_json
from fedmend.split.training import Judged, Progress

__all__ = ["Auto"]

logger = logging.getLogger(__name__)

LEAST = 10
"""Held-out rows of a fold: with fewer a fold says more about chance than about methods."""
FOLDS_FILE, FOLDS_FORM = "folds.json", 5  # another where folds train otherwise
COMPLETED = "-completed"


def few_to_compare(rows: int, least: int) -> str:
    """Why methods cannot be compared: all rows less those of the folds would be these few."""
    return (
        f"{rows} rows known to all are too few to compare methods: what is told of folds would "
        f"tell of these, and a party tells nothing of fewer than {least} (policy.min_rows). "
        f"Mend: name a method, such as local-trees, or find {least} common rows"
    )


@dataclass
class Candidate:
    """A method, perhaps with the completed rows.

    slug: its name among the members. skipped: why it could not be trained here. lengths: of its
    trainings in the folds, as held-out rows chose them.
    """

    name: str
    completed: bool = False
    seconds: float = 0.0
    skipped: str = ""
    lengths: list[int] = field(default_factory=list)

    @property
    def slug(self) -> str:
        return self.name + COMPLETED * self.completed

    @property
    def title(self) -> str:
        return METHODS[self.name].shown + " + completed rows" * self.completed

    @classmethod
    def of(cls, slug: str) -> Candidate:
        return cls(slug.removesuffix(COMPLETED), slug.endswith(COMPLETED))

    @contextmanager
    def tried(self) -> Iterator[None]:
        """What it takes is counted; where it cannot be trained, that is why it is left out."""
        began = time.perf_counter()
        try:
            with warnings.catch_warnings():
                # What a part of the rows gives reason to is told when all are trained on.
                warnings.simplefilter("ignore", FedmendWarning)
                yield
        except FedmendError as error:
            self.skipped = str(error)
            logger.warning("%s cannot be trained here: %s", self.title, error)
        else:
            self.seconds += time.perf_counter() - began


def none_able(candidates: Sequence[Candidate]) -> ConfigError:
    told = "; ".join(f"{each.title}: {each.skipped}" for each in candidates)
    return ConfigError(
        f'method "auto" found no method that can be trained here ({told}). '
        "Mend: what these say, or name a method"
    )


# ---------------------------------------------------------------- the model


class BlendNetwork(Judged):
    """Several models and how far each is heard, with what estimators ask of a split network.

    members: fitted estimators by slug. weights: by kind of row and slug.
    """

    stays = "several models decide, and stay with it"

    def __init__(self, fed: Federation, label_party: str) -> None:
        super().__init__(fed, label_party, "auto")
        self.members: dict[str, Any] = {}
        self.weights: dict[str, dict[str, float]] = {}

    @property
    def parties(self) -> list[str]:
        names = [name for each in self.members.values() for name in each.network_.parties]
        return list(dict.fromkeys(names))

    def heard(self, segment: str) -> dict[str, float]:
        """The members that are asked about rows of a segment, and their weights."""
        knows = is_known(segment, self.label_party) or segment == ALL
        with_partner = segment != ALL and any(is_known(segment, name) for name in self.passive)
        weights = self.weights[SHARED if with_partner else ALONE]
        able = {slug: each for slug, each in weights.items() if each > 0}
        if knows:
            return able
        # Rows of a partner alone: whoever needs the label party's columns has nothing to say.
        some = {slug: each for slug, each in able.items() if self.members[slug].network_.passive}
        if not some:
            raise ConfigError(
                f"the models that were chosen use columns of {self.label_party!r} only, and do "
                f"not know rows of {segment!r}. Mend: a method that uses all parties' columns"
            )
        scale = sum(able.values()) / sum(some.values())
        return {slug: each * scale for slug, each in some.items()}

    @contextmanager
    def workers(
        self, fed: Federation, asked: list[str] | None = None
    ) -> Iterator[tuple[WorkerGroup, Any]]:
        """The label party's alone: others are asked by the members."""
        with fed.workers(BlendWorker, parties=[self.label_party], model=self.model) as group:
            yield group, group[self.label_party]

    @contextmanager
    def judged(self, fed: Federation, segments: Segments) -> Iterator[Any]:
        """The label party's worker, with what the members together say of these rows."""
        parts = []
        for number, (segment, count) in enumerate(segments):
            heard = self.heard(str(segment)) if int(str(count)) else {}
            names = {slug: f"{self.model}:{number}:{slug}" for slug in heard}
            for slug, name in names.items():
                self.members[slug].network_.leave_outputs(fed, [[segment, count]], name)
            parts.append({"names": list(names.values()), "weights": list(heard.values())})
        with self.workers(fed) as (_, worker):
            worker.attach([list(each) for each in segments])
            worker.mix(parts)
            yield worker

    def save(self, path: str, member: str = "") -> None:
        with self.fed.workers(BlendWorker, model=self.model) as workers:
            workers.save(path, member)
        for slug, each in self.members.items():
            each.network_.save(path, slug)

    def load(self, path: str, member: str = "") -> Self:
        with self.fed.workers(BlendWorker, model=self.model) as workers:
            workers.load(path, member)
            self.take_about(workers[self.label_party].about())
        return self


# ---------------------------------------------------------------- the choice


@dataclass
class _Contest:
    """Cross-validation of candidates, all on the same folds."""

    how: Auto
    fed: Federation
    completed: Federation | None
    network: BlendNetwork
    progress: Progress | None
    folder: Path | None
    candidates: list[Candidate] = field(default_factory=list)
    seconds: float = 0.0
    pairs: dict[str, np.ndarray] = field(default_factory=dict)

    def run(self, resume: bool) -> int:
        """Try them; how many folds were used."""
        counts, party = self.fed.alignment, self.network.label_party
        with self.fed.workers(BlendWorker, model=self.network.model) as workers:
            weights = (self.how.settings or {}).get("weight_column")
            asked = {name: [None] for name in self.fed.names} | {party: [self.how.task, weights]}
            told = {name: workers[name].create(*each) for name, each in asked.items()}
        self.network.take_about(told[party])
        numbers = self.network.task == "regression"
        self.candidates = self.how.entering(self.fed, numbers, self.completed is not None)
        told_of = max(int(each["least"]) for each in told.values())
        least, real = max(LEAST, told_of), counts.aligned - counts.completed
        if 0 < real < told_of:
            raise ConfigError(few_to_compare(real, told_of))
        # Nothing can be said of a row of whom nobody knows more than the label.
        alone = counts.unaligned[party] if self.fed.roster[party]["features"] else 0
        more = {name: each for name, each in self._more(party).items() if each >= 2 * least}
        alone = max(0, alone - sum(more.values()))
        folds, held = self._numbered(party, least, real, alone, more)
        done = self._resumed(folds) if resume else 0
        for number in range(done, folds):
            began = time.perf_counter()
            self._one(number, folds, party, *held)
            self.seconds += time.perf_counter() - began
            self._keep(number + 1, folds)
            if number and self.seconds * (number + 2) / (number + 1) > self.how.budget:
                return number + 1
        return folds

    def _more(self, party: str) -> dict[str, int]:
        """Of more than one partner, how many rows each knows that not all know, where it was
        asked: the two are aligned as two."""
        pairs = {name: self.fed.only(party, name) for name in self.fed.names if name != party}
        return {
            name: pair.alignment.aligned - self.fed.alignment.aligned
            for name, pair in pairs.items()
            if pair.scope != self.fed.scope and pair.is_aligned
        }

    def _numbered(
        self, party: str, least: int, real: int, alone: int, more: Mapping[str, int]
    ) -> tuple[int, tuple[bool, bool]]:
        """How many folds there are, and whether of rows known to all, and of those of one party.

        more: by partner how many it knows besides, of which there are folds, too.

        A fold's labelled rows of a kind could be told from those of the others: they must be
        enough, or all of that kind are trained on in every fold.
        """
        kinds = real >= 2 * least, alone >= 2 * least
        for held in dict.fromkeys([kinds, (False, kinds[1]), (kinds[0], False)]):
            rows = [each // least for each, here in zip((real, alone), held, strict=True) if here]
            rows += [each // least for each in more.values()]
            # By the federation's seed: with folds of its own, each of several trainings would ask
            # about other rows, and all of them together about few.
            for folds in range(min([self.how.folds, *rows]) if rows else 0, 1, -1):
                found = number_folds(self.fed, party, folds, self.fed.seed, *held, least, [*more])
                if found is not None:
                    self.pairs = found
                    return folds, held
        raise ConfigError(
            f"{real} rows known to all parties are too few to compare methods by, or too few of "
            f"them have a label. Mend: name a method, or {2 * least} common rows with one"
        )

    def able(self) -> list[Candidate]:
        found = [each for each in self.candidates if not each.skipped]
        if not found:
            raise none_able(self.candidates)
        return found

    def _one(self, number: int, folds: int, party: str, shared: bool, alone: bool) -> None:
        """Train every candidate on one fold; what it says of the held-out rows stays there."""
        seed, own = self.fed.seed, party if alone else None
        one = partial(fold, number=number, folds=folds, seed=seed, own=own, shared=shared)
        train, held = one(self.fed, pairs=self.pairs)
        pairs = [held.only(*scope.partition("@")[2].split("+")) for scope in self.pairs]
        made = [train, held]
        views = {False: train}
        if self.completed is not None:
            views[True], spare = one(self.completed)
            made += [views[True], spare]
        counts, rows = held.alignment, train.alignment
        segments = [[ALIGNED, counts.aligned], [party, counts.unaligned[party]]]
        labelled = rows.aligned + rows.unaligned[party]
        names: dict[str, str] = {}
        met: dict[str, dict[str, str]] = {pair.scope: {} for pair in pairs}
        for at, candidate in enumerate(self.candidates):
            if candidate.skipped:
                continue
            if self.network.task == "regression" and METHODS[candidate.name].classes_only:
                candidate.skipped = "it learns classes, and the label is a number"
                continue
            name = f"{self.network.model}:{candidate.slug}"
            with candidate.tried():
                estimator = self.how.made(candidate, party)
                worth = estimator.shorten(len(self.network.classes), labelled)
                estimator.fit(views[candidate.completed])
                estimator.network_.leave_outputs(held, segments, name)
                candidate.lengths.append(worth * estimator.network_.best_epoch)
                for pair in pairs if estimator.network_.passive else ():
                    some = [[among(pair.names), pair.alignment.aligned]]
                    estimator.network_.leave_outputs(pair, some, f"{name}:{pair.scope}")
                    met[pair.scope][candidate.slug] = f"{name}:{pair.scope}"
                names[candidate.slug] = name
            if self.progress is not None and not candidate.skipped:
                total = folds * len(self.candidates)
                done = number * len(self.candidates) + at + 1
                self.progress(f"fold {number + 1}", done, total, {})
        self.able()
        with self.network.workers(held) as (_, worker):
            worker.collect(names, number, counts.aligned, met)
        forget(*made[:2])
        if len(made) > 2:
            forget(*made[2:])

    def choose(self, metric: str) -> dict[str, Any]:
        able = self.able()
        own = [each.slug for each in able if not METHODS[each.name].partners]
        completed = [each.slug for each in able if each.completed]
        with self.network.workers(self.fed) as (_, worker):
            return dict(worker.choose([each.slug for each in able], own, completed, metric))

    # ------------------------------------------------------------ interruptions

    def _keep(self, done: int, folds: int) -> None:
        if self.folder is None:
            return
        with self.fed.workers(BlendWorker, model=self.network.model) as workers:
            workers.save_checkpoint(str(self.folder), done)
        tried = {each.slug: [each.seconds, each.skipped, each.lengths] for each in self.candidates}
        write_json(
            self.folder / FOLDS_FILE,
            {"mark": self._mark(folds), "done": done, "tried": tried, "seconds": self.seconds},
        )

    def _resumed(self, folds: int) -> int:
        """How many folds an interrupted choice of the same candidates had done."""
        if self.folder is None or not (self.folder / FOLDS_FILE).is_file():
            return 0
        saved = read_json(self.folder / FOLDS_FILE, "the checkpoint")
        if saved["mark"] != self._mark(folds):
            raise ResumeError(
                f"the checkpoint in {self.folder} was made with other settings or rows. "
                "Mend: resume with the same ones, or start in another folder"
            )
        with self.fed.workers(BlendWorker, model=self.network.model) as workers:
            workers.load_checkpoint(str(self.folder), int(saved["done"]))
        for each in self.candidates:
            each.seconds, each.skipped, each.lengths = saved["tried"][each.slug]
        self.seconds = saved["seconds"]
        return int(saved["done"])

    def _mark(self, folds: int) -> str:
        """Changes when the folds that were done are not of this choice."""
        slugs, counts = [each.slug for each in self.candidates], self.fed.alignment
        mine = {**self.how.get_params(), "budget": None}  # more time is no other choice
        more = self._more(self.network.label_party)
        rows = counts.aligned, sorted(counts.unaligned.items()), sorted(more.items())
        return repr((FOLDS_FORM, slugs, folds, mine, *rows))


# ---------------------------------------------------------------- the estimator


@parameters
class Auto(LabelledEstimator):
    """The methods that fit the federation, each heard as far as it deserves.

    candidates: names of methods; by default those that fit, among them boosted trees and a network
    of the label party's columns alone. folds: of the cross-validation. budget: seconds for it; two
    folds of every candidate are always finished. metric: that is told of the choice; by default
    AUC, or RMSE for numbers. settings: parameters for every candidate that has one of that name.
    task, label_party, label_dp: as of any method.

    choice_: what was compared, weights and scores on held-out rows, and all of it in words.
    """

    candidates: tuple[str, ...] | None = None
    folds: int = 5
    budget: float = 120.0
    metric: str | None = None
    settings: dict[str, Any] | None = None
    task: str = "auto"
    label_party: str | None = None
    label_dp: float | None = None
    seed: int = 0

    _rules: ClassVar[Rules] = {
        "folds": at_least(2),
        "budget": POSITIVE,
        "task": one_of(("auto", "binary", "multiclass", "regression", "count")),
    }

    @on_few_threads
    def fit(
        self,
        fed: Federation,
        *,
        completed: Federation | None = None,
        progress: Progress | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        resume: bool = False,
    ) -> Self:
        """Compare, choose, and train what is heard on all rows.

        completed: the same federation with completed rows, which candidates are tried on as well.
        """
        require_federation(fed)
        self.require_types()
        self._check()
        party = self._label_party(fed)
        folder = None if checkpoint is None else Path(checkpoint)
        network = BlendNetwork(fed, party)
        contest = _Contest(self, fed, completed, network, progress, folder)
        folds = contest.run(resume)
        metric = self.metric or ("rmse" if network.task == "regression" else "auc")
        found = contest.choose(metric)
        weights = found["weights"]
        heard = [each for each in contest.able() if any(w[each.slug] > 0 for w in weights.values())]
        network.weights = {
            kind: {each.slug: w[each.slug] for each in heard} for kind, w in weights.items()
        }
        for candidate in heard:
            estimator = self.kept(candidate, party, folds)
            estimator.fit(
                completed if candidate.completed and completed is not None else fed,
                progress=progress,
                checkpoint=None if folder is None else folder / candidate.slug,
                resume=resume,
            )
            network.members[candidate.slug] = estimator
            network.privacy = network.privacy or estimator.privacy_
            # Epochs of some and trees of others are no course of one training.
            network.history = estimator.history_ if len(heard) == 1 else []
            network.notes += [f"{candidate.title}: {each}" for each in estimator.notes_]
        network.best_epoch = folds
        self._adopt(fed, network)  # type: ignore[arg-type]
        self.choice_ = _described(contest, network, found, folds, metric)
        return self

    def made(self, candidate: Candidate, label_party: str) -> Any:
        """A candidate with those of the settings that it has."""
        given = {
            "task": self.task,
            "label_dp": self.label_dp,
            "label_party": label_party,
            **(self.settings or {}),
        }
        if given["task"] == "count" and METHODS[candidate.name].family != "boosting":
            given["task"] = "regression"  # networks have no loss for counts
        return make(candidate.name, METHODS[candidate.name].known(given), self.seed)

    def kept(self, candidate: Candidate, label_party: str, folds: int) -> Any:
        """The same to train on all rows: of trees as many more than in the folds as there are more
        rows. Held-out rows need not say again how many that are."""
        estimator = self.made(candidate, label_party)
        given = estimator.get_params()
        if METHODS[candidate.name].family == "boosting" and given["validation"] and given["refit"]:
            part = (1 - 1 / folds) * (1 - given["validation"])  # of all rows, trained on in a fold
            trees = max(1, round(float(np.median(candidate.lengths)) / part))
            estimator.set_params(trees=min(given["trees"], trees), validation=0.0)
        return estimator

    def entering(self, fed: Federation, numbers: bool, completed: bool) -> list[Candidate]:
        """Who is tried. numbers: the label is one. completed: there are completed rows."""

        def names(torn: bool) -> tuple[str, ...]:
            given = contestants(horizontal=False, annotators=False, torn=torn, numbers=numbers)
            return self.candidates or given

        found = [Candidate(name) for name in names(any(fed.alignment.unaligned.values()))]
        if completed:  # where nothing is torn any more; to trees completed cells are missing ones
            records = [METHODS[name] for name in names(False)]
            able = [each for each in records if each.partners and each.family != "boosting"]
            found += [Candidate(each.name, True) for each in able]
        return found

    def _check(self) -> None:
        check_values(self, self._rules)
        fitting = [
            name
            for name, record in METHODS.items()
            if not record.horizontal and not record.annotators and name != "auto"
        ]
        wrong = [name for name in self.candidates or () if name not in fitting]
        if wrong:
            raise ConfigError(
                f"candidates: {wrong[0]!r} cannot be one. Mend: some of {', '.join(fitting)}"
            )
        for name in self.candidates or ():
            self.made(Candidate(name), self.label_party or "").check_params()
        column = (self.settings or {}).get("weight_column")
        given = self.candidates or contestants(horizontal=False, annotators=False)
        for name in given if column is not None else ():
            if "weight_column" not in METHODS[name].load().parameter_names():
                raise ConfigError(
                    f"candidates: {name!r} would take the weight_column {column!r} for one to "
                    'learn from. Mend: candidates=("local-trees", "boosting")'
                )

    # ------------------------------------------------------------------ keeping

    def _save_more(self, folder: Path) -> dict[str, Any]:
        network: Any = self.network_
        members = {slug: each.manifest(folder) for slug, each in network.members.items()}
        return {"weights": network.weights, "members": members, "choice": self.choice_}

    def _saved_network(self, fed: Federation, saved: dict[str, Any]) -> Any:
        network = BlendNetwork(fed, saved["label_party"])
        network.weights = saved["weights"]
        return network

    @classmethod
    def of_manifest(
        cls,
        saved: dict[str, Any],
        path: str | os.PathLike[str],
        fed: Federation,
        member: str = "",
    ) -> Self:
        model = super().of_manifest(saved, path, fed, member)
        network: Any = model.network_
        for slug, each in saved["members"].items():
            kept = METHODS[Candidate.of(slug).name].load()
            alone = {"alone": True} if saved.get("alone") else {}
            network.members[slug] = kept.of_manifest(each | alone, path, fed, slug)
        model.choice_ = saved["choice"]
        return model


# ---------------------------------------------------------------- in words


def _described(
    contest: _Contest, network: BlendNetwork, found: Mapping[str, Any], folds: int, metric: str
) -> dict[str, Any]:
    """The choice as a record: candidates, weights, scores, and why, in sentences."""
    able = {each.slug for each in contest.able()}
    more = SEVERAL if len(contest.fed.names) > 2 else {}
    more = BY_PAIRS if contest.pairs else more
    candidates = []
    for each in contest.candidates:
        scores = {
            kind: told["candidates"][each.slug]
            for kind, told in found["kinds"].items()
            if each.slug in able and np.isfinite(told["candidates"][each.slug]["score"])
        }
        candidates.append(
            {
                "name": each.name,
                "title": each.title,
                "completed": each.completed,
                "scores": scores,
                "weights": {kind: w.get(each.slug, 0.0) for kind, w in found["weights"].items()},
                "seconds": each.seconds,
                "skipped": each.skipped,
            }
        )
    kinds = {
        kind: {key: value for key, value in told.items() if key != "candidates"}
        for kind, told in found["kinds"].items()
    }
    choice = {
        "metric": metric,
        "folds": folds,
        "rows": sum(told["rows"] for told in kinds.values()),
        "candidates": candidates,
        "kinds": kinds,
        "words": WORDS | more,
        "seconds": contest.seconds,
        "chosen": " + ".join(Candidate.of(slug).title for slug in network.members),
    }
    return choice | {"why": _why(choice, contest.how)}


WORDS = {
    SHARED: "rows known to all parties",
    ALONE: "rows only the label party knows",
}
SEVERAL = {ALONE: "rows that not all parties know"}
BY_PAIRS = {SHARED: "rows known to a partner"}


def _why(choice: Mapping[str, Any], how: Auto) -> list[str]:
    lines = [_worth(choice), *_completing(choice)]
    for kind, told in choice["kinds"].items():
        shares = {
            each["title"]: each["weights"][kind]
            for each in choice["candidates"]
            if each["weights"][kind] > 0
        }
        total = sum(shares.values())
        listed = ", ".join(
            f"{title} {100 * value / total:.0f} %"
            for title, value in sorted(shares.items(), key=lambda each: -each[1])
        )
        judged = f"cannot be told, as a class is not among these {told['rows']:,} rows"
        if np.isfinite(told["score"]):
            low, high = told["interval"] or (told["score"],) * 2
            judged = f"is {score_text(told['score'])} (95 % interval {score_text(low)} to "
            judged += f"{score_text(high)}, {told['rows']:,} rows)"
        lines.append(
            f"On {choice['words'][kind]} {listed} decide. Chosen on some folds and judged on the "
            f"others, {pretty(choice['metric'])} {judged}."
        )
    if choice["folds"] < how.folds:
        lines.append(
            f"{choice['folds']} of {how.folds} folds were used: there are few common rows, or the "
            f"time budget of {how.budget:g} s ended the comparison early."
        )
    return lines


def _worth(choice: Mapping[str, Any]) -> str:
    """Whether the partners' columns pay, on the rows that they know."""
    told = choice["kinds"].get(SHARED)
    if told is None or not np.isfinite(told.get("apart", np.nan)):
        return f"{choice['chosen']} was chosen."
    gain, (low, high), what = _gain(choice["metric"], told["apart"], told["apart_interval"])
    if low > 0:
        return f"Federation pays here: beside the label party's own models {what}."
    # Partners are heard by the likelihood of held-out labels, which sees more than most metrics.
    asked = [each for each in choice["candidates"] if METHODS[each["name"]].partners]
    heard = any(each["weights"].get(SHARED) for each in asked)
    if not heard and low == high == 0:
        return (
            "Federation does not pay here: no model that asks partners tells held-out labels "
            "better than the label party's own, and none is heard."
        )
    if gain > 0 or (high > 0 and heard):
        return f"Whether federation pays here is not certain: beside own models {what}."
    return f"Federation does not pay here: beside the label party's own models {what}."


def _completing(choice: Mapping[str, Any]) -> list[str]:
    """Whether completed rows pay, where methods were tried on them."""
    heard = [
        weight
        for each in choice["candidates"]
        if each["completed"]
        for weight in each["weights"].values()
    ]
    told = choice["kinds"].get(SHARED) or choice["kinds"].get(ALONE)
    if told is None or not np.isfinite(told.get("completing", [np.nan])[0]):
        return []
    gain, (low, _), what = _gain(choice["metric"], *told["completing"])
    if not any(heard):
        return ["Completing rows does not pay here: what learns from completed rows is not heard."]
    if low > 0:
        return [f"Completing rows pays here: beside the same without completed rows {what}."]
    if gain > 0:
        return [f"Whether completing rows pays is not certain: beside the same without it {what}."]
    return [f"Completing rows does not pay here: beside the same without it {what}."]


def _gain(
    metric: str, apart: float, interval: Sequence[float]
) -> tuple[float, tuple[float, float], str]:
    """What is gained, at the least and at the most, and in words how the metric differs."""
    values = [each + 0.0 for each in (apart, *sorted(interval or (0.0, 0.0)))]  # no -0.0
    shown, *ends = ("+" * (each >= 0) + score_text(each) for each in values)
    words = f"{pretty(metric)} {shown}, 95 % interval {' to '.join(ends)}"
    sign = -1 if metric in LOWER_IS_BETTER else 1
    gain, low, high = (sign * each for each in values)
    return gain, (min(low, high), max(low, high)), words
