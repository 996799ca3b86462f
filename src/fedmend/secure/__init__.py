"""Cryptographic protocols over workers: alignment, inner products, sums. Knows no models."""

from __future__ import annotations

from fedmend.secure.align import align
from fedmend.secure.columns import Columns, IntegerColumns, column_provider
from fedmend.secure.correlation import RankCorrelation, rank_correlation
from fedmend.secure.fixed_point import Covariance, covariance
from fedmend.secure.inner_product import ProductSession, inner_products
from fedmend.secure.keys import Identity, keyring
from fedmend.secure.sums import Sum, SumSession, SumWorker, offer_summand, secure_sum

__all__ = [
    "Columns",
    "Covariance",
    "Identity",
    "IntegerColumns",
    "ProductSession",
    "RankCorrelation",
    "Sum",
    "SumSession",
    "SumWorker",
    "align",
    "column_provider",
    "covariance",
    "inner_products",
    "keyring",
    "offer_summand",
    "rank_correlation",
    "secure_sum",
]
