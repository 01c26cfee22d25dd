"""Runs lm-eval several times in one process: run_lm_eval.py TASKS RUNS, both JSON or paths.

TASKS: the directory of the task files. RUNS: a JSON list of {'model_args': ..., 'tasks': [...],
and further arguments of lm_eval.simple_evaluate}. Writes a JSON list to the last line of stdout:
for each run {'samples': {task: [...]}} or {'error': sentence}.
"""

import json
import sys

import lm_eval
from lm_eval.tasks import TaskManager

import lssar.lm_eval  # registers the model


def evaluate(manager, arguments):
    """One run."""
    try:
        results = lm_eval.simple_evaluate(
            **{'model': lssar.lm_eval.MODEL_NAME, **arguments}, task_manager=manager,
            log_samples=True, bootstrap_iters=0)
    except (NotImplementedError, TypeError, ValueError) as error:
        return {'error': str(error)}
    return {'samples': {task: sorted(samples, key=lambda sample: sample['doc_id'])
                        for task, samples in results['samples'].items()}}


def main():
    # Without lm-eval's own tasks: it would read thousands of files first.
    manager = TaskManager(include_path=sys.argv[1], include_defaults=False)
    outcomes = [evaluate(manager, arguments) for arguments in json.loads(sys.argv[2])]
    print(json.dumps(outcomes, default=str))


if __name__ == '__main__':
    main()
