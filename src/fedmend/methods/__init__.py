"""One folder per family of methods, each with all of its papers; and what families share."""

from fedmend.methods.annotators.baselines import EM, MJ, Clean, Random
from fedmend.methods.annotators.inc import InC
from fedmend.methods.completion.fedpsg_pum import FedPSGPUM
from fedmend.methods.horizontal.baselines import (
    FedAvg,
    FedDB,
    FedDure,
    FedLabel,
    FedLoKe,
    FedMatch,
    FedProx,
    FixMatch,
    FlexMatch,
)
from fedmend.methods.horizontal.sage import SAGE
from fedmend.methods.risa.risa import RISA, ImageRISA
from fedmend.methods.vertical.absent_partner import AbsentPartner
from fedmend.methods.vertical.fedcvt import FedCVT
from fedmend.methods.vertical.few_shot import FewShotVFL
from fedmend.methods.vertical.random_match import RandomMatch
from fedmend.methods.vertical.sfhtl import SFHTL
from fedmend.methods.vertical.ssl_vfl import SSLVFL
from fedmend.methods.vertical.vfl import VFL, Local, LocalVFL

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
