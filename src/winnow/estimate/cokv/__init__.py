"""Sliced Shapley values of KV heads (CoKV, arXiv 2502.17501): what each is worth to the others."""

from winnow.estimate.cokv.bound import slicing_bound
from winnow.estimate.cokv.estimator import Estimate, estimate, sliced, strata, top_overlap
from winnow.estimate.cokv.exact import all_coalitions, exact_shapley, exact_strata
from winnow.estimate.cokv.examples import generated_examples
from winnow.estimate.cokv.ledger import Ledger, read_record
from winnow.estimate.cokv.plan import Exhaustive, Plan, Sampled
from winnow.estimate.cokv.recipe import CoalitionRecipe
from winnow.estimate.cokv.run import Rule, run_exhaustive, run_sampled, run_shard
from winnow.estimate.cokv.sampling import Splits, default_sizes, strata_of
from winnow.estimate.cokv.utility import CoalitionUtility, Example, Terms
from winnow.estimate.errors import ShapleyError

__all__ = [
    "CoalitionRecipe",
    "CoalitionUtility",
    "Estimate",
    "Example",
    "Exhaustive",
    "Ledger",
    "Plan",
    "Rule",
    "Sampled",
    "ShapleyError",
    "Splits",
    "Terms",
    "all_coalitions",
    "default_sizes",
    "estimate",
    "exact_shapley",
    "exact_strata",
    "generated_examples",
    "read_record",
    "run_exhaustive",
    "run_sampled",
    "run_shard",
    "sliced",
    "slicing_bound",
    "strata",
    "strata_of",
    "top_overlap",
]
