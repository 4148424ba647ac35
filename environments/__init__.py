"""Hermes Environments: evaluate and train tool-using agents with one environment class.

Importing the package loads nothing; take what you need from its modules, for instance
``from environments.hermes_base_env import HermesAgentBaseEnv, HermesAgentEnvConfig``.
"""

__version__ = "0.1.0"
