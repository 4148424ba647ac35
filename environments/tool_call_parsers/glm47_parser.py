"""The format of GLM 4.7: that of GLM 4.5, written without line breaks between the tags."""

from __future__ import annotations

from environments.tool_call_parsers.glm45_parser import Glm45Parser


class Glm47Parser(Glm45Parser):
    """Reads the calls of GLM 4.7; line breaks between tags mean nothing in either format."""
