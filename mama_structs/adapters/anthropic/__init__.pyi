from .memory_backend import memory_tool as memory_tool
from .messages import handle as handle
from .messages import recalled as recalled
from .messages import tools as tools
