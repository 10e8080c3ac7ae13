"""Words that say nothing about what a text is about, in English and Korean."""

from __future__ import annotations

from typing import Final


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


ENGLISH: Final = _words(
    """
    a about after again all also am an and any anybody anyone anything are arent as at be became because become been
    before being both but by came can cannot cant come comes could couldnt did didnt do does doesnt doing done dont
    each either else ever every everything for from gave get gets getting give given go goes going got had has hasnt
    have havent having he her here hers him his how i id if ill im in into is isnt it its itself ive just let lets
    made make makes many may me might mine more most much must my nor not now of off on once one only onto or other
    our ours out over own please put quite rather really said same say says shall she should shouldnt since so some
    somebody something still such take taken takes tell than that thats the their theirs them then there theres
    these they thing things this those though through to too took until up upon us use used using very via want
    wanted wants was wasnt we went were werent what whats when where whether which while who whom whose why will
    with within without wont would wouldnt yet you your yours
    """
)

KOREAN: Final = _words(
    """
    것 것은 것을 것이 것들 거 게 걸 수 등 및 그 이 저 때 때는 때문 때문에 더 또 또는 왜 무엇 무엇을 무엇이 뭐
    뭘 뭐가 어떤 어떻게 무슨 언제 어디 어디서 어디에 어느 누가 누구 얼마 얼마나 몇 우리 우리는 우리가 우리의
    나는 내가 대한 대해 대해서 관한 관해 관해서 위해 위한 하는 하다 한다 했다 했나 했던 하고 하지 해서 한 할 함
    되는 된다 됐다 됐나 되어 된 될 됨 있다 있는 있나 있었나 있었다 있는지 없다 없는 없나 없이 않다 않는 않은
    않고 않았나 않기로 같은 같이 그리고 그래서 그런데 하지만 그러나 지금 지금은 이제 현재 모두 모든 다 좀 잘 안
    못 만 뿐 줘 주세요 달라 보여 알려 인가 인가요 일까 였나 이유 이유는 이유가 어떻게든 무엇인가 무엇이었나
    뭐였지 뭐였나
    """
)
