"""
English cues: who speaks of what (a decision, a session), in which tense, and whether it is asked for.

A single word says little ("search", "continue", "failed" are everyday words of programmers), so that most cues need
two or three signs in one sentence: a question word, "we", and a past tense; a verb of marking and an outcome.
"""

from __future__ import annotations

from typing import Final

from mama_structs.tools.cues import OTHER, Cue

# Parts of patterns; gaps are bounded, so that no sentence is gone through more than a few times.
_WE = r"(?:we|i|us|you and i|y'all)"
_LAST = r"(?:last|previous|prior|earlier|old|past|yesterday'?s?|latest|most recent|recent)"
_DAY = (
    r"(?:yesterday|last \w+|(?:on )?(?:mon|tues|wednes|thurs|fri|satur|sun)day|this morning"
    r"|earlier|before|tonight|tuesday)"
)
_AGO = (
    r"(?:yesterday|last (?:week|month|night|time|year|sprint|\w+day)|\bago\b|earlier|already"
    r"|previously|before|back then)"
)
_CHOSE = (
    r"(?:decide|decided|choose|chose|chosen|pick|picked|settle|settled|agree|agreed|conclude"
    r"|concluded|go with|went with"
    r"|gone with|go for|went for|going with|opt|opted|land|landed|switch|switched|move (?:to"
    r"|away|off)|moved (?:to|away|off)"
    r"|drop|dropped|abandon|abandoned|reject|rejected|rule out|ruled out|leave|left|ditch|ditched|adopt|adopted"
    r"|stop using|stopped using|prefer|preferred|commit to|committed to|end up|ended up|give up on|gave up on)"
)
_SPOKE = (
    r"(?:say|said|discuss|discussed|talk|talked|mention|mentioned|note|noted|write down|wrote down|record|recorded"
    r"|learn|learned|learnt|plan|planned|figure out|figured out|find out|found out|think"
    r"|thought|come up with|came up with)"
)
_COPED = (
    r"(?:solve|solved|fix|fixed|handle|handled|deal with|dealt with|resolve|resolved|approach"
    r"|approached|do|did|done|use|used|set up|get around|got around|work around|worked around)"
)
_SEEK = (
    r"(?:find|search|look up|look for|look through|show|list|get|pull up|dig up|dig out|check"
    r"|recall|retrieve|fetch|give"
    r"(?! (?:the|that|this|our) decision an?\b)|dig for|quote|overview of|trace"
    r"|see|browse|display|tell|remind|summari[sz]e|go through|review|bring up|query|any"
    r"|are there|is there|do we have)"
)
_CHOICE = (
    r"(?:decision|approach|strategy|strat|choice|policy|tactic|build order|bet|gamble|rollout"
    r"|opener|opening|rule|plan|idea|switch|doctrine)"
)
_DECISIONS = r"(?:decision|ruling|verdict)s?"
_RESULT = (
    r"(?:success|successful|successfully|succeeded|fail|failed|failure|failing|partial"
    r"|partially|mistake|win|loss|worked|works|wrong)"
)

_ORDINARY = (
    r"fix|write|add|implement|refactor|rename|create|build|make|run|open|delete|remove"
    r"|translate|explain|generate|debug"
    r"|test|deploy|commit|push|merge|attack|move|install|upgrade|bump|draft|print|parse"
    r"|convert|format|reformat|optimi[sz]e"
    r"|clean up|send|scout|mine|launch|repair|defend|apply|extract|replace the|change the"
    r"|update the|rewrite|revert|rebase"
    r"|configure|investigate|profile|document|put|handle"
)


def _cue(kind: str | None, weight: float, pattern: str, *, asks: bool = True) -> Cue:
    return Cue(kind=kind, weight=weight, pattern=pattern.replace("decisions?", _DECISIONS), asks=asks, language="en")


# What looks like a cue and is none.
_MASKS = (
    _cue(None, 1, r"\bdecision[ -](?:tree|table|boundar|function|problem|forest|support|node)\w*"),
    _cue(None, 1, r"\bmemory (?:leak|usage|limit|alloc|error|profil|address|footprint|consumption|card|pressure)\w*"),
    _cue(
        None,
        1,
        r"\b(?:success|failure|error|failed)[ -](?:message|toast|banner|text|page|rate|state|code"
        r"|case|callback|handler|status|color|colour|icon|response|url|alert|path|screen"
        r"|notification|log)\w*",
    ),
    _cue(
        None,
        1,
        r"\bsearch[ -](?:box|bar|field|input|page|index|engine|api|endpoint|query|form|button|icon|results?|term)\w*",
    ),
    _cue(None, 1, r"\b(?:binary|linear|full[- ]text|web|google|fuzzy|vector|regex) search\w*"),
    _cue(
        None,
        1,
        r"\b(?:continue|resume)[ -](?:statement|button|keyword|upload|download|token|endpoint"
        r"|method|function|option|link|flag|event|screen|playback|builder|template|parser)\w*",
    ),
    _cue(
        None,
        1,
        r"\b(?:continue|resume|finish|extend|complete) (?:the |this |that |my |with the )?"
        r"(?:function|loop|sentence|story|poem|text|paragraph|sequence|series|pattern|snippet"
        r"|iteration|download|upload|video|music|playback|subscription|essay|song|article|email"
        r"|chapter|line|list)\w*",
    ),
    _cue(None, 1, r"\b(?:a|my|your|the|this|pdf|cv /|cv or|cv and) resume\b"),
    _cue(None, 1, r"\b(?:log|sign)(?:s|ged|ged us)? ?-?in\b"),
    _cue(
        None,
        1,
        r"\b(?:choose|pick|select|roll|generate) (?:me )?(?:a|an|any|some|the|your|my)(?: \w+){0,3} ?"
        r"(?:random|number|card|colou?r|name|file|date|item|element|image|font|word)s?\b",
    ),
    _cue(
        None,
        1,
        r"\b(?:model|training|train|epoch|weights|pytorch|torch|tensorflow|ml|lora|diffusion|keras"
        r"|hugging ?face)\b.{0,60}\bcheckpoints?\b|\bcheckpoints?\b.{0,60}\b(?:model|training"
        r"|epochs?|weights|pytorch|torch|tensorflow|steps)\b",
    ),
    _cue(
        None,
        1,
        r"\brecall (?:\w+ )?(?:\w+ )?(?:fleets?|ships?|destroyers?|cruisers?|units?|troops?|miners?|squadrons?)\b",
    ),
    _cue(
        None,
        1,
        r"\b(?:choose|pick|select|take|draw|decide)(?: me| out)? (?:any|some|random|arbitrary|\d+|one|two|three|four"
        r"|five"
        r"|six|ten|a few|several|a|an) (?:\w+ ){0,3}?(?:out of|from|among|in|at random|randomly)\b(?! (?:these|those) "
        r"(?:two|three|options|approaches))",
    ),
    _cue(
        None,
        1,
        r"\b(?:explain|describe|define|teach me|tell me about|what are|what is|what's) (?:\w+ ){0,3}?(?:trade-? ?offs?"
        r"|pros and cons|advantages|downsides|benefits|drawbacks)\b(?! (?:here|for us|between)\b)"
        r"(?![^\n]*\b(?:we|us|our|versus|vs|or|here|should|recommend|than|against|my)\b)[^\n]*",
    ),
    _cue(
        None,
        1,
        r"\b(?:first|second|third|last|latter) (?:option|one|item|choice|variant) (?:of|in|from) (?:the|an?|this|that) "
        r"(?:enum|list|array|menu|file|table|dropdown|tuple|select)\b|\bone[- ]liner\b|\bwhat (?:was|is) the "
        r"(?:error|command|output|status|path|url|port|syntax|exception|warning)\b[^\n]*|\bback to the (?:previous"
        r"|old|earlier|last"
        r"|original|former) (?:implementation|version|commit|layout|design|code|name|colou?r|file)\b",
    ),
    # A program that fails once more is no outcome of a decision.
    _cue(
        None,
        1,
        r"^[^\n]*\b(?:worked|work|works|fail(?:s|ed|ing)?|crash(?:es|ed)?)\b[^\n]{0,30}\b(?:same|again with|with the"
        r"|with an?|another) (?:\w+ )?"
        r"(?:error|message|exception|problem|issue|output|trace\w*|code)\b[^\n]*|^(?:is|are) (?!it |that |this "
        r"|there )[^\n]{1,40}? or "
        r"[^\n]{1,30}? (?:faster|bigger|older|larger|taller|longer|heavier|smaller|slower|shorter|higher)\b[^\n]*\?",
    ),
    _cue(
        None,
        1,
        r"\brecall (?:is|was|of|at|=|score|and precision|rate)\b|\b(?:precision|accuracy|f1)(?:,| and| or|/) ?recall\b",
    ),
    # Who wants nothing kept decides nothing.
    _cue(
        None,
        1,
        r"^[^\n]*\b(?:think(?:ing)? out loud|don't (?:record|save|store|keep|write down|log) (?:anything|this|that|it"
        r"|any of)"
        r"|do not (?:record|save|store|log) (?:anything|this|any of)|nothing to (?:record|save)|no need to (?:record"
        r"|save|log"
        r"|store))\b[^\n]*",
    ),
    # Work on a thing that itself saves, decides or resumes.
    _cue(
        None,
        1,
        r"(?:^|[,;] |\b(?:please|and|now|then|can you|could you) )(?:write(?! (?:it |this "
        r"|that )?down)|add|implement|generate|document|draft|translate|fix|refactor|test"
        r"|describe)\b[^\n,;]{0,50}?\b(?:that|which|how|where|whether|so that|to|about|for"
        r"|of)\b[^\n,;]*",
    ),
    _cue(
        None,
        1,
        r"\b(?:our|the|my|your) (?:users?|customers?|tutorial|docs|documentation|readme|page|guide"
        r"|spec|ui|dialog|wizard|form)\b[^\n,;]*",
    ),
    # How a thing is done, and what happens if it fails, is asked of no memory.
    _cue(None, 1, r"\bhow (?:do|can|could|would|should|to) (?:i|you|one|u|\w+)\b(?<!we)[^\n]*"),
    _cue(
        None,
        1,
        r"\b(?:if|when|unless|until|once|whenever) (?:the|an?|it|any|all|there|this) [^\n,]{0,60}?"
        r"(?:success\w*|fail\w*|work\w*|wrong)\b|\b(?:log|report|record) (?:the|an?|any|every"
        r"|each) (?:failures?|errors?|exceptions?|success(?:es)?)\b",
    ),
    _cue(
        None,
        1,
        r"\b(?:columns?|fields?|keys?|tables?|enums?|propert(?:y|ies)|parameters?|variables?|tabs?"
        r"|classes|class) (?:\w+ )?(?:outcome|decisions?|checkpoint|memory|choice|success)\b|\b"
        r"(?:outcome|decisions?|checkpoint|memory|memories|choice|success) (?:columns?|fields?"
        r"|keys?|tables?|enums?|propert(?:y|ies)|parameters?|variables?|class|service|model|page"
        r"|tab|screen|endpoint|api|module)\b",
    ),
    _cue(None, 1, r"\bcontinue (?:\w+ ){0,2}(?:tomorrow|later|next \w+|another day|on monday)\b"),
    # What was decided a while ago is told as the ground for something else.
    _cue(
        None,
        1,
        rf"(?:^|(?<=[ ,]))(?:(?:since|as|because) )?{_WE}(?:'ve| have| had)? (?:\w+ly |already "
        rf"|both |all )?(?:decided|agreed|chose|picked|settled|went)\b(?=.*\b{_AGO})[^,\n?]*"
        rf"(?!.*\?)",
    ),
    _cue(
        None,
        1,
        rf"(?:^|(?<=[ ,]))(?:\w+ )?{_AGO},? {_WE}(?:'ve| have| had)? (?:\w+ly |already )?(?:decided"
        rf"|agreed|chose|picked|settled|went)\b[^,\n?]*(?!.*\?)",
    ),
    # Things that a program, not the user, does to its own states.
    _cue(
        None,
        1,
        r"\b(?:users?|players?|customers?|function|button|program|loop|parser|worker|page|it|they"
        r"|script|client) (?:should|must|can|could|may|needs? to|has to|will) (?:\w+ ){0,3}?"
        r"(?:continue|resume|select|choose|pick|search|mark|decide|restore|fail|succeed"
        r"|find)\b[^\n]*",
    ),
    _cue(None, 1, rf"\b(?:as|like) (?:{_WE} )?(?:already )?(?:decided|agreed|discussed|planned)\b"),
    _cue(
        None,
        1,
        rf"\b(?:since|because|given that) {_WE}(?:'ve| have)? (?:already )?(?:decided|agreed|chose|settled)\b[^,\n]*",
    ),
)

# The general case: signs of a recollection, a return or a choice anywhere in one sentence. Alone they name the
# context and hide nothing.
_ASKED = (
    r"(?=[^\n]*\?|[^\n]{0,40}\b(?:what|which|why|how|who|whose|whether)\b"
    r"|[^\n]{0,40}\b(?:when|where) (?:did|was|were|have|had|do|is)\b)"
)
_WE_DID = (
    r"(?=[^\n]*\b(?:(?:did|didn't|have|haven't|had|hadn't|was|were) (?:we|i)\b|(?:we|i|we've"
    r"|i've|we'd|i'd) (?:\w+ly |all |both |ever |once |had |have )?"
    r"(?:(?!need|feed|speed|seed|indeed)\w{2,}ed|chose|took|had|went|made|said|told|kept|put"
    r"|left|did|got|found|built|ran|set|wrote|came|gave|thought|meant|saw)\b))"
)
_SOUGHT = (
    r"(?=[^\n]*\b(?:find|search|show|list|look (?:for|up|into|at|through)|tell me|remind|check"
    r"|recall|pull up|dig|give me|summari[sz]e|what(?:'s| is| are| were| was)?|any|anything"
    r"|is there|are there|do we|do you|have we|did we)\b)"
)
_FORMERLY = (
    r"(?=[^\n]*\b(?:before|previous(?:ly)?|earlier|past|prior|ago|last time|back then|old"
    r"|former(?:ly)?|historically|in the past|so far|until now|over the last|recent(?:ly)?"
    r"|ever|once|at the time|original(?:ly)?)\b)"
)
_REMEMBERED = (
    r"(?=[^\n]*\b(?:we|our|us|decisions?|choices?|reason(?:s|ing)?|rationale|discussions?"
    r"|discussed|notes?|memory|memories|conclusions?|agreements?|agreed|lessons?|insights?"
    r"|conversations?|experience|findings)\b)"
)
_TECHNICAL = (
    r"(?![^\n]*\b(?:tests?|build|builds|compil\w+|commits?|ci|pipeline|stack ?trace|traceback"
    r"|logs?|docker|npm|pip|function|variable|line \d+|branch|merge|diff|query|queries|syntax"
    r"|exception|server|deploy\w*|code ?base|repo|file|files|import|imports)\b)"
)

