"""Configuration: typed schema, strict loading, overrides, and the origin of every value."""

from unilab.config.describe import Key, all_keys, find_key
from unilab.config.load import (
    Difference,
    LoadedConfig,
    diff_configs,
    load_config,
    load_resolved,
    save_resolved,
)
from unilab.config.locate import TaskInfo, config_dir, list_tasks, locate_task, task_label
from unilab.config.overrides import Override, looks_like_key, missing_equals, parse_overrides
from unilab.config.schema import PPOConfig, RunConfig, TermConfig
from unilab.config.tuned import Machine

__all__ = [
    "Difference",
    "Key",
    "LoadedConfig",
    "Machine",
    "Override",
    "PPOConfig",
    "RunConfig",
    "TaskInfo",
    "TermConfig",
    "all_keys",
    "config_dir",
    "diff_configs",
    "find_key",
    "list_tasks",
    "load_config",
    "load_resolved",
    "locate_task",
    "looks_like_key",
    "missing_equals",
    "parse_overrides",
    "save_resolved",
    "task_label",
]
