"""The schema of a terraform provider, out of the JavaScript of its CDK bindings (PyPI: cdktn-provider-google).

The bindings are generated from the provider's own schema, one folder per resource, and leave nothing of it out:

    class ContainerClusterAddonsConfigOutputReference   a block: its fields, each announced by a comment
        // dns_cache_config - computed: false, optional: true, required: false
        _dnsCacheConfig = new ...OutputReference(this, "dns_cache_config");
    function containerClusterAddonsConfigToHclTerraform  which of them can be set, and how
        dns_cache_config: { value: ..., isBlock: true, type: "list", storageClassType: "..." }
    interface ContainerClusterAddonsConfig               (in .d.ts) what the documentation says of them

What comes out has the shape of `terraform providers schema -json`. Whatever is not understood raises ValueError: a
schema with a hole would let a mistake pass.
"""

import io
import re
import tarfile
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Json = dict[str, Any]

# How the bindings name a type -> how terraform does. A type is a name, or a list of a name and what it holds.
SETTABLE_TYPES: dict[str, Any] = {
    "string": "string", "number": "number", "boolean": "bool",
    "stringList": ["list", "string"], "numberList": ["list", "number"], "booleanList": ["list", "bool"],
    "stringMap": ["map", "string"], "numberMap": ["map", "number"], "booleanMap": ["map", "bool"],
}  # fmt: skip
READ_TYPES: dict[str, Any] = {
    "getStringAttribute": "string", "getNumberAttribute": "number", "getBooleanAttribute": "bool",
    "getListAttribute": ["list", "string"], "getNumberListAttribute": ["list", "number"],
    "getStringMapAttribute": ["map", "string"], "getNumberMapAttribute": ["map", "number"],
    "getBooleanMapAttribute": ["map", "bool"],
}  # fmt: skip
MAPS = {"StringMap": "string", "NumberMap": "number", "BooleanMap": "bool", "AnyMap": "string"}
NESTING = {"list": "list", "set": "set", "struct": "single", "map": "map"}

CHUNK = re.compile(r"^(?=class |function |exports\.)", re.MULTILINE)
CLASS = re.compile(r"class (\w+) extends (?:\w+\.)?(\w+)")
HCL = re.compile(r"function (\w+)ToHclTerraform\(")
TERRAFORM_TYPE = re.compile(r"""(?:static |\w+\.)tfResourceType = ["'](\w+)["']""")
VERSION = re.compile(r"""providerVersion: ["']([\d.]+)["']""")
FIELD = re.compile(
    r"^ +// ([\w-]+) - computed: (true|false), optional: (true|false), required: (true|false)$", re.MULTILINE
)
SETTABLE = re.compile(
    r'"?([\w-]+)"?: \{\s+value: .*,\s+isBlock: (true|false),\s+type: "(\w+)",\s+storageClassType: "(\w+)",'
)
HELD = re.compile(r"""= new (?:\w+\.)?(\w+)\(this, ["'][\w-]+["'](?:, (true|false))?""")
READ = re.compile(r"this\.(get\w+Attribute)\(")
INTERFACE = re.compile(r"^export interface (\w+)[^{]*\{(.*?)^\}", re.MULTILINE | re.DOTALL)
PROPERTY = re.compile(r"/\*\*((?:(?!\*/).)*)\*/\s+readonly \w+\??:", re.DOTALL)
ANCHOR = re.compile(r"\n[^\n]*Docs at Terraform Registry: \{@link \S+#(\w+) .*", re.DOTALL)


@dataclass(frozen=True)
class Settable:
    """block: a nested block, else an attribute. kind: list, set, map, struct, simple. of: the type or class it holds."""

    block: bool
    kind: str
    of: str


@dataclass(frozen=True)
class Field:
    """held: the class of what it holds, empty for a plain value. read: how a plain value is read."""

    flags: Json
    held: str
    as_set: bool
    read: str


@dataclass
class Folder:
    """The parts of one resource's JavaScript. Structs are named as in the bindings, with a capital."""

    classes: dict[str, str] = field(default_factory=dict)
    settable: dict[str, dict[str, Settable]] = field(default_factory=dict)
    documentation: dict[str, dict[str, str]] = field(default_factory=dict)


def read(wheel: Path, resources: Iterable[str]) -> Json:
    """The schema of the provider and of these resources, such as google_compute_network, which the wheel may lack.

    Raises ValueError for bindings of another shape than the one above.
    """
    wanted = {"provider"} | {name.removeprefix("google_").replace("_", "-") for name in resources}
    folders, version = _unpack(wheel, wanted)
    schema: Json = {"provider_version": version, "resource_schemas": {}, "data_source_schemas": {}}
    for folder in folders.values():
        name, kind, block = _top(folder)
        if kind == "TerraformProvider":
            block["attributes"].pop("alias")  # terraform's own
            schema["provider"] = {"version": 0, "block": block}
        elif kind == "TerraformResource":
            schema["resource_schemas"][name] = {"version": 0, "block": block}
    if "provider" not in schema or not version:
        raise ValueError(f"{wheel.name}: no provider, or no version of one, in these bindings")
    return schema


def _unpack(wheel: Path, wanted: set[str]) -> tuple[dict[str, Folder], str]:
    """folder -> its parts, and the provider's version. The wheel holds an npm package, which is read, not unpacked."""
    folders: dict[str, Folder] = {}
    version = ""
    with zipfile.ZipFile(wheel) as outer:
        inner = next(name for name in outer.namelist() if name.endswith(".tgz"))
        with tarfile.open(fileobj=io.BytesIO(outer.read(inner))) as package:
            for member in package:
                parts = Path(member.name).parts
                if len(parts) < 4 or parts[1] != "lib" or parts[2] not in wanted:
                    continue
                content = package.extractfile(member)
                if content is None or not member.name.endswith((".js", ".d.ts")):
                    continue
                text = content.read().decode()
                folder = folders.setdefault(parts[2], Folder())
                if member.name.endswith(".js"):
                    _take_code(folder, text)
                    found = VERSION.search(text)
                    version = found[1] if found else version
                else:
                    _take_documentation(folder, text)
    return folders, version