_GENERAL = (
    _cue(
        "searching",
        0.58,
        rf"^{_TECHNICAL}{_ASKED}{_WE_DID}(?![^\n]*\b(?:just|wrong|should|can we|could we|shall we|let's|you do|(?:can"
        rf"|could|would"
        rf"|will) you (?!remember|recall|tell|remind|find|check|look|see))\b)[^\n]+",
    ),
    _cue(
        "searching",
        0.56,
        rf"^{_TECHNICAL}{_ASKED}(?=[^\n]*\b(?:decisions?|agreements?|agreed|notes?|reasons?"
        rf"|reasoning|rationale|discussions?|discussed|considered|memory|memories|conclusions?"
        rf"|concluded|lessons?|past|decided)\b)(?![^\n]*\b(?:should|shall|which (?:is|one)|(?:can"
        rf"|could|would|will) you (?!remember|recall|tell|remind|find|check|look|see"
        rf"|show))\b)[^\n]+",
    ),
    _cue(
        "searching",
        0.75,
        rf"\b(?:alternatives|options|candidates|ideas|approaches|arguments) (?:that |which )?{_WE} "
        rf"(?:\w+ly |had |have |'ve )?(?:considered|had|discussed|looked|weighed|tried|rejected"
        rf"|compared)\b",
    ),
    _cue("searching", 0.6, r"\bwhere(?:'s| is| are) (?:that|the|our|my|those) (?:\w+ )?(?:notes?|decisions?|memo)\b"),
    _cue(
        "searching",
        0.62,
        r"\b(?:wasn't|weren't|isn't|aren't) there (?:a|an|any|some|something)\b|\bwalk me through "
        r"(?:how|why|what|our|the)\b.{0,40}\b(?:decision|decided|evolved|chose|our|we)\b"
        r"|\bexplain (?:again )?(?:why|how) we\b|\bhow come (?:we|our)\b|\bvaguely (?:recall"
        r"|remember)\b|\brings? a bell\b|\bbackground (?:on|of) (?:our|the)\b",
    ),
    _cue(
        "searching",
        0.62,
        r"\bwhat(?:'s| is| was|s) (?:the|our) (?:agreed|decided|official|chosen|approved"
        r"|current agreed|accepted)\b|\b(?:what|which) (?:\w+ ){0,2}do we (?:use|usually use|do"
        r"|call|name|prefer)\b|\bwho (?:decided|proposed|suggested|chose|picked|approved"
        r"|came up with)\b",
    ),
    _cue(
        "searching",
        0.6,
        r"\b(?:why|when|what|who|how|which)\b.{0,40}?\b(?:was|were|has been|have been|got|been) "
        r"(?:\w+ )?(?:decided|agreed|chosen|settled|rejected|discussed|picked|approved|abandoned"
        r"|dropped|superseded|replaced|adopted|concluded)\b",
    ),
    _cue(
        "searching",
        0.55,
        r"^(?:hey |so |and )?(?:the |our |any )?(?:[\w-]+ ){0,3}decisions?(?: (?:on|about|for"
        r"|regarding|re|around) [^\n]{1,60})?\?",
    ),
    _cue("searching", 0.58, rf"^{_TECHNICAL}{_SOUGHT}{_FORMERLY}{_REMEMBERED}[^\n]+"),
    _cue(
        "searching",
        0.5,
        rf"^{_TECHNICAL}(?=[^\n]*\b(?:find|search|look up|pull up|dig up|look for|summari[sz]e"
        rf"|gather|collect|show me|recall)\b)(?=[^\n]*\b(?:discussions?|conversations?|decisions?"
        rf"|choices?|notes?|memory|memories|reasoning|rationale|lessons?|insights?"
        rf"|history)\b)[^\n]+",
    ),
    _cue(
        "searching",
        0.55,
        r"^(?:is|was|are|were) there (?:a |any |some )?(?:\w+ )?(?:reasons?|rationale) (?:we|why"
        r"|that|for|behind|our)\b",
    ),
    _cue(
        "resuming",
        0.9,
        r"\b(?:last|latest|previous) (?:thing|step|task|item|point|part|phase|bit)s? (?:that )?(?:we|i|you)"
        r" (?:did|were|worked|had|was|talked|touched|completed|finished|got)\b"
        r"|\bwhat (?:were|was) (?:we|i|you) \w+ing\b|\b(?:what's|what is|whats|anything"
        r"|stuff) left (?:over |to do )?from\b|\bwhat have (?:we|i) (?:been )?(?:done|doing"
        r"|got done)\b|\bwhat (?:did|have) (?:we|i) (?:get|got|gotten) (?:done|finished|through)\b"
        r"|\b(?:we|i) (?:were|was) (?:in the middle|halfway|about to|almost (?:done"
        r"|finished))\b",
    ),
    _cue(
        "resuming",
        0.65,
        r"\b(?:continu\w+|resum\w+|keep (?:on )?\w+ing|carry on|go on|pick up|proceed|start"
        r"(?:ing)? (?:again )?from|begin from|back (?:to|on|at|into)|finish|return(?:ing)? to"
        r"|jump (?:back )?in(?:to)?|get going)\b(?=[^\n]*\b(?:yesterday|last (?!line|commit"
        r"|element|item|row|name|page|column)\w+|earlier|before|previous(?:ly)? (?!page|button"
        r"|version|commit|row|line)|(?:mon|tues|wednes|thurs|fri|satur|sun)day|(?:this )?morning"
        r"|tonight|session|checkpoint|save|saved|progress|left off|stopped|we (?:started|began"
        r"|were|had|did|planned)|i (?:started|began|was|had|did)|there|weekend|lunch|break)\b)",
    ),
    _cue(
        "resuming",
        0.6,
        r"\b(?:my|our|the last|last|previous|yesterday's) (?:progress|session|checkpoint"
        r"|work ?space|save|unfinished \w+|to-?dos?|open (?:tasks|items))\b(?![^\n]*\b(?:expired?"
        r"|cookie|token|login|logged)\b)",
    ),
    _cue(
        "deciding",
        0.7,
        r"\bmak(?:e|ing) up (?:my|our|your|the) minds?\b|\bmakes? (?:more|the most) sense\b"
        r"(?=[^\n]*\b(?:or|vs|than|between)\b)|^(?:ok |okay |so |alright )*(?:it's )?(?:settled"
        r"|decided|agreed|done deal|it's a deal)(?: then| so)?\b ?[.!:,-]",
    ),
    _cue(
        "resuming",
        0.6,
        r"\b(?:half ?way through|half[- ](?:done|finished|built)|unfinished|lost my place"
        r"|forgot where|same (?:task|thing|work|project|topic) as|progress so far|keep on (?:with"
        r"|at|going)|reconnect|rejoin|reattach|rehydrate|back online|where we at)\b|\b(?:summary"
        r"|recap|overview|rundown) of (?:yesterday|last|our|where|what we)\b",
    ),
    _cue(
        "deciding",
        0.6,
        r"^(?:(?:ok|okay|so|then|alright|fine|well|right|great|good)[ ,]+)*[\w.+#-]+(?: [\w.+#-]+){0,2} it is\b"
        r"(?=[^\n]{0,4}$|[.,!;])|\bthat's final\b|[,.;-] ?final\b(?= ?[.!]*$)|\bmake (?:it|that"
        r"|this) (?:a|our|the) (?:rule|policy|standard|default|convention)\b|\b(?:green ?light"
        r"|go ahead with (?:option|plan|the(?! (?:rest|remain|next|work)))|sign off on|approve (?:the|option|plan))\b",
    ),
    _cue(
        "deciding",
        0.58,
        r"\b(?:how|what) about (?:we|just|using|going|switching|moving|if we)\b|\b(?:which|what) "
        r"(?:one )?to (?:use|take|pick|choose|go|prefer|buy|adopt|attack|build)\b|\bneed (?:some "
        r"|your )?advice\b|\b(?:any )?advice\b[^\n]*\?|\bdilemma\b|\bwould you rather\b",
    ),
    _cue(
        "deciding",
        0.6,
        r"(?:^|[,;:.] |\b(?:so|ok|then|and) )(?:i|we) (?:choose|pick|select|go for|opt for|decide"
        r"|vote)\b|\b(?:i|we)(?:'ll| will| won't| shall) (?:not |never |no longer |always |only "
        r"|now )+\w+|\bwe won't (?:use|support|do|attack|allow)\b",
        asks=False,
    ),
    _cue(
        "deciding",
        0.6,
        rf"\b(?:what|which|who|how|where|when)\b{_TECHNICAL}(?: \w+){{0,2}} (?:should|shall) (?:we|our|us|my|i)\b",
    ),
    _cue(
        "tracking",
        0.58,
        r"\bregret(?:ted|ting|s)?\b|\bwent (?:\w+ly )?(?:horribly|badly|well|great|wrong|smoothly"
        r"|south|terribly|perfectly|horrible|bad)\b|\bnever (?:doing|do|trying|using) (?:this|that"
        r"|it) again\b|\b(?:big|huge) win\b|\bnailed it\b|\bmade (?:it|things|everything) (?:much "
        r"|a lot |way |even )?(?:worse|better|slower|faster)\b|\bepic fail\b",
        asks=False,
    ),
    _cue(
        "tracking",
        0.6,
        r"\b(?:decision|strategy|tactic|choice|approach)\b.{0,60}?\b(?:from \S+ to \d|dropped"
        r"|doubled|halved|improved|reduced|cut|saved|cost|helped|hurt)\b(?![^\n]*\?)",
        asks=False,
    ),
    _cue(
        "deciding",
        0.55,
        r"\b(?:thoughts\?|wdyt|what do you (?:think|say|reckon)(?=\?|,|$| (?:we|i|is|should|would|if|about (?:using"
        r"|going|moving|switching|dropping|taking)))|your thoughts|any preference"
        r"|opinions?\?|agree(?:d)?\?|sounds? (?:right|reasonable|ok)\?)",
    ),
    _cue(
        "deciding",
        0.55,
        r"^(?=[^\n]*\b(?:first|instead|now|later|should|shall|do we|do i|would|could|go|better"
        r"|cheaper|safer|faster|use|keep|take|pick|choose|stick)\b)(?=[^\n]* or )(?![^\n]*\b"
        r"(?:is it|are they|was it|check|how (?:do|can|to)|what (?:does|happens|if)|explain"
        r"|difference between|is it a|whether or not|if .* or|more or less|or else"
        r"|or so)\b)[^\n]+\?",
    ),
    _cue(
        "deciding",
        0.55,
        r"\b(?:we|i) (?:should|must|need to|ought to|shall) (?:really |probably |just |all "
        r"|always |never |instead )?(?:standardi[sz]e|go|use|adopt|switch|migrate|stick|keep|drop"
        r"|stop|ban|require|prefer|avoid)\b",
    ),
    _cue(
        "tracking",
        0.6,
        r"\b(?:was|were|proved|turned out|is|been)(?: to be)? (?:\w+ly |a |the |so )?(?:right"
        r"|wrong|worth it|a good|a bad|the right|the wrong|a mistake|a success|a failure"
        r"|a disaster|worthwhile|successful|unsuccessful|effective|ineffective)\b(?=[^\n]*(?:$"
        r"|[.!,;]))(?![^\n]*\?)(?![^\n]*\b(?:code|line|test|type|answer|output|result is)\b)",
        asks=False,
    ),
    _cue(
        "tracking",
        0.5,
        r"\b(?:held up|did not work|didn't work|worked out|no luck with|as we hoped|as hoped"
        r"|lived up to|met expectations|fell short|proved (?:right|wrong)|solved (?:it|the "
        r"(?:issue|problem)) for good)\b",
        asks=False,
    ),
    _cue(
        "tracking",
        0.6,
        r"\b(?:mark|log|record|report|note|write down|track)\b(?=[^\n]*\b(?:right|wrong|success\w*"
        r"|fail\w*|worked|mistake|partial\w*|win|loss)\b)(?![^\n]*\b(?:tests?|errors?|requests?"
        r"|exceptions?|attempts?|uploads?|logins?|orders?|payments?|fields?|columns?|jobs?"
        r"|tickets?)\b)",
    ),
)

