"""What the leak audit finds: on several tables, under several settings of split training.

Each table is dealt out to two parties, one of which labels; a method is rehearsed and attacked
(`fedmend.audit`), with its own AUC beside, so that what a defence costs can be seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fedmend.audit import Audit, AuditReport
from fedmend.audit.recorder import rehearsal
from fedmend.data.scenario import split_columns
from fedmend.data.table import Table
from fedmend.federation import Federation, Party
from fedmend.methods import VFL, FedAvg, FewShotVFL
from fedmend.methods.annotators.inc import InC
from fedmend.methods.risa.risa import RISA
from fedmend.secure.align import align
from fedmend.split.labels import with_reported_labels
from fedmend_bench import datasets
from fedmend_bench.harness import Bar, BenchResult
from fedmend_bench.options import listed

__all__ = ["HELP", "run"]

HELP = "what curious roles infer from split training, and what defences change"

LABELS, PARTNER = "label party", "partner"
TEST_SHARE = 0.3
SKILL = {"one": 0.9, "two": 0.8, "three": 0.7}
"""How often a labeller is right."""

SETTINGS: dict[str, tuple[type, dict[str, Any]]] = {
    "VFL": (VFL, {}),
    "VFL, embedding 4": (VFL, {"embedding": 4}),
    "VFL, embedding 1": (VFL, {"embedding": 1}),
    "VFL, bottom 64-64-64, embedding 4": (VFL, {"bottom": (64, 64, 64), "embedding": 4}),
    "VFL, 3 epochs": (VFL, {"epochs": 3, "patience": None}),
    "VFL, randomised-response labels, ε = 2": (VFL, {"label_dp": 2.0}),
    "VFL, randomised-response labels, ε = 1": (VFL, {"label_dp": 1.0}),
    "FewShotVFL": (FewShotVFL, {"local_updates": 300}),
    "RISA": (RISA, {}),
}


WIDTHS = (2, 4, 8, 16, 32)
EPSILONS = (None, 4.0, 2.0, 1.0)
WIDTH_FIGURES = (
    "model AUC",
    "mean, coordinator",
    "without, coordinator",
    "mean, label party",
    "without, label party",
    "seconds",
)


def run(
    *,
    quick: bool = False,
    data: Sequence[str] = ("breast-cancer", "digits", "bank", "credit"),
    settings: Sequence[str] | None = None,
    rows: int = 6000,
    epochs: int = 30,
    part: str = "split",
    seed: int = 0,
    seeds: int = 3,
) -> BenchResult:
    """data: names of data sets. rows: at most so many of each. epochs: of the training.

    settings: some of the lines; of the parts "width" and "labels", which take `seeds` seeds, some
    of the methods VFL and RISA.

    part: "split" training, "width": how wide embeddings are, "labels": what told labels cost, or
    "others": several labellers, and training in rounds.
    """
    if part == "others":
        return BenchResult("leaks", [*labellers(epochs, seed), *rounds(seed)])
    names = ["breast-cancer"] if quick else listed(data)
    some = [settings] if isinstance(settings, str) else settings
    found: list[dict[str, Any]] = []
    for name in names:
        if part == "split":
            titles = list(some or (list(SETTINGS)[:3] if quick else SETTINGS))
            found += split(name, federation_of(name, rows, seed), titles, epochs, seed)
            continue
        feds = [federation_of(name, rows, each) for each in range(seeds)]
        for method in (each for each in (VFL, RISA) if some is None or each.__name__ in some):
            if part == "width":
                wide = WIDTHS[:2] if quick else WIDTHS
                lines = widths(feds, method, epochs, wide)
            else:
                told = EPSILONS[::2] if quick else EPSILONS
                lines = told_labels(feds, method, epochs, told)
            found += [{"data": name, "method": method.__name__} | line for line in lines]
    return BenchResult("leaks", found, _bars(found) if part == "split" else [])


def split(
    name: str, fed: Federation, titles: Sequence[str], epochs: int, seed: int
) -> Iterator[dict[str, Any]]:
    """A line for each setting: what is inferred, and the model's own AUC."""
    for title in titles:
        method, params = SETTINGS[title]
        report = Audit(seed=seed).run(fed, method(**{"epochs": epochs, "seed": seed} | params))
        yield {"data": name, "method": title} | summary(report)


