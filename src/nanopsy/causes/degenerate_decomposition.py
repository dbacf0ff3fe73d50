from __future__ import annotations

from nanopsy.causes._cause import Cause, Claim, elements
from nanopsy.facts import Site, Suspicion
from nanopsy.findings import Confidence
from nanopsy.ranges import Birth


class DegenerateDecomposition(Cause):
    """Gradient of an SVD, eigen- or QR decomposition of a degenerate matrix.

    ## What it does
    Finds a decomposition (svd, eigh, eig, qr, cholesky) whose backward became bad because singular or eigenvalues repeat or vanish.

    ## Why is this bad?
    The gradient divides by differences of squared singular values (or of eigenvalues) and by the values themselves. Repeated
    points, planar point sets and symmetric matrices make them exactly zero; nearly equal ones give huge gradients.

    ## Guideline
    Give the solver more, well-spread correspondences; add a small, *distinct* diagonal to the matrix; detach the decomposition; or use
    a formulation without it (a quaternion solver, `torch.linalg.lstsq`).

    ## Fix safety
    No automatic edit: which regularisation is right depends on what the matrix means.

    ## References
    PyTorch documentation of `torch.linalg.svd` and `torch.linalg.eigh`: "the gradient is only finite when the values are distinct".
    """

    code, slug = "NAN105", "degenerate-decomposition"
    sites = ("decompose",)
    bad = """
import torch

points = torch.ones(4, 3, requires_grad=True)

def loss():
    u, s, vt = torch.linalg.svd(points.T @ points)
    return (u @ vt).abs().sum()
"""
    good = """
import torch

points = torch.ones(4, 3, requires_grad=True)

def loss():
    u, s, vt = torch.linalg.svd(points.T @ points + torch.diag(torch.tensor([3e-1, 2e-1, 1e-1])))
    return (u @ vt).abs().sum()
"""
    source_good = """
import torch

points = torch.ones(4, 3, requires_grad=True)

def loss():
    _, s, _ = torch.linalg.svd(points.T @ points)
    return s.sum()
"""
    _NODES = ("LinalgSvd", "LinalgEigh", "LinalgEig", "LinalgQr", "LinalgCholesky", "Svd", "Symeig", "LinalgLu", "LinalgSolve", "LinalgInv")

    def match(self, site: Site) -> Suspicion | None:
        if site.quiet:
            return None
        name = site.settings["name"]
        message = f"the gradient of {name} divides by differences of singular values (eigenvalues): equal ones (symmetry, rank deficiency) give inf"
        return Suspicion(message, Confidence.LIKELY, "unless the matrix is never degenerate", needs_gradient=True)

    def claim(self, birth: Birth) -> Claim | None:
        if not birth.backward or not birth.node.startswith(self._NODES):
            return None
        message = f"the gradient of {birth.op} of a degenerate matrix (repeated or zero singular/eigenvalues) divides by zero; {elements(birth)}"
        return Claim(0.97, message)