_RESUMING = (
    _cue(
        "resuming",
        0.88,
        r"\bleave unfinished\b|\bleft (?:unfinished|undone|half[- ](?:done|finished)|hanging)\b|\b(?:left ?over"
        r"|remaining|outstanding|pending)"
        r" (?:\w+ )?(?:from|of) (?:yester|mon|tues|wednes|thurs|fri|satur|sun|last)\w*"
        r"|\bwhere\b[^\n?]{0,30}?\bdid (?:we|i|you) (?:leave|stop"
        r"|break off|pause)\b",
    ),
    _cue(
        "resuming",
        0.68,
        r"\b(?:step|part|chapter|task|item|number|phase|migration|exercise|section|lesson|page|round|wave) \w+ (?:was"
        r"|is|comes|would be) (?:the )?next\b"
        r"|\bwe (?:stopped|left off|ended|paused|broke off) (?:at|after|with|on|before|in)\b|\b(?:still|again) (?:on"
        r"|at|with) the same\b"
        r"|\b(?:do|finish|tackle|handle|get through) the rest\b|\b(?:here|ready|back) for\b[^\n.]{0,24}\b(?:yesterday"
        r"|last (?:night|time|week))|\bdidn't (?:get through|finish|complete|manage|get to)\b(?=(?:."
        r"|\n){0,80}?\b(?:let's"
        r"|now|continue|rest|today)\b)|\bcontinue with (?:its|the) (?:first|next|open)\b|\b(?:where are we"
        r"|how far are we) (?:in|with|on)\b",
    ),
    _cue(
        "resuming",
        0.68,
        r"\b(?:we|i)(?:'d| had| have|'ve)? (?:only |just )?(?:got|gotten|came|come|made it|were"
        r"|was) (?:\w+ )?(?:as far as|up to|down to|through"
        r" to|until) (?!date|speed|now\b)|\bsame (?:place|spot|point|state|file|task|thing|setup|page"
        r"|project) as (?:last|yesterday|before"
        r"|this morning|earlier)\b|\b(?:go ahead|continue|carry on|get going|go on|proceed|keep going"
        r"|finish) with (?:the (?:rest|remaining"
        r"|remainder)|what(?:'s| is| was) left)\b|\b(?:the|our|my) (?:rest|remainder) of (?:yesterday|last|what we"
        r"|our)\b",
    ),
    _cue("resuming", 0.5, r"\bkeep(?:ing)? going\b|\bcarry(?:ing)? on\b(?! (?:about|luggage))"),
    _cue(
        "resuming",
        0.68,
        r"\b(?:open|loose) (?:points|items|tasks|ends|to-?dos)\b[^\n]{0,20}\b(?:before|from|left|last|yesterday)\b"
        r"|\b(?:what|which)\b[^\n?]{0,20}\b(?:to-?dos?|steps|tasks|items|points|pieces"
        r"|parts)\b[^\n?]{0,40}\b(?:yesterday|before|last"
        r" (?:time|night|session)|were left|are left|remain\w*|you (?:wrote|listed|noted))\b|\bsame as (?:last"
        r"|yesterday|before|this morning)\b"
        r"|\b(?:take|bring|get|put) me (?:back )?to where\b|\bwhat (?:we|i) (?:began|started)\b|\b(?:we|i) (?:began"
        r"|started) "
        r"(?:on )?(?:mon|tues|wednes|thurs|fri|satur|sun|yester)day\b|\bwhat (?:had|have|did) (?:we"
        r"|i) (?:\w+ ){0,3}?(?:done|finish\w*"
        r"|complete\w*)\b|\bsaved (?:state|progress|session|position)\b|\bwe were (?:at|on|busy with|halfway|midway"
        r"|nearly)\b"
        r"(?! (?:war|the same|odds|about))",
    ),
    _cue(
        "resuming",
        0.62,
        r"(?:^|, |\band )(?:now )?(?:get(?:ting)? )?on with (?:the|our|my|it|that|this)\b|\b(?:can|could|shall"
        r"|may) we get on with\b"
        r"|\b(?:got|been|was|were|we|i) (?:disconnected|cut off|interrupted|kicked out|logged out)\b(?=(?:."
        r"|\n){0,60}?\b(?:go on"
        r"|continue|where|carry on|keep|resume|again|back)\b)",
    ),
    _cue(
        "resuming",
        0.62,
        r"(?:^|[?!.,] )(?:(?:ok|okay|so|great|now|right|good|alright|and|then|hey|can we go|shall we go"
        r"|let's go)[ ,]+)*back to "
        r"(?:our|the|that|work|my|it|business)\b(?! (?:main|home|previous|first|start|top|menu|page|original|old"
        r"|default))"
        r"|\btak(?:e|ing) (?:\w+ ){0,5}?up (?:\w+ ){0,6}?again\b|\btake up (?:\w+ ){0,8}?(?:again|where)\b"
        r"|\b(?:put|take|bring|get|set) (?:us|me) (?:right |straight )?back (?:there|to|in|into|where|on)\b"
        r"|\b(?:pick(?:ing)?|take|taking) (?:it |this |that |things )?up (?:again|from there|from here|where)\b"
        r"|\bpick(?:ing)? (?:it |this |that |things )?(?:back )?up(?=[.!?]|$| [^a-z])",
    ),
    _cue(
        "resuming",
        0.8,
        r"\b(?:let's|lets|can we|shall we) (?:keep (?:at|on with|going with)|carry on with|go on with) (?:it|that"
        r"|this)\b",
    ),
    _cue(
        "resuming",
        0.65,
        r"\bwhat (?:was|is) the (?:state|status) of (?:the|our|my)\b(?=[^\n]*\?)(?![^\n]*\b(?:order|fleet|planet"
        r"|server|pod"
        r"|container|pr|ticket|build|ci|pipeline|market|request)\b)|^(?:(?:ok|okay|so|great|now|right|good"
        r"|alright)[ ,]+)*"
        r"(?:the )?next (?:item|task|step|todo|point|one)(?: on (?:our|the|my) (?:list|plan|todo))(?: please"
        r"| then)?[.!]?$"
        r"|\b(?:connection|terminal|session|client|game|app|computer|pc|phone|laptop|machine|editor|ide|browser"
        r"|vs ?code|window|power|wifi|tab|kernel|chat)\b"
        r"[^\n]{0,25}?\b(?:dropped|died|crashed|closed|lost|froze|hung|rebooted|restarted|timed out|cut out|gone)\b"
        r"(?=(?:.|\n){0,80}?\b(?:carry on|continue|resume|go on|keep going|pick up|where|back|restore|reload"
        r"|finish)\b)",
    ),
    _cue(
        "resuming",
        0.95,
        r"\bwhere (?:(?:did|had|have) )?(?:we|i|you|u) (?:left|leave|stopped|stop|paused|quit"
        r"|got to|got up to|finished)\b",
    ),
    _cue("resuming", 0.9, r"\bwhere (?:were we|was i|are we at|we were|i was|things were|it stopped|we had got)\b"),
    _cue(
        "resuming",
        0.9,
        r"\bwhat (?:(?:exactly )?(?:were (?:we|you)|was i)|(?:we|you) were|i was)(?: just)? "
        r"(?:doing|working|up to|in the middle|building|busy)\b",
    ),
    _cue(
        "resuming",
        0.9,
        rf"\b(?:continu(?:e|ing)|resum(?:e|ing)|carry(?:ing)? on|keep(?:ing)? going|pick(?:ing)? "
        rf"(?:\w+ ){{0,3}}(?:back )?up|go(?:ing)? on|proceed|get(?:ting)? back (?:in)?to|return to"
        rf"|go back to|back to)\b.{{0,45}}?(?:\b{_DAY}\b|\b{_LAST} (?:session|conversation|chat"
        rf"|work|state|task|checkpoint|stuff)|\bthe checkpoint|\b(?:our|my) (?:session|conversation"
        rf"|last|previous|work|chat)|\bwhere\b|\b{_WE} (?:started|began|were|had|left|paused))",
    ),
    _cue(
        "resuming",
        0.6,
        r"^(?:(?:ok|okay|please|pls|and|yes|yeah|yep|now|just|let's|lets|so|good|great"
        r"|alright),? )*(?:continue|go on|carry on|keep going|resume|proceed)(?: please| pls| then"
        r"| now| with it)?[.!]*$",
    ),
    _cue(
        "resuming",
        0.6,
        r"^(?:ok |please |let's |lets )*(?:continue|carry on|resume|keep going|proceed) (?:with "
        r"|from |at )?(?:the )?(?:next )?(?:step|task|item|todo|phase|part|work|refactor\w*"
        r"|migration)\b",
    ),
    _cue(
        "resuming",
        0.9,
        rf"\b(?:load|restore|open|reload|recover|fetch|get|bring back|read|show(?: me)?|start from)\b.{{0,25}}?\b"
        rf"(?:checkpoint|(?:{_LAST}|our|my) (?:session|progress|state|context|conversation))\b",
    ),
    _cue(
        "resuming",
        0.85,
        r"\b(?:catch|bring|get) me (?:back )?up(?: to (?:speed|date))?\b(?! to (?:date|speed) "
        r"(?:on|with) (?:python|react|the news))",
    ),
    _cue("resuming", 0.6, r"\b(?:i'm|im|i am|we're) back\b", asks=False),
    _cue(
        "resuming",
        0.75,
        r"\b(?:what (?:were|are)|remind me (?:of|what)) (?:the |our |my )?(?:next steps|open "
        r"(?:items|files|points|tasks)|remaining)\b",
    ),
    _cue(
        "resuming",
        0.6,
        r"\bwhat(?:'s| is|s) (?:next|left|still open|remaining)\b(?= ?[?!.,]|$| on (?:the|our|my)"
        r"| for (?:us|me|today)| to do| from)",
    ),
    _cue(
        "resuming",
        0.75,
        rf"\b(?:unfinished|left over|left-over) (?:work|task|business|stuff)\b|\bfinish (?:what"
        rf"|the \w+) {_WE} (?:started|began)\b",
    ),
    _cue("resuming", 0.8, rf"^(?:\w+ )?resuming\b.*\b{_DAY}"),
    _cue(
        "resuming",
        0.88,
        r"\b(?:where|what|which \w+|how far) (?:were|was|are) (?:we|i|you)\b(?: \w+)?(?: (?:on|at"
        r"|in|up to|doing|with|through))\b(?! about)|\b(?:where|how far) (?:did|had|have) (?:we"
        r"|i) (?:get|got|gotten|come|make it|leave|left|stop|stopped|end|break off)\b",
    ),
    _cue(
        "resuming",
        0.75,
        r"\bcontinu\w* (?:on |right |straight |directly )?(?:from|where|our|what|with what"
        r"|the work|working)\b|\bresum\w* (?:from|where|our|what|the work|working|work)\b",
    ),
    _cue(
        "resuming",
        0.8,
        r"\b(?:reload|bring back|restore|recover|load(?: up)?|get back|open)\b.{0,20}?\b(?:state"
        r"|context|progress|session|everything|what(?:ever)? (?:we|i) had)\b",
    ),
    _cue(
        "resuming",
        0.65,
        r"\b(?:pick|take|get|jump|dive|go|going|head|switch|return)(?:ing)? (?:\w+ ){0,3}?back "
        r"(?:up|to|into|in|on)\b(?! (?:the )?(?:main|home|previous|first|start|top|menu|page"
        r"|planet|base|bed|sleep|\d|version|commit|line|beginning))|\bback (?:to work|at it"
        r"|on track|in business|into it)\b|\blet's (?:get )?back to\b",
    ),
    _cue(
        "resuming",
        0.6,
        r"\brecap\b|\bwhere (?:do )?(?:things|we) stand\b|\b(?:up|get up) to speed\b"
        r"|\brefresh my memory (?:on|about) (?:where|what we were)\b|\bwhat(?:'s| is|s) (?:the"
        r"|our) (?:current )?(?:status|state of things|progress)\b",
    ),
    _cue(
        "resuming",
        0.6,
        r"\b(?:so |then |ok |okay |,)?(?:let's|lets|let us|can we|shall we|could we|ready to"
        r"|want to|time to|gonna|going to) (?:\w+ )?(?:continue|carry on|keep going|keep at it"
        r"|resume|proceed|go on|press on|pick up)\b",
    ),
    _cue(
        "resuming",
        0.6,
        r"\b(?:what|which)\b.{0,20}\b(?:left|remain(?:s|ing)?|still|next)\b.{0,15}\b(?:to do"
        r"|to be done|todo|open|unfinished|task|step|on (?:the|our|my) list)\b",
    ),
    _cue(
        "resuming",
        0.65,
        r"\b(?:since|from|before) (?:we|i) (?:left|stopped|paused|quit|closed|went|took|signed)\b"
        r"|\b(?:from|since) (?:our )?last time\b|\bleft off\b",
    ),
)

