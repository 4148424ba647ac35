"""A stand-in with the module interface of Hermes Agent, for tests of everything that can go wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tools.registry import registry

_AGENT_LOOP_TOOLS = {"memory", "delegate_task"}
_counted = [0]


def handle_function_call(
    function_name: str, function_args: dict[str, Any], task_id: str | None = None
) -> Any:
    if function_name in _AGENT_LOOP_TOOLS:
        return json.dumps({"error": f"{function_name} belongs to the loop"})
    return registry.dispatch(function_name, function_args, task_id=task_id)


def note(args: dict[str, Any], **_: Any) -> str:
    file = Path(os.environ["HERMES_HOME"]) / "notes"
    file.parent.mkdir(exist_ok=True)
    with file.open("a") as notes:
        notes.write(args["text"] + "\n")
    return json.dumps({"notes": file.read_text().split()})


def memory(args: dict[str, Any], store: Any = None, **_: Any) -> str:
    store.entries.append(args["text"])
    return json.dumps({"entries": store.entries})


def counted(args: dict[str, Any], **_: Any) -> str:
    _counted[0] += 1
    return json.dumps({"count": _counted[0]})


def environment(args: dict[str, Any], **_: Any) -> str:
    return json.dumps({"variables": dict(os.environ), "directory": str(Path.cwd()), "python": sys.executable})


def noisy(args: dict[str, Any], **_: Any) -> str:
    print("this is no answer")
    os.write(1, b'{"text": "nor this"}\n')
    subprocess.run(["echo", "nor that"], check=True)
    return json.dumps({"read": sys.stdin.read()})


def loud_exit(args: dict[str, Any], **_: Any) -> str:
    sys.exit("out of cheese")


def die(args: dict[str, Any], **_: Any) -> str:
    sys.stderr.write(f"out of cheese, key {os.environ.get('GIVEN_KEY')}\n")
    sys.stderr.flush()
    os._exit(3)


def sleep(args: dict[str, Any], **_: Any) -> str:
    time.sleep(args["seconds"])
    return json.dumps({"slept": args["seconds"]})


def long(args: dict[str, Any], **_: Any) -> str:
    return "x" * args["size"]


def picture(args: dict[str, Any], **_: Any) -> Any:
    url = "data:image/png;base64,iVBORw0KGgo="
    content = [{"type": "text", "text": "a picture"}, {"type": "image_url", "image_url": {"url": url}}]
    return {"_multimodal": True, "content": content}


def clinging(args: dict[str, Any], **_: Any) -> str:
    sleeper = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    return json.dumps({"processes": [os.getpid(), sleeper.pid]})


def check_picky() -> bool:
    return False


TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
registry.register("note", "notes", note, TEXT)
registry.register("memory", "memory", memory, TEXT)
registry.register("counted", "odd", counted)
registry.register("environment", "odd", environment)
registry.register("noisy", "odd", noisy)
registry.register("loud_exit", "odd", loud_exit)
registry.register("die", "odd", die)
registry.register(
    "sleep",
    "odd",
    sleep,
    {"type": "object", "properties": {"seconds": {"type": "number"}}, "required": ["seconds"]},
)
registry.register("long", "odd", long, {"type": "object", "properties": {"size": {"type": "integer"}}})
registry.register("picture", "odd", picture)
registry.register("clinging", "odd", clinging)
registry.register("picky", "picky", counted, check_fn=check_picky, needs=["PICKY_KEY"])
registry.register("delegate_task", "delegation", counted)
registry.register("read_file", "file", counted)
