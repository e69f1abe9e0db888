"""Writes what the AgentDojo replay needs as one JSON file. Runs in a virtual environment of its own, never in ours:

    uv venv /tmp/agentdojo && uv pip install --python /tmp/agentdojo/bin/python agentdojo==0.1.35
    /tmp/agentdojo/bin/python -P scripts/bench/agentdojo_export.py > /tmp/agentdojo.json

(``-P`` keeps the script beside this one, which has the package's name, from being taken for it.)

For every user task: its prompt, its honest calls and what each of them returned. For every injection task: its goal
and the calls that it wants. The places where an attacker may write stand in the outputs as ``⟦name⟧``; the replay
fills them.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from agentdojo.functions_runtime import FunctionsRuntime
from agentdojo.task_suite.load_suites import get_suites
from pydantic import BaseModel

VERSION = "v1.2.2"
OPEN, CLOSE = "⟦", "⟧"


def plain(value: Any) -> Any:
    """``value`` as JSON data."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool | type(None)) else str(value)


def calls_of(task: Any, env: Any) -> list[dict[str, Any]]:
    return [{"tool": call.function, "args": plain(dict(call.args))} for call in task.ground_truth(env)]


def user_task(suite: Any, task: Any, marked: dict[str, str]) -> dict[str, Any]:
    """Prompt and honest calls with their outputs.

    The calls are those of an untouched world: they are what an honest run does, whatever the attacker wrote.
    """
    clean = task.init_environment(suite.load_and_inject_default_environment({}))
    calls = calls_of(task, clean)
    world = task.init_environment(suite.load_and_inject_default_environment(marked))
    runtime = FunctionsRuntime(suite.tools)
    for call in calls:
        output, error = runtime.run_function(world, call["tool"], call["args"])
        if error:  # a name that holds an attacker's mark cannot be looked up: read it in the untouched world
            output, error = runtime.run_function(clean, call["tool"], call["args"])
        call["output"] = plain(output)
        call["error"] = error
    return {"prompt": task.PROMPT, "calls": calls}


def suite_of(suite: Any) -> dict[str, Any]:
    defaults = suite.get_injection_vector_defaults()
    marked = {name: f"{OPEN}{name}{CLOSE}" for name in defaults}
    base = suite.load_and_inject_default_environment({})
    return {
        "defaults": defaults,
        "tools": {tool.name: list(tool.parameters.model_fields) for tool in suite.tools},
        "user_tasks": {name: user_task(suite, task, marked) for name, task in suite.user_tasks.items()},
        "injection_tasks": {
            name: {"goal": task.GOAL, "calls": calls_of(task, base.model_copy(deep=True))}
            for name, task in suite.injection_tasks.items()
        },
    }


def main() -> None:
    suites = {name: suite_of(suite) for name, suite in get_suites(VERSION).items()}
    json.dump({"version": VERSION, "suites": suites}, sys.stdout, ensure_ascii=False)


if __name__ == "__main__":
    main()
