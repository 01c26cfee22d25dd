"""The ten proofs of serving under load, against the real server and the shipped checkpoint.

    /usr/bin/python3 tests/load/prove.py --build build/release
    /usr/bin/python3 tests/load/prove.py --build build/release --only 2,5 --json proofs.json
    /usr/bin/python3 tests/load/prove.py --build build/release --quick

The full set takes about ten minutes; --quick uses smaller sizes and judges only what holds on any
machine. Prints a table of figures and bounds. Exit code 0: all hold; 1: at least one does not. Run
from the root of the source tree on an otherwise idle machine: figures are ratios within one run,
but varying load changes them.
"""

import argparse
import json
import os
import sys
import time
import traceback


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--build', required=True, help='build folder: programs in bin/, stubs')
    parser.add_argument('--only', default='', help='numbers of proofs, as in 2,5 [default: all]')
    parser.add_argument('--quick', action='store_true',
                        help='smaller sizes; figures of time are printed, not judged')
    parser.add_argument('--json', default='', help='write the figures to this file')
    return parser.parse_args()


def run_proof(number, proof, programs, quick):
    """Returns figures as dicts; a proof that raises becomes one figure that does not hold."""
    started = time.monotonic()
    try:
        figures = proof(programs, quick)
    except Exception as error:  # pylint: disable=broad-except
        traceback.print_exc()
        figures = [{'name': 'ran to its end', 'figure': str(error), 'bound': '', 'ok': False,
                    'is_timed': False}]
    seconds = time.monotonic() - started
    return [{'proof': number, **figure, 'seconds': round(seconds, 1)} for figure in figures]


def verdict(row, quick):
    if quick and row['is_timed']:
        return 'not judged'
    return 'yes' if row['ok'] else 'NO'


def print_table(rows, quick):
    columns = 'proof', 'name', 'figure', 'bound', 'ok'
    cells = [columns] + [[str(row['proof']), row['name'], row['figure'], row['bound'],
                          verdict(row, quick)] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    for line in cells:
        print('  '.join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())


def main():
    arguments = parse_arguments()
    sys.path.insert(0, os.path.join(arguments.build, 'python'))
    import proofs  # needs the stubs of the build
    from served import Programs

    programs = Programs(os.path.join(arguments.build, 'bin'))
    wanted = [int(number) for number in arguments.only.split(',') if number]
    rows = []
    for number, proof in proofs.PROOFS.items():
        if wanted and number not in wanted:
            continue
        print(f'({number}) {proof.__doc__.splitlines()[0]}', flush=True)
        rows += run_proof(number, proof, programs, arguments.quick)
    print()
    print_table(rows, arguments.quick)
    if arguments.json:
        with open(arguments.json, 'w') as file:
            json.dump(rows, file, indent=2)
            file.write('\n')
    return 0 if rows and 'NO' not in [verdict(row, arguments.quick) for row in rows] else 1


if __name__ == '__main__':
    sys.exit(main())
