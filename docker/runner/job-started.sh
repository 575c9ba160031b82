#!/bin/sh
# GitHub's runner calls this before the first step of a job; a failure ends the job. The job cannot change or skip it.
exec "${0%/*}/runner_entry.py" guard
