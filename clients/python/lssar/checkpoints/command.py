"""The commands `import`, `quantize`, `export` and `verify`, which `lssar` runs."""

import argparse
import dataclasses
import json
import os
import shlex
import signal
import sys
import traceback
import types

from lssar import _tls_flags
from lssar._extras import how_to_install
from lssar.checkpoints.errors import CheckpointError, UsageError
from lssar.types import Tls

EXIT_FAILURE = 1
EXIT_USAGE = 2

IMPORT_HELP = '''
SOURCE is one of
  FILE.pt            nanoGPT (model, model_args), modded-nanogpt (model), models/training (net,
                     config), or tensors only. Read by torch's weights-only loader: no code of the
                     file is executed
  FILE.gguf          llama, qwen2, qwen3, gptneox or gpt2, with its tokenizer and chat template;
                     quantized blocks are dequantized
  model_*.bin        llm.c, version 3 (fp32) or 5 (bf16)
  DIRECTORY          Hugging Face: gpt2, llama, mistral, qwen2, qwen3, smollm3, gpt_neox or bloom,
                     safetensors or .bin, sharded or not; or a checkpoint of this server
  FILE.safetensors   tensors only

What the source does not say has to be given: the error lists it. Nothing is guessed.

DIR gets config.json, model.safetensors, golden.safetensors (logits that the server compares at
every start) and the tokenizer.

GGUF files and Hugging Face directories are softmax models unless --attention says another kind.

Examples:
  lssar import SmolLM2-135M-Instruct.Q4_1.gguf --out model
  lssar import ckpt.pt --out model --attention lssar --p 15 --set activation_function=gelu \\
      --set rope_theta=10000 --set rope_layout=half --tokenizer gpt2/
  lssar import state_step005100.pt --out model --attention lssar --p 15 --set n_head=6 \\
      --set n_positions=1024 --set embedding_norm=true --set final_logit_softcapping=30
  lssar import --base SmolLM2-135M-Instruct.Q4_1.gguf --delta models/zoo/smollm2-lssar --out model
'''
QUANTIZE_HELP = '''
int8: matrices become int8 with a bf16 scale for each 64 elements of a row, as the server's --dtype
int8 makes them at load. Results have the same bits; the checkpoint is smaller and loads without
that work.

int4: codes of 4 bits with a bf16 scale for each 32 elements, as --dtype int4 makes them at load.
--calibration TEXT is better: elements are rounded one column after the other, and the columns that
follow take up the error on this text (GPTQ). The text should be like the model's training text;
the first 16,384 tokens are used, at least 1,024. --head int8 keeps wte and lm_head at 8 bits:
a smaller error, more bytes. Only the cpu and reference devices serve int4.

Examples:
  lssar quantize model --dtype int8 --out model-int8
  lssar quantize model --dtype int4 --calibration book.txt --head int8 --out model-int4
'''
EXPORT_HELP = '''
  safetensors   a directory: GPT-2's names, one file
  gguf-names    a directory: the names of GGUF (token_embd.weight, blk.0.attn_qkv.weight, ...) in
                safetensors
  torch         a .pt with model and model_args, as nanoGPT writes it; model_args has config.json

`lssar import` reads each of them.

Examples:
  lssar export model --format torch --out model.pt
  lssar export model --format gguf-names --out model-gguf-names
'''
VERIFY_HELP = '''
Starts lssar-server on the directory with each device, fp32 K/V, and compares log-probabilities with
the golden rows; compares bits between one thread and two, steps of 16 tokens and of 512, one
request alone and all at once; measures tokens/s. Exit code 1 if a device is off or bits differ.

With --server and --request: replays a saved request on a running server, again, without the prefix
cache and beside other requests, and says where bits part. With DIR also on servers of its own with
other thread counts, step sizes and page sizes. FILE.json holds {"generate": {...}}, or "score",
"embed" or "attention", with the fields of lssar.v1, and may hold the reply:
`lssar generate --save-request FILE.json` writes both. Exit code 1 if bits differ.

Examples:
  lssar verify model
  lssar verify model --devices cpu
  lssar verify --server 127.0.0.1:50051 --request request.json
  lssar verify model --server 127.0.0.1:50051 --request request.json --json
'''


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog='lssar', description='Checkpoints: import, quantize, export, verify.')
    commands = parser.add_subparsers(dest='command', required=True, metavar='COMMAND')

    def add(name: str, what: str, epilog: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, description=what, help=what, epilog=epilog,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)

    importer = add('import', 'Import a checkpoint of Hugging Face, llama.cpp (GGUF), nanoGPT, '
                   'modded-nanogpt or llm.c.', IMPORT_HELP)
    importer.add_argument('source', metavar='SOURCE', nargs='?')
    importer.add_argument('--base', metavar='SOURCE', help='SOURCE, with --delta')
    importer.add_argument('--delta', metavar='DIR', help='what training changed in SOURCE '
                          '(models/training/heal): builds the trained checkpoint')
    importer.add_argument('--out', required=True, metavar='DIR', help='the checkpoint directory')
    importer.add_argument('--attention', metavar='KIND',
                          help='lssar, lssa, softmax, ...: the kinds of models/README.md')
    importer.add_argument('--p', type=float, help='power of the re-weighting, in (0, 1000]')
    importer.add_argument('--phi', help='phi of kind phi')
    importer.add_argument('--set', action='append', default=[], metavar='FIELD=VALUE',
                          help='a field of config.json, as JSON or a word; repeatable')
    importer.add_argument('--ignore', action='append', default=[], metavar='FIELD',
                          help='a field of the source that changes nothing; repeatable')
    importer.add_argument('--logits', metavar='FILE',
                          help='.npz or .safetensors with tokens and logits of your own model in '
                          'float32: the import is compared with them, and nothing is written if '
                          'it differs')
    importer.add_argument('--tokenizer', metavar='PATH',
                          help='file or directory; default: beside the source')
    importer.add_argument('--dtype', choices=('fp32', 'fp16', 'bf16'),
                          help="type of the matrices; default: the source's")
    importer.add_argument('--overwrite', action='store_true', help='replace DIR')
    importer.add_argument('--no-generate', action='store_true',
                          help='do not start a server for a first sentence')
    importer.add_argument('--json', action='store_true', help='print the report as JSON')

    quantizer = add('quantize', 'Write a checkpoint with int8 or int4 weights.', QUANTIZE_HELP)
    quantizer.add_argument('directory', metavar='DIR')
    quantizer.add_argument('--dtype', choices=('int8', 'int4'), default='int8',
                           help='default int8')
    quantizer.add_argument('--calibration', metavar='TEXT', default='',
                           help='int4: a UTF-8 text file for error feedback; default: none, round '
                           'to nearest')
    quantizer.add_argument('--head', choices=('int8', 'int4'), default='',
                           help='int4: type of wte and lm_head; default int4')
    quantizer.add_argument('--out', required=True, metavar='DIR', help='the new directory')
    quantizer.add_argument('--overwrite', action='store_true', help='replace the new directory')

    exporter = add('export', 'Write a checkpoint for other programs.', EXPORT_HELP)
    exporter.add_argument('directory', metavar='DIR')
    exporter.add_argument('--format', required=True, choices=('safetensors', 'gguf-names', 'torch'))
    exporter.add_argument('--out', required=True, metavar='PATH')
    exporter.add_argument('--overwrite', action='store_true', help='replace PATH')

    verifier = add('verify', 'Check a checkpoint on every device at hand, or a saved request.',
                   VERIFY_HELP)
    verifier.add_argument('directory', metavar='DIR', nargs='?',
                          help='a checkpoint; with --server it may be left out')
    verifier.add_argument('--server', metavar='HOST:PORT', help='gRPC address of a server')
    verifier.add_argument('--request', metavar='FILE.json', help='the saved request')
    verifier.add_argument('--api-key', metavar='KEY', default=os.environ.get('LSSAR_API_KEY'),
                          help='of --server [or LSSAR_API_KEY]')
    _tls_flags.add(verifier)
    verifier.add_argument('--devices', metavar='LIST', help='default: cpu, reference and cuda '
                          'where it is there')
    verifier.add_argument('--json', action='store_true', help='print one JSON object')
    return parser


