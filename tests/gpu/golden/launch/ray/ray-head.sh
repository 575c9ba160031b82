#!/usr/bin/env bash
# two-hosts over a Ray cluster of 2 hosts: the head. Run it first: ray-head.sh OWN_ADDRESS
# It starts Ray, waits until the devices of every host have joined and serves. When Ray or the server ends, so does the other; worker hosts
# follow when they time out waiting for the head (60 s by default).
set -euo pipefail
own_address=${1:?usage: ray-head.sh OWN_ADDRESS}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export VLLM_SOMETHING='it'"'"'s $5 "quoted"'
export GLOO_SOCKET_IFNAME=eth1 NCCL_SOCKET_IFNAME=eth1
export VLLM_HOST_IP=$own_address
ray start --block --head --node-ip-address="$own_address" --port=6379 --num-gpus=8 --disable-usage-stats --include-dashboard=false &
ray_pid=$!
waiter_pid=
serve_pid=
# Only what was started here is ended, by its number: `ray stop` would end other people's clusters on this host too.
trap 'kill $ray_pid $waiter_pid $serve_pid 2>/dev/null || true; wait' EXIT
trap 'exit 143' TERM
trap 'exit 130' INT
export RAY_ADDRESS=$own_address:6379
python - 16 600 <<'WAIT' &
import sys
import time

import ray

wanted, patience_s = int(sys.argv[1]), float(sys.argv[2])
end = time.monotonic() + patience_s
while True:  # the head needs some seconds before it takes a connection
    try:
        ray.init(address="auto", log_to_driver=False)
        break
    except ConnectionError:
        if time.monotonic() > end:
            raise
        time.sleep(1)
while (seen := int(ray.cluster_resources().get("GPU", 0))) < wanted:
    if time.monotonic() > end:
        sys.exit(f"{seen} of {wanted} devices joined the Ray cluster within {patience_s:.0f} s; start ray-worker.sh on the other hosts")
    time.sleep(1)
WAIT
waiter_pid=$!
status=0
wait -n "$ray_pid" "$waiter_pid" || status=$?
if ! kill -0 "$ray_pid" 2>/dev/null; then
    ray_status=0
    wait "$ray_pid" || ray_status=$?   # its own: both may have ended, and then the status above is the waiter's
    echo "Ray ended with status $ray_status before the devices of every host had joined; its messages are above" >&2
    exit 1
fi
[ "$status" = 0 ] || exit "$status"
waiter_pid=
vllm serve --config "$here/config.yaml" --host 127.0.0.1 --port 8000 &
serve_pid=$!
wait -n "$ray_pid" "$serve_pid"
