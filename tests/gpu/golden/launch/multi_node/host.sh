#!/usr/bin/env bash
# two-hosts on 2 hosts by vLLM's own multi-node start. Run it on every host:
#   host.sh RANK HEAD_ADDRESS [OWN_ADDRESS]
# RANK counts hosts from 0; rank 0 is the head and serves. When one host's part ends, end the others: they cannot continue alone.
set -euo pipefail
rank=${1:?usage: host.sh RANK HEAD_ADDRESS [OWN_ADDRESS]}
head_address=${2:?usage: host.sh RANK HEAD_ADDRESS [OWN_ADDRESS]}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export VLLM_SOMETHING='it'"'"'s $5 "quoted"'
export GLOO_SOCKET_IFNAME=eth1 NCCL_SOCKET_IFNAME=eth1
if [[ -n ${3:-} ]]; then
  export VLLM_HOST_IP=$3
fi
arguments=(--config "$here/config.yaml" --nnodes 2 --node-rank "$rank" --master-addr "$head_address" --master-port 29501)
if [[ $rank == 0 ]]; then
  arguments+=(--host 127.0.0.1 --port 8000)
else
  arguments+=(--headless)
fi
exec vllm serve "${arguments[@]}"