def federation_of(name: str, rows: int, seed: int) -> Federation:
    """A data set dealt out to two parties that know the same people, some kept for the test."""
    table = datasets.load(name)
    order = np.random.default_rng(seed).permutation(len(table))[:rows]
    cut = round(TEST_SHARE * len(order))
    train, test = (_sides(table.take(part), seed) for part in (order[cut:], order[:cut]))
    fed = Federation(
        *(Party(_slug(side), train[side], test=test[side]) for side in train), seed=seed
    )
    align(fed)
    align(fed.on("test"))
    return fed


def _sides(table: Table, seed: int) -> dict[str, Table]:
    return split_columns(table, [LABELS, PARTNER], label_party=LABELS, seed=seed)


def _slug(name: str) -> str:
    return name.replace(" ", "-")


def summary(report: AuditReport) -> dict[str, Any]:
    """The figures of a report that fit on a line."""
    table = report.table()
    line: dict[str, Any] = {}
    gradients = table[table["attack"] == "labels from gradients"]
    for how in ("direction", "norm"):
        of = gradients[gradients["from"].str.contains(how)]
        line[f"labels by {how}"] = float(of["score"].max()) if len(of) else None
    line["by chance"] = float(gradients["guess"].max()) if len(gradients) else None
    bottom = table[table["attack"] == "labels from a trained bottom"].sort_values("known")
    if len(bottom):
        last = bottom.iloc[-1]
        line |= {
            "known": int(last["known"]),
            "labels by bottom": float(last["score"]),
            "by raw columns": float(last["guess"]),
        }
    columns = table[table["attack"] == "columns from embeddings"]
    for role, shown in (("coordinator", "coordinator"), (_slug(LABELS), "label party")):
        of = columns[columns["role"] == role]
        line[f"columns, {shown}"] = f"{(of['grade'] == 'strong').sum()} of {len(of)}"
        line[f"mean, {shown}"] = float(of["score"].clip(lower=0).mean())
        line[f"without, {shown}"] = float(of["guess"].clip(lower=0).mean())
    line["model AUC"] = report.scores.get("auc")
    line["seconds"] = round(report.seconds, 1)
    return line


# ---------------------------------------------------------------- several seeds