_DECIDING = (
    # Choices without a verb: "MariaDB for the event store, then."
    _cue(
        "deciding",
        0.62,
        r"^(?:(?:so|ok|okay|right|alright|fine|yes|then|good)[ ,]+)*(?!(?:fix|do|see|thanks|bye|later|ok|no|yes|not|and"
        r"|wait|just|try|let|show|run|add|how|what|why|where|who|which|when|is|are)\b)[\w.+#-]+(?: [\w.+#-]+){0,3} "
        r"(?:for|as|on|in|over|at) [^\n,.?]{2,50}, then(?=[.!]|$)"
        r"|^(?:(?:so|ok|okay|right|alright|fine|yes|then|good)[ ,]+)*[\w.+#-]+(?: [\w.+#-]+){0,2} (?:over|instead of"
        r"|rather than|not) [\w.+#-]+(?: [\w.+#-]+){0,4}[,;:-] ?(?:because|since|final|decided|agreed|settled"
        r"|that's (?:it"
        r"|final|decided|settled|the decision|our choice))\b",
    ),
    _cue(
        "deciding",
        0.82,
        r"\bdecision time\b|\btime for a decision\b|\bmake (?:it|that|this) (?:a|an|our|the|into a) (?:\w+ )?(?:rule"
        r"|policy|standard"
        r"|default|convention|law|principle|guideline)\b|\b(?:replace|supersede|overrid\w+|overrule|scrap|revoke|drop"
        r"|retire"
        r"|withdraw|update|amend|cancel|annul|void|repeal) (?:the |our |that |my |your )?(?:old(?:er)?|earlier"
        r"|previous|former"
        r"|existing|prior|last|current) (?:\w+ )?(?:ruling|policy|choice|convention|agreement|verdict|decision|one"
        r"|plan|stance"
        r"|position|rule)\b",
    ),
    _cue(
        "deciding",
        0.62,
        r"^so,? (?!(?:what|far|sorry|cool|good|nice|bad|sad|long|true|much|close|be|do|it|yes|no|yeah|now|then|how"
        r"|why|when|who"
        r"|that|this|there|there's|funny|help|well|ok|okay|right|fix|go|weird|strange|slow|fast|tired|thanks|please)\b)"
        r"[\w.+#-]+(?: [\w.+#-]+)?(?: then)?[.!]$|^(?:that's |this is )?final[.!]+$",
    ),
    _cue(
        "deciding",
        0.82,
        r"\b(?:i|we) (?:hereby|formally|officially|therefore|herewith) (?:decide|declare|choose|rule|resolve"
        r"|determine|decree|adopt|drop)\b"
        r"|\b(?:save|record|store|note|log|keep|put) (?:this|that|it) (?:down )?as (?:the|a|our) (?:new|updated"
        r"|current|latest) "
        r"(?:one|decision|rule|value|choice|default|standard|policy|plan)\b|\b(?:overwrite|replace|supersede"
        r"|override) the (?:old|previous"
        r"|earlier|former) (?:one|value|entry|decision|record)\b",
    ),
    _cue(
        "deciding",
        0.65,
        r"\bmy (?:pick|choice|decision|vote|call|preference|verdict|favou?rite|answer)(?: here| then| now)? (?:is"
        r"|goes|would be|=|:)"
        r"(?! (?:on|in|not|to))|\bchange of (?:plans?|heart|mind|course|direction)\b|\b[\w-]+(?:'s"
        r"| is) out\b[^\n?]{0,20}?\b[\w-]+(?:'s| is) in\b"
        r"|\b(?:henceforth|hereafter|from here onwards?|from this point on)\b|\b(?:forget|ignore|scrap|scratch"
        r"|disregard) (?:about )?"
        r"(?:the|what|our) [^\n.?]{1,40}? (?:from (?:january|february|march|april|may|june|july|august|september"
        r"|october|november|december"
        r"|last|before|yesterday|back then)|we (?:said|had|agreed|decided|planned|wanted))\b",
    ),
    _cue(
        "deciding",
        0.62,
        r"\b(?:let's|we'll|we will|we keep|we use|i'll|go(?:ing)? with|we take|we go)\b(?=(?:.|\n){0,200}?(?:^"
        r"|[.,;:] )(?:the )?reason"
        r"(?:s|ing)?(?: is| are| being)?:?\b)",
    ),
    _cue(
        "deciding",
        0.62,
        r"\bafter (?:all|much|a lot of|some|long|endless) (?:\w+ ){0,4}?(?:debate|discussions?|thought|thinking"
        r"|back and forth|consideration"
        r"|arguments?)\b|\b(?:i'm|i am|we're|we are) (?:now )?convinced\b|(?:^|[,;:.-] |\bthen )(?!(?:what|how|where"
        r"|who|when|why|as|if|that"
        r"|because|since|whatever|here|there|so|i|we|you|think|know|sure|but|and|is|like)\b)[\w.+#-]+(?: (?!think"
        r"|know|believe|say|guess)[\w.+#-]+)"
        r"{0,2} it is(?=[.,!;]|$)|\b(?:we|i)(?:'re| are|'m| am) not (?:going to|gonna) (?!have time|be able)"
        r"|\blet's (?:say|make it|call it) (?!that|hello|hi)"
        r"|\b[\w-]+ out, [\w-]+ in\b|\blet the record (?:show|state)\b|\b(?:we|i|we'll"
        r"|let's)\b[^\n?]{1,50}?\bafter all[.!]?$"
        r"|\b(?:save|record|note|keep|log|store|remember|write down) (?:our|my|this|the|that) (?:plan|vote|deal"
        r"|arrangement|schedule|result) as\b",
    ),
    _cue(
        "deciding",
        0.62,
        r"\bmy vote (?:goes|is|would)\b|\b(?:that's|that is|this is|it's) (?:now )?(?:decided|settled|agreed"
        r"|that then)\b"
        r"|\b(?:strike|lift|toss|void|scratch|throw out|repeal) (?:the |our |that |my )?(?:old(?:er)?|earlier"
        r"|previous|former|existing"
        r"|prior|last|current) (?:\w+ )?(?:ruling|policy|choice|convention|agreement|rule|decision|plan)\b"
        r"|\bdone debating\b"
        r"|\bdebate (?:is )?over\b|\bcase closed\b|\bend of (?:the )?(?:discussion|debate)\b|\block (?:it|that"
        r"|this)(?: in)?[.!]?$"
        r"|\b\w+ (?:it'll|it will|it shall) be\b(?=[.!,;]|$)|\b(?:is|are) (?:our|the) [^\n,.?]{1,30} from (?:now"
        r"|today|here) on\b"
        r"|^(?:\w+ ){1,4}(?:is|are|gets?|stays?|goes|has|have) [^\n?]{1,50} (?:from now on|going forward|as of (?:now"
        r"|today))[.!]?$",
    ),
    _cue(
        "deciding",
        0.65,
        r"\blet's not (?:use|go|take|do|adopt|switch|move|bother with|have|introduce|add|attack|buy"
        r"|pick)\b(?=[^\n]*(?:,|;"
        r"| because| since|:|too|as ))|\bi'd rather (?:\w+ ){1,8}?than\b|\bwe(?: are|'re)? (?:going to"
        r"|gonna) (?:\w+ ){1,6}?"
        r"(?:not|rather than|instead of)\b|\b(?:reverse|change) (?:of )?course\b|\bon (?:the )?record\b,? that (?:we"
        r"|i|our)\b"
        r"|\b(?:save|record|note|keep|log|store|remember) (?:our|my|this|the|that) (?:final )?(?:choice|pick"
        r"|selection|verdict"
        r"|resolution|agreement|rule|policy|convention|conclusion)\b|^so (?:we|i) (?:keep|take|use|drop|sell|build"
        r"|stay|go"
        r"|move)\b[^\n]*, (?:ok|right|yes|agreed|deal|fine)\?"
        r"|\boff the table\b|\bout of the question\b|\b(?:write|put|mark|note) (?:it|that|this) (?:\w+ )?as final\b"
        r"|\b(?:council|team|board|committee|guild|everyone|everybody|we all|management|architects?) (?:has |have "
        r"|just "
        r"|now |finally )*(?:voted|agreed|decided|settled|approved|signed off)\b(?![^\n]*\?)(?! (?:yesterday|last"
        r"|a while"
        r"|earlier|back|weeks|months))",
    ),
    _cue(
        "deciding",
        0.85,
        r"\b(?:which|what) (?:\S+ ){0,4}?(?:should|shall|do|would|ought) (?:we|i|you|one) "
        r"(?:\w+ )?(?:choose|pick|use|go|prefer|recommend|take|adopt|build|attack|target|suggest"
        r"|prioriti[sz]e|focus|invest|start|do first|keep)\b",
    ),
    _cue("deciding", 0.8, r"\b(?:should|shall) (?:we|i)\b.{1,90}?\bor\b"),
    _cue(
        "deciding",
        0.65,
        r"\b(?:should|shall) (?:we|i) (?:\w+ly |just |rather |really )?(?:use|go|pick|choose"
        r"|switch|adopt|move|migrate|keep|drop|attack|invest|stick|split|wait|ally|join|expand"
        r"|replace|ditch|support|upgrade)\b",
    ),
    _cue(
        "deciding",
        0.8,
        r"\b(?:better|best|smarter|wiser|safer|prefer|preferable|recommend)\b.{0,70}?\b(?:or|vs\.?|versus)\b",
    ),
    _cue(
        "deciding",
        0.8,
        r"\b(?:vs\.?|versus|or)\b.{0,60}?\b(?:better|best|smarter|wiser|safer|prefer|recommend"
        r"|your take|thoughts|opinion|what do you think|makes? (?:more )?sense)\b",
    ),
    _cue("deciding", 0.8, r"\boption (?:\S+) or (?:option )?\S+|\b(?:a or b|1 or 2)\b"),
    _cue(
        "deciding",
        0.55,
        r"^(?!(?:is|are|was|were|does|did|has|have|can) )\S+(?: \S+){0,3} (?:vs\.?|versus|or) \S+(?: \S+){0,5}\?",
    ),
    _cue(
        "deciding",
        0.8,
        r"\b(?:let's|lets|let us|we'll|i'll|i'd|we'd|we will|i will|i say we|we should|gonna|we can) "
        r"(?:just |all |then |simply |definitely )?(?:go with|go for|choose|settle on|settle"
        r"|stick with|stick to|adopt|switch to|take option|do option|opt for|commit to"
        r"|standardi[sz]e on|drop)\b",
    ),
    _cue("deciding", 0.55, r"\b(?:let's|lets) (?:just )?(?:use|pick|do|take)\b", asks=False),
    _cue("deciding", 0.7, r"(?:^|[,;] |\b(?:so|then|ok) )(?:we|i) go (?:with|for)\b"),
    _cue(
        "deciding",
        0.7,
        r"^(?:(?:ok|okay|yes|alright|so|then|and|fine|cool|great|right)[ ,]+)*(?:go|going) (?:with|for)\b(?! (?:it"
        r"|a (?:walk|run|drive))\b)"
        r"(?![^\n,.]{0,60} (?:was|were|is|turned|proved|has|did|didn't|paid|cost|worked|failed)\b)",
    ),
    _cue(
        "deciding",
        0.75,
        r"\b(?:we|i)(?:'ve| have) (?:now |finally |just |also )?(?:decided|made up my mind"
        r"|made a decision|agreed|chosen|settled|concluded)\b",
    ),
    _cue(
        "deciding",
        0.55,
        r"\b(?:we|i|team) (?:all |just |finally |now |both )?(?:decided|agreed|settled on)\b",
        asks=False,
    ),
    _cue(
        "deciding",
        0.72,
        r"\b(?:we're|we are|i'm|i am|so we're) (?:agreed|going with|going for|sticking with"
        r"|switching to|dropping|settling on|choosing)\b",
    ),
    _cue(
        "deciding",
        0.8,
        r"(?:\b(?:help (?:me|us)(?: to)?|need to|have to|has to|must|want to|gotta|got to|time to"
        r"|can you|could you|you|please|should|let's|lets|still|trying to|how should (?:we|i)|to) "
        r"|^)(?:now )?(?:decide|choose|make (?:a |the |up )(?:decision|call|choice|mind)|pick "
        r"(?:one|between|a|an|the))\b",
    ),
    _cue(
        "deciding",
        0.8,
        r"\b(?:decide|choose|choosing|deciding|pick|choice) (?:between|on|whether|if|among|which|what|how)\b",
    ),
    _cue("deciding", 0.75, r"\btrade-? ?offs?\b|\bpros (?:and|&|/) cons\b|\bpros/cons\b"),
    _cue(
        "deciding",
        0.7,
        r"\b(?:what's|what is|whats|what would be) the (?:best|better|smarter|right|safest) "
        r"(?:approach|way|option|choice|strategy|move|call|stack|opening)\b.{0,60}?\b(?:here"
        r"|for us|for our|our|or)\b",
    ),
    _cue(
        "deciding",
        0.45,
        r"\b(?:what's|what is|whats) the (?:best|better|smarter|right) (?:approach|option|choice"
        r"|strategy|move|call)\b",
    ),
    _cue(
        "deciding",
        0.9,
        r"\b(?:record|save|store|log|write down|note down|document|persist|add|remember|keep)\b "
        r"(?:this |that |the |a |my |our |it as a |as a |these |new |down )*decisions?\b",
    ),
    _cue("deciding", 0.9, r"\b(?:write|note|put|log) (?:this|that|the|our) decision (?:down|in)\b"),
    _cue(
        "deciding",
        0.85,
        r"\bfinal (?:decision|answer|call|verdict)\b|^(?:new )?decision ?[:=-]|\bdecision made\b"
        r"|\bmy decision is\b|\bthe decision is\b",
    ),
    _cue(
        "deciding",
        0.75,
        r"\b(?:from now on|going forward|from here on|as of today|from today)\b(?=.*\b(?:we|i|use"
        r"|always|never|all|every|no|only|must)\b)"
        r"|\b(?:we|i|we'll|i'll|use|always|never|all|every|only|must|let's|go with)\b[^\n.?]{1,60}?\b(?:from now on"
        r"|going forward|from here on|as of today|from today)\b",
    ),
    _cue(
        "deciding",
        0.85,
        r"\b(?:replace|supersede|overrule|overturn|revise|reverse|change|revisit|reconsider"
        r"|rethink|override)\b.{0,25}?\bdecision\b|\bchang(?:e|ed|ing) (?:my|our) minds?\b",
    ),
    _cue(
        "deciding",
        0.85,
        r"\btorn between\b|\b(?:can't|cannot|cant|couldn't) (?:decide|make up|choose|pick)\b|\b"
        r"(?:not sure|unsure|undecided|don't know|dunno|wondering) (?:whether|which|if (?:we"
        r"|i) should)\b|\bon the fence\b",
    ),
    _cue(
        "deciding",
        0.75,
        r"\bwhich (?:one |of \w+ |option |approach |way )?(?:is|one's|'s|would be|do you think"
        r"|makes|seems) (?:\w+ )?(?:better|best|smarter|safer|more|sense)",
    ),
    _cue("deciding", 0.8, r"\bwhat (?:would|do) you (?:recommend|suggest|prefer|advise|pick|choose)\b"),
    # Weaker signs: enough to name the context, not enough to hide anything.
    _cue(
        "deciding",
        0.6,
        r"\b(?:your (?:call|recommendation|take|pick|verdict|preference|vote|opinion)|weigh"
        r"|weighing|is it worth|worth (?:moving|switching|it to)|candidates|alternatives?\b(?! (?:had|were|was|we"
        r"|that|did|have|you))"
        r"|up to you|what's it (?:gonna|going to) be|thoughts on (?:using|going|moving"
        r"|switching))\b",
    ),
    _cue(
        "deciding",
        0.55,
        r"(?:[,:;] |^(?:so |ok |hey |hmm |and |then )*)(?!(?:is|are|was|were|does|did|has|have"
        r"|can) )(?:\S+ ){1,6}or (?:rather )?(?:\S+ ){0,5}\S+\?",
    ),
    _cue(
        "deciding",
        0.75,
        r"\b(?:do|take|pick|choose|use|prefer|approve|confirm|go for|accept) (?:the )?(?:option"
        r"|plan|variant|alternative|proposal|approach|choice) (?:#?\w)\b|\b(?:the )?(?:first"
        r"|second|third|former|latter|last) (?:option|variant|plan|approach|proposal|suggestion|alternative)\b"
        r"|\b(?:take|use|go with|go for|pick|choose|prefer|like|want|do|keep) the (?:first|second|third|former|latter"
        r"|last) "
        r"one\b|^(?:the )?(?:first|second|third|former|latter|last) one(?=[.,!]|$)",
    ),
    _cue(
        "deciding",
        0.75,
        r"\b(?:i|we)(?:'d| would|'m|'re| am| are)? (?:now )?(?:(?:want|like|prefer|inclined|tend"
        r"|propose)(?: that we)?(?: to)? (?:go with|go for|use|switch to|adopt|stick|stay|pick"
        r"|choose)|rather (?:go|use|have|stay|not|pick)|lean(?:ing)? (?:to|towards?|more)|(?:vote"
        r"|voting|opt|opting) (?:for|to)|prefer)\b(?!.{0,20}(?:function|variable))",
    ),
    _cue(
        "deciding",
        0.72,
        r"^(?:ok |and |also )*(?:new |house |team |our )?(?:rule|policy|convention|standard"
        r"|principle|doctrine|agreement) ?(?:is )?[:=-]|\bnew (?:rule|policy|convention"
        r"|doctrine)\b",
    ),
    _cue(
        "deciding",
        0.75,
        r"\b(?:scrap|undo|cancel|revoke|withdraw|kill|forget|ditch|drop|rescind|retire|update"
        r"|amend|swap)\b.{0,25}?\b(?:decision|plan|idea|choice)\b(?!.{0,20}(?:success|fail|partial"
        r"|outcome))",
    ),
    _cue(
        "deciding",
        0.78,
        r"\bwhich (?:one |of (?:the|these|those|them)\b.{0,20}|\w+ )?(?:do you think|would you"
        r"|should|is|are|fits|suits|makes|wins|gives)\b.{0,50}?\b(?:take|use|pick|choose|go|better"
        r"|best|prefer|fit|right|cheaper|faster|sense|recommend|us|here)\b",
    ),
    _cue(
        "deciding",
        0.6,
        r"\b(?:best|better|right|ideal|optimal) (?:choice|option|pick|fit|bet|move|tool|library"
        r"|framework|database|target|strategy)\b.{0,40}\b(?:for (?:us|our|this|my)|here|now)\b"
        r"|\bdoes it make (?:more )?sense to\b|\bare we better off\b|\bwould (?:it|you) (?:be )?"
        r"(?:better|rather)\b",
    ),
    _cue(
        "deciding",
        0.55,
        r"\b(?:compare|comparing|evaluate|choose|decide|pick)\b.{0,60}\b(?:and|vs|or|between"
        r"|for us|recommend|suggest)\b.{0,40}\b(?:recommend|suggest|pick|decide|choose|better"
        r"|best)\b",
    ),
    _cue(
        "deciding",
        0.6,
        r"\b(?:i|we)(?:'ll| will|'m going to| are going to|'re going to| am going to) (?:use|go"
        r"|switch|adopt|stay|keep|move|take)\b",
        asks=False,
    ),
    _cue(
        "deciding",
        0.6,
        r"\b(?:approved|agreed|confirmed|deal|sounds good|thumbs up)\b.{0,30}\b(?:go with|do it"
        r"|use|adopt|on the|plan|option)\b|\bofficially\b",
    ),
    _cue(
        "deciding",
        0.8,
        r"\b(?:settle|finali[sz]e) (?:it|this|that|the)\b|\bmake (?:the|a) (?:call|decision"
        r"|choice)\b|\bmake (?:it|this|that) official\b|\block (?:it|this|that) in\b",
    ),
)

