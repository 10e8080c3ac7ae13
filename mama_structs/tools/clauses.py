"""Whether a message asks for something beside what was recognised: if so, its tools are not known."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

# Where one clause ends and the next begins.
_BREAK = re.compile(
    r"\n|[.;:!?,…]+(?=\s|$)|\s(?=(?:and|then|but|also|before|after|because|so that|while|plus|if)\b)"
    r"|\s-+\s|(?<=[가-힣])(?:고|는데|지만|면서|니까|거든)(?=[ ,])|\s(?=(?:그리고|근데|그런데|참고로|또|그 ?다음)\s)"
)
# Clauses that tell something, and cannot be taken for a request.
_TELLS = re.compile(
    r"(?:(?:and|but|because|so|since|well|ok|okay|sorry|hey|hi|hello|as|while|after|before|though|although) )*"
    r"(?:i|i'm|i've|we|we're|we've|it|it's|its|they|he|she|that|that's|this|these|the|there|my|our|his|her|their|reason"
    r"|due|thanks|thank|good (?:morning|news)|morning|now that|both|not sure|no|yes|yeah|yep|all|some)\b"
)
_URGES = re.compile(
    r"\?|\b(?:please|pls|can you|could you|would you|will you|you|should|need to|needs to|let's|lets|want|must|have to"
    r"|has to|ought|shall|wonder|wondering)\b"
)
_KOREAN_URGES = re.compile(
    r"\?|줘|주세요|주라|주시|봐|보자|하자|[가-힣]자\b|까(?:요)?\b|놔|둬|둘래|해라|할 것|말 것|부탁|ㄱㄱ|고고|해\b"
    r"|야 ?(?:해|돼|할)|싶|필요|남겨|하셈|하삼|하세요|합시다|[가-힣]래\b|알려|확인"
)
_HANGUL = re.compile("[가-힣]")
# Shorter ones are greetings and fillers.
_WORDS: Final = 3
_KOREAN_WORDS: Final = 2


def asks_beside(words: str, understood: Iterable[int]) -> bool:
    """
    Tell whether a clause outside of *understood* asks for something.

    Args:
        words: The user's own words.
        understood: Where cues that recognised something begin; the clauses in which they do are understood.

    """
    begun = list(understood)
    start = 0
    for found in _BREAK.finditer(words):
        if _is_another(words, start, found.end(), begun):
            return True
        start = found.end()
    return _is_another(words, start, len(words), begun)


def _is_another(words: str, start: int, end: int, begun: list[int]) -> bool:
    if any(start <= place < end for place in begun):
        return False
    clause = words[start:end].strip()
    count = len(clause.split())
    if _HANGUL.search(clause) is not None:
        return count >= _KOREAN_WORDS and _KOREAN_URGES.search(clause) is not None
    return count >= _WORDS and (_URGES.search(clause) is not None or _TELLS.match(clause) is None)
