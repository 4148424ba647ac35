"""The configuration of a run, from ``config_init()``, YAML files, the command line or a notebook.

from environments.configuration import resolve
effective = resolve(MyEnv, "evaluate", env={"limit": 3}, openai={"model_name": "x"}, config="a.yaml")
"""

from environments.configuration.initial import EnvironmentClass
from environments.configuration.resolution import Effective, Flag, Subcommand, resolve

__all__ = ["Effective", "EnvironmentClass", "Flag", "Subcommand", "resolve"]
