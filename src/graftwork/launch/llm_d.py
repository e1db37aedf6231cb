"""llm-d before vLLM: an endpoint picker, Envoy that asks it, and a sidecar before every decode process.

Arguments: pkg/epp/server/options.go and pkg/sidecar/proxy/options.go of llm-d/llm-d-inference-scheduler at 520af478.
"""

from __future__ import annotations

import re
from typing import Any

from graftwork.errors import UsageError
from graftwork.launch.deployment import STOP_FIRST, Ready
from graftwork.launch.draft import Draft, Plan
from graftwork.launch.environment import Environment
from graftwork.launch.placeholders import escape
from graftwork.launch.recipe import Router
from graftwork.launch.values import template

_TYPES = "type.googleapis.com/envoy.extensions."


def drafts(plan: Plan, wanted: Router, engines: list[Draft]) -> list[Draft]:
    """Picker and Envoy on the first node, a sidecar beside each decode process."""
    if not wanted.epp_config:
        raise UsageError("router llm-d needs epp_config: the picker's EndpointPickerConfig, as text")
    if re.search(r"non_?cached_?tokens[\"']?\s*:\s*0\b", wanted.epp_config, re.IGNORECASE):
        raise UsageError(
            "epp_config: nonCachedTokens 0 turns prefill/decode off", hint="1 and more; authors use 1 or 128"
        )
    plan.warn("llm-d's picker finds engines through Kubernetes unless epp_config names another source")
    sidecars = [_sidecar(plan, draft) for draft in engines if draft.role == "decode"]
    return [_picker(plan, wanted), _envoy(plan), *sidecars]


def _picker(plan: Plan, wanted: Router) -> Draft:
    draft = Draft(
        "epp",
        "router",
        0,
        [escape(word) for word in wanted.command or ["epp"]],
        Ready(kind="tcp", port="grpc", bound_s=120),
        plan.recipe.bounds.router_s,
        STOP_FIRST,
        env=Environment(wanted.env),
        ports={"grpc": 1, "health": 1, "metrics": 1},
        files={"epp/config.yaml": escape(wanted.epp_config)},
    )
    draft.word("--grpc-port={port:grpc}", why="where Envoy asks")
    draft.word("--grpc-health-port={port:health}", why="9003, the default, is taken by Mooncake's metrics")
    draft.word("--metrics-port={port:metrics}", why="9090, the default, may be taken")
    draft.word("--secure-serving=false", why="Envoy asks without TLS on the same node")
    draft.word("--config-file={run}/epp/config.yaml", why="the picker's configuration in the recipe")
    draft.said(wanted.args)
    return draft


def _envoy(plan: Plan) -> Draft:
    draft = Draft(
        "envoy",
        "router",
        0,
        ["envoy"],
        Ready(kind="tcp", port="http", bound_s=120),
        plan.recipe.bounds.router_s,
        STOP_FIRST,
        ports={"http": 1},
        files={"envoy/envoy.json": template(_envoy_config()) + "\n"},
    )
    draft.word("--config-path", "{run}/envoy/envoy.json", why="asks the picker, then goes where it says")
    draft.word(
        "--use-dynamic-base-id", why="base id 0 aborts where its shared memory is another user's, or another Envoy's"
    )
    draft.word("--base-id-path", "{tmp}/base-id", why="so that its shared memory can be removed afterwards")
    return draft


def _sidecar(plan: Plan, engine: Draft) -> Draft:
    draft = Draft(
        f"sidecar-{engine.name}",
        "sidecar",
        engine.node,
        ["pd-sidecar"],
        Ready(kind="tcp", port="http", bound_s=120),
        plan.recipe.bounds.router_s,
        STOP_FIRST,
        ports={"http": 1},
    )
    draft.word("--port={port:http}", why="where the picker sends requests of this decode process")
    draft.word(f"--vllm-port={{port:{engine.name}/http}}", why="the process behind it")
    draft.word("--kv-connector=nixlv2", why="it has the prompt prefilled elsewhere, then fetched by NIXL")
    draft.word("--secure-proxy=false", why="inside the job, without TLS")
    return draft


def _envoy_config() -> dict[str, Any]:
    """One listener: every request is shown to the picker, and goes to the address that it puts into a header."""
    ask = {
        "@type": _TYPES + "filters.http.ext_proc.v3.ExternalProcessor",
        "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}, "timeout": "10s"},
        "processing_mode": {
            "request_header_mode": "SEND",
            "response_header_mode": "SEND",
            "request_body_mode": "FULL_DUPLEX_STREAMED",
            "response_body_mode": "FULL_DUPLEX_STREAMED",
            "request_trailer_mode": "SEND",
            "response_trailer_mode": "SEND",
        },
        "message_timeout": "60s",
    }
    manager = {
        "@type": _TYPES + "filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "engines",
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "engines",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "engines", "timeout": "86400s"}}],
                }
            ]
        },
        "http_filters": [
            {"name": "envoy.filters.http.ext_proc", "typed_config": ask},
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": _TYPES + "filters.http.router.v3.Router"},
            },
        ],
    }
    chain = [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]
    return {
        "static_resources": {
            "listeners": [
                {"name": "clients", "address": _at("0.0.0.0", "{port:http}"), "filter_chains": [{"filters": chain}]}
            ],
            "clusters": [_engines(), _picker_cluster()],
        }
    }


def _engines() -> dict[str, Any]:
    return {
        "name": "engines",
        "type": "ORIGINAL_DST",
        "lb_policy": "CLUSTER_PROVIDED",
        "connect_timeout": "60s",
        "original_dst_lb_config": {"use_http_header": True, "http_header_name": "x-gateway-destination-endpoint"},
    }


def _picker_cluster() -> dict[str, Any]:
    options = _TYPES + "upstreams.http.v3.HttpProtocolOptions"
    return {
        "name": "picker",
        "type": "STATIC",
        "connect_timeout": "60s",
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": options,
                "explicit_http_config": {"http2_protocol_options": {}},
            }
        },
        "load_assignment": {
            "cluster_name": "picker",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": _at("127.0.0.1", "{port:epp/grpc}")}}]}],
        },
    }


def _at(address: str, port: str) -> dict[str, Any]:
    return {"socket_address": {"address": address, "port_value": port}}
