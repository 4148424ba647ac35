"""Families whose calls are plain JSON between markers of their own; see ``json_frames``."""

from __future__ import annotations

from typing import ClassVar

from environments.tool_call_parsers.base import CallStatus, Scan, Thinking
from environments.tool_call_parsers.frames import Frame
from environments.tool_call_parsers.hermes_parser import HermesParser
from environments.tool_call_parsers.json_calls import JSONCall, NotACall, read_arguments
from environments.tool_call_parsers.json_frames import JSONFrameParser
from environments.tool_call_parsers.json_scan import NotJSON, read_object, skip_blanks


class Granite4Parser(HermesParser):
    """Granite 4: Hermes under another stop token."""

    stop_texts = ("<|end_of_text|>",)


class Exaone4Parser(HermesParser):
    """EXAONE 4: Hermes under another stop token."""

    stop_texts = ("[|endofturn|]",)


class GraniteParser(JSONFrameParser):
    """Granite 3: a list behind ``<|tool_call|>``; some checkpoints write ``<tool_call>``."""

    frame = Frame(("<|tool_call|>", "<tool_call>"))
    opening = frame.pattern
    markers = frame.marks
    in_list = True


class GraniteFunctionCallingParser(JSONFrameParser):
    """Granite 20B function calling: ``<function_call>`` before each object."""

    frame = Frame(("<function_call>",))
    opening = frame.pattern
    markers = frame.marks
    in_list = False


class Phi4MiniParser(JSONFrameParser):
    """Phi-4 mini: ``functools`` and a list. The marker is a word like others: a list of calls shows it."""

    frame = Frame(("functools",))
    opening = frame.pattern
    markers = frame.marks
    in_list = True
    stop_texts = ("<|end|>", "<|endoftext|>")

    def may_be_calls(self, text: str, body: int) -> bool:
        """Whether a list of objects begins, or may."""
        first = skip_blanks(text, body + 1)
        return text.startswith("[", body) and (first == len(text) or text[first] == "{")


class JambaParser(JSONFrameParser):
    """Jamba 1.5 and Hunyuan A13B: a list between ``<tool_calls>`` tags."""

    frame = Frame(("<tool_calls>",), "</tool_calls>")
    opening = frame.pattern
    markers = frame.marks
    stop_texts = (*JSONFrameParser.stop_texts, "<|eos|>", "<|eom|>")


class NemotronParser(JSONFrameParser):
    """Llama-Nemotron and Nemotron Nano 2: a list between ``<TOOLCALL>`` tags."""

    frame = Frame(("<TOOLCALL>",), "</TOOLCALL>")
    opening = frame.pattern
    markers = frame.marks
    stop_texts = (*JSONFrameParser.stop_texts, "<SPECIAL_12>", "<|eot_id|>")


class InternLMParser(JSONFrameParser):
    """InternLM 2.5 and Intern-S1: ``<|action_start|><|plugin|>`` before each object."""

    frame = Frame(("<|action_start|><|plugin|>", "<|action_start|> <|plugin|>"), "<|action_end|>")
    opening = frame.pattern
    markers = frame.marks
    in_list = False


class GigaChatParser(JSONFrameParser):
    """GigaChat 3: one object behind a marker, or in a message of the role ``function call``."""

    frame = Frame(("<|function_call|>", "<|message_sep|>\n\nfunction call<|role_sep|>\n"))
    opening = frame.pattern
    markers = frame.marks
    in_list = False
    stop_texts = ("<|message_sep|>\n\n", "<|message_sep|>", "</s>")


class CohereParser(JSONFrameParser):
    """Command A: a list between ``<|START_ACTION|>`` markers, with names of its own for the members."""

    frame = Frame(("<|START_ACTION|>",), "<|END_ACTION|>")
    opening = frame.pattern
    markers = frame.marks
    name_key, argument_keys = "tool_name", ("parameters",)
    thinking = Thinking("<|START_THINKING|>", "<|END_THINKING|>")
    stop_texts = ("<|END_OF_TURN_TOKEN|>",)


class ApertusParser(JSONFrameParser):
    """Apertus: ``<|tools_prefix|>[{name: arguments}, ...]<|tools_suffix|>``."""

    frame = Frame(("<|tools_prefix|>",), "<|tools_suffix|>")
    opening = frame.pattern
    markers = frame.marks
    thinking = Thinking("<|inner_prefix|>", "<|inner_suffix|>")
    stop_texts = ("<|assistant_end|>", "</s>")

    def read_call(self, text: str, position: int) -> JSONCall:
        """The name is the only key of the object."""
        try:
            found = read_object(text, position)
        except NotJSON as problem:
            raise NotACall.invalid_json(problem, text, position) from None
        wrong = NotACall(
            CallStatus.MALFORMED, "expecting one name with its arguments", resume=found.end, reach=found.end
        )
        if len(found.members) != 1:
            raise wrong
        name, values = next(iter(found.members.items()))
        if not name.strip() or not isinstance(values, dict):
            raise wrong
        arguments, values, _ = read_arguments(found.raw[name], 0, name)
        return JSONCall(name, arguments, values, found.end)


class Ernie45Parser(HermesParser):
    """ERNIE 4.5: Hermes, with the content between ``<response>`` tags."""

    _response: ClassVar[tuple[str, ...]] = ("<response>", "</response>")
    opening = Frame((HermesParser.tag_open, *_response)).pattern
    stop_texts = ("</s>", "<|end_of_sentence|>")

    def read(self, scan: Scan, start: int) -> int:
        """A block of Hermes, or a tag around the content, which is none of it."""
        for tag in self._response:
            if scan.text.startswith(tag, start):
                end = skip_blanks(scan.text, start + len(tag))
                scan.drop(start, end)
                return end
        return super().read(scan, start)