def _take_code(folder: Folder, text: str) -> None:
    for chunk in CHUNK.split(text):
        if found := CLASS.match(chunk):
            folder.classes[found[1]] = chunk
        elif found := HCL.match(chunk):
            folder.settable[_capital(found[1])] = _settable(chunk)


def _take_documentation(folder: Folder, text: str) -> None:
    for name, body in INTERFACE.findall(text):
        said = folder.documentation.setdefault(name, {})
        for comment in PROPERTY.findall(body):
            if anchor := ANCHOR.search(comment):
                lines = (line.strip(" *") for line in comment[: anchor.start()].splitlines())
                said[anchor[1]] = " ".join(line for line in lines if line)


def _settable(text: str) -> dict[str, Settable]:
    return {m[1]: Settable(m[2] == "true", m[3], m[4]) for m in SETTABLE.finditer(text)}


def _capital(name: str) -> str:
    return name[0].upper() + name[1:]


def _top(folder: Folder) -> tuple[str, str, Json]:
    """The terraform type of a folder, the kind of its class, and its block."""
    for struct, text in folder.classes.items():
        if found := TERRAFORM_TYPE.search(text):
            kind = CLASS.match(text)
            own, _, hcl = text.partition("synthesizeHclAttributes()")
            block = _block(folder, own, _settable(hcl), folder.documentation.get(f"{struct}Config", {}))
            return found[1], kind[2] if kind else "", block
    raise ValueError(f"no class of these says what it is in terraform: {sorted(folder.classes)}")


def _struct(folder: Folder, held: str) -> Json:
    """The block of what is held by a class such as ...OutputReference or ...List."""
    struct = re.sub(r"(OutputReference|List|Map)$", "", held)
    text = folder.classes.get(f"{struct}OutputReference")
    if text is None:
        raise ValueError(f"nothing says what {held} holds")
    return _block(folder, text, folder.settable.get(struct, {}), folder.documentation.get(struct, {}))


def _block(folder: Folder, text: str, settable: dict[str, Settable], said: dict[str, str]) -> Json:
    block: Json = {"attributes": {}, "block_types": {}}
    for name, found in _fields(text).items():
        how = settable.get(name)
        if how is not None and how.block:
            block["block_types"][name] = _nested(folder, name, found, how)
        else:
            description = said.get(name, "")
            attribute = {"type": _type(folder, name, found, how), "description": description, **found.flags}
            block["attributes"][name] = attribute
    missing = settable.keys() - block["attributes"].keys() - block["block_types"].keys()
    if missing:
        raise ValueError(f"can be set, but is no field: {sorted(missing)}")
    return block


def _fields(text: str) -> dict[str, Field]:
    matches = list(FIELD.finditer(text))
    fields = {}
    ends = [*(match.start() for match in matches[1:]), len(text)]
    for match, end in zip(matches, ends, strict=bool(matches)):
        own = text[match.end() : end]
        flags = {
            flag: True
            for flag, said in zip(("computed", "optional", "required"), match.groups()[1:], strict=True)
            if said == "true"
        }
        held, reader = HELD.search(own), READ.search(own)
        fields[match[1]] = Field(
            flags=flags or {"computed": True},
            held=held[1] if held else "",
            as_set=bool(held and held[2] == "true") or "tolist(" in own,
            read=reader[1] if reader else "",
        )
    return fields


def _nested(folder: Folder, name: str, found: Field, how: Settable) -> Json:
    if how.kind not in NESTING:
        raise ValueError(f"block {name} is a {how.kind}")
    block = _struct(folder, found.held) if found.held else _unread(folder, how.of)
    nested: Json = {"nesting_mode": NESTING[how.kind], "block": block}
    if found.flags.get("required"):
        nested["min_items"] = 1
    if how.kind in ("list", "set") and found.held.endswith("OutputReference"):
        nested["max_items"] = 1
    return nested


def _unread(folder: Folder, held: str) -> Json:
    """A block of the provider's own configuration, which no class reads back: all of it is optional."""
    settable = folder.settable[re.sub(r"List$", "", held)]
    attributes = {name: {"type": SETTABLE_TYPES[how.of], "optional": True} for name, how in settable.items()}
    return {"attributes": attributes, "block_types": {}}


def _type(folder: Folder, name: str, found: Field, how: Settable | None) -> Any:
    if found.held in MAPS:
        return ["map", MAPS[found.held]]
    if found.held:
        return ["set" if found.as_set else "list", _object(_struct(folder, found.held))]
    if how is not None and how.of in SETTABLE_TYPES:
        kind = SETTABLE_TYPES[how.of]
        return ["set", kind[1]] if how.kind == "set" else kind
    if found.read in READ_TYPES:
        kind = READ_TYPES[found.read]
        return ["set", kind[1]] if found.as_set and kind[0] == "list" else kind
    raise ValueError(f"attribute {name}: nothing says what type it has")


def _object(block: Json) -> Any:
    """A block as the type of an attribute."""
    held = {name: attribute["type"] for name, attribute in block["attributes"].items()}
    for name, nested in block["block_types"].items():
        held[name] = ["set" if nested["nesting_mode"] == "set" else "list", _object(nested["block"])]
    return ["object", held]
