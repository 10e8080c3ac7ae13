"""Tells questions about what was, and why it ended, from those about what holds (DESIGN section 6, "Search")."""

from __future__ import annotations

import re
from typing import Final

_LONGEST_QUERY: Final = 4_000

# Who asks for reasons, or for what was given up, wants the decision that was: its successor only says what came next.
_PAST: Final = re.compile(
    r"\b(?:why|how come|reasons?|rationale|causes?(?= of)"
    r"|abandon(?:ed|ing)?|(?:gave|give|given|giving) up|(?:got|get|gotten|getting) rid"
    r"|(?:was|were) dropped|thr(?:ew|own) (?:\w+ )?(?:out|away)|discarded|scrapped"
    r"|went wrong|(?:was|were|is|are) wrong with|trouble with|what failed|no longer|not any ?more|anymore"
    r"|(?:is|are) gone|previous(?:ly)?|former(?:ly)?|originally|at first|in the past|back then|history of"
    r"|(?<!is )(?<!are )(?<!be )used to)\b"
    r"|왜(?=$|[ ?!.,]|냐|인지)|이유|까닭|원인|어째서|어쩌다|예전|과거|이전에|이전의|원래|당시|애초|처음에는"
    r"|그만[두뒀둔]|포기[하한해했]|버렸|버린|버리게|폐기[하한해했]|걷어[냈낸]|더 ?이상",
    re.IGNORECASE,
)
# What says that the present is meant all the same: "Why do we use it now?", "the reason for which it still holds".
_PRESENT: Final = re.compile(
    r"\b(?:now|nowadays|today|currently|current|at present|at the moment|these days|right now|still|as things stand"
    r"|in force)\b|지금|현재|요즘|요새|아직",
    re.IGNORECASE,
)


def asks_for_history(query: str) -> bool:
    """
    Tell whether a question asks for reasons or for what was, so that a superseded memory answers as well as another.

    Args:
        query: A question in English or Korean; what lies beyond its first 4,000 characters is not looked at.

    """
    text = " ".join(query[:_LONGEST_QUERY].split())
    return _PAST.search(text) is not None and _PRESENT.search(text) is None
