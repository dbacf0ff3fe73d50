"""What PyTorch's functions do to what is known of a value: one rule for each operation, function and method alike."""

from nanopsy.check.operations import activations, arithmetic, bounds, creation, masks, powers, reductions, shapes, vectors
from nanopsy.check.operations._rule import OPERATIONS

__all__ = ["OPERATIONS", "activations", "arithmetic", "bounds", "creation", "masks", "powers", "reductions", "shapes", "vectors"]
