"""The settings of all tools, read from a run's configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from environments.tools.base import ToolSettings
from environments.tools.browser.settings import BrowserSettings
from environments.tools.vision.settings import EndpointSettings
from environments.tools.web.settings import WebSettings

if TYPE_CHECKING:
    from environments.config import HermesAgentEnvConfig


def settings_from(config: HermesAgentEnvConfig) -> ToolSettings:
    """What the tools of a run are told."""
    return ToolSettings(
        terminal_timeout=config.terminal_timeout,
        default_result_size_chars=config.default_result_size_chars,
        turn_budget_chars=config.turn_budget_chars,
        preview_size_chars=config.preview_size_chars,
        tool_result_overrides=dict(config.tool_result_overrides or {}),
        web=WebSettings(
            provider=config.web_search_provider,
            url=config.web_search_url,
            allowed_hosts=tuple(config.web_allowed_hosts or ()),
            cache=config.web_cache,
            cache_directory=config.web_cache_directory,
            timeout=config.web_timeout,
            max_bytes=config.web_max_bytes,
            robots=config.web_robots,
        ),
        browser=BrowserSettings(
            path=config.browser_path,
            timeout=config.browser_timeout,
            max_contexts=config.browser_max_contexts,
        ),
        vision=EndpointSettings(config.vision_base_url, config.vision_model),
        image=EndpointSettings(config.image_base_url, config.image_model),
    )