_SEARCHING = (
    _cue(
        "searching",
        0.7,
        r"\b(?:which|what) (?:of )?(?:our|the|my) (?:\w+ )?(?:choices|decisions|rules|rulings|policies|insights"
        r"|agreements)\b[^\n]*\?"
        r"|\b(?:tell|remind|explain to|show) me (?:once )?again\b(?! how to)|\bwhat (?:was"
        r"|were) [^\n?]{1,50}?\b(?:you|we|i|he|she|they) (?:\w+ )?"
        r"(?:taught|told|showed|gave|mentioned|explained|recommended|suggested|noted|saved|agreed|described)\b"
        r"|\bwhose (?:idea|decision|choice|call) (?:was|is)\b|\bwho (?:voted|objected|was against"
        r"|was for|argued|opposed|insisted|wanted us|pushed for|vetoed)\b|\bi (?:seem to|think i|kind of|sort of"
        r"|dimly|faintly|vaguely|do) "
        r"(?:remember|recall)\b(?=(?:.|\n)*\?)|\bwhat(?:'s| is) (?:stored|saved|recorded|noted|kept|filed) (?:under"
        r"|in|for)\b"
        r"|\b(?:overview|list|summary|timeline) of (?:all |every |the |our |my )*(?:past |previous "
        r"|current )?decisions?\b"
        r"|\b(?:find|show|get|give) (?:me |us )?(?:the|that) (?:thing|one|note|stuff|bit|part)s? (?:about|on"
        r"|regarding)\b",
    ),
    _cue(
        "searching",
        0.66,
        r"\bwe (?:had|have|made|wrote) (?:one|some|something|a few)\b[^\n]{0,14}?(?:right|no|didn't we|don't we"
        r"|i think|i believe)\??$"
        rf"|\bwhat(?:'s|s| is){_TECHNICAL} our (?:\w+ ){{1,3}}?(?:on|for|about|regarding|towards?)\b"
        r"|\b(?:everything|anything|all|whatever|something|what) (?:that |which )?(?:was |were |has been |have been "
        r"|had been |is |'s been |ever )?"
        r"(?:decided|agreed|recorded|noted|settled|ruled|concluded)\b(?=[^\n]*\b(?:about|on|in|for|around|with"
        r"|regarding|so far|yet|\?))"
        r"|\b(?:what|which|where|how) [^\n?]{1,40}? did (?:my|our|the|that|this) [^\n?]{1,30}? (?:end up|settle"
        r"|decide|choose|pick|go with"
        r"|agree|land|adopt|opt)\b|\bthere(?:'s| is| was| were| are) (?:an? |some )?(?:older|earlier|previous"
        r"|existing|old|prior|past) (?:\w+ )?"
        r"(?:choice|decision|rule|ruling|policy|agreement|note|insight|discussion|conclusion)s?\b(?=(?:.|\n)*\?)",
    ),
    _cue("searching", 0.6, r"\blook (?:that|it|this|those|them) up\b(?! (?:online|on the web|on google))"),
    _cue(
        "searching",
        0.62,
        r"\?[^\n]*\n[^\n]*\bwe (?:fixed|set|pinned|agreed|decided|settled|chose|discussed|talked"
        r"|had)\b[^\n]{0,40}\b(?:in (?:spring"
        r"|summer|autumn|fall|winter|january|february|march|april|may|june|july|august|september|october|november"
        r"|december)"
        r"|last \w+|back|ago|yesterday|earlier|once|before|the other day)\b"
        r"|\b(?:we've|we have|i've|i have) been (?:through|over) (?:this|that|it)\b|\bhad (?:this|that) (?:discussion"
        r"|conversation|debate)\b"
        r"(?=[^\n]*\b(?:what|which|why|how)\b)|\blook(?:ing)? up (?:why|(?:what|how|whether|if|when) we)\b",
    ),
    _cue(
        "searching",
        0.68,
        rf"\b{_SEEK}\b[^\n]{{0,20}}?\b(?:the|that|those|this) (?:\w+ )?(?:discussions?|conversations?|debates?|talks?"
        rf"|arguments?) "
        r"(?:on|about|around|over|regarding|we had|concerning|for|against)\b"
        rf"|\bwhat{_TECHNICAL} (?:was|were) (?:the|our|my|your|his|their) (?:\w+ )?(?:arguments?|objections?"
        rf"|concerns?|grounds?|case|motives?"
        r"|idea|thinking|logic|limit|threshold|number|deadline|agreed \w+) (?:against|for|behind|on|to|about|we|of"
        r"|again)\b"
        r"|\bon what (?:grounds|basis)\b"
        r"|\b(?:you|we|i|he|she|they|somebody|someone) (?:once |had |already )?(?:gave|shared|offered|came up with"
        r"|wrote|sketched|showed"
        r"|explained|described|suggested|proposed|recommended|warned|had)\b[^\n]{0,60}?\b(?:what|which|how"
        r"|where) (?:was|were|did)\b",
    ),
    _cue(
        "searching",
        0.7,
        r"\bthere (?:must|should|has to|had to|surely|was|is|were|will) (?:\w+ )?(?:have been |be |was )?(?:a|some"
        r"|good) (?:\w+ )?"
        r"reasons?\b|\bhow come\b(?=[^\n]{0,80}\b(?:we|our|us|reason)\b)"
        r"|\b(?:things?|stuff|entries|items|notes?|memories|facts|everything|anything|all"
        r"|(?<! in )(?<! with )(?<! to )what|whatever|points) (?:that |which )?"
        r"you(?:'ve| have)? (?:\w+ )?(?:stored|saved|recorded|remember(?:ed)?|noted|kept|wrote down|written down"
        r"|logged)\b",
    ),
    _cue(
        "searching",
        0.65,
        r"\bwhat(?:'s| is|s| was) the (?:story|deal|history|background|backstory|reasoning|rationale|thinking|thought)"
        r" (?:with|on|of|behind|about|between)\b(?=[^\n]*\b(?:we|us|our|here|gone|again|chose|decided|choice"
        r"|decision)\b)",
    ),
    _cue(
        "searching",
        0.75,
        r"\b(?:we|i|there|they) (?:once |already |definitely |used to )?(?:had|have|made|was|were|set|wrote|agreed on"
        r"|came up with|settled on) (?:a|an|some|this|that|one|any) (?:\w+ ){0,2}?(?:rule|policy|decision|agreement"
        r"|convention|reason|discussion|debate|conversation|plan|limit|threshold|number|guideline|deal)\b(?=[^?]{0,160}"
        r"\b(?:what|which|why|where|how|who|when|find|remind|tell|recall|remember|dig)\b)",
    ),
    _cue(
        "searching",
        0.85,
        rf"\b(?:what|why|how|when|where|which|who)\b.{{0,45}}?\b(?:did|have|had|'d|'ve) {_WE} "
        rf"(?:\w+ )?(?:{_CHOSE}|{_SPOKE}|{_COPED})\b",
    ),
    _cue(
        "searching",
        0.85,
        r"\b(?:what|why|how|when)\b.{0,30}?\b(?:did|have|had) (?:you|he|she|they|the team"
        r"|my team|alliance|the alliance|the guild|our guild) (?:\w+ )?(?:tell|say|said|suggest"
        r"|recommend|decide|agree|advise|choose|note|conclude|settle)\w*\b",
    ),
    _cue(
        "searching",
        0.5,
        rf"\b(?:what|why|how|which|when|where|whatever) (?:\S+ ){{0,3}}?{_WE} (?:\w+ly |had |have "
        rf"|'ve |originally |once )?(?:decided|chose|picked|settled|agreed|concluded|went|landed"
        rf"|switched|moved|dropped|abandoned|rejected|left|ditched|adopted|stopped|said|discussed"
        rf"|noted|planned|learned|solved|handled|dealt)\b",
    ),
    _cue(
        "searching",
        0.8,
        rf"\b(?:did|didn't|have|haven't|had|hadn't) {_WE} (?:\w+ )?(?:{_CHOSE}|{_SPOKE})\b.*(?:\?"
        rf"|$)",
    ),
    _cue(
        "searching",
        0.75,
        rf"\b(?:didn't|did) {_WE} (?:\w+ )?have (?:a|some|any|an)\b|\bis there (?:a|any|some) "
        rf"(?:rule|decision|policy|note|agreement|record|memory)\b|\b(?:have|has|had) (?:anyone"
        rf"|anybody|somebody|someone|we|i)\b.{{0,20}}?\b(?:already|before|ever|tried|looked)\b",
    ),
    _cue(
        "searching",
        0.88,
        r"\b(?:what|which) (?:was|were) (?:\w+ ){0,4}?(?:decision|decisions|conclusion|reasoning"
        r"|rationale|policy|rule|convention|agreement|verdict|resolution|takeaway|argument"
        r"|consensus|reason (?:for|behind|we|why|that))\b",
    ),
    _cue(
        "searching",
        0.88,
        r"\b(?:what|which|how) (?:was|were|is|are|did|has|have|'s|came)\b[^\n?]{0,30}?\b(?:outcomes?|results?"
        r"|come out|came out"
        r"|turn(?:ed)? out|pan(?:ned)? out|work(?:ed)? out|go|gone|fare|end(?:ed)? up)\b(?=[^\n]{0,60}\b(?:decisions?"
        r"|choice"
        r"|plan|strategy|approach|move|switch|rollout|migration|experiment|for us|of it|trial|we)\b)[^\n?]*\?"
        r"|\bhow did (?:the|our|that|those|this) [^\n?]{1,50}? (?:turn out|pan out|work out|go|end up|fare)\b",
    ),
    _cue(
        "searching",
        0.8,
        r"\b(?:what's|what is|whats|what are) (?:our|my) (?:\w+ ){0,3}?(?:decision|policy|rule"
        r"|convention|stance|standard|agreement|position|guideline|strategy|approach)s?\b",
    ),
    _cue("searching", 0.8, r"\b(?:what's|what is|whats|what was|what were|who was|which was)\b.{1,60}?\bagain\?"),
    _cue(
        "searching",
        0.9,
        rf"\b{_SEEK}\b.{{0,50}}?\b(?:decisions?|insights?|lessons? (?:learned|we)|memory"
        rf"|memories)\b(?! (?:as|to|failed|is|was a))",
    ),
    _cue(
        "searching",
        0.9,
        rf"\b{_SEEK}\b.{{0,40}}?\b(?:{_LAST}|our) (?:\w+ )?(?:discussions?|conversations?|chats?"
        rf"|notes?|talks?|reasoning|agreements?|history|records?|findings)\b",
    ),
    _cue(
        "searching",
        0.85,
        rf"\b{_SEEK}\b.{{0,30}}?\b(?:what|why|how|which|when|where) (?:\S+ ){{0,3}}?(?:{_WE}|you) "
        rf"(?:had |have |'ve |\w+ly )?(?:decided|chose|picked|settled|agreed|concluded|went|landed"
        rf"|switched|moved|dropped|abandoned|rejected|left|ditched|said|discussed|noted|planned"
        rf"|learned|solved|handled|dealt|know)\b(?! off)",
    ),
    _cue("searching", 0.6, r"\b(?:find|search|look up|look for|recall|check|pull up|dig up)\b.{0,30}?\bnotes?\b"),
    _cue(
        "searching",
        0.8,
        r"\b(?:do you|can you|you|do we|don't you|u) (?:still )?(?:remember|recall) (?![^\n?]*\?\n(?:let's|lets|it"
        r"|only|well|we|so|and"
        r"|but|now|i'd|mark|turned|turns|that)\b)(?:what|when"
        r"|how|why|which|where|the|our|that|if|my|whether|who|anything|any)\b",
    ),
    _cue(
        "searching",
        0.7,
        r"\b(?:can't|cannot|don't|cant|dont) (?:quite )?(?:remember|recall)\b|\bi (?:forgot|forget"
        r"|'ve forgotten|have forgotten)\b",
    ),
    _cue(
        "searching",
        0.8,
        r"\bremind me (?:again )?(?:what|why|how|which|about|when|who|of (?:our|the))\b(?!.{0,12}"
        r"(?:next steps|we were|i was|left off|open))",
    ),
    _cue(
        "searching",
        0.75,
        r"\bwhat do (?:we|you) (?:know|have|remember|recall)\b.{0,60}?\b(?:from|our|earlier|before"
        r"|previous|notes|memory|sessions?|so far|already)\b|\bwhat do we (?:know|have|remember) "
        r"(?:about|on)\b",
    ),
    _cue("searching", 0.75, r"^(?:please |can you |could you )*recall\b"),
    _cue("searching", 0.75, r"\b(?:previous|past|prior|earlier|recent|old|latest|existing) decisions?\b"),
    _cue(
        "searching",
        0.8,
        r"\bdecisions? (?:\w+ )?(?:from|since|in the last|of the last|made|about|on|so far"
        r"|this week|last)\b.*\?|\bdecision (?:history|log|trail)\b|\bhistory of (?:the |our )?"
        r"(?:\S+ ){0,3}?decisions?\b",
    ),
    _cue(
        "searching", 0.7, r"\b(?:in|from|of|through|search) (?:your|our|the|my) (?:memory|memories|notes|knowledge)\b"
    ),
    _cue(
        "searching",
        0.75,
        rf"\b(?:things?|stuff|everything|anything|all|choices|what(?:ever)?|points|latest) "
        rf"(?:that )?{_WE} (?:\w+ly |had |have |'ve |ever )?(?:decided|agreed|settled|concluded"
        rf"|discussed|said|noted|saved|recorded|wrote|learned|talked|chose)\b",
    ),
    _cue(
        "searching",
        0.72,
        r"\b(?:story|reasons?|reasoning|rationale|background|thinking|motivation|argument|logic"
        r"|thought process|why) (?:behind|for|of|on)\b.{0,40}?\b(?:us|our|we|decision|choosing"
        r"|choice|picking|dropping|leaving|splitting|moving|switching|using|going|adopting"
        r"|removing|rejecting)\b",
    ),
    _cue(
        "searching",
        0.72,
        r"\b(?:anything|everything|something|all|whatever)\b[^\n]{0,40}?\b(?:that )?(?:we|i) (?:\w+ly |had |have "
        r"|'ve |ever )?"
        r"(?:decided|agreed|settled|concluded|discussed|noted|saved|recorded|wrote down|learned|learnt|stored|kept)\b",
    ),
    _cue(
        "searching",
        0.65,
        r"\b(?:did|has|had|have) (?:anyone|anybody|someone|somebody|the team|one of us|any of us) (?:\w+ )?(?:ever "
        r"|already )?"
        r"(?:look(?:ed)?|tr(?:y|ied)|consider(?:ed)?|evaluate[d]?|propose[d]?|suggest(?:ed)?|decide[d]?|discuss(?:ed)?"
        r"|compare[d]?|test(?:ed)?|use[d]?)\b[^\n]{0,60}\b(?:before|already|ever|once|in the past|earlier)\b",
    ),
    _cue(
        "searching",
        0.6,
        r"\b(?:reasoning|rationale|conclusions?|takeaways?|lessons?|learnings|insights?"
        r"|precedents?|memory|memories)\b.*(?:\?|$)(?<!as a lesson)",
        asks=False,
    ),
    _cue(
        "searching",
        0.72,
        r"\bhow (?:has|have|did) (?:our|the) .{1,40}?\b(?:changed?|evolved?|developed?|shift"
        r"(?:ed)?)\b.{0,20}(?:over time|since|so far|\?|$)|\bevolution of (?:the|our)\b",
    ),
    _cue(
        "searching",
        0.75,
        r"\b(?:in|into|through|from|at|check|consult) (?:your|our|the|my|team) (?:\w+ )?(?:notes"
        r"|memory|memories|records?|archive|logbook|history|knowledge base|past)\b|\b(?:in"
        r"|from) (?<! it in )(?<! that in )(?<! this in )memory\b"
        r"|(?<!that )(?<!this )(?<! it )(?<!put )\bon (?:record|file)\b",
    ),
    _cue(
        "searching",
        0.65,
        r"\bwhy (?:is it that |do |don't |did |didn't |are |aren't |were |was )?(?:we"
        r"|our)\b.{0,50}?\b(?:any ?more|any longer|again|instead|in the first place|back then"
        r"|originally|use|using|doing|have|not|chose|went)\b",
    ),
    _cue(
        "searching",
        0.65,
        r"\b(?:you|he|she|they|someone|somebody|we|i) (?:had |once |already |just )?(?:told|said"
        r"|mentioned|suggested|recommended|proposed|warned|explained|brought up|talked|spoke"
        r"|discussed)\b.{0,60}?\b(?:ago|earlier|before|last|once|back then|previously|yesterday"
        r"|the other day)\b",
    ),
    _cue(
        "searching",
        0.75,
        r"\b(?:do|did|don't|didn't) (?:we|you|i) (?:already |still |even |ever )?(?:have|got|keep"
        r"|store|save|record|document|write|note|know)\b.{0,30}?\b(?:decision|policy|rule"
        r"|convention|note|notes|anything|something|agreement|memory|record|guideline|standard"
        r"|info|saved|recorded|stored)s?\b",
    ),
    _cue(
        "searching",
        0.75,
        r"\b(?:was|were|is|are) there (?:\w+ )?(?:any|anything|something|some|a)\b.{0,25}?\b"
        r"(?:decision|policy|rule|convention|note|agreement|memory|record|lesson|insight|guideline"
        r"|discussion|reason|precedent|about|on)s?\b",
    ),
    _cue(
        "searching",
        0.7,
        r"\b(?:anything|something|everything|whatever|what) (?:\w+ ){0,3}?(?:saved|stored|recorded"
        r"|noted|remembered|written down|decided|know|remember|documented|logged)\b.{0,40}?"
        r"(?:\babout|\bon|\bregarding|\bfor|\?|$)",
    ),
    _cue(
        "searching",
        0.6,
        r"\b(?:any|previous|past|prior|earlier|old|existing) (?:\w+ )?(?:decisions?|discussions?"
        r"|notes?|insights?|lessons?|conversations?|memories|thoughts|findings|experience"
        r"|attempts?)\b",
    ),
    _cue(
        "searching",
        0.65,
        r"\b(?:back when|at the time|that time|the last time|last time|the other day|a while "
        r"(?:ago|back)|some time ago|(?:\w+) (?:weeks?|months?|days?) ago)\b.{0,60}\b(?:what|why"
        r"|how|which|who|when|find|remember)\b|\b(?:what|why|how|which|who|when)\b.{0,60}\b"
        r"(?:back when|at the time|the last time|last time|back then|the other day|a while (?:ago"
        r"|back)|(?:\w+) (?:weeks?|months?) ago)\b",
    ),
    _cue(
        "searching",
        0.6,
        r"\brefresh my memory\b|\bwhere (?:is|are|did we (?:write|note|save|document)) (?:\w+ )?"
        r"(?:the |our )?(?:decision|notes?)\b|\bwhat(?:'s| is) (?:known|recorded|saved|stored"
        r"|noted) (?:about|on)\b",
    ),
    _cue(
        "searching",
        0.55,
        r"\b(?:we|i) (?:already |once |definitely |must have |surely )?(?:discussed|talked|spoke"
        r"|decided something|had something)\b.{0,40}?\b(?:before|ago|earlier|once|last|about)\b",
        asks=False,
    ),
)

