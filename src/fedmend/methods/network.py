"""What all methods that train a split network share: fit, predict, evaluate, save, load."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd

from fedmend._parameters import Rules, parameters, wrong_values
from fedmend.errors import ConfigError, DataError, Refused
from fedmend.federation import Federation, require_federation
from fedmend.learn.metrics import expected_error
from fedmend.methods.contract import Estimator, frame_of
from fedmend.methods.threads import on_few_threads
from fedmend.split.config import SplitConfig
from fedmend.split.features import ALIGNED, ALL, among, is_known
from fedmend.split.parts import MANIFEST, begin_model, read_json, write_json
from fedmend.split.training import Progress, SplitNetwork

EPOCH_STEPS = 20
"""The least steps of an epoch: a few hundred rows are gone through several times in one, so that a
number of epochs, and of epochs to wait, is not too few steps for a small table."""
RESTARTS = 2
FEW_ROWS = 1000
"""Fewer rows of the label party are a small table, on which a run is to take seconds."""


class NetworkEstimator(Estimator):
    """A split network that is trained: predicting with it, and keeping it.

    How it is trained, and against whose labels it is judged (`evaluate`), is the family's.
    """

    def _adopt(self, fed: Federation, network: SplitNetwork) -> None:
        self.fed_ = fed
        self.network_ = network
        self.history_ = network.history
        self.best_epoch_ = network.best_epoch
        self.task_ = network.task
        self.privacy_ = network.privacy
        self.notes_ = list(network.notes)
        self.classes_ = np.asarray(network.classes) if network.classes else None

    # ------------------------------------------------------------------ using

    def predict_proba(self, fed: Federation, *, rows: str | None = None) -> np.ndarray:
        """Class probabilities [n, C], columns in the order of `classes_`.

        rows: "aligned" (in the common order), "all" rows of the label party (in the order of its
        table), or a party's name: the rows only that party has (in the order of its table). By
        default aligned ones where there is an alignment. What a party that does not know a row
        would have said is guessed from those that do, or handled as the method has learnt it.
        """
        outputs = self._outputs(fed, rows)
        if self.task_ == "regression":
            raise DataError("a regression has no probabilities", mend="call predict")
        return outputs

    def predict(self, fed: Federation, *, rows: str | None = None) -> np.ndarray:
        """Classes in their own values, or numbers in the label's own units."""
        outputs = self._outputs(fed, rows)
        if self.classes_ is None:
            return outputs
        return self.classes_[outputs.argmax(1)]

    def predict_table(self, fed: Federation, *, rows: str | None = None) -> pd.DataFrame:
        """One line for each row: prediction, p(class), uncertainty, and each party's share.

        uncertainty: the error rate to expect, 1 - the largest p. share(party): which part of the
        decision would be lost without the party; only those that know the rows have one. A
        regression has no probabilities. rows: as in `predict_proba`, but for "all".
        """
        if rows is None:
            rows = ALIGNED if fed.is_aligned else ALL
        network, segments, _ = self._ready(fed, rows)
        if len(segments) > 1:
            raise ConfigError(
                f"rows={rows!r} are known to different parties. Mend: ask for 'aligned' and for "
                f"{network.label_party!r} one after the other"
            )
        ((segment, _),) = segments  # of a scope of some parties, among them
        whose = str(network.label_party) if segment == ALL else segment
        known = [name for name in network.parties if is_known(whose, name)]
        outputs, undecided, found = self._in_full(fed, segments, known)
        classes = None if self.classes_ is None else self.classes_.tolist()
        return frame_of(classes, outputs, undecided, found)

    def _in_full(
        self, fed: Federation, segments: list[list[object]], known: list[str]
    ) -> tuple[np.ndarray, np.ndarray | None, dict[str, np.ndarray]]:
        """Outputs, the error to expect of each, and each party's share of the decision.

        A party's share is what the likeliest class loses when the party is taken away and the
        others have to do without it.
        """
        outputs = self.network_.predict(fed, segments)
        undecided = None if self.classes_ is None else expected_error(outputs)
        if len(known) < 2:
            return outputs, undecided, {name: np.ones(len(outputs), np.float32) for name in known}
        ((_, count),) = segments
        lost = np.zeros((len(outputs), len(known)), np.float32)
        for number, name in enumerate(known):
            others = [other for other in known if other != name]
            without = self.network_.predict(fed, [[among(others), count]])
            if outputs.ndim == 1:
                change = np.abs(outputs - without)
            else:
                best = outputs.argmax(1)[:, None]
                change = np.take_along_axis(outputs - without, best, 1)[:, 0]
            lost[:, number] = change.clip(1e-6)
        carried = lost / lost.sum(1, keepdims=True)
        return outputs, undecided, dict(zip(known, carried.T, strict=True))

    def score(self, fed: Federation, *, rows: str | None = None) -> float:
        """Accuracy, or R² for regression."""
        scores = self.evaluate(fed, rows=rows)  # type: ignore[attr-defined]
        return scores["r2" if self.task_ == "regression" else "accuracy"]

    def _outputs(self, fed: Federation, rows: str | None) -> np.ndarray:
        network, segments, table_order = self._ready(fed, rows)
        return network.predict(fed, segments, table_order=table_order)

    def _ready(
        self, fed: Federation, rows: str | None
    ) -> tuple[SplitNetwork, list[list[object]], bool]:
        self._require_fit()
        require_federation(fed)
        self._require_at(fed)
        if rows is None:
            rows = ALIGNED if fed.is_aligned else ALL
        if rows in self.network_.parties:
            return self.network_, [[rows, fed.alignment.unaligned[rows]]], False
        known = [name for name in self.network_.parties if name in fed.names]
        if rows == ALIGNED and len(known) < len(self.network_.parties):
            rows = among(known)  # those who are not here know none of these rows
        if rows == ALIGNED or rows.startswith(f"{ALIGNED}@"):
            return self.network_, [[rows, fed.alignment.aligned]], False
        if rows != ALL:
            raise ConfigError(
                f"{type(self).__name__} can predict rows of kind "
                f"{', '.join([ALIGNED, ALL, *self.network_.parties])}, "
                f"got rows={rows!r}. Mend: one of these"
            )
        return self.network_, self._all_rows(fed), True

    def _all_rows(self, fed: Federation) -> list[list[object]]:
        """All rows of the label party, as segments; alone it knows all of them."""
        if self.network_.label_party is None:
            raise ConfigError(
                f"rows='all' are those of one label party, and {type(self).__name__} has several. "
                f"Mend: rows='aligned', or a party's own: {', '.join(self.network_.parties)}"
            )
        party = str(self.network_.label_party)
        if not fed.is_aligned and fed.names == (party,):
            return [[ALL, fed.roster[party]["rows"]]]
        alone = fed.alignment.unaligned[party]
        if alone and party not in self.network_.parties:
            raise DataError(
                f"has labels only, so that nobody knows anything of {alone:,} of its rows",
                party=party,
                mend="predict or evaluate rows='aligned'",
            )
        return [[ALIGNED, fed.alignment.aligned], [party, alone]]

    # ------------------------------------------------------------------ keeping

    def save(self, path: str | os.PathLike[str]) -> None:
        """Every party writes its own part; `model.json` comes last and makes it a model."""
        self._require_fit()
        folder = Path(path)
        begin_model(folder)
        self.network_.save(str(folder))
        write_json(folder / MANIFEST, self.manifest(folder))

    def manifest(self, folder: Path) -> dict[str, Any]:
        """What there is to know of the model besides the parties' parts; JSON values."""
        return {
            "method": type(self).__name__,
            "params": self.get_params(),
            "parties": self.network_.parties,
            "label_party": self.network_.label_party,
            "best_epoch": self.best_epoch_,
            "history": self.history_,
            "privacy": self.privacy_,
        } | self._save_more(folder)

    def hand_out(
        self, path: str | os.PathLike[str], parties: Sequence[str] | None = None
    ) -> list[str]:
        """Let parties predict their own rows alone, with what they keep of the model at `path`.

        The label party has all it needs. Others, if named, are given a copy of the top, where the
        label party's policy lets "weights" out. Returns a sentence for each that cannot.
        """
        self._require_fit()
        folder, network = Path(path), self.network_
        saved = read_json(folder / MANIFEST, "a saved model") | {"alone": True}
        without: list[str] = []
        for party in dict.fromkeys([network.label_party, *(parties or [])]):
            if party is None:
                continue
            if party not in network.parties:
                if party != network.label_party:
                    without.append(
                        f"{party} cannot predict alone: {type(self).__name__} uses none of its "
                        "columns"
                    )
                continue
            try:
                network.hand_out(str(folder), party, saved | {"label_party": party})
            except Refused as error:
                without.append(f"{party} cannot predict alone: {error}")
        return without

    def _save_more(self, folder: Path) -> dict[str, Any]:
        """What a method keeps besides its network; JSON values go into the manifest."""
        return {}

    def _load_more(self, folder: Path, saved: dict[str, Any]) -> None:
        """The other way round of `_save_more`."""

    @classmethod
    def load(cls, path: str | os.PathLike[str], fed: Federation) -> Self:
        """A saved model, its parts at the parties of `fed`."""
        return cls.of_manifest(read_json(Path(path) / MANIFEST, "a saved model"), path, fed)

    @classmethod
    def of_manifest(
        cls,
        saved: dict[str, Any],
        path: str | os.PathLike[str],
        fed: Federation,
        member: str = "",
    ) -> Self:
        """A model by its manifest, parts of it (or of this member) at `path`."""
        model = cls._unfitted(saved, path)
        absent = [name for name in saved["parties"] if name not in fed.names]
        if absent and not saved.get("alone"):
            raise ConfigError(
                f"the model has a part at party {absent[0]!r}, which is not in the federation. "
                f"Mend: the model's parties are {', '.join(saved['parties'])}"
            )
        network = model._saved_network(fed, saved).load(str(path), member)
        network.history = saved["history"]
        network.best_epoch = saved["best_epoch"]
        network.privacy = saved.get("privacy")
        model._adopt(fed, network)
        model._load_more(Path(path), saved)
        return model

    def _saved_network(self, fed: Federation, saved: dict[str, Any]) -> Any:
        """The network without weights, as the manifest has it."""
        raise NotImplementedError(f"{type(self).__name__} keeps no network")


