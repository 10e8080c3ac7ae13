from .memory_backend import memory_tool as memory_tool
from .messages import add_recall as add_recall
from .messages import handle as handle
from .messages import tools as tools
