"""All stages: prepare, train and evaluate a model and its softmax twin, export.

    run.py --corpus CORPUS --out RUNS [--preset cpu-2h] [--no-twin] [--evaluation FILE ...]

RUNS gets data/ (prepare.py), lssar/ and softmax/ (train.py, evaluate.py) and model/ (export.py). A
stage whose result is there is not done again, and training goes on where it stopped.
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
    parser.add_argument('--no-twin', action='store_true', help='without the softmax model')
    for stage in (prepare, train, evaluate, export):
        stage.add_arguments(parser.add_argument_group(stage.__name__))
    return parser.parse_args(words)


def run(args):
    prepared = f'{args.out}/data'
    if not os.path.exists(f'{prepared}/prepare.json'):
        prepare.run(args, prepared)
    kinds = [args.attention] if args.no_twin else [args.attention, 'softmax']
    for kind in kinds:
        this = copy.copy(args)
        this.attention, this.resume = kind, True
        directory = f'{args.out}/{kind}'
        if not train.run(this, prepared, directory):
            raise SystemExit('stopped before the end: the same command goes on')
        if not os.path.exists(f'{directory}/passkey.json'):
            evaluate.run(args, prepared, directory)
        # The model is there before its twin is, and again with the twin in its card.
        args.twin = directory if kind != args.attention else None
        net = export.run(args, prepared, f'{args.out}/{args.attention}', f'{args.out}/model')
    return net


if __name__ == '__main__':
    run(arguments())
