#!/usr/bin/env bash
# two-hosts over a Ray cluster of 2 hosts: a worker host. ray-worker.sh HEAD_ADDRESS OWN_ADDRESS
# It ends by itself some time after the head's Ray has stopped.
set -euo pipefail
head_address=${1:?usage: ray-worker.sh HEAD_ADDRESS OWN_ADDRESS}
own_address=${2:?usage: ray-worker.sh HEAD_ADDRESS OWN_ADDRESS}
export VLLM_SOMETHING='it'"'"'s $5 "quoted"'
export GLOO_SOCKET_IFNAME=eth1 NCCL_SOCKET_IFNAME=eth1
export VLLM_HOST_IP=$own_address
exec ray start --block --address="$head_address:6379" --node-ip-address="$own_address" --num-gpus=8 --disable-usage-stats
