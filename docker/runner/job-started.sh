#!/bin/sh
# GitHub's runner calls this before the first step of a job; a refusal ends the whole runner, since a failed hook
# would not stop later steps with if: always(). The job cannot change or skip it.
exec "${0%/*}/runner_entry.py" guard
