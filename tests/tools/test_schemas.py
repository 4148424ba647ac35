"""Names and parameters of the tools are those that models were trained on."""

from __future__ import annotations

from typing import Any

import pytest

from environments.tools.registry import all_tools

EXPECTED: dict[str, dict[str, Any]] = {
    "browser_back": {},
    "browser_cdp": {
        "method": "string!",
        "params": "object",
        "target_id": "string",
        "frame_id": "string",
        "timeout": 30,
    },
    "browser_click": {"ref": "string!"},
    "browser_console": {"clear": False, "expression": "string"},
    "browser_dialog": {"action": ["accept", "dismiss"], "dialog_id": "string", "prompt_text": "string"},
    "browser_get_images": {},
    "browser_navigate": {"url": "string!"},
    "browser_press": {"key": "string!"},
    "browser_scroll": {"direction": ["up", "down"]},
    "browser_snapshot": {"full": False},
    "browser_vision": {"question": "string!", "annotate": False},
    "browser_type": {"ref": "string!", "text": "string!"},
    "web_extract": {"urls": "array!", "char_limit": "integer"},
    "web_search": {"query": "string!", "limit": 5},
}


@pytest.mark.parametrize("name", EXPECTED)
def test_parameters(name: str) -> None:
    parameters = all_tools()[name].parameters
    properties, required = parameters["properties"], parameters["required"]
    shown: dict[str, Any] = {}
    for key, schema in properties.items():
        kind = schema["type"] + ("!" if key in required else "")
        shown[key] = schema.get("enum", schema.get("default", kind))
    assert shown == EXPECTED[name]
    enums = {key for key, schema in properties.items() if "enum" in schema}
    assert enums <= set(required)
