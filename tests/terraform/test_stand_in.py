"""The stand-in for the provider: what it reads from bindings, and that it makes nothing and lets no hole pass."""

import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.terraform.conftest import Makes
from tests.terraform.stand_in import bindings
from tests.terraform.toolchain import MAJORS
from tests.terraform.workspace import Json

PROVIDER = """
class GoogleProvider extends cdktn.TerraformProvider {
    static tfResourceType = "google";
    // alias - computed: false, optional: true, required: false
    _alias;
    // project - computed: false, optional: true, required: false
    _project;
    synthesizeHclAttributes() { const attrs = {
            alias: {
                value: x,
                isBlock: false,
                type: "simple",
                storageClassType: "string",
            },
            project: {
                value: x,
                isBlock: false,
                type: "simple",
                storageClassType: "string",
            },
    } }
}
"""
THING = """
function thingPartToHclTerraform(struct) {
    const attrs = {
        names: {
            value: x,
            isBlock: false,
            type: "set",
            storageClassType: "stringList",
        },
    };
}
class ThingPartOutputReference extends cdktn.ComplexObject {
    // names - computed: false, optional: false, required: true
    _names;
    get names() {
        return cdktn.Fn.tolist(this.getListAttribute('names'));
    }
}
class Thing extends cdktn.TerraformResource {
    static tfResourceType = "google_thing";
    constructor() { super({ providerVersion: '9.9.9' }); }
    // etag - computed: true, optional: false, required: false
    get etag() {
        return this.getStringAttribute('etag');
    }
    // part - computed: false, optional: false, required: true
    _part = new ThingPartOutputReference(this, "part");
    synthesizeHclAttributes() { const attrs = {
        part: {
            value: x,
            isBlock: true,
            type: "list",
            storageClassType: "ThingPartList",
        },
    } }
}
"""
SAID = """
export interface ThingPart {
    /**
    * Of those that play along:
    * A or B.
    *
    * Docs at Terraform Registry: {@link https://example.com/thing#names Thing#names}
    */
    readonly names: string[];
}
"""


def wheel(folder: Path, thing: str = THING) -> Path:
    """A package of bindings of one resource."""
    inner = io.BytesIO()
    files = {"provider/index.js": PROVIDER, "thing/index.js": thing, "thing/index.d.ts": SAID}
    with tarfile.open(fileobj=inner, mode="w:gz") as package:
        for name, text in {**files, "other/index.js": "not asked for"}.items():
            member = tarfile.TarInfo(f"package/lib/{name}")
            member.size = len(text.encode())
            package.addfile(member, io.BytesIO(text.encode()))
    path = folder / "bindings.whl"
    with zipfile.ZipFile(path, "w") as outer:
        outer.writestr("somewhere/_jsii/provider.tgz", inner.getvalue())
    return path


def test_a_schema_is_read_whole(tmp_path: Path) -> None:
    schema = bindings.read(wheel(tmp_path), ["google_thing", "google_nothing"])
    assert schema["provider_version"] == "9.9.9"
    assert schema["provider"]["block"]["attributes"].keys() == {"project"}
    names = {"type": ["set", "string"], "description": "Of those that play along: A or B.", "required": True}
    assert schema["resource_schemas"] == {
        "google_thing": {
            "version": 0,
            "block": {
                "attributes": {"etag": {"type": "string", "description": "", "computed": True}},
                "block_types": {
                    "part": {
                        "nesting_mode": "list",
                        "min_items": 1,
                        "max_items": 1,
                        "block": {"attributes": {"names": names}, "block_types": {}},
                    }
                },
            },
        }
    }


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "class ThingPartOutputReference",
            "class Renamed",
            "nothing says what ThingPartOutputReference holds",
        ),
        ("getStringAttribute('etag')", "etag", "attribute etag: nothing says what type it has"),
        ('type: "list"', 'type: "heap"', "block part is a heap"),
        ("// names -", "// names:", "can be set, but is no field: ['names']"),
        ("tfResourceType", "resourceType", "no class of these says what it is"),
        ("providerVersion", "version", "no version of one"),
    ],
)
def test_what_is_not_understood_is_no_schema(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in THING
    with pytest.raises(ValueError, match=said.replace("[", r"\[")):
        bindings.read(wheel(tmp_path, THING.replace(old, new)), ["google_thing"])


@pytest.mark.parametrize("major", MAJORS)
def test_the_providers_are_of_the_two_majors(schema_of: Callable[[str], Json], major: str) -> None:
    schema = schema_of(major)
    assert schema["provider_version"].split(".")[0] == major
    pool = schema["resource_schemas"]["google_container_node_pool"]["block"]
    # Spot checks, from the provider's own pages.
    assert pool["attributes"]["cluster"]["required"] is True
    assert pool["block_types"]["autoscaling"]["max_items"] == 1
    assert pool["block_types"]["node_config"]["block"]["attributes"]["oauth_scopes"]["type"] == [
        "set",
        "string",
    ]


def test_nothing_is_made(make_workspace: Makes) -> None:
    made = make_workspace()
    done = made.terraform(
        made.folder, "apply", "-no-color", "-auto-approve", "-input=false", "-var=project_id=my-project"
    )
    assert done.code == 1
    assert "knows the provider's schema and can make nothing" in " ".join(done.complained.split()), done