_TRACKING = (
    _cue(
        "tracking",
        0.8,
        r"\b(?:decision|choice|ruling|strategy) (?:can|could|should|may|must|needs to) (?:now )?be (?:marked|closed"
        r"|flagged|set|recorded)\b"
        r"|\b(?:set|mark|rate|close|flag|grade|score) [^\n]{0,40}?\b(?:decision|choice|ruling|strategy)\b ?(?:to|as|:"
        r"|=)"
        r"|^(?:some |quick |a )?(?:feedback|follow[- ]?up|report|news|update|verdict|conclusion) (?:on|about|for"
        r"|regarding) [^\n:?]{3,60}:",
    ),
    _cue(
        "tracking",
        0.6,
        r"\bso (?:it's |that's |that one's |that is |that one is |it is )?an? (?:\w+ )?(?:win|loss|miss|hit|success"
        r"|failure|fail|flop|keeper)\b"
        r"|\bas (?:planned|we (?:decided|planned|agreed)|you (?:advised|suggested"
        r"|recommended))\b[^\n?]{0,30}?\b(?:held|worked|won|lost|failed|paid)\b"
        r"|^[^\n?:]{3,60} → (?:a )?(?:\w+ )?(?:success|fail\w*|partial)\b",
        asks=False,
    ),
    _cue(
        "tracking",
        0.82,
        r"\b(?:reflect|add|put|note|enter|mention|state|record|write|update|include) (?:this|that|it|so|these \w+"
        r"|those \w+) (?:down )?(?:in|on|to|with"
        r"|under|into) (?:what you (?:stored|saved|have)|(?:the|that|our) (?:decision(?:'s)?(?: history| record"
        r"| entry)?|(?:record|entry|history)"
        r"(?: of)?))(?=\b|[^\w])|\bgive (?:it|that|this|the|our) (?:[\w-]+ ){0,3}?an? (?:◻|partial|success|fail|pass"
        r"|thumbs|failed|minus|plus)"
        r"|\b(?:call|consider|rate|deem|count|declare) (?:it|that|this|them) (?:as |to be )?(?:proven|confirmed"
        r"|validated|vindicated|disproven"
        r"|refuted|dead|done|achieved)\b",
    ),
    _cue(
        "tracking",
        0.56,
        r"\bmixed (?:bag|results?|blessing|success|feelings)\b|\btick (?:it|that|this) off\b"
        r"|\breport(?:ing)? back on\b|\bproved (?:too|to be|not)"
        r" \w+|\b(?:decision|choice) (?:\w+ )?(?:stands|holds|was proven|proved)\b|\bback and forth\b.{0,10}worked",
        asks=False,
    ),
    _cue(
        "tracking",
        0.62,
        rf"^{_TECHNICAL}[^\n?]*?(?:^|[.,;:] |\bit's )(?:a )?(?:\w+ )?(?:success|partial(?: success)?|failure|failed"
        rf"|successful)"
        r"(?: please| pls)?[.!]*$|^(?:outcome|result|verdict|status)s? (?:is |was )?(?:positive|negative|good|bad"
        r"|mixed|great|poor)\b"
        r"|\boutcome (?:positive|negative|good|bad|mixed)\b"
        r"|\bmark (?:accordingly|so|as such|appropriately)\b|\bmark (?:it|that|this) (?:accordingly|that way|as such"
        r"|so)\b"
        r"|\b(?:update|set|change|adjust) (?:it|that|this|the (?:record|entry|status|books|score"
        r"|decision))(?: accordingly)?[.!]?$",
    ),
    _cue(
        "tracking",
        0.55,
        r"\b(?:hurt us|hated it|loved it|love it|likes? it|came back to (?:bite|haunt)|bit us|cost us"
        rf"|helped us|(?:is|was|been|were)"
        r" (?:\w+ )?an? (?:\w+ )?(?:nightmare|blessing|godsend|disaster|dream|pain|relief|catastrophe)|did what (?:it"
        r"|we)"
        r"|broke down|fell apart|holds? up|holding up|no longer works|made no difference)\b"
        rf"{_TECHNICAL}"
        r"|\b(?:would|should|could) have been (?:better|smarter|wiser|cheaper|safer)\b|\b(?:should|shouldn't"
        r"|should not) have (?:gone|chosen"
        r"|picked|used|taken|kept|stayed|listened)\b",
        asks=False,
    ),
    _cue(
        "tracking",
        0.62,
        rf"\b{_CHOICE}s?\b[^\n?]{{0,40}}?(?:: | - |, )?\b(?:it )?(?:really |actually )?(?:works|is working"
        rf"|doesn't work|isn't working"
        r"|is no good|is useless|is great|is brilliant|is terrible|is bad|was bad|is a pain)(?: well| great| fine"
        r"| nicely)?[.!]*$",
        asks=False,
    ),
    _cue(
        "tracking",
        0.82,
        r"\b(?:call|consider|rate|deem|count|declare) (?:it|that|this|them) (?:an? |only "
        r"|as )?(?:\w+ )?(?:partial(?:ly)?|success\w*"
        r"|fail\w*|win|loss|flop|mistake|half)\b|\b(?:note|record|log|mark|put|write|add|hold|count|file|attach|tie"
        r"|link|pin) "
        r"(?:that|this|it|them) (?:down )?(?:against|on|to|under|with|next to) (?:the|that|your|our|my) (?:\w+ ){0,2}?"
        r"(?:advice|decision|choice|recommendation|call|rule|ruling)\b|\b(?:outcome|results?) (?:report|update)\b",
    ),
    _cue(
        "tracking",
        0.5,
        r"\bwe (?:got|were|have been) (?:\w+ly )?(?:crushed|wiped(?: out)?|destroyed|beaten|slaughtered|raided|routed"
        r"|burned|overrun)"
        r"\b|\b(?:you|we) (?:told|advised|suggested|recommended|agreed|decided|said)\b[^\n]{0,60}\b(?:i"
        r"|we) did\b[^\n?]{0,6}$",
        asks=False,
    ),
    _cue(
        "tracking",
        0.6,
        r"^[^\n?:]{3,60}(?:: ?| -> ?| => ?| = ?)(?:a )?(?:\w+ )?(?:success|successful|failure|failed|partial|partly"
        r"|worked"
        r"|flopped)(?=[.!,;]|$)(?<!tests: failed)(?<!build: failed)",
    ),
    _cue(
        "tracking",
        0.88,
        rf"\b(?:mark|flag|tag|label|set|log|record|report|note|register|update|count|put|save"
        rf"|write)\b(?!.{{0,30}}\b(?:test|field|column|request|order|payment|job|row|response|http"
        rf"|button|task status)\b).{{0,60}}?\b(?:as|to|was|is|a|that|it|down|were|did|turned out|:"
        rf"|,) ?(?:a |an |only |done and |been )?(?:\w+ly )?(?:{_RESULT}|no good|didn't work"
        rf"|not work)\b",
    ),
    _cue(
        "tracking",
        0.9,
        r"\b(?:update|set|record|mark|report|note|log|change|add|write|save|enter"
        r"|track)\b.{0,30}?\boutcomes?\b|(?<!was the )(?<!were the )\boutcome (?:is|was|of|for|:|=)|^outcome\b"
        r"|(?<!was )(?<!were )(?<!know )\bthe outcome\b",
    ),
    _cue("tracking", 0.55, r"(?:^|\b(?:please|and|so|then|just|,) )mark (?:it|this|that|them)\b"),
    _cue(
        "tracking",
        0.78,
        rf"\b{_CHOICE}s?\b.{{0,40}}?\b(?:failed|worked|didn't work|did not work|paid off|backfired"
        rf"|succeeded|flopped|bombed|was a (?:\w+ )?(?:failure|success|mistake|disaster|win|bust"
        rf"|hit|flop)|turned out|panned out|pan out|saved us|cost us|is working|works (?:well|great"
        rf"|perfectly|fine)|went (?:well|wrong|badly|great|south)|held up|proved)\b",
        asks=False,
    ),
    _cue(
        "tracking",
        0.75,
        r"\b(?:this|that|it|which|everything|going \S+ \S+|switching \S+ \S+|\S+) (?:is|was|'s"
        r"|turned out(?: to be)?|has been|ended up(?: being)?) (?:such )?(?:an? )(?:\w+ )?"
        r"(?:failure|success|mistake|disaster|win|bust|flop|fail)\b",
        asks=False,
    ),
    _cue(
        "tracking",
        0.6,
        r"\b(?:it|that|this|they) (?:actually |really |totally |finally |all )?(?:worked|failed"
        r"|didn't work|did not work|paid off|backfired|worked out|flopped|succeeded|went (?:well"
        r"|badly|wrong|great))\b",
        asks=False,
    ),
    _cue(
        "tracking",
        0.72,
        r"\b(?:turns out|turned out|in the end|in hindsight|looking back|after all|after \w+ "
        r"(?:days?|weeks?|months?))\b.{0,70}?\b(?:mistake|wrong|right call|good|bad|great|terrible"
        r"|regret|failed|success|worked|perfect|fine)\w*",
        asks=False,
    ),
    _cue(
        "tracking",
        0.85,
        r"\bas (?:a |an )?(?:complete |total |partial |big )?(?:success|successful|succeeded"
        r"|failed|failure|partial|partially successful|win|mistake|not working|unsuccessful)\b"
        r"(?<!test as failed)",
    ),
    _cue(
        "tracking",
        0.8,
        r"\b(?:call|consider|declare|close|close out|count|chalk|rate)\b.{0,50}?\b(?:a |as )"
        r"(?:\w+ )?(?:success|failure|win|loss|failed|successful|mistake|flop)\b",
    ),
    _cue(
        "tracking",
        0.75,
        r"\b(?:results?|outcome|verdict|update) (?:of|on|for|:|was|is)\b.{0,60}?(?:partial|success"
        r"|fail|mixed|worked|good|bad)\w*|^(?:results?|outcome|verdict) ?:",
    ),
    _cue(
        "tracking",
        0.55,
        r"\b(?:the|our|my|that|this|your) (?!(?:\S+ ){0,3}?(?:tests?|build|job|ci|pipeline|upload"
        r"|download|request|login|import|compil\w+|install\w*|query|call|step|check|assertion"
        r"|script|command|connection|action|workflow|hook|function|method|endpoint|api|server"
        r"|container|docker|npm|pip|lint\w*)\b)(?:\S+ ){1,5}?(?:\w+ly |has |have |did |finally "
        r"|just )*(?<!who )(?<!who have )(?<!that )(?<!which )(?:failed|worked(?: out)?|flopped|succeeded|paid off"
        r"|backfired|bombed|tanked"
        r"|broke down|fell apart|saved us)\b",
        asks=False,
    ),
    _cue(
        "tracking",
        0.55,
        r"\b(?:completely|totally|utterly|miserably|horribly|spectacularly) (?:failed|flopped"
        r"|backfired|bombed)\b|\bworked (?:great|perfectly|well|fine|like|wonders|beautifully"
        r"|as planned|as expected|out)\b|\b(?:huge|big|total|complete|great|massive) (?:success"
        r"|failure|fail|flop|win|mistake|disaster)\b|\b(?:did(?:n't| not)) (?:really |actually )?"
        r"(?:work|help|go)(?: out| well| as planned| at all)?\b",
        asks=False,
    ),
    _cue(
        "tracking",
        0.6,
        r"\b(?:bad|good|right|wrong|great|terrible|excellent|awful|poor) (?:call|decision|choice|move|idea)\b",
        asks=False,
    ),
    _cue(
        "tracking",
        0.7,
        r"\b(?:paid off|backfired|(?:didn't|did not|never) (?:pan out|work out|bear fruit|pay off"
        r"|hold up)|worked like a charm)\b",
        asks=False,
    ),
    _cue(
        "tracking",
        0.72,
        r"\b(?:won|lost|survived|held)\b.{0,40}?\b(?:because of|thanks to|due to|with)\b.{0,20}?\b"
        r"(?:decision|plan|strategy|tactic|approach|choice)\b",
        asks=False,
    ),
    _cue(
        "tracking",
        0.7,
        r"\b(?:only )?(?:partially|partly) (?:successful|worked|works|a success|succeeded)\b|\bpartial success\b",
        asks=False,
    ),
)

