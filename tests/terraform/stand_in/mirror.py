"""Lays the stand-in where terraform looks for providers: a filesystem mirror.

https://developer.hashicorp.com/terraform/cli/config/config-file#filesystem_mirror
"""

import json
import platform
import sys
from pathlib import Path

from tests.terraform.stand_in.bindings import Json

SOURCE = "registry.terraform.io/hashicorp/google"
PROVIDER = Path(__file__).with_name("provider.py")


def target() -> str:
    """linux_amd64"""
    machine = {"x86_64": "amd64", "AMD64": "amd64", "aarch64": "arm64"}.get(
        platform.machine(), platform.machine()
    )
    return f"{sys.platform}_{machine}"


def lay(root: Path, schema: Json, python: Path) -> Path:
    """Makes root a mirror with one provider. schema: as bindings.read gives it; python: what the plugin runs with.

    Returns the file for TF_CLI_CONFIG_FILE that makes terraform look nowhere else.
    """
    version = schema["provider_version"]
    folder = root / SOURCE / version / target()
    folder.mkdir(parents=True)
    (folder / "schema.json").write_text(json.dumps(schema))
    plugin = folder / f"terraform-provider-google_v{version}"
    plugin.write_text(f"#!{python}\n{PROVIDER.read_text()}")
    plugin.chmod(0o755)
    config = root / "cli.tfrc"
    config.write_text(f'provider_installation {{\n  filesystem_mirror {{\n    path = "{root}"\n  }}\n}}\n')
    return config
