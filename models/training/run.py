"""Runs all stages: prepare, train and evaluate a model and its softmax twin, export.

    run.py --corpus CORPUS --out RUNS [--preset cpu-2h] [--no-twin] [--evaluation FILE ...]

Writes to RUNS data/ (prepare.py), lssar/ and softmax/ (train.py, evaluate.py) and model/
(export.py). Running it again skips finished stages and resumes training; with a larger budget or
other --lengths and --trials it evaluates anew.
"""

import argparse
import copy
import os

import evaluate
import export
import prepare
import train


def arguments(words=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--out', required=True)
    parser.add_argument('--no-twin', action='store_true', help='do not train the softmax model')
    for stage in (prepare, train, evaluate, export):
        stage.add_arguments(parser.add_argument_group(stage.__name__))
    return parser.parse_args(words)


def run(args):
    prepared = f'{args.out}/data'
    if not os.path.exists(f'{prepared}/prepare.json'):
        prepare.run(args, prepared)
    val = f'{prepared}/val.bin'  # ids of two bytes; checked before the training
    evaluate.check_length(max(args.lengths), os.path.getsize(val) // 2, val)
    kinds = [args.attention] if args.no_twin else [args.attention, 'softmax']
    for kind in kinds:
        this = copy.copy(args)
        this.attention, this.resume = kind, True
        directory = f'{args.out}/{kind}'
        if not train.run(this, prepared, directory):
            raise SystemExit('stopped before the end: run the same command again to resume')
        if not evaluate.is_current(args, directory):
            evaluate.run(args, prepared, directory)
        # Exports the model before its twin exists, and again with the twin in its card.
        args.twin = directory if kind != args.attention else None
        net = export.run(args, prepared, f'{args.out}/{args.attention}', f'{args.out}/model')
    return net


if __name__ == '__main__':
    run(arguments())
