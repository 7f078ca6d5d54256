"""jaxport promote nano 3 --label stable | jaxport promote nano --label stable --rollback | --policy 'latest 2'"""

import argparse
from pathlib import Path

from converters.errors import BadPolicy


def add_flags(parser: argparse.ArgumentParser) -> None:
    flag = parser.add_argument
    flag("model", help="the model's name")
    flag("version", nargs="?", type=int, help="the version that the label is to point to")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--root", type=Path, default=Path("work"), help="holds models/ (default: ./work)")
    where.add_argument("--models", type=Path, metavar="DIR", help="the folder that the server reads")
    flag("--label", metavar="NAME", help="the label to set, such as stable or canary")
    flag("--rollback", action="store_true", help="point --label to the version before; again: further back")
    flag("--policy", metavar="POLICY", help="'latest N', 'pinned N,N' or 'label NAME': which versions serve")


def run(options: argparse.Namespace) -> int:
    _check(options)
    from converters.promote import check_policy, promote, rollback, set_policy

    model_dir = (options.models or options.root / "models") / options.model
    if options.policy is not None:
        check_policy(model_dir, options.policy)  # before a label moves: both or none
    if options.rollback:
        before, now = rollback(model_dir, options.label)
        print(f"{options.model} {options.label}: {_shown(before)} -> {now}")
    elif options.label is not None:
        before = promote(model_dir, options.version, options.label)
        same = before == options.version
        moved = f"{before}, as before" if same else f"{_shown(before)} -> {options.version}"
        print(f"{options.model} {options.label}: {moved}")
    if options.policy is not None:
        before, now = set_policy(model_dir, options.policy)
        print(f"{options.model} policy: {_shown(before)} -> {now}")
    return 0


def _check(options: argparse.Namespace) -> None:
    """BadPolicy: the arguments do not say one thing."""
    if Path(options.model).name != options.model:
        raise BadPolicy(f"promote: model {options.model!r} is no name; --models or --root says where it is")
    if options.label is None:
        if options.rollback or options.version is not None:
            raise BadPolicy("promote: --label NAME is needed, to know which label is meant")
        if options.policy is None:
            raise BadPolicy("promote: give VERSION --label NAME, --label NAME --rollback or --policy POLICY")
    elif options.rollback == (options.version is not None):
        raise BadPolicy("promote: give either a VERSION for the label or --rollback")


def _shown(before: object | None) -> str:
    return "not set" if before is None else str(before)
