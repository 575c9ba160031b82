"""May this job run here? From the event that GitHub handed to the runner. Standard
library only.

A pull request can change the workflow file that asks for this runner, so the rule of
the workflow is enforced again here, where the pull request cannot reach it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ALLOWED_EVENTS = ("merge_group", "pull_request", "push", "schedule", "workflow_dispatch")
LABEL_PREFIX = "gpu-ok-"


def refusal(event_name: str, event_path: str, repository: str) -> str:
    """Why the job must not run; empty when it may."""
    if event_name not in ALLOWED_EVENTS:
        return f"event {event_name!r} is none of {', '.join(ALLOWED_EVENTS)}"
    if event_name != "pull_request":
        return ""
    try:
        request = json.loads(Path(event_path).read_text(encoding="utf-8"))["pull_request"]
        head, labels = request["head"], [label["name"] for label in request["labels"]]
        return _fork_refusal(head, labels, repository)
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"the event cannot be read: {error!r}"


def _fork_refusal(head: dict[str, Any], labels: list[str], repository: str) -> str:
    origin = (head.get("repo") or {}).get("full_name")  # None when the fork was deleted
    wanted = LABEL_PREFIX + str(head["sha"])
    if (repository and origin == repository) or wanted in labels:
        return ""
    return f"a pull request from {origin or 'a deleted fork'} needs a maintainer's label {wanted}"
