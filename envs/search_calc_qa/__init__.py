"""Questions over a fictional knowledge base: look facts up, reckon with them, finish with a value and its unit."""

from envs.search_calc_qa.env import SearchCalcQAEnv

__all__ = ["SearchCalcQAEnv"]
