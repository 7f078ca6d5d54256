"""terraform-provider-google, as far as its schema goes: a plugin that serves schema.json, which lies beside it.

It runs in a venv of its own (locks/terraform.txt), copied to where terraform looks for plugins, and imports nothing of
this repository. It refuses to apply anything, and to set what only the provider itself can know.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import tf.provider
import tf.runner
from tf.gen import tfplugin_pb2 as pb
from tf.gen import tfplugin_pb2_grpc as rpc

Json = dict[str, Any]

SCHEMA: Json = json.loads((Path(__file__).resolve().parent / "schema.json").read_text())
# What terraform writes for "known after apply": https://developer.hashicorp.com/terraform/plugin (unknown values).
UNKNOWN = msgpack.ExtType(0, b"\x00")


def block(spec: Json) -> pb.Schema.Block:
    return pb.Schema.Block(
        attributes=[
            pb.Schema.Attribute(
                name=name,
                type=json.dumps(attribute["type"]).encode(),
                description=attribute.get("description", ""),
                required=attribute.get("required", False),
                optional=attribute.get("optional", False),
                computed=attribute.get("computed", False),
            )
            for name, attribute in spec["attributes"].items()
        ],
        block_types=[
            pb.Schema.NestedBlock(
                type_name=name,
                block=block(nested["block"]),
                nesting=pb.Schema.NestedBlock.NestingMode.Value(nested["nesting_mode"].upper()),
                min_items=nested.get("min_items", 0),
                max_items=nested.get("max_items", 0),
            )
            for name, nested in spec["block_types"].items()
        ],
    )


def schema(spec: Json) -> pb.Schema:
    return pb.Schema(version=spec["version"], block=block(spec["block"]))


def unpacked(value: pb.DynamicValue) -> Any:
    return msgpack.unpackb(value.msgpack, raw=False, strict_map_key=False) if value.msgpack else None


def inner(value: Json, spec: Json) -> Iterator[tuple[str, Json, Json]]:
    """Every nested block that a value has: its name, value and schema."""
    for name, nested in spec["block_types"].items():
        held = value.get(name)
        for each in held if isinstance(held, list) else [held]:
            if isinstance(each, dict):
                yield name, each, nested["block"]


def planned(value: Json, spec: Json) -> Json:
    """What is computed and was not given is known after apply; all else is as it was given."""
    for name, attribute in spec["attributes"].items():
        if attribute.get("computed") and value.get(name) is None:
            value[name] = UNKNOWN
    for _, each, nested in inner(value, spec):
        planned(each, nested)
    return value


def not_ours_to_set(value: Json, spec: Json, path: str) -> Iterator[str]:
    for name, attribute in spec["attributes"].items():
        computed_alone = attribute.get("computed") and not attribute.get("optional")
        if computed_alone and value.get(name) is not None:
            yield path + name
    for name, each, nested in inner(value, spec):
        yield from not_ours_to_set(each, nested, f"{path}{name}.")


def error(summary: str, detail: str) -> pb.Diagnostic:
    return pb.Diagnostic(severity=pb.Diagnostic.ERROR, summary=summary, detail=detail)


class StandIn(rpc.ProviderServicer):
    """https://developer.hashicorp.com/terraform/plugin/terraform-plugin-protocol, version 6, as far as a plan needs it."""

    def __init__(self, provider: object) -> None:
        pass

    def GetMetadata(self, request: pb.GetMetadata.Request, context: object) -> pb.GetMetadata.Response:
        return pb.GetMetadata.Response(server_capabilities=pb.ServerCapabilities())

    def GetProviderSchema(
        self, request: pb.GetProviderSchema.Request, context: object
    ) -> pb.GetProviderSchema.Response:
        return pb.GetProviderSchema.Response(
            provider=schema(SCHEMA["provider"]),
            resource_schemas={name: schema(spec) for name, spec in SCHEMA["resource_schemas"].items()},
            data_source_schemas={},
        )

    def ValidateProviderConfig(self, request: object, context: object) -> pb.ValidateProviderConfig.Response:
        return pb.ValidateProviderConfig.Response()

    def ConfigureProvider(self, request: object, context: object) -> pb.ConfigureProvider.Response:
        return pb.ConfigureProvider.Response()

    def ValidateResourceConfig(
        self, request: pb.ValidateResourceConfig.Request, context: object
    ) -> pb.ValidateResourceConfig.Response:
        spec = SCHEMA["resource_schemas"][request.type_name]["block"]
        return pb.ValidateResourceConfig.Response(
            diagnostics=[
                error("Value for unconfigurable attribute", f"{request.type_name}.{path} can be read alone.")
                for path in not_ours_to_set(unpacked(request.config), spec, "")
            ]
        )

    def PlanResourceChange(
        self, request: pb.PlanResourceChange.Request, context: object
    ) -> pb.PlanResourceChange.Response:
        proposed = unpacked(request.proposed_new_state)
        if proposed is not None and unpacked(request.prior_state) is None:
            proposed = planned(proposed, SCHEMA["resource_schemas"][request.type_name]["block"])
        return pb.PlanResourceChange.Response(planned_state=pb.DynamicValue(msgpack=msgpack.packb(proposed)))

    def ApplyResourceChange(
        self, request: pb.ApplyResourceChange.Request, context: object
    ) -> pb.ApplyResourceChange.Response:
        refused = error("Only a stand-in", "It knows the provider's schema and can make nothing.")
        return pb.ApplyResourceChange.Response(new_state=request.prior_state, diagnostics=[refused])

    def StopProvider(self, request: object, context: object) -> pb.StopProvider.Response:
        return pb.StopProvider.Response()


if __name__ == "__main__":
    # The runner does the handshake with terraform; the servicer that it would make is for providers made with its library.
    tf.provider.ProviderServicer = StandIn
    tf.runner.run_provider(None)
