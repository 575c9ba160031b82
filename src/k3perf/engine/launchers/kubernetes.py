"""A multi-host engine as Kubernetes documents: ConfigMap, LeaderWorkerSet and the
leader's Service, as plain mappings.
"""

from __future__ import annotations

import shlex
from typing import Any, Final

from k3perf.config.models import TargetSpec
from k3perf.engine.launchers.options import LaunchOptions

API_VERSION: Final = "leaderworkerset.x-k8s.io/v1"
CONFIG_MOUNT: Final = "/etc/k3perf"
PROBE_PERIOD_S: Final = 10
_DEVICE_RESOURCE: Final = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu"}


def kubernetes_documents(
    target: TargetSpec, options: LaunchOptions, config_text: str
) -> list[dict[str, Any]]:
    """The documents in the order they are applied. The group restarts as one: a rank
    alone is of no use.
    """
    name = target.name.replace("_", "-")
    labels = {"app.kubernetes.io/name": name, "app.kubernetes.io/part-of": "k3perf"}
    metadata = {"name": name, "namespace": options.namespace, "labels": labels}
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata,
        "data": {"config.yaml": config_text},
    }
    group = {
        "apiVersion": API_VERSION,
        "kind": "LeaderWorkerSet",
        "metadata": metadata,
        "spec": {
            "replicas": 1,
            "leaderWorkerTemplate": {
                "size": options.hosts,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": _pod(target, options, name, leader=True),
                "workerTemplate": _pod(target, options, name, leader=False),
            },
        },
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {
            "selector": {
                "leaderworkerset.sigs.k8s.io/name": name,
                "leaderworkerset.sigs.k8s.io/worker-index": "0",
            },
            "ports": [
                {"name": "http", "port": options.serve_port, "targetPort": options.serve_port}
            ],
        },
    }
    return [_copied(document) for document in (config_map, group, service)]


def _pod(target: TargetSpec, options: LaunchOptions, name: str, *, leader: bool) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": "engine",
        "image": options.image,
        "command": ["/bin/sh", "-c", _command(options, leader=leader)],
        "env": _environment(target, options),
        "resources": _resources(target, options),
        "volumeMounts": [
            {"name": "config", "mountPath": CONFIG_MOUNT, "readOnly": True},
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108
        ],
    }
    volumes: list[dict[str, Any]] = [
        {"name": "config", "configMap": {"name": name}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": options.shared_memory}},
    ]
    if options.model_claim:
        container["volumeMounts"].append(
            {"name": "models", "mountPath": "/models", "readOnly": True}
        )
        volumes.append(
            {
                "name": "models",
                "persistentVolumeClaim": {"claimName": options.model_claim, "readOnly": True},
            }
        )
    if leader:
        container["ports"] = [{"name": "http", "containerPort": options.serve_port}]
        container["startupProbe"] = _health(
            options, failures=_start_up_s(target) // PROBE_PERIOD_S + 1
        )
        container["readinessProbe"] = _health(options, failures=3)
    spec: dict[str, Any] = {
        "containers": [container],
        "volumes": volumes,
        "terminationGracePeriodSeconds": round(target.stage_deadlines.stop_s),
    }
    if options.host_network:
        spec |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    return {"metadata": {"labels": {"app.kubernetes.io/name": name}}, "spec": spec}


def _command(options: LaunchOptions, *, leader: bool) -> str:
    words = [
        *(shlex.quote(word) for word in options.engine_command),
        "--config",
        f"{CONFIG_MOUNT}/config.yaml",
    ]
    words += ["--nnodes", '"$LWS_GROUP_SIZE"', "--node-rank", '"$LWS_WORKER_INDEX"']
    words += ["--master-addr", '"$LWS_LEADER_ADDRESS"', "--master-port", str(options.master_port)]
    # The leader's probe and Service come from outside the pod, so loopback would leave
    # it unready for ever.
    words += ["--host", "0.0.0.0", "--port", str(options.serve_port)] if leader else ["--headless"]  # noqa: S104
    return "exec " + " ".join(words)


def _environment(target: TargetSpec, options: LaunchOptions) -> list[dict[str, Any]]:
    values = dict(sorted(target.environment.items()))
    if options.interface:
        values |= {"GLOO_SOCKET_IFNAME": options.interface, "NCCL_SOCKET_IFNAME": options.interface}
    own = {"name": "VLLM_HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    return [own, *({"name": key, "value": value} for key, value in values.items())]


def _resources(target: TargetSpec, options: LaunchOptions) -> dict[str, Any]:
    resource = _DEVICE_RESOURCE.get(target.hardware.kind)
    return {"limits": {resource: str(options.devices_per_host)}} if resource else {}


def _health(options: LaunchOptions, *, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": "/health", "port": options.serve_port},
        "periodSeconds": PROBE_PERIOD_S,
        "failureThreshold": failures,
    }


def _start_up_s(target: TargetSpec) -> int:
    """The longest start the target's own stage deadlines allow, in whole seconds."""
    stages = target.stage_deadlines
    return round(
        stages.import_s
        + stages.load_s
        + stages.profile_s
        + stages.compile_s
        + stages.capture_s
        + stages.ready_s
    )


def _copied(document: dict[str, Any]) -> dict[str, Any]:
    """Deep copy without shared parts, which YAML would write as anchors."""
    return {key: _copied_value(value) for key, value in document.items()}


def _copied_value(value: Any) -> Any:
    if isinstance(value, dict):
        return _copied(value)
    if isinstance(value, list):
        return [_copied_value(item) for item in value]
    return value
