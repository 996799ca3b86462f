"""One file per published method, in the paper's order and words; and the baselines."""

from fedmend.methods.baselines import (
    EM,
    MJ,
    SFHTL,
    SSLVFL,
    VFL,
    AbsentPartner,
    Clean,
    FedAvg,
    FedCVT,
    FedDB,
    FedDure,
    FedLabel,
    FedLoKe,
    FedMatch,
    FedProx,
    FewShotVFL,
    FixMatch,
    FlexMatch,
    Local,
    LocalVFL,
    Random,
    RandomMatch,
)
from fedmend.methods.fedpsg_pum import FedPSGPUM
from fedmend.methods.inc import InC
from fedmend.methods.risa import RISA, ImageRISA
from fedmend.methods.sage import SAGE

__all__ = [
    "EM",
    "MJ",
    "RISA",
    "SAGE",
    "SFHTL",
    "SSLVFL",
    "VFL",
    "AbsentPartner",
    "Clean",
    "FedAvg",
    "FedCVT",
    "FedDB",
    "FedDure",
    "FedLabel",
    "FedLoKe",
    "FedMatch",
    "FedPSGPUM",
    "FedProx",
    "FewShotVFL",
    "FixMatch",
    "FlexMatch",
    "ImageRISA",
    "InC",
    "Local",
    "LocalVFL",
    "Random",
    "RandomMatch",
]

from fedmend.methods import workers as workers  # what a run of each method is bound to
