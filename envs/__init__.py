"""Environments for dialogue agents, registered with gymnasium by name.

After `import envs`, `gymnasium.make("agentrl/FoodOrder-v0", level=3, language="zh")` makes one; nothing here needs
agentrl.
"""

import gymnasium

for _name, _entry_point in (
    ("agentrl/FoodOrder-v0", "envs.food_order.env:FoodOrderEnv"),
    ("agentrl/SearchCalcQA-v0", "envs.search_calc_qa.env:SearchCalcQAEnv"),
):
    if _name not in gymnasium.registry:
        gymnasium.register(id=_name, entry_point=_entry_point)
