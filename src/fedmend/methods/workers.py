"""Which workers each method starts at the parties: what a run of it is bound to there.

A party looks a method up here, in its own installation; whatever is not in its line is refused
(`federation.bound`). Stages of a run beside the methods declare theirs where they are: folds of
``auto`` (`flow.folds`), kept tables (`flow.kept`), predictions of new rows (`predict.worker`).
"""

from __future__ import annotations

from fedmend.federation.bound import but, declare
from fedmend.generate.vfgain import ContextWorker, ImputerWorker
from fedmend.methods.annotators.corrected import CorrectedLabelWorker
from fedmend.methods.annotators.worker import LabelWorker
from fedmend.methods.completion.generation import GenerateWorker
from fedmend.methods.completion.linear import (
    AsideFeatures,
    AsideTargets,
    LinearFeatures,
    LinearTargets,
)
from fedmend.methods.completion.merging import MergeWorker, RowsWorker
from fedmend.methods.completion.neural import NeuralFeatures, NeuralTargets
from fedmend.methods.completion.self_training import SelfTrainingWorker
from fedmend.methods.completion.trees import TreeFeatures, TreeTargets
from fedmend.methods.horizontal.worker import ClientWorker, HiddenClientWorker, ModelKeeper
from fedmend.methods.risa.workers import EvidenceBottomWorker, EvidenceTopWorker
from fedmend.methods.vertical.few_shot import GradientWorker, HeadWorker, LocalWorker
from fedmend.methods.vertical.random_match import RandomMatchWorker
from fedmend.methods.vertical.ssl_vfl import PretrainWorker
from fedmend.secure.inner_product import PRODUCT_WORKERS
from fedmend.secure.ranks import RankWorker
from fedmend.secure.sums import SumWorker
from fedmend.split.partial import PartialBottomWorker, PartialTopWorker
from fedmend.split.workers import BottomWorker, TopWorker

__all__: list[str] = []

declare("local", TopWorker)
declare("vfl", BottomWorker, TopWorker)
declare("clean", BottomWorker, TopWorker)
declare("local-vfl", BottomWorker, TopWorker)
declare("random-match", RandomMatchWorker, TopWorker)
declare("ssl-vfl", PretrainWorker, BottomWorker, TopWorker)
declare("sfhtl", PretrainWorker, PartialBottomWorker, PartialTopWorker)
declare("fedcvt", PartialBottomWorker, PartialTopWorker)
declare("absent-partner", PartialBottomWorker, PartialTopWorker)
declare("few-shot-vfl", LocalWorker, GradientWorker, HeadWorker)
for name in ("risa", "risa-images"):
    # Pseudo-labels are for who asks in one process; a run over machines has no use for them.
    declare(name, EvidenceBottomWorker, but(EvidenceTopWorker, "pseudo_labels"))

# Several labellers: the top is at the coordinator, and votes are summed.
for name in ("inc", "majority", "dawid-skene", "random-labeller"):
    declare(name, BottomWorker, LabelWorker, reader=True)
declare("reference", LabelWorker)
declare("correct", CorrectedLabelWorker)

# Rounds on rows of the same columns, averaged in the open or by a secure sum.
for name in (
    "sage", "fedavg", "fedprox", "fixmatch", "flexmatch", "fedlabel", "feddb", "fedmatch",
    "fedloke", "feddure",
):  # fmt: skip
    declare(name, ClientWorker, ModelKeeper)
    if name not in ("feddb", "fedmatch"):  # they look at single parties' updates
        declare(name, HiddenClientWorker, SumWorker)

declare(
    "fedpsg-pum",
    RowsWorker,
    RankWorker,
    *PRODUCT_WORKERS.values(),
    *(LinearFeatures, LinearTargets, AsideFeatures, AsideTargets),
    *(TreeFeatures, TreeTargets, NeuralFeatures, NeuralTargets),
    *(SelfTrainingWorker, GenerateWorker, ContextWorker, ImputerWorker, MergeWorker),
    providers=["state"],
)
