from .session import ConversationSession as ConversationSession
from .session import add_recall as add_recall
from .toolkit import SessionHooks as SessionHooks
from .toolkit import hooks as hooks
from .toolkit import tools as tools
