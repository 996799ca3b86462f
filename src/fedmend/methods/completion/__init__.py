"""FedPSG-PUM: a party's rows get the columns that only the other party has."""

from fedmend.federation.bound import declare
from fedmend.generate.vfgain import ContextWorker, ImputerWorker
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
from fedmend.secure.correlation import RankWorker
from fedmend.secure.inner_product import PRODUCT_WORKERS

declare(
    "fedpsg-pum",
    RowsWorker,
    RankWorker,
    *PRODUCT_WORKERS,
    *(LinearFeatures, LinearTargets, AsideFeatures, AsideTargets),
    *(TreeFeatures, TreeTargets, NeuralFeatures, NeuralTargets),
    *(SelfTrainingWorker, GenerateWorker, ContextWorker, ImputerWorker, MergeWorker),
    providers=["state"],
)
