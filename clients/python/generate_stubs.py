"""Writes the package's generated code: generate_stubs.py OUT [--grpc].

Files: OUT/lssar/v1/inference_pb2.py (messages of proto/lssar/v1/inference.proto) and
inference_pb2.pyi (their types); OUT/lssar/client.py (derive_client.py). --grpc also writes
inference_pb2_grpc.py, the service classes that tests build fake servers from; the package
does not need it.

Needs protoc 3.20 or later: grpcio-tools where it is installed, else `protoc` (Debian:
protobuf-compiler; for --grpc also protobuf-compiler-grpc).
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile

import derive_client

HERE = os.path.dirname(os.path.abspath(__file__))
PROTO = 'lssar/v1/inference.proto'

# protoc's own --python_out asks for a runtime at least as new as protoc, and at most one major
# version newer. These lines work with every protobuf since 3.20, so one wheel serves them all.
MODULE = '''"""Generated from {proto}."""
from google.protobuf import descriptor_pool
from google.protobuf.internal import builder

DESCRIPTOR = descriptor_pool.Default().AddSerializedFile({file!r})
builder.BuildMessageAndEnumDescriptors(DESCRIPTOR, globals())
builder.BuildTopDescriptorsAndMessages(DESCRIPTOR, {module!r}, globals())
'''


def proto_root() -> str:
    """The directory of the proto files: beside this file in an sdist, else of the repository."""
    for root in os.path.join(HERE, 'proto'), os.path.join(HERE, '..', '..', 'proto'):
        if os.path.exists(os.path.join(root, PROTO)):
            return os.path.normpath(root)
    raise SystemExit(f'generate_stubs: {PROTO} is neither in proto/ nor in ../../proto/')


def protoc() -> list[str]:
    """The command that runs protoc."""
    if importlib.util.find_spec('grpc_tools'):
        return [sys.executable, '-m', 'grpc_tools.protoc']
    program = shutil.which('protoc')
    if not program:
        raise SystemExit('generate_stubs: install grpcio-tools or protoc')
    plugin = shutil.which('grpc_python_plugin')
    return [program, *([f'--plugin=protoc-gen-grpc_python={plugin}'] if plugin else [])]


def message_field(data: bytes) -> bytes:
    """The content of the FileDescriptorSet's single entry: field 1, length-delimited."""
    size = shift = 0
    for end, byte in enumerate(data[1:], 2):
        size |= (byte & 0x7f) << shift
        shift += 7
        if byte < 0x80:
            break
    assert data[0] == 0x0a and end + size == len(data)
    return data[end:]


def generate(out: str, grpc: bool = False) -> None:
    """Writes the modules under `out`."""
    os.makedirs(out, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        descriptor = os.path.join(scratch, 'descriptor')
        flags = ['-I', proto_root(), f'--descriptor_set_out={descriptor}', f'--pyi_out={out}']
        if grpc:
            flags.append(f'--grpc_python_out={out}')
        subprocess.run([*protoc(), *flags, PROTO], check=True)
        with open(descriptor, 'rb') as file:
            serialized = message_field(file.read())
    stem = PROTO.removesuffix('.proto') + '_pb2'
    module = MODULE.format(proto=PROTO, file=serialized, module=stem.replace('/', '.'))
    with open(os.path.join(out, stem + '.py'), 'w', encoding='utf-8') as file:
        file.write(module)
    with open(os.path.join(out, 'lssar', 'py.typed'), 'w', encoding='utf-8'):
        pass  # type checkers read inference_pb2.pyi only where this file is
    derive_client.generate(out)


def main(arguments: list[str]) -> None:
    """Parses the command line."""
    names = [each for each in arguments if each != '--grpc']
    if len(names) != 1 or names[0].startswith('-'):
        raise SystemExit(__doc__)
    generate(names[0], grpc='--grpc' in arguments)


if __name__ == '__main__':
    main(sys.argv[1:])
