"""The kinds of value that can leave a party: one record each, from which everything else follows.

Every `@exposed` method names a kind. Policy (what leaves by default), ledger, messages, sealing,
the report's words and the audit's reading of a ledger are made from these records, so that a new
kind is one record here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Switch:
    """A parameter of methods that lowers what a kind tells, and what that was measured to cost.

    at_most: values up to this one do as well; without it, any that is set. not_for: methods that
    have the parameter, and tell as much with it or refuse it.
    """

    parameter: str
    written: str
    price: str
    at_most: float | None = None
    not_for: tuple[str, ...] = ()

    def is_on(self, value: Any) -> bool:
        """Whether a method uses it already."""
        if self.at_most is None:
            return value not in (None, False, "none")
        return isinstance(value, (int, float)) and value <= self.at_most


SEAL = Switch(
    *("seal", "seal = true (between machines by itself)", "no price but time"),
    not_for=("inc", "majority", "dawid-skene", "random-labeller"),  # whose top the coordinator has
)
"""Of all kinds that parties exchange: against the coordinator."""
_LABEL_DP = Switch(
    "label_dp", "label_dp = 2", "a price of .003 to .013 of the AUC with two classes"
)


@dataclass(frozen=True)
class Kind:
    """What a value of this kind is, and what it tells.

    words: in a message. one, many: how a report counts it. exposure: what a curious receiver could
    make of it: "nothing", "totals" drawn from many rows, "signals" of each row, or values in the
    "clear". severity, tells, lowered_by: what the audit says of it. by_row: it has a line for every
    row. aggregate: an answer over many rows, which must rest on enough of them. exchanged: parties
    send it to each other in every step of a split training, so that it may be sealed and a ledger
    counts it by windows. switch: what lowers it, and at which price. by_default: whether policies
    let it out unless they say otherwise.
    """

    words: str
    one: str
    many: str
    exposure: str = "nothing"
    severity: str = "none"
    tells: str = "nothing about a person"
    lowered_by: str = ""
    by_row: bool = False
    aggregate: bool = False
    exchanged: bool = False
    switch: Switch | None = None
    by_default: bool = True


KINDS: dict[str, Kind] = {
    "control": Kind(
        "settings and acknowledgements",
        "setting or acknowledgement",
        "settings and acknowledgements",
    ),
    "count": Kind(
        "how many rows, columns or ids",
        "count",
        "counts",
        tells="how many rows and columns there are",
        aggregate=True,
    ),
    "statistic": Kind(
        "sums, means, correlations, metrics over many rows",
        "statistic over many rows",
        "statistics over many rows",
        "totals",
        "low",
        "what an aggregate tells; much of it where the rows are few",
        "a higher min_rows in the policy; or refuse 'statistic'",
        aggregate=True,
    ),
    "hashed-id": Kind(
        "ids blinded by a secret of the party",
        "list of blinded ids",
        "lists of blinded ids",
        tells="nothing without the secrets of both sides",
    ),
    "ciphertext": Kind(
        "values under encryption",
        "encrypted value",
        "encrypted values",
        tells="nothing without the key",
    ),
    "masked": Kind(
        "values hidden by uniform masks",
        "masked value",
        "masked values",
        tells="nothing but the sum",
    ),
    "embedding": Kind(
        "outputs of a party's bottom model, one vector a row",
        "batch of embeddings",
        "batches of embeddings",
        "signals",
        "high",
        "most of a party's columns at the default width, to whoever knows some of its rows (He et "
        "al., ACSAC 2019)",
        "a narrower embedding, and a deeper bottom with it; or refuse 'embedding' in its policy",
        by_row=True,
        exchanged=True,
        # Several networks send several embeddings.
        switch=Switch(
            "embedding",
            "embedding = 4",
            "a price of at most .002 of the AUC of VFL",
            at_most=4,
            not_for=("risa", "risa-images"),
        ),
    ),
    "side": Kind(
        "on which side of a tree's split each row is, one bit a row",
        "batch of split sides",
        "batches of split sides",
        "signals",
        "medium",
        "the order of a party's rows by its columns, as finely as trees split them",
        "fewer trees or bins; or refuse 'side' in its policy",
        by_row=True,
        exchanged=True,
    ),
    "gradient": Kind(
        "gradients with respect to embeddings",
        "batch of gradients",
        "batches of gradients",
        "signals",
        "high",
        "labels of training rows: for two classes the direction of a row's gradient tells its "
        "label without any known example (Li et al., ICLR 2022)",
        "refuse 'gradient' in the label party's policy, or tell labels through randomised response",
        by_row=True,
        exchanged=True,
        switch=_LABEL_DP,
    ),
    "weights": Kind(
        "model weights or their updates",
        "set of model weights",
        "sets of model weights",
        "totals",
        "medium",
        "who was among the training rows, the more the fewer there are (Yeom et al., CSF 2018)",
        'secure = "masks" or "he" shows the average only; or refuse \'weights\'',
        aggregate=True,
        switch=Switch("secure", 'secure = "masks"', "no price: the sums are the same"),
    ),
    "prediction": Kind(
        "model outputs, one a row",
        "batch of predictions",
        "batches of predictions",
        "signals",
        "medium",
        "what the model thinks of each row, and of trained rows more surely than of others",
        "refuse 'prediction' in the policy of the party that sends them; ask for metrics instead",
        by_row=True,
    ),
    "votes": Kind(
        "labels of several annotators added up, one sum a row",
        "batch of summed votes",
        "batches of summed votes",
        "signals",
        "medium",
        "the label of every row on which the annotators agree; with two, both labels of the others",
        "more annotators, or label_dp",
        by_row=True,
        switch=_LABEL_DP,
    ),
    "label": Kind(
        "labels in the clear",
        "batch of labels in the clear",
        "batches of labels in the clear",
        "clear",
        "high",
        "labels, in the clear",
        "refuse 'label' in its policy",
        by_row=True,
        by_default=False,
    ),
    "row": Kind(
        "a party's own values in the clear",
        "batch of rows in the clear",
        "batches of rows in the clear",
        "clear",
        "high",
        "a party's own values, in the clear",
        "refuse 'row' in its policy",
        by_row=True,
        by_default=False,
    ),
}
AGGREGATES = frozenset(name for name, kind in KINDS.items() if kind.aggregate)
EXCHANGED = frozenset(name for name, kind in KINDS.items() if kind.exchanged)
REFUSED_BY_DEFAULT = frozenset(name for name, kind in KINDS.items() if not kind.by_default)
