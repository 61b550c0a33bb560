"""DeMo as a torch optimizer.

demo         the class: `torch.optim.Optimizer`, one step of all ranks
agreement    pure: what ranks tell each other before a step, and their verdict
group        the settings and the parameters of a group, judged
member       a group at work; local_member with local steps, demo_member where each step is sent
saved        a saved state, matched with parameters and judged
places       the place of each parameter: chunks of its own, or a stretch of the line
"""

from node.exact.optimizer.demo import DeMo
from node.exact.optimizer.group import parameter_groups

__all__ = ["DeMo", "parameter_groups"]
