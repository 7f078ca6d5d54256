"""jaxport data prepare --text 'my/*.txt' --out DIR [--tokenizer tokenizer.json]; jaxport data verify DIR"""

import argparse
from pathlib import Path

from train_job.data.prepare import SHARD_TOKENS, Preparation, find_text, prepare
from train_job.data.shards import INDEX, Index, check_digests, read_index, shards_at
from train_job.data.text import VALIDATION_FRACTION
from train_job.data.tokenizer import BYTES
from train_job.errors import UsageError
from train_job.progress import bytes_read


def add_flags(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="action", required=True)
    add = actions.add_parser("prepare", help="make token shards of text", allow_abbrev=False)
    add.add_argument(
        "--text", nargs="+", required=True, metavar="FILE", help="paths and globs; files of any size"
    )
    add.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="the folder to make; for train --data DIR"
    )
    add.add_argument(
        "--tokenizer",
        default=BYTES,
        metavar="FILE",
        help=f"a tokenizer.json of Hugging Face's tokenizers (default: {BYTES}, a token for each)",
    )
    add.add_argument(
        "--separator",
        default="",
        metavar="TOKEN",
        help="a token of the tokenizer to put behind each file, such as '<|endoftext|>' (default: none)",
    )
    add.add_argument(
        "--validation-fraction",
        type=float,
        default=VALIDATION_FRACTION,
        metavar="X",
        help="of each file, its end, to validate on (default: %(default)s)",
    )
    add.add_argument(
        "--shard-tokens",
        type=int,
        default=SHARD_TOKENS,
        metavar="N",
        help="tokens in a file at most (default: %(default)s)",
    )
    verify = actions.add_parser(
        "verify", help="read all shards of a folder and check their digests", allow_abbrev=False
    )
    verify.add_argument("folder", metavar="DIR", help="what prepare made")
    for action in (add, verify):
        action.add_argument("--debug", action="store_true", help="show the traceback of an error")


def run(options: argparse.Namespace) -> int:
    return _verify(options.folder) if options.action == "verify" else _prepare(options)


def _prepare(options: argparse.Namespace) -> int:
    request = Preparation(
        options.text,
        options.out,
        options.tokenizer,
        options.validation_fraction,
        options.shard_tokens,
        options.separator,
    )
    files = find_text(request.text)
    with bytes_read("preparing", sum(file.bytes for file in files)) as advance:
        index, written = prepare(request, files, advance)
    print(f"{options.out}: {said(index)}" if written else f"{options.out}: is there, of the same text")
    print(f"train on it: jaxport train --preset nano --data {options.out}")
    return 0


def _verify(name: str) -> int:
    folder = shards_at(name)
    if folder is None:
        raise UsageError(f"{name}: holds no {INDEX}; needs a folder that jaxport data prepare made")
    index = read_index(folder)
    with bytes_read("reading", sum(map(index.bytes_of, index.shards))) as advance:
        check_digests(folder, index, advance)
    print(f"{folder}: as it was written; {said(index)}")
    return 0


def said(index: Index) -> str:
    """What is in there, in one line."""
    text, tokens = index.text, index.tokens
    files = "1 file" if text.files == 1 else f"{text.files:,} files"
    return (
        f"{index.train.tokens:,} tokens to train on, {index.validation.tokens:,} to validate, of {text.bytes:,} bytes in "
        f"{files}; vocabulary {tokens.vocabulary:,} ({tokens.tokenizer}), {tokens.dtype}, {len(index.shards)} shards; "
        f"sha256 {index.sha256[:12]}"
    )
