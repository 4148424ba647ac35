"""The format of DeepSeek V3.1: the name and bare JSON, between the tokens of DeepSeek V3."""

from __future__ import annotations

from environments.tool_call_parsers.base import CallStatus, Scan
from environments.tool_call_parsers.deepseek_v3_parser import DeepseekFrame
from environments.tool_call_parsers.json_calls import NotACall
from environments.tool_call_parsers.json_scan import skip_blanks


class DeepseekV31Parser(DeepseekFrame):
    """Reads calls with the name before the separator and the arguments after it."""

    def read_header(self, scan: Scan, position: int) -> tuple[str, str | None, int]:
        """The name."""
        name, after = self.before_separator(scan, position)
        if not name or any(character in name for character in "\n{"):
            raise NotACall(CallStatus.MISSING_NAME, "it has no name", resume=after, reach=after)
        return name, None, skip_blanks(scan.text, after)