# To keep a choice or a rule is to decide, to keep a fact is not: it takes a request to keep something and a mark of a
# choice, in either order and in whatever sentences.
_IT = r"(?:that|this|it|these|those|them|both|the above|all (?:that|this|of (?:it|this|that)))"
_KEEP_THAT = (
    rf"(?:\b(?:remember|record|note|save|store|log|keep|document|capture|persist|memori[sz]e|register|file|pin"
    rf"|preserve) "
    rf"{_IT}(?: (?:choice|pick|call))?(?: (?:please|pls|too|as well|somewhere|for (?:later|us|me|the record|next time"
    rf"|good|future \w+|the team)|(?:along |together )?with "
    r"(?:\w+ ){0,4}?(?:reasons?|confidence|rationale|arguments|reasoning)|now|ok(?:ay)?|thanks))*(?=[.,;!:)]|$|\n)"
    rf"|\b(?:write|put|note|jot|take|get|mark|set|log|have|keep) {_IT} (?:\w+ )?(?:down|on (?:the )?(?:record|file"
    rf"|paper)"
    r"|in (?:writing|stone|memory|mind|(?:the|your|our) (?:notes|log|records?|books?|memory))"
    r"|into (?:memory|(?:the|your|our) (?:notes|log|records?|memory))|to memory)\b"
    r"|\b(?:want|like|need|have|get|make sure|should be|must be) (?:this |that |it |it's |this is |that's |all "
    r"|these )*"
    r"(?:kept|recorded|noted|saved|remembered|logged|documented|written down|on (?:record|file))\b"
    r"|\b(?:keep|have) (?:that|this|it) (?:noted|recorded|saved|logged|written)\b"
    r"|\b(?:make|take|leave|add) (?:a|yourself a|me a) (?:\w+ )?note\b|\bfor the record\b|\b(?:keep|bear) in mind\b"
    r"|\b(?:don't|never|do not) forget(?: (?:it|that|this))?(?=[.,;!:)]|$|\n)"
    r"|\bso (?:that )?(?:we|i|you|nobody|no one|everyone) (?:don't|won't|do not|can't|never|doesn't) forgets?\b"
    rf"|\bwrite {_IT} up\b|\b(?:remember|record|note|log|write down|note down)(?: it| this| that)?(?: please)? ?:"
    r"|(?:^|\n|[.,;] )(?:please )?(?:remember|record|note|log|save|store|keep)(?: please)?(?=[.!]?(?:$|\n)))"
)
_CHOOSES = (
    r"(?:\b(?:we|i)(?:'ll| will| won't| shall| go (?:with|for)| are (?:not )?going (?:to|with)"
    r"|'re (?:not )?going (?:to|with)| stick| chose"
    r"| choose| picked| pick| went (?:with|for)| opted| decided| agreed| settled| voted| dropped)\b"
    r"|\b(?:we|i)(?:'ve| have) (?:\w+ )?(?:decided|made up|agreed|chosen|settled|picked|voted)\b"
    r"|\b(?:we're|we are|i'm|i am) (?:\w+ )?(?:going (?:with|for)|dropping|moving|switching|keeping|sticking|staying)\b"
    r"|\b(?:we're|we are|i'm|i am) (?:\w+ly )?\w+ing [^\n.?]{1,40}? (?:now|instead|from (?:now|today|here))\b"
    r"|(?:^|\n)so [\w.+#-]+[.!](?:$|\n)|(?:^|\n)(?:that's |this is )?final[.!]|\b(?:we|i) don't want to (?:have"
    r"|discuss|go through)"
    r"|\bmy (?:pick|choice|decision|call) is\b|\bthe answer is (?:no|yes)\b|\bafter all (?:that|this|the)\b"
    r"|\b(?:settled|decided) then\b"
    r"|\blet's (?:go|use|keep|leave|make|build|set|limit|stick|drop|switch|take|do|adopt|make it|have|not|never"
    r"|always)\b|\bgoing (?:with|for)\b"
    r"|\b(?:from (?:now|here|today) on|going forward|as of (?:now|today)|starting (?:now|today|next \w+)|henceforth)\b"
    r"|\b(?:instead of|rather than|in favou?r of|no more)\b|\boff the table\b|\b(?:is|are) (?:now |hereby )?"
    r"(?:banned|forbidden|capped|limited|mandatory|required|frozen|settled|decided|final|agreed|not allowed"
    r"|the (?:standard|default|rule|way|choice|winner|one))\b|\b(?:the|our|new|house|team) (?:rule|policy|convention"
    r"|standard|default|choice|decision|verdict|consensus|agreement)\b|\b(?:council|team|board|group|guild|everyone"
    r"|everybody|we all|lead|boss|client|management|committee|architects?) (?:\w+ )?(?:voted|agreed|decided|approved"
    r"|chose|picked|settled)\b|\b(?:becomes|wins?|it is|it'll be|that's decided|that's settled|done debating"
    r"|let it be known|my vote)\b"
    r"|, then[.!])"
)
_RULES = (
    r"(?:\b(?:must|always|never|no \w+ without|at most|by default|ruled? out|not allowed|don't|do not|nobody|every"
    r"|all|any new)\b|\b(?:we|i) (?:use|keep|want|don't|do not|no longer|only|always|never|stay|deploy|write|name|call"
    r"|need)\b|\bno (?!longer|one\b|need|idea|problem)[\w-]+(?: [\w-]+)?[,.;:]|\b(?:because|since|reason|reasons"
    r"|due to)\b"
    r"|\b[\w.+#-]+ (?:over|not|for) (?:the |our )?[\w.+#-]+)"
)
_RESULTS = (
    r"(?:outcomes?|results?|success\w*|failed|failures?|marked|mistake|worked|paid off|backfired|turned out"
    r"|(?:didn't|did not) work|lessons?|insights?|checkpoint|where we are|did we|have we)"
)
_KEEPING = (
    _cue(
        "deciding",
        0.82,
        rf"{_CHOOSES}(?!(?:.|\n){{0,400}}?\b{_RESULTS}\b)(?=(?:.|\n){{0,400}}?{_KEEP_THAT})",
    ),
    _cue(
        "deciding",
        0.82,
        rf"{_KEEP_THAT}(?!(?:.|\n){{0,300}}?\b{_RESULTS}\b)(?=(?:.|\n){{0,300}}?{_CHOOSES})",
    ),
    _cue(
        "deciding",
        0.82,
        r"\b(?:record|log|write down|note down|document|save|store)(?: (?:this|that|it|the following|as (?:a )?\w+))?"
        rf"(?: please)? ?:(?!(?:.|\n){{0,300}}?\b{_RESULTS}\b)(?=(?:.|\n){{0,300}}?{_RULES})",
    ),
    _cue(
        "deciding",
        0.8,
        r"\b(?:note|remember|record|log|write down|keep in mind|don't forget|memori[sz]e|save|store|make a note) that "
        rf"(?=[^\n]{{0,80}}?{_CHOOSES})(?!(?:.|\n){{0,300}}?\b{_RESULTS}\b)",
    ),
    _cue(
        "deciding",
        0.85,
        r"\b(?:record|note|save|log|store|put|register|write|keep|enter|document|make|set"
        r"|mark) (?:down )?(?:\S+ ){0,6}?"
        r"(?:down )?as (?:(?:the|our|a|my|agreed) )?(?:\w+ )?(?:choice|decision|pick|default|standard|rule|way to go"
        r"|winner"
        r"|policy|convention|final|agreed|settled|decided)\b",
    ),
)

