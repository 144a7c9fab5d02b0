"""Which sample comes when. Integers in, integers out; NumPy only."""

from portaloader.plan.epoch import EpochPlan, Plan, Rows
from portaloader.plan.permutation import Permutation

__all__ = ["EpochPlan", "Permutation", "Plan", "Rows"]