class LabelledEstimator(NetworkEstimator):
    """A model of the labels of one party, which judges it."""

    label_party: str | None
    _trains_on: ClassVar[str] = "aligned"
    """Which rows: "aligned", also the label party's others ("labelled"), or "all" parties'."""

    @on_few_threads
    def fit(
        self,
        fed: Federation,
        *,
        progress: Progress | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        resume: bool = False,
    ) -> Self:
        """Train on the federation's rows. `progress(stage, done, total, metrics)` is told.

        checkpoint: a folder in which is kept, now and then, what it takes to go on; resume: go on
        from there, if there is something.
        """
        require_federation(fed)
        self.require_types()
        self._check()
        label_party = self._label_party(fed)
        network = self._make_network(fed, self._parties(fed, label_party), label_party)
        network.fit(
            self._training_rows(fed, label_party),
            progress=progress,
            checkpoint=checkpoint,
            resume=resume,
        )
        self._adopt(fed, network)
        return self

    def shorten(self, classes: int, rows: int) -> int:
        """Train to be compared on a fold, not to be kept; how many rounds of what is kept one of
        these is worth. classes: how many there are; rows: of the fold, at the label party.

        To train again on all rows, and to wait long for a better round, is for the model that is
        kept: in every fold it would take twice as long, and weights hardly hang on it.
        """
        given = self.get_params()
        shorter = {"refit": False, "patience": max(1, (given.get("patience") or 0) // 2)}
        self.set_params(**{key: shorter[key] for key in shorter if given.get(key)})
        return 1

    def _make_network(self, fed: Federation, parties: list[str], label_party: str) -> Any:
        """What is trained, without weights yet."""
        raise NotImplementedError(f"{type(self).__name__} trains no network")

    def _training_rows(self, fed: Federation, label_party: str) -> list[list[object]]:
        names = [] if self._trains_on == "aligned" else [label_party]
        if self._trains_on == "all":
            names += [each for each in self._parties(fed, label_party) if each != label_party]
        own = ([name, fed.alignment.unaligned[name]] for name in names)
        return [[ALIGNED, fed.alignment.aligned], *own]

    def _saved_network(self, fed: Federation, saved: dict[str, Any]) -> Any:
        return self._make_network(fed, saved["parties"], saved["label_party"])

    def _label_party(self, fed: Federation) -> str:
        label_party = self.label_party or fed.label_party
        fed.require_party("label_party", label_party)
        return label_party

    def _parties(self, fed: Federation, label_party: str) -> list[str]:
        """The parties whose columns the model uses, in the order of the top's inputs."""
        parties = [name for name in fed.names if fed.roster[name]["features"]]
        if not parties:
            raise DataError("no party has a feature column", mend="add a party with columns to use")
        return parties

    def learnt_from(self, fed: Federation) -> list[str]:
        return [str(self.network_.label_party)]

    def evaluate(self, fed: Federation, *, rows: str | None = None) -> dict[str, float]:
        """All metrics, computed at the label party: only they leave it."""
        network, segments, _ = self._ready(fed, rows)
        if rows in network.passive:
            raise DataError(
                "has no labels for the rows only it has, so there is nothing to compare with",
                party=rows,
                mend="predict them, or evaluate rows='aligned'",
            )
        return network.evaluate(fed, segments)

    def uncertainty_report(self, fed: Federation, *, rows: str | None = None) -> dict[str, Any]:
        """Whether undecided rows err more, and whether probabilities can be taken at their word.

        Computed at the label party (see `fedmend.learn.calibration.describe`); only
        rates and histograms leave it.
        """
        network, segments, _ = self._ready(fed, rows)
        if self.task_ == "regression" or network.label_party is None:
            raise DataError(
                "uncertainty is judged for classes, at the one party that has the labels",
                mend="evaluate(fed) for anything else",
            )
        return network.uncertainty_report(fed, segments)


class LocalOnly(LabelledEstimator):
    """The label party's own model, of all its rows and only its own columns.

    Needs no alignment, and nothing of a row leaves the party.
    """

    def _parties(self, fed: Federation, label_party: str) -> list[str]:
        if not fed.roster[label_party]["features"]:
            raise DataError(
                "has labels only, so there is nothing to learn from alone",
                party=label_party,
                mend="VFL or SecureBoost, which use the other parties' columns",
            )
        return [label_party]

    def _training_rows(self, fed: Federation, label_party: str) -> list[list[object]]:
        return [[ALL, fed.roster[label_party]["rows"]]]

    def _all_rows(self, fed: Federation) -> list[list[object]]:
        return self._training_rows(fed, str(self.network_.label_party))


@parameters
class SplitEstimator(LabelledEstimator):
    """A split network behind fit / predict / predict_proba / score / save / load.

    bottom, top: hidden layers of the parties' bottoms and of the top; () is linear.
    embedding: width of what a party hands over for each row.
    epochs: at most; of at least 20 steps, so on few rows of several passes.
    validation, patience: early stopping on a held-out share of the training rows. refit: with the
    length that they chose, train again on all rows.
    precision: "float32", "float64" or "bf16" (autocast).
    label_party: whose labels, when several parties have some.
    augment: "weak" flips and shifts images in training.
    schedule: "constant", or "one-cycle" (which for SGD comes with Nesterov's momentum).
    seal: embeddings and gradients cross end-to-end encrypted, unread by the coordinator; None is
    between machines, where there is somebody to hide from.
    label_dp: ε of randomised response at the label party, through which alone the training knows
    labels, or None. Drawn once, and kept; what was told with which ε is `privacy_`.
    """

    bottom: tuple[int, ...] = (64,)
    embedding: int = 32
    top: tuple[int, ...] = (64,)
    conv: str = "cnn"
    task: str = "auto"
    epochs: int = 100
    batch_size: int = 64
    optimizer: str = "adam"
    lr: float = 1e-3
    weight_decay: float = 1e-4
    validation: float = 0.15
    refit: bool = True
    patience: int | None = 10
    precision: str = "float32"
    seed: int = 0
    label_party: str | None = None
    augment: str = "none"
    schedule: str = "constant"
    seal: bool | None = None
    label_dp: float | None = None

    _network_type: ClassVar[type[SplitNetwork]] = SplitNetwork
    _rules: ClassVar[Rules] = {}
    """What the method's own parameters must be; those of all split networks: `SplitConfig`."""

    def _make_network(
        self,
        fed: Federation,
        parties: list[str],
        label_party: str,
        config: SplitConfig | None = None,
    ) -> SplitNetwork:
        how = config or self._config()
        return self._network_type(fed, parties=parties, label_party=label_party, config=how)

    def _check(self) -> None:
        self._config()

    def _config(self) -> SplitConfig:
        problems = wrong_values(self, self._rules)
        # Of all split networks: a method may set some of them that it does not take.
        params = {each.name: getattr(self, each.name) for each in fields(SplitEstimator)}
        try:
            params |= {"epoch_steps": self._least_steps(), "restarts": RESTARTS}
            config = SplitConfig.of(params, options={} if problems else self._options())
        except ConfigError as error:
            problems += error.problems
        if problems:
            raise ConfigError(problems)
        return config

    def _least_steps(self) -> int:
        """Of an epoch."""
        return EPOCH_STEPS

    def _options(self) -> dict[str, Any]:
        """What the method's own workers and network are told besides, as wire values."""
        return {}
