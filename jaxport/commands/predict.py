"""jaxport predict MODEL --input x=@x.npy | --input x='[[1, 2]]' | --text "import " """

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxport.client import Client
from jaxport.errors import UsageError
from jaxport.flags import add_connection_flags, client_from
from jaxport.text import BytesCode, TextCode, open_text_model

LIKELY = 5  # next bytes listed with their probabilities
SHOWN = 8  # elements of an axis that a terminal shows


def add_flags(parser: argparse.ArgumentParser) -> None:
    flag = parser.add_argument
    flag("model", help="the model's name on the server")
    flag(
        "--input",
        action="append",
        default=[],
        metavar="NAME=@FILE.npy|JSON",
        help="one input; again for more",
    )
    flag("--text", help="a prompt for a language model")
    flag(
        "--bytes", type=int, default=48, metavar="N", help="with --text: how many bytes follow (default: 48)"
    )
    flag(
        "--tokenizer",
        type=Path,
        metavar="FILE",
        help="with --text: the tokenizer.json in the bundle's folder, where tokens are not bytes",
    )
    flag("--model-version", type=int, default=0, metavar="N", help="default: the version that serves")
    flag("--label", default="", metavar="NAME", help="the version that a label such as canary stands for")
    flag("--signature", default="predict", help="which program (default: predict)")
    flag("--output", action="append", default=[], metavar="NAME", help="outputs wanted (default: all)")
    flag("--out", type=Path, metavar="FILE.npz", help="write the outputs to a file")
    flag("--json", action="store_true", help="print the outputs as JSON")
    add_connection_flags(parser)


def run(options: argparse.Namespace) -> int:
    if (options.text is None) == (not options.input):
        raise UsageError("predict: give --input NAME=..., once per input, or --text for a language model")
    with client_from(options) as client:
        if options.text is not None:
            return _continue_text(client, options)
        inputs = _parse_inputs(options.input)
        outputs = client.predict(
            options.model,
            inputs,
            version=options.model_version,
            label=options.label,
            signature=options.signature,
            outputs=options.output,
        )
    _show(outputs, options)
    return 0


def _parse_inputs(texts: Sequence[str]) -> dict[str, Any]:
    inputs: dict[str, Any] = {}
    for text in texts:
        name, value = _parse_input(text)
        if name in inputs:
            raise UsageError(f"--input {name}: is given twice; once per input is needed")
        inputs[name] = value
    return inputs


def _number(text: str) -> float:
    """A fraction as JSON writes it. ValueError past float64, which would become infinite."""
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text} is past the range of numbers; Infinity says what it is")
    return value


def _parse_input(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"--input {text!r}: NAME=@FILE.npy or NAME=JSON is needed")
    if value.startswith("@"):
        try:
            return name, np.load(value[1:], allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise UsageError(
                f"--input {name}: {value[1:]} is no .npy file that can be read ({error})"
            ) from None
    try:
        return name, json.loads(value, parse_float=_number)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"--input {name}: {value!r} is not JSON ({error}); for a file write {name}=@FILE"
        ) from None


def _continue_text(client: Client, options: argparse.Namespace) -> int:
    if not options.text or options.bytes < 1:
        raise UsageError("--text: at least one byte, and --bytes of at least 1, are needed")
    model = open_text_model(client, options.model, options.model_version, options.label, options.tokenizer)
    prompt = model.code.encode(options.text)
    if not prompt:
        raise UsageError(f"--text {options.text!r}: the tokenizer makes no token of it")
    likely = model.likely(prompt, LIKELY)
    following = model.following(prompt, options.bytes).decode(errors="replace")
    each = "byte" if isinstance(model.code, BytesCode) else "token"
    if options.json:
        table = [{each: token, **_named(model.code, token), "probability": p} for token, p in likely]
        print(json.dumps({"prompt": options.text, "next": table, "continuation": following}))
        return 0
    shown = "   ".join(f"{_printable(model.code, token)} {p:.1%}" for token, p in likely)
    print(f"{f'next {each}':<11}  {shown}")
    print(f"continued    {options.text}\N{BOX DRAWINGS LIGHT VERTICAL}{following}")
    return 0


def _named(code: TextCode, token: int) -> dict[str, str]:
    """What a number alone does not say."""
    return {} if isinstance(code, BytesCode) else {"text": code.decode([token]).decode(errors="replace")}


def _printable(code: TextCode, token: int) -> str:
    if isinstance(code, BytesCode):
        return repr(chr(token)) if token < 0x80 else f"0x{token:02x}"
    return repr(code.decode([token]).decode(errors="replace"))


def _show(outputs: dict[str, np.ndarray], options: argparse.Namespace) -> None:
    if options.out is not None:
        try:
            np.savez(options.out, **outputs)  # pyright: ignore[reportArgumentType]
        except OSError as error:
            raise UsageError(f"--out {options.out}: {error.strerror or error}") from None
        print(f"wrote {', '.join(outputs)} to {options.out}", file=sys.stderr)
    if options.json:
        print(json.dumps({name: _plain(value) for name, value in outputs.items()}))
    elif options.out is None:
        with np.printoptions(precision=5, suppress=True, threshold=SHOWN**3, edgeitems=SHOWN // 2):
            for name, value in outputs.items():
                print(f"{name} {value.dtype}{list(value.shape)}\n{value}")


def _plain(array: np.ndarray) -> Any:
    """Nested lists; JSON has no bfloat16, no complex and no NaN, so those become float, pairs and null."""
    if array.dtype.kind == "c":
        return [_plain(np.real(array)), _plain(np.imag(array))]
    if array.dtype.kind in "fV":
        wide = array.astype(np.float64 if array.dtype == np.float64 else np.float32).astype(object)
        wide[~np.isfinite(array.astype(np.float64))] = None
        return wide.tolist()
    return array.tolist()
