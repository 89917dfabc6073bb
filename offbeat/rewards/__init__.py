"""Rewards of completions: built in by name, or `package.module:function` with TRL's signature.

completions, columns ──> RewardProcess ──pipe──> worker (a process of its own): every function at once, an async one
                              │                  on several batches at once
                              │  no answer in time, exception, None, NaN, wrong length: counted by kind
                              └──> RewardTable [N, F] ──> combine (weights, clip, smoothing) ──> rewards [N]
"""

from offbeat.rewards.combine import RewardCombiner
from offbeat.rewards.loading import BUILT_IN, load_function
from offbeat.rewards.process import RewardProcess, RewardTable

__all__ = ["BUILT_IN", "RewardCombiner", "RewardProcess", "RewardTable", "load_function"]
