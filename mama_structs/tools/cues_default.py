"""The cues that come along, in English and Korean; some 380 patterns, which are compiled when they are imported."""

from __future__ import annotations

from typing import Final

from mama_structs.tools.cues import Cue
from mama_structs.tools.cues_english import ENGLISH_CUES
from mama_structs.tools.cues_korean import KOREAN_CUES

DEFAULT_CUES: Final[tuple[Cue, ...]] = (*ENGLISH_CUES, *KOREAN_CUES)