def printable(text: str) -> str:
    """The text without control characters: names in a checkpoint cannot steer a terminal."""
    return ''.join(each if each.isprintable() or each == '\n' else ascii(each)[1:-1]
                   for each in text)


def _source(arguments: argparse.Namespace) -> str:
    """SOURCE or --base. Errors: UsageError, also for flags that a delta says itself."""
    source: str | None = arguments.source or arguments.base
    if source is None or (arguments.source and arguments.base):
        raise UsageError('give SOURCE, or --base SOURCE and --delta DIR')
    if arguments.base and not arguments.delta:
        raise UsageError('--base needs --delta; without a delta give SOURCE alone')
    if arguments.delta:
        for flag in ('attention', 'p', 'phi', 'set', 'ignore', 'dtype'):
            if getattr(arguments, flag) not in (None, []):
                raise UsageError(f'--{flag} and --delta are both given; the delta says how its '
                                 'base is imported')
    return source


def _import(arguments: argparse.Namespace) -> int:
    from lssar.checkpoints import convert, settings

    source = _source(arguments)
    given = {**settings.parse_assignments(arguments.set)}
    for field, value in settings.given_attention(arguments.attention, arguments.p,
                                                 arguments.phi).items():
        if field in given:
            raise UsageError(f'--{field} and --set {field} are both given')
        given[field] = value
    report = convert.run(convert.Options(
        source, arguments.out, given, set(arguments.ignore), arguments.tokenizer,
        arguments.dtype, arguments.overwrite, shlex.join(['lssar', *sys.argv[1:]]),
        arguments.logits, arguments.delta))
    if not arguments.json:
        print(printable(convert.render(report)), flush=True)
    sentence = None
    try:
        if not arguments.no_generate:
            from lssar.checkpoints import served  # needs gRPC

            sentence = served.first_sentence(arguments.out)
    except CheckpointError as error:
        raise CheckpointError(f'{arguments.out} is written, but not served: {error}') from None
    if arguments.json:
        print(json.dumps({**dataclasses.asdict(report), 'first_sentence': sentence}))
    elif sentence is not None:
        print(f'generated   {sentence}')
    return 0


