"""Generates jaxport/wire from proto/: python scripts/generate_wire.py [--check]

With --check nothing is written: exit 1 names the files that differ from what proto/ says.
"""

import argparse
import filecmp
import re
import sys
import tempfile
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
WIRE = ROOT / "jaxport" / "wire"
PROTOBUFS_OWN = Path(grpc_tools.__file__).parent / "_proto"  # google/protobuf/*.proto
# A .proto file, and the module it becomes: flat, because the folder jaxport/v1 would shadow the package.
SOURCES = {
    "jaxport/v1/prediction.proto": "prediction",
    "jaxport/oip/inference.proto": "open_inference",
    "jaxport/tfs/serving.proto": "tensorflow_serving",
}


def generate(out: Path) -> None:
    """Writes <name>_pb2.py and <name>_pb2.pyi for every source into `out`."""
    for source, name in SOURCES.items():
        with tempfile.TemporaryDirectory() as folder:
            includes = [f"-I{ROOT / 'proto'}", f"-I{PROTOBUFS_OWN}"]
            status = protoc.main(
                ["protoc", *includes, f"--python_out={folder}", f"--pyi_out={folder}", source]
            )
            if status:
                sys.exit(status)
            for suffix in ("_pb2.py", "_pb2.pyi"):
                made = Path(folder, source).with_suffix("").as_posix() + suffix
                # The patch release of protoc is not part of the contract.
                text = re.sub(r"^# Protobuf Python Version: .*\n", "", Path(made).read_text(), flags=re.M)
                (out / f"{name}{suffix}").write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    if not parser.parse_args().check:
        generate(WIRE)
        return
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        names = [path.name for path in Path(folder).iterdir()]
        _, differ, missing = filecmp.cmpfiles(folder, WIRE, names, shallow=False)
    if differ or missing:
        sys.exit(
            f"jaxport/wire is not what proto/ says: {', '.join(sorted(differ + missing))}; run make proto"
        )


if __name__ == "__main__":
    main()