_OTHERS = (
    # Checkpoints and insights are written in no context: they must not be hidden where they are asked for.
    _cue(
        OTHER,
        0.9,
        r"\b(?:save|create|make|write|take|store|set|do|drop)\b(?! (?:the |a |this |that "
        r"|our )?decision).{0,30}?\b(?:checkpoint|our progress|my progress|the progress|progress"
        r"|session|current state|our state|where we are|where i am|snapshot)\b",
    ),
    _cue(
        OTHER,
        0.9,
        r"\bwrap(?:ping)? (?:it |this |things )?up\b|\b(?:that's|thats|that is) (?:it|all"
        r"|enough) for (?:today|now|tonight)\b|\bcall it a (?:day|night)\b|\b(?:sign|log|signing"
        r"|logging)(?:ing)? off\b|\bdone for (?:today|the day|now)\b|\b(?:stop|stopping|pause"
        r"|pausing) here\b|\b(?:have|need|got) to (?:go|leave|run)\b|\bgotta go\b|\bhand ?over\b"
        r"|\bcontinue (?:this )?(?:tomorrow|later|on monday|next week)\b",
    ),
    _cue(
        OTHER,
        0.9,
        r"(?:^|[,;:] |\b(?:please|and|also|pls|then|so|just|ok|should|must|to) )(?:remember"
        r"|keep in mind|bear in mind|memori[sz]e|don't forget|never forget)\b(?! (?:the |this "
        r"|that |our )?decision)(?! (?:what|when|how|why|which|where|if|who)\b)(?! (?:the|that|our|those"
        r"|when)\b[^\n?!.]*\?)",
    ),
    _cue(
        OTHER,
        0.9,
        r"\b(?:note|make a note|take a note|note to self|fyi|jot|for the record)\b(?= (?:that|for"
        r"|this|down|:)|:)|\blessons?(?: we| i)? learn(?:ed|t)\b|\b(?:save|store|record|write|keep"
        r"|add|log) .{0,25}?\b(?:insight|lesson|learning|finding|fact|takeaway)s?\b|\b(?:save"
        r"|store|keep|put) (?:this|that|it) (?:in|to) memory\b",
    ),
    _cue(
        OTHER,
        0.2,
        rf"(?:^|[,;:] |\b(?:please|and|also|pls|then|now|just|can you|could you|you|to|go|let's"
        rf"|lets|so|me|must|should) )(?:{_ORDINARY})\b",
    ),
)

# Verdicts, rules, returns and results by the form of the sentence.
_BY_FORM = (
    _cue(
        None,
        1,
        r"^(?:since|as|because|now that) [^\n,]{3,60}? (?:was|is|were) (?:a |an )?(?:\w+ )?(?:success\w*|failure"
        r"|mistake)\b[^\n]*"
        r"|\bbefore i forget\b|\b(?:attached|pasted|below|following|these) (?:\w+ )?notes?\b"
        r"|\b(?:no need to|needn't|you don't have to|don't) remember (?:any|this|that|it)\b"
        r"|\bworked (?:fine|well|ok)[^\n,.]{0,6}so ignore\b"
        r"|\bmy (?:login|password|order|payment|account|card|upload|phone|laptop) (?:has |have )?failed\b",
    ),
    _cue(
        "deciding",
        0.64,
        r"\bhere's (?:the|my|our) (?:call|decision|verdict|ruling)\b|\ba decision ?:|\bfull stop[.!]|\badr please\b"
        r"|\bno longer stands\b|\bsigned off on (?:it|that|this)\b|\bby agreement with\b|\bdone deal\b"
        r"|\b(?:policy|rule) change ?:|\bwe are not (?:doing|using|going|taking|building|adopting)\b|\bno going back\b"
        r"|(?:^|[,.] )sold[.!,]|\bgone back and forth\b|\bthat's what we(?:'ll)? (?:do|use|take)\b|\bis what we"
        r" do[.!]?$"
        r"|\bmake it so\b|\bplan of record\b|\bends (?:today|now|here)\b|\b(?:that's|it's|this is) (?:a|our) (?:\w+ )?"
        r"decision\b(?! (?:tree|we))|(?:^|[,;:] )[\w.+#-]+(?: [\w.+#-]+)? it is,? then\b"
        r"|(?:^|[.!] )(?!(?:ok|okay|so|well|now|right|fine|yes|no|what|later|bye|until|see|good|thanks|back|just)\b)"
        r"[\w+#-]+(?: [\w+#-]+)?, then[.!]$|\bsay(?:ing)? (?:no|yes) to\b(?![^\n]*\?)|\bdecision time\b",
    ),
    _cue(
        "deciding",
        0.6,
        r"\b(?:we|team|guild|board|officers|council|committee|everyone)(?:'ve| have| has)? (?:all |now |just )?"
        r"(?:chosen|voted|picked|opted|standardi[sz]e on|stay (?:on|with|at)|reverse (?:the|our)|cut scope|stick (?:to"
        r"|with))\b(?! (?:yesterday|last))(?![^\n]*\?)|\bwe're using\b[^\n?]*(?: for | now\b| from )"
        r"|\bagreed with (?:everyone|the|all|them|her|him)\b|\bi (?:say|vote) (?:no|yes|we)\b"
        r"|\bthe [^\n?,]{1,30} (?:stays|remains|becomes) (?:the|at|with|on|off)\b",
        asks=False,
    ),
    _cue(
        "deciding",
        0.76,
        r"\b(?:never ?mind|forget|ignore|scratch|disregard|scrap) (?:about )?what (?:i|we|you) (?:\w+ )?(?:said|agreed"
        r"|decided|planned|wrote|told)\b[^\n]*?[,.:;-][^\n]*\b(?:is|are|it's|goes|go|use|we|stays?|gets?|now)\b",
    ),
    _cue(
        "deciding",
        0.75,
        r"\b(?:this|that|it|which) (?:supersedes|replaces|overrides|overrules) (?:what|the|our|my|that|all)\b"
        r"|\breplace that (?:choice|rule|decision|policy|agreement)\b|\b(?:scratch|scrap|strike|reverse|lift|abolish"
        r"|end"
        r"|undo) (?:the|our|that) [^\n,.?]{0,40}\b(?:rule|policy|ban|convention|decision)\b"
        r"|\bno longer (?:want|use|need|do|take) [^\n?]{1,50}\b(?:we|i) (?:chose|picked|decided|agreed)\b",
    ),
    _cue(
        "deciding",
        0.62,
        r"^(?:please )?(?:drop|ditch|scrap|lose|kill|no more|don't use|instead of)\b [^\n?]{1,50},? "
        r"(?:[^\n?]{1,40} instead\b|we (?:use|standardi[sz]e|go|take|defend|do)\b|let's)"
        r"|^(?:going forward|from now on|henceforth|as of (?:now|today)|from today),? [^\n?]{4,}$"
        r"|^no more [^\n?]{2,50}[.!]$|\bcommit to (?:the|a|our) [^\n?]{2,40}, ",
    ),
    # To remember a fact is no decision, to remember a rule is one.
    _cue(
        "deciding",
        0.64,
        r"(?:(?:^|[,;:] |\b(?:please|and|also|pls|then|so|just|ok|should|must|to) )(?:remember|keep in mind"
        r"|bear in mind|memori[sz]e|don't forget|never forget)|\bnote\b(?= (?:that|for|this|down|:)|:)|\bcommit to"
        r" memory"
        r"|\bso you know\b[^\n,]{0,20},)(?! (?:what|when|how|why|which|where|if|who)\b)(?=(?:.|\n){0,160}?"
        r"\b(?:always|never|no \w+, ever|off limits|(?:is|are) (?:the|our) (?:minimum|maximum|limit|default|rule)|at"
        r" most"
        r"|at least|must|not (?:the|to be)|only (?:on|in|after|by|with|for|when)|all later|from now|forbidden|allowed"
        r"|(?:keep|get)s? (?:their|the (?:old|same)|its)|no longer|until the)\b)(?![^\n]*\?)",
    ),
    _cue(
        "resuming",
        0.66,
        r"(?:^|[,.;!:] )(?:let's |now |please |just )*(?:resume|continue|carry on|keep going|press on)(?: plz| pls|"
        r" please"
        r"| now| then| here)?[.!]*$|\bon with (?:yester|it\b|last|mon|tues|wednes|thurs|fri|satur|sun)|\bas (?:you"
        r"|we) were"
        r"(?=[.!,]|$)|\b(?:unpause|un-pause)\b|\btake up the thread\b|\bnew session, |\b(?:let's|lets|shall we|can we"
        r"|want to|time to) (?:now )?finish (?:it|that|this|them|what|the rest|up)\b|\b(?:got|only|are|were) half"
        r" ?way\b"
        r"|\bwe never finished\b|\bnext (?:item|step|task|point|one|thing)? ?on (?:our|my) (?:list|plan|agenda)\b"
        r"|\bload (?:it|that)\b(?=[^\n]*\b(?:steps?|open|next|where)\b)|\b(?:half|part|rest) (?:of it )?today\b",
    ),
    _cue(
        "resuming",
        0.86,
        r"\bwhat state (?:did|had|have) (?:we|i) (?:leave|left)\b|\bhow far (?:the|our|my|did the|had the)"
        r" [^\n?]{1,30}? "
        r"(?:had |has |have )?(?:got|gotten|get|come|progressed)\b|\bpick (?:\w+ ){1,4}up again\b|\bwhere did (?:we"
        r"|i) leave "
        r"off\b[^\n?]*|\bwhere it broke off\b|\bthe step (?:we'd|we had|we) reached\b",
    ),
    _cue(
        "searching",
        0.72,
        r"\b(?:has|have|was|were) (?:the|this|that|our) [^\n?]{1,50}? (?:been )?(?:decided|settled|agreed on|chosen"
        r"|resolved)\b|\bany (?:earlier|previous|prior|past) (?!sessions?\b)[^\n]{3,80}\?|\bpreviously (?:chosen"
        r"|decided"
        r"|agreed|discussed|picked)\b|\bwhat (?:made|led|caused|drove|convinced|prompted) us\b|\bwhat (?:was|is|lay)"
        r" behind"
        r"\b|\banything (?:from|in) (?:previous|earlier|past|our|the last|older) |\bwhat (?:came|became) (?:out )?of"
        r" (?:it"
        r"|that|this|the)\b|\bdid (?:we|i) (?:really|actually|ever|officially|formally) \w+|\bthe history of (?:our"
        r"|why|the [^\n]{1,30} (?:choice|decision|rule|policy))\b|\bdo we have a (?:stance|position|view|rule|line)\b"
        r"|\bwas it [^\n?]{1,20} or [^\n?]{1,24}\?|\bwhat(?:'s| is) the story behind\b|\bdid (?:anybody|anyone"
        r"|somebody) (?:object|complain"
        r"|disagree|argue|protest)\b|\bwhat were we thinking\b|\b(?:past|earlier|previous) (?:failures|successes"
        r"|attempts)\b"
        r"|\b(?:has|have) (?:the|our) [^\n?]{1,20} ever \w+ed\b|\bhow did (?:that|it|this) (?:go|end|turn out)\b",
    ),
    _cue(
        "searching",
        0.86,
        r"\bhow (?:many times|often) (?:have|did) (?:we|i)\b[^\n?]*|\b(?:trace|show me|tell me) how our [^\n]{1,40} "
        r"(?:changed|evolved)\b[^\n]*|\bhow was (?:the|this|that|our) [^\n?]{1,60} (?:solved|handled|fixed|decided"
        r"|resolved"
        r")\b[^\n?]*\b(?:last|before|previous|earlier)\b",
    ),
    _cue(
        "tracking",
        0.88,
        r"\b(?:record|note|log|write down|save|put down) how (?:the|our|that|it|this) ?[^\n?]{0,40}? (?:went|turned out"
        r"|worked out|did)\b|\b(?:register|report|store|keep) (?:how|that verdict|the verdict)\b[^\n,.]*|\bupdate its"
        r" status\b|\bnote (?:the )?result\b"
        r"|\badd this as (?:the|its|a) (?:result|outcome)\b|\bstatus of that one to\b|\bevolve[ _/]?outcome\b|\bput"
        r" (?:a |an |down )?(?:\w+ )?(?:success|partial|failed|failure"
        r"|fail) (?:on|to|for|next to|against)\b|\bmark (?:it|that|this|them)(?: down)? (?:as )?(?:good|bad|positive"
        r"|negative|proven|confirmed)\b|\b(?:change|update|set) (?:the |that |our )?(?:status of (?:the|that|our)"
        r" [^\n,.?]{0,20}"
        r"decision|decision's status)\b[^\n]*|\b(?:attach|add) (?:this|that|it) to (?:it|the decision|that decision)\b",
    ),
    _cue(
        "tracking",
        0.82,
        r"\b(?:decision|choice|call|switch|move|idea|approach|rule|plan) (?:to|of|about|on|that|we) [^\n?,.;]{1,60}?"
        r" (?:turned"
        r" out|(?:has |have )?(?:earned|paid|failed|worked|backfired|proven|proved|held up)|was (?:right|wrong"
        r"|correct|a"
        r" mistake)|didn't (?:help|work|hold)|caused no (?:trouble|problems?))\b|\bthis (?:decision|choice|call)"
        r" (?:was|is)"
        r" (?:right|wrong|correct)\b|\b(?:decision|choice) has (?:results|proven|earned|paid|held|failed|worked)\b",
    ),
    _cue(
        "tracking",
        0.6,
        r"^[^\n?:]{3,60}(?:: ?| -> ?| => ?| ?= ?)(?:a )?(?:\w+ )?(?:fail|flop|win|mistake|loss)(?=[.!,;]|$)"
        r"|\b(?:earned its keep|(?:has )?proven itself|caused no (?:trouble|problems?)|nothing broke (?:after|since)"
        r"|the numbers are (?:solid|good|bad|great))\b",
        asks=False,
    ),
)

ENGLISH_CUES: Final[tuple[Cue, ...]] = (
    *_MASKS,
    *_BY_FORM,
    *_GENERAL,
    *_RESUMING,
    *_DECIDING,
    *_SEARCHING,
    *_TRACKING,
    *_KEEPING,
    *_OTHERS,
)
