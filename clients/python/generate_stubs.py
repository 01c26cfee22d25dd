"""Writes lssar/v1/inference_pb2*.py into a folder: generate_stubs.py OUT.

With grpcio-tools where it is installed, else with protoc and grpc_python_plugin (Debian:
protobuf-compiler, protobuf-compiler-grpc). The contract is proto/lssar/v1/inference.proto of the
repository that this file stands in.
"""

import importlib.util
import os
import shutil
import subprocess
import sys

PROTO_ROOT = os.path.normpath(
    os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'proto'))
PROTO = 'lssar/v1/inference.proto'


def command(out: str) -> list[str]:
    """The command line that generates the stubs into `out`."""
    flags = ['-I', PROTO_ROOT, f'--python_out={out}', f'--grpc_python_out={out}', PROTO]
    if importlib.util.find_spec('grpc_tools'):
        return [sys.executable, '-m', 'grpc_tools.protoc', *flags]
    protoc, plugin = shutil.which('protoc'), shutil.which('grpc_python_plugin')
    if not protoc or not plugin:
        raise SystemExit('generate_stubs: install grpcio-tools, or protoc and grpc_python_plugin')
    return [protoc, f'--plugin=protoc-gen-grpc_python={plugin}', *flags]


def generate(out: str) -> None:
    os.makedirs(out, exist_ok=True)
    subprocess.run(command(out), check=True)


if __name__ == '__main__':
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    generate(sys.argv[1])
