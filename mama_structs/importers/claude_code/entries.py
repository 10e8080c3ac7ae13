"""
Parser of the entries of Claude Code transcripts.

Each line of a transcript is an entry. Only entries of the types ``user`` and ``assistant`` belong to the conversation.
Claude Code also writes tool results, outputs of commands and its own notices as ``user`` entries.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

PROMPT: Final = "prompt"
COMMAND: Final = "command"
ANSWER: Final = "answer"
SUMMARY: Final = "summary"
TOOL_CALLS: Final = "tool calls"
TOOL_RESULTS: Final = "tool results"
THINKING: Final = "thinking"
COMMANDS: Final = "commands"
NOTICES: Final = "notices"
SUBAGENTS: Final = "subagent entries"
TITLES: Final = "titles"
OTHER_ENTRIES: Final = "other entries"

TITLE_TYPES: Final = frozenset({"summary", "ai-title", "custom-title"})
HUMAN_ORIGINS: Final = frozenset({"human", "person"})
# Claude Code writes this model into messages that no model has sent, such as API errors.
NO_MODEL: Final = "<synthetic>"
COMMAND_NAME_TAG: Final = "command-name"
COMMAND_ARGUMENTS_TAG: Final = "command-args"
OUTPUT_TAGS: Final = ("local-command-stdout", "local-command-stderr", "bash-input", "bash-stdout", "bash-stderr")
# Claude Code adds blocks with these tags to prompts.
NOTICE_TAGS: Final = (
    "system-reminder",
    "local-command-caveat",
    "command-message",
    "ide_opened_file",
    "ide_selection",
    "task-notification",
    "teammate-message",
    "user-prompt-submit-hook",
    "session-start-hook",
    "tick",
)
NOTICE_START: Final = re.compile(rf"<({'|'.join(NOTICE_TAGS)})[\s>]")
INTERRUPTED: Final = re.compile(r"\[Request interrupted by user[^\]]*\]$")
SUMMARY_START: Final = re.compile(r"^Summary:\s*$", re.MULTILINE)
# Claude Code appends instructions for the model to a summary. They must not be recalled in other conversations.
SUMMARY_END: Final = re.compile(
    r"^(?:If you need specific details from before compaction|Please continue the conversation from where"
    r"|Continue the conversation from where)",
    re.MULTILINE,
)


class Part(NamedTuple):
    """A content block of a message, or another entry: its kind, and its text if an import can use it."""

    kind: str
    text: str = ""


def parse_entry(entry: Mapping[str, Any]) -> list[Part]:
    """Return the parts of an entry: the content blocks of a message of the conversation, otherwise one part."""
    kind = str(entry.get("type"))
    # A subagent answers the main agent instead of the user.
    if entry.get("isSidechain") is True or "agentId" in entry:
        return [Part(SUBAGENTS)]
    if kind in TITLE_TYPES:
        return [Part(TITLES)]
    parsers = {"user": _parse_user_entry, "assistant": _parse_assistant_entry, "attachment": _parse_attachment}
    return parsers[kind](entry) if kind in parsers else [Part(OTHER_ENTRIES)]


def _parse_user_entry(entry: Mapping[str, Any]) -> list[Part]:
    content = _get_mapping(entry, "message").get("content")
    if entry.get("isCompactSummary") is True:
        return [Part(SUMMARY, _cut_summary("\n".join(_iter_texts(content))))]
    is_notice = entry.get("isVisibleInTranscriptOnly") is True or entry.get("promptSource") == "system"
    return [Part(NOTICES)] if is_notice or not _is_human(entry) else _parse_blocks(content, is_user=True)


def _parse_assistant_entry(entry: Mapping[str, Any]) -> list[Part]:
    message = _get_mapping(entry, "message")
    if entry.get("isApiErrorMessage") is True or message.get("model") == NO_MODEL:
        return [Part(NOTICES)]
    return _parse_blocks(message.get("content"), is_user=False)


def _parse_attachment(entry: Mapping[str, Any]) -> list[Part]:
    attachment = _get_mapping(entry, "attachment")
    # The user sends a queued command, which may be a prompt, while the assistant is working.
    if attachment.get("type") != "queued_command":
        return [Part(OTHER_ENTRIES)]
    if attachment.get("commandMode", "prompt") != "prompt" or not _is_human(attachment):
        return [Part(NOTICES)]
    return _parse_blocks(attachment.get("prompt"), is_user=True)


def _get_mapping(entry: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = entry.get(name)
    return value if isinstance(value, Mapping) else {}


def _is_human(entry: Mapping[str, Any]) -> bool:
    """Return True if a person wrote the text of an entry. Older versions do not write an origin."""
    origin = entry.get("origin")
    is_marked = entry.get("isMeta") is True
    return not is_marked and (not isinstance(origin, Mapping) or str(origin.get("kind")) in HUMAN_ORIGINS)


def _iter_texts(content: Any) -> Iterator[str]:
    for block in [content] if isinstance(content, str) else content if isinstance(content, list) else ():
        text = block if isinstance(block, str) else block.get("text") if isinstance(block, Mapping) else None
        if isinstance(text, str):
            yield text


def _parse_blocks(content: Any, *, is_user: bool) -> list[Part]:
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list) or not content:
        return [Part(OTHER_ENTRIES)]
    return [_parse_block(block if isinstance(block, Mapping) else {}, is_user=is_user) for block in content]


def _parse_block(block: Mapping[str, Any], *, is_user: bool) -> Part:
    kind, text = str(block.get("type")), block.get("text")
    if kind == "text" and isinstance(text, str) and text.strip():
        return _parse_prompt(text) if is_user else Part(ANSWER, text.strip())
    if kind.endswith("tool_result"):
        return Part(TOOL_RESULTS)
    if kind.endswith("tool_use") and not is_user:
        return Part(TOOL_CALLS)
    return Part(THINKING if kind.endswith("thinking") and not is_user else OTHER_ENTRIES)


def _parse_prompt(text: str) -> Part:
    name = _find_tag(text, COMMAND_NAME_TAG)
    if name is not None:
        return Part(COMMAND, f"{name} {_find_tag(text, COMMAND_ARGUMENTS_TAG) or ''}".strip())
    if text.lstrip().startswith(tuple(f"<{tag}>" for tag in OUTPUT_TAGS)):
        return Part(COMMANDS)
    own = _remove_notices(text).strip()
    return Part(PROMPT, own) if own and not INTERRUPTED.match(own) else Part(NOTICES)


def _find_tag(text: str, tag: str) -> str | None:
    """Return the text in the first element with a tag."""
    start = text.find(f"<{tag}>")
    end = text.find(f"</{tag}>", start)
    return None if start < 0 or end < 0 else text[start + len(tag) + 2 : end].strip()


def _remove_notices(text: str) -> str:
    """Remove the blocks with `NOTICE_TAGS`. Takes linear time."""
    kept, end = [], 0
    unclosed: set[str] = set()
    for match in NOTICE_START.finditer(text):
        tag = match[1]
        if match.start() < end or tag in unclosed:
            continue
        close = text.find(f"</{tag}>", match.end())
        if close < 0:
            unclosed.add(tag)
            continue
        kept.append(text[end : match.start()])
        end = close + len(tag) + 3
    return "".join([*kept, text[end:]])


def _cut_summary(text: str) -> str:
    """Return a summary without the analysis before it and the instructions after it."""
    text = _remove_notices(text)
    start = SUMMARY_START.search(text)
    text = text[start.end() :] if start else text
    end = SUMMARY_END.search(text)
    return (text[: end.start()] if end else text).strip()
