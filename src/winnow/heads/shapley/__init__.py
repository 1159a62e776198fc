"""Sliced Shapley values of KV heads (CoKV, arXiv 2502.17501): what each is worth to the others."""

from winnow.heads.shapley.bound import slicing_bound
from winnow.heads.shapley.errors import ShapleyError
from winnow.heads.shapley.estimator import Estimate, estimate, sliced, strata, top_overlap
from winnow.heads.shapley.exact import all_coalitions, exact_shapley, exact_strata
from winnow.heads.shapley.examples import generated_examples
from winnow.heads.shapley.ledger import Ledger, read_record
from winnow.heads.shapley.plan import Exhaustive, Plan, Sampled
from winnow.heads.shapley.recipe import CoalitionRecipe
from winnow.heads.shapley.run import Rule, run_exhaustive, run_sampled, run_shard
from winnow.heads.shapley.sampling import Splits, default_sizes, strata_of
from winnow.heads.shapley.utility import CoalitionUtility, Example, Terms

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
