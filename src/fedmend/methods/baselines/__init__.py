"""The methods everything else must beat."""

from fedmend.methods.baselines.absent import AbsentPartner
from fedmend.methods.baselines.fedcvt import FedCVT
from fedmend.methods.baselines.few_shot import FewShotVFL
from fedmend.methods.baselines.fssl import (
    FedAvg,
    FedDB,
    FedLabel,
    FedProx,
    FixMatch,
    FlexMatch,
)
from fedmend.methods.baselines.fssl_twins import FedDure, FedLoKe, FedMatch
from fedmend.methods.baselines.inc_baselines import EM, MJ, Clean, Random
from fedmend.methods.baselines.local import Local
from fedmend.methods.baselines.local_vfl import LocalVFL
from fedmend.methods.baselines.random_match import RandomMatch
from fedmend.methods.baselines.sfhtl import SFHTL
from fedmend.methods.baselines.ssl_vfl import SSLVFL
from fedmend.methods.baselines.vfl import VFL

__all__ = [
    "EM",
    "MJ",
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
    "FedProx",
    "FewShotVFL",
    "FixMatch",
    "FlexMatch",
    "Local",
    "LocalVFL",
    "Random",
    "RandomMatch",
]