def _quantize(arguments: argparse.Namespace) -> int:
    from lssar.checkpoints import quantize

    options = quantize.Options(dtype=arguments.dtype, head=arguments.head,
                               calibration=arguments.calibration)
    print(quantize.run(arguments.directory, arguments.out, arguments.overwrite,
                       shlex.join(['lssar', *sys.argv[1:]]), options))
    return 0


def _export(arguments: argparse.Namespace) -> int:
    from lssar.checkpoints import export

    print(export.run(arguments.directory, arguments.format, arguments.out, arguments.overwrite))
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    if arguments.server or arguments.request:
        return _replay(arguments)
    if arguments.directory is None:
        raise UsageError('give DIR, or --server HOST:PORT and --request FILE.json')
    if _tls(arguments) is not None:
        raise UsageError('--tls, --ca, --cert and --key apply to --server')
    from lssar.checkpoints import verify

    devices = arguments.devices.split(',') if arguments.devices else None
    # Each device as it is done: a report that is there is not lost with what comes after it.
    report = verify.run(arguments.directory, devices, None if arguments.json else
                        lambda each: print(verify.render(each), flush=True))
    if arguments.json:
        print(json.dumps(dataclasses.asdict(report)))
    return 0 if report.is_ok else EXIT_FAILURE


def _tls(arguments: argparse.Namespace) -> Tls | None:
    try:
        return _tls_flags.of(arguments)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _replay(arguments: argparse.Namespace) -> int:
    from lssar.checkpoints import replay

    if not arguments.server or not arguments.request:
        raise UsageError('--server and --request go together: give both')
    if arguments.devices:
        raise UsageError('--devices applies to DIR without --server')
    report = replay.run(arguments.server, arguments.request, arguments.directory,
                        arguments.api_key, _tls(arguments))
    print(replay.to_json(report) if arguments.json else replay.render(report))
    return 0 if report.is_ok else EXIT_FAILURE


COMMANDS = {'import': _import, 'quantize': _quantize, 'export': _export, 'verify': _verify}


def _stop(number: int, _frame: types.FrameType | None) -> None:
    """A signal that ends the program the way an error does: what is half written is removed."""
    sys.exit(128 + number)


def main() -> int:
    """Runs a command. -> exit code: 0 success, 1 failure, 2 wrong usage, 143 SIGTERM."""
    arguments = _parser().parse_args()
    signal.signal(signal.SIGTERM, _stop)
    try:
        return COMMANDS[arguments.command](arguments)
    except UsageError as error:
        print(printable(f'lssar: {error}'), file=sys.stderr)
        return EXIT_USAGE
    except CheckpointError as error:
        print(printable(f'lssar: {error}'), file=sys.stderr)
        return EXIT_FAILURE
    except ModuleNotFoundError as error:
        extra = 'import-torch' if error.name == 'torch' else 'import'
        print(f'lssar: {error.name} is not installed: {how_to_install(extra)}', file=sys.stderr)
        return EXIT_FAILURE
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            return EXIT_FAILURE
        where = f'{error.filename}: ' if error.filename else ''
        print(printable(f'lssar: {where}{error.strerror or error}'), file=sys.stderr)
        return EXIT_FAILURE
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        # A file that says what nobody thought of. Where: python3 -X dev shows it.
        if sys.flags.dev_mode:
            raise
        place = traceback.extract_tb(error.__traceback__)[-1]
        print(printable(f'lssar: the checkpoint cannot be read ({type(error).__name__}: {error}; '
                        f'{os.path.basename(place.filename)}:{place.lineno}). Please report it'),
              file=sys.stderr)
        return EXIT_FAILURE
    except MemoryError:
        print('lssar: out of memory', file=sys.stderr)
        return EXIT_FAILURE
    except KeyboardInterrupt:
        return EXIT_FAILURE
    finally:
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
