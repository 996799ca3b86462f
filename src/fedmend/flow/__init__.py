"""The stages of a run: from a federation.toml to a folder with models and a report."""

from fedmend.flow.listening import Listener
from fedmend.flow.stages import CONFIG_FILE, Method, Plan, execute, plan_of

__all__ = ["CONFIG_FILE", "Listener", "Method", "Plan", "execute", "plan_of"]
