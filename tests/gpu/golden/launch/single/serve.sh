#!/usr/bin/env bash
# two-hosts on one host: every rank in one process tree.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export VLLM_SOMETHING='it'"'"'s $5 "quoted"'
export GLOO_SOCKET_IFNAME=eth1 NCCL_SOCKET_IFNAME=eth1
exec vllm serve --config "$here/config.yaml" --host 127.0.0.1 --port 8000
