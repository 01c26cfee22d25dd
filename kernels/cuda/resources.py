"""Registers and stack of each kernel in objects made by nvcc (with --no-compress), as a table.
Spills cannot occur: the build treats them as errors.

    python3 kernels/cuda/resources.py OBJECT...            prints the table
    python3 kernels/cuda/resources.py --check TABLE OBJECT...
        exit code 1: TABLE is out of date. A table made with another compiler passes with a message.
"""

import re
import struct
import subprocess
import sys
from typing import Iterator, NamedTuple

EM_CUDA = 190
REGISTERS, STACK = 0x2F, 0x11  # attributes of .nv.info
SECTION_HEADER = struct.Struct('<IIQQQQIIQQ')
SYMBOL = struct.Struct('<IBBHQQ')


class Kernel(NamedTuple):
    name: str
    arch: str
    registers: int
    stack_bytes: int


def sections(elf: bytes) -> Iterator[tuple[str, bytes]]:
    """(name, content) of each section."""
    (offset,) = struct.unpack_from('<Q', elf, 40)
    _, count, names_idx = struct.unpack_from('<HHH', elf, 58)
    headers = [SECTION_HEADER.unpack_from(elf, offset + i * SECTION_HEADER.size)
               for i in range(count)]
    names_at = headers[names_idx][4]
    for header in headers:
        start = names_at + header[0]
        name = elf[start:elf.index(b'\0', start)].decode()
        nothing_in_file = 8
        yield name, b'' if header[1] == nothing_in_file else elf[header[4]:header[4] + header[5]]


def symbol_names(content: dict[str, bytes]) -> list[str]:
    table, strings = content['.symtab'], content['.strtab']
    names = []
    for at in range(0, len(table), SYMBOL.size):
        start = SYMBOL.unpack_from(table, at)[0]
        names.append(strings[start:strings.index(b'\0', start)].decode())
    return names


def attributes(entries: bytes) -> Iterator[tuple[int, int, int]]:
    """(attribute, symbol, value) of the entries with one symbol and one value."""
    at = 0
    while at + 4 <= len(entries):
        kind, attribute, size = struct.unpack_from('<BBH', entries, at)
        at += 4
        if kind != 4:
            continue
        if size == 8:
            yield attribute, *struct.unpack_from('<II', entries, at)
        at += size


def device_programs(path: str) -> Iterator[bytes]:
    """The device programs (cubins) inside a host object."""
    with open(path, 'rb') as file:
        fat = dict(sections(file.read())).get('.nv_fatbin', b'')
    for match in re.finditer(b'\x7fELF', fat):
        program = fat[match.start():]
        if struct.unpack_from('<H', program, 18)[0] == EM_CUDA:
            yield program


def short_name(mangled: str) -> str:
    """Name<Element, dim> without namespaces and arguments."""
    full = subprocess.run(['c++filt', mangled], capture_output=True, text=True,
                          check=True).stdout.strip()
    full = re.sub(r'\(anonymous namespace\)::|lssar::cuda::|\(int\)|Element', '', full)
    return re.sub(r'\(.*', '', full).removeprefix('void ')


def kernels(paths: list[str]) -> list[Kernel]:
    found = []
    for path in paths:
        for program in device_programs(path):
            content = dict(sections(program))
            names = symbol_names(content)
            registers, stacks = {}, {}
            for attribute, symbol, value in attributes(content.get('.nv.info', b'')):
                if attribute == REGISTERS:
                    registers[symbol] = value
                elif attribute == STACK:
                    stacks[symbol] = value
            arch = next(name for name in ('sm_80', 'sm_90a') if name.encode() in program)
            for symbol, count in registers.items():
                if f'.text.{names[symbol]}' in content and 'AttendFlat' not in names[symbol]:
                    found.append(Kernel(short_name(names[symbol]), arch, count,
                                        stacks.get(symbol, 0)))
    return sorted(found)


def table(found: list[Kernel]) -> str:
    rows: dict[str, dict[str, Kernel]] = {}
    for kernel in found:
        rows.setdefault(kernel.name, {})[kernel.arch] = kernel
    lines = ['| kernel | registers, sm_80 | stack | registers, sm_90a | stack |',
             '|---|---|---|---|---|']
    for name, archs in rows.items():
        cells = [f'{archs[arch].registers} | {archs[arch].stack_bytes} B' if arch in archs
                 else '- | -' for arch in ('sm_80', 'sm_90a')]
        lines.append(f'| `{name}` | {cells[0]} | {cells[1]} |')
    return '\n'.join(lines) + '\n'


def compiler(path: str) -> str:
    with open(path, 'rb') as file:
        match = re.search(rb'Cuda compilation tools, release ([\d.]+)', file.read())
    return match.group(1).decode() if match else 'unknown'


def main(arguments: list[str]) -> int:
    checked = arguments[1] if arguments[:1] == ['--check'] else None
    paths = arguments[2:] if checked else arguments
    found = kernels(paths)
    if not found:
        print('resources.py: no kernels in the objects', file=sys.stderr)
        return 1
    made = f'Made by nvcc {compiler(paths[0])}.\n\n{table(found)}'
    if not checked:
        print(made, end='')
        return 0
    with open(checked, encoding='utf-8') as file:
        recorded = file.read()
    if made.split('\n', 1)[0] not in recorded:
        print(f'{checked} is for another compiler: not compared')
        return 0
    if made not in recorded:
        print(f'{checked} is out of date; the objects have:\n\n{made}', end='')
        return 1
    print(f'{len(found)} kernels as recorded')
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