def widths(
    feds: Sequence[Federation], method: type, epochs: int, wide: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """Means over seeds: the model's AUC, and how well columns are inferred from embeddings."""
    for width in wide:
        found = [
            summary(
                Audit(seed=seed, attacks=["embeddings"]).run(
                    fed, method(embedding=width, epochs=epochs, seed=seed)
                )
            )
            for seed, fed in enumerate(feds)
        ]
        line = {key: float(np.mean([each[key] for each in found])) for key in WIDTH_FIGURES}
        spread = float(np.std([each["model AUC"] for each in found]))
        yield {"width": width} | line | {"AUC, spread": spread}


def told_labels(
    feds: Sequence[Federation], method: Any, epochs: int, epsilons: Sequence[float | None]
) -> Iterator[dict[str, Any]]:
    """Means over seeds and draws: test scores of models that know labels at random only.

    "corrected" is `label_dp`; "plain" takes labels that were told as if they were true ones.
    """
    for epsilon in epsilons:
        for loss in ("plain", "corrected") if epsilon else ("plain",):
            scores = []
            for seed, fed in enumerate(feds):
                model = method(epochs=epochs, seed=seed)
                if loss == "corrected":
                    model.set_params(label_dp=epsilon)
                elif epsilon:
                    fed = _with_told_labels(fed, epsilon)
                scores.append(_fitted_scores(model, fed))
            line = {key: float(np.mean([each[key] for each in scores])) for key in scores[0]}
            spread = float(np.std([each["auc"] for each in scores]))
            yield {"epsilon": epsilon, "loss": loss} | line | {"AUC, spread": spread}


def _fitted_scores(model: Any, fed: Federation) -> dict[str, float]:
    """Scores on the test rows, by true labels."""
    copy = rehearsal(fed, [])  # draws and parts are its own
    model.fit(copy)
    for site in copy.engine.sites.values():  # type: ignore[attr-defined]  # always local
        site.show_labels()
    scores = model.evaluate(copy.on("test"))
    return {key: float(scores[key]) for key in ("auc", "accuracy", "log_loss")}


def _with_told_labels(fed: Federation, epsilon: float) -> Federation:
    copy = rehearsal(fed, [])
    site = copy.engine.site(copy.label_party)  # type: ignore[attr-defined]  # always local
    site.tables[copy.dataset] = with_reported_labels(site.tables[copy.dataset], epsilon)
    return copy


# ---------------------------------------------------------------- labellers and rounds


def labellers(epochs: int, seed: int) -> list[dict[str, Any]]:
    """Three parties of differing skill label the breast-cancer table; two of them have columns."""
    table = datasets.load("breast-cancer")
    sides = split_columns(table, ["one", "two"], label_party="one", seed=seed)
    truth = table.y.to_numpy()
    names, rng = np.unique(truth), np.random.default_rng(seed)
    parties = []
    for party, right in SKILL.items():
        other = np.where(truth == names[0], names[1], names[0])
        said = np.where(rng.random(len(truth)) < right, truth, other)
        own = sides[party].features if party in sides else table.select([])
        parties.append(Party(party, own.with_columns({"said": said}).with_label("said")))
    fed = Federation(*parties, seed=seed)
    align(fed)
    found = []
    for title, params in (
        ("InC", {}),
        ("InC, T stays at the parties", {"share_expertise": False}),
        ("InC, randomised-response labels, ε = 1", {"label_dp": 1.0}),
    ):
        method = InC(epochs=epochs, seed=seed, **params)
        found += _lines(
            "breast-cancer", title, Audit(attacks=["votes"], seed=seed).run(fed, method)
        )
    return found


def rounds(seed: int) -> list[dict[str, Any]]:
    """Five parties with 100 digits each, and 100 for the test."""
    table = datasets.load("digits")
    order = np.random.default_rng(seed).permutation(len(table))
    parts = np.split(order[:1000], 10)
    parties = [
        Party(f"party-{at}", table.take(parts[2 * at]), test=table.take(parts[2 * at + 1]))
        for at in range(5)
    ]
    fed = Federation(*parties, seed=seed)
    found = []
    for title, params in (
        ("FedAvg, 5 local epochs", {}),
        ("FedAvg, 1 local epoch", {"epochs": 1}),
        ("FedAvg, 50 local epochs", {"epochs": 50}),
        ("FedAvg, 5 local epochs, masks", {"secure": "masks"}),
    ):
        method = FedAvg(**({"rounds": 20, "epochs": 5, "seed": seed} | params))
        found += _lines("digits", title, Audit(attacks=["membership"], seed=seed).run(fed, method))
    return found


def _lines(data: str, title: str, report: AuditReport) -> list[dict[str, Any]]:
    """One for each kind of message; the mean over parties where there are several."""
    table = report.table()
    accuracy = report.scores.get("accuracy")
    return [
        {
            "data": data,
            "method": title,
            "who": group["role"].iloc[0],
            "from": str(source).partition(" (")[0],
            "metric": group["metric"].iloc[0],
            "score": float(group["score"].mean()),
            "low": float(group["low"].min()),
            "high": float(group["high"].max()),
            "without": float(group["guess"].mean()),
            "model accuracy": accuracy,
        }
        for source, group in table.groupby("from", sort=False)
    ]


def _bars(lines: Sequence[Mapping[str, Any]]) -> list[Bar]:
    """An audit that sees nothing where all is shown would be of no use."""
    plain = [line for line in lines if line["method"] == "VFL"]
    return [
        Bar.at_least(
            f"{line['data']}: labels are told by the gradients' direction",
            float(line["labels by direction"]),
            0.9,
        )
        for line in plain
    ]
