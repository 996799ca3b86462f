"""SAGE (Liu et al., CVPR 2025): pseudo-labels of two models, corrected by the gap between them.

A party's round: its own model and the round's common model look at weak views of unlabelled rows;
whichever is sure labels the row (CPG), a sure local label is mixed with the global one the more the
two confidences differ (CDSC), and the strong view of the row is trained towards it. The rule itself
is `rules.SageRule`; it plugs into FlexMatch, FedDB and FedDure as well (there
`sage=True`).
"""

from __future__ import annotations

from fedmend._parameters import parameters
from fedmend.methods.horizontal.estimator import HorizontalEstimator, declare_rounds
from fedmend.methods.horizontal.local_methods import LocalMethod, PseudoMethod
from fedmend.methods.horizontal.rules import KAPPA, SageRule

__all__ = ["SAGE"]


@parameters
class SAGE(HorizontalEstimator):
    """Few labels at parties with the same columns: one model for all of them.

    tau: confidence a pseudo-label needs. kappa: how fast a local label loses its weight as the two
    confidences move apart. cpg, cdsc: the method's two parts.
    """

    tau: float = 0.95
    kappa: float = KAPPA
    cpg: bool = True
    cdsc: bool = True

    def _method(self) -> LocalMethod:
        return PseudoMethod(SageRule(self.tau, self.kappa, self.cpg, self.cdsc))


declare_rounds("sage")
