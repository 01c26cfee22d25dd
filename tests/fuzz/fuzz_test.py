"""Runs every fuzz target for a moment: from the corpus it finds nothing in the product, and with
its planted fault the input in faults/TARGET fails, which without the fault does not. Where there is
no such file, as --search.

    fuzz_test.py FOLDER [TARGET...]             FOLDER: the links of lssar-fuzz, one a target
    fuzz_test.py --search FOLDER [TARGET...]    the fuzzer itself must find the planted fault, which
                                                the corpus does not have
    fuzz_test.py --record FOLDER [TARGET...]    the same, and keeps what it finds in faults/

A search that has had no luck is begun again with another seed. run.sh fuzzes for hours.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
RUNS = 1000  # of a target without a fault
CLEAN_SECONDS = 1  # at most, for a slow target on a busy machine
FAULT_RUNS = 20_000  # of one search for a fault, which takes some thousands, and seconds
FAULT_SEEDS = 8  # searches, until one finds it


def options(target: str, seed: int) -> list[str]:
    dictionary = HERE / 'dictionaries' / target
    return [f'-seed={seed}', '-timeout=120', '-rss_limit_mb=1024', '-print_final_stats=0',
            *([f'-dict={dictionary}'] if dictionary.exists() else [])]


def environment(has_fault: bool) -> dict[str, str]:
    """This one without LSSAR_ variables, but with the planted fault."""
    own = {name: value for name, value in os.environ.items() if not name.startswith('LSSAR_')}
    return {**own, 'ASAN_OPTIONS': 'detect_leaks=1:handle_abort=1:symbolize=0',
            **({'LSSAR_PLANTED_FAULT': '1'} if has_fault else {})}


def run(program: pathlib.Path, has_fault: bool, seed: int, *flags: str,
        keep: pathlib.Path | None = None) -> subprocess.CompletedProcess:
    """From the corpus, for as long as `flags` say. `keep`: where a failing input goes."""
    with tempfile.TemporaryDirectory() as found:
        done = subprocess.run(
            [program, *options(program.name, seed), f'-artifact_prefix={found}/', *flags, found,
             HERE / 'corpus' / program.name],
            capture_output=True, text=True, errors='replace', env=environment(has_fault),
            check=False)
        failing = sorted(pathlib.Path(found).glob('crash-*'))
        if keep is not None and failing:
            keep.parent.mkdir(exist_ok=True)
            shutil.copy(failing[0], keep)
        return done


def fails(program: pathlib.Path, has_fault: bool, path: pathlib.Path) -> bool:
    """Whether one input fails a check."""
    done = subprocess.run([program, '-timeout=120', path], capture_output=True, text=True,
                          errors='replace', env=environment(has_fault), check=False)
    return done.returncode != 0 and 'CHECK failed' in done.stderr


def problem(program: pathlib.Path) -> str | None:
    clean = run(program, False, 1, f'-runs={RUNS}', f'-max_total_time={CLEAN_SECONDS}')
    if clean.returncode != 0:
        return f'found in the product:\n{clean.stderr[-1500:]}'
    path = HERE / 'faults' / program.name
    if not path.exists():
        return search_problem(program)
    if not fails(program, True, path):
        return f'{path} does not meet the planted fault: --record makes another'
    return f'{path} fails without the planted fault' if fails(program, False, path) else None


def search_problem(program: pathlib.Path, keep: pathlib.Path | None = None) -> str | None:
    for seed in range(1, FAULT_SEEDS + 1):
        faulty = run(program, True, seed, f'-runs={FAULT_RUNS}', keep=keep)
        if 'INITED' not in faulty.stderr:
            return f'the corpus itself has the planted fault:\n{faulty.stderr[-1500:]}'
        if faulty.returncode != 0 and 'CHECK failed' in faulty.stderr:
            return None
    return f'the planted fault was not found:\n{faulty.stderr[-1500:]}'


def main(*arguments: str) -> int:
    folder, *names = [each for each in arguments if not each.startswith('--')]
    programs = [pathlib.Path(folder) / name for name in sorted(os.listdir(folder))
                if not names or name in names]
    num_failed = 0
    for program in programs:
        if '--record' in arguments:
            found = search_problem(program, HERE / 'faults' / program.name)
        else:
            found = (search_problem if '--search' in arguments else problem)(program)
        print(f'{program.name}: {found or "ok"}', flush=True)
        num_failed += found is not None
    return 1 if num_failed or not programs else 0


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))
