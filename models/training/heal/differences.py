"""A run's base, imported; its result as a delta; and a run that begins from a delta."""

import importlib.util
import json
import pathlib
import sys

import torch

CLIENT = pathlib.Path(__file__).resolve().parents[3] / 'clients/python'


def client(module):
    """A module of lssar.checkpoints: the installed one, or that of this repository."""
    if not importlib.util.find_spec('lssar'):
        sys.path.append(str(CLIENT))
    return importlib.import_module(f'lssar.checkpoints.{module}')


def import_base(base, directory, dtype=None, assignments=(), ignored=(), start=None):
    """What `lssar import` writes for the base with softmax attention, and import.json beside it.

    start: the delta that the run begins from, whose settings hold where there are no others.
    """
    settings = client('settings')
    given = {'attention': {'kind': 'softmax'}}
    if start:
        change = client('delta').read(start)
        dtype, ignored = dtype or change.dtype, {*change.ignored, *ignored}
        given.update(change.given)
    given.update(settings.parse_assignments(list(assignments)))
    try:
        client('convert').run(client('convert').Options(
            base, directory, given, set(ignored), dtype=dtype, command='models/training/heal'))
    except client('errors').CheckpointError as error:
        raise SystemExit(str(error))
    except ModuleNotFoundError as error:
        raise SystemExit(f'{error.name} is not installed: pip install {error.name}') from None
    with open(f'{directory}/import.json', 'w', encoding='utf-8') as file:
        json.dump({'dtype': dtype, 'set': given, 'ignore': sorted(ignored)}, file, indent=2)


def _teacher(run):
    """(config, tensors as numpy arrays under our names, {file of the base: SHA-256}) of
    RUN/teacher.
    """
    file = client('tensor_file').TensorFile(f'{run.directory}/teacher/model.safetensors')
    with open(f'{run.directory}/teacher/config.json', encoding='utf-8') as text:
        config = json.load(text)
    config.pop('model_type')
    tensors = {name.removeprefix('transformer.'): tensor for name, tensor in file.tensors().items()}
    origin = pathlib.Path(run.directory, 'teacher', client('directory').ORIGIN)
    if origin.exists():
        return config, tensors, json.loads(origin.read_text(encoding='utf-8'))['source_sha256']
    return config, tensors, json.loads(file.metadata['source_sha256'])  # imported before 0.4


def attention_of(p):
    """config.json's attention of p, a number or one for each layer."""
    def of_layer(power):
        return {'kind': 'lssar', 'p': int(power) if power == int(power) else power}
    return of_layer(p) if isinstance(p, (int, float)) else [of_layer(power) for power in p]


def powers_of(directory):
    """p of a delta, a number or one for each layer."""
    spec = client('delta').read(directory).config.get('attention')
    layers = spec if isinstance(spec, list) else [spec]
    if not layers or any(not isinstance(layer, dict) or layer.get('kind') != 'lssar'
                         for layer in layers):
        raise SystemExit(f'{directory}: attention is {spec}; must be lssar')
    return tuple(layer['p'] for layer in layers) if isinstance(spec, list) else spec['p']


def write(run):
    """Writes RUN/delta from the averaged weights. Exits where some are not finite."""
    for name, tensor in run.average.items():
        if not torch.isfinite(tensor).all():
            raise SystemExit(f'{run.directory}: {name} is not finite: the run has diverged')
    config, tensors, source = _teacher(run)
    with open(f'{run.directory}/teacher/import.json', encoding='utf-8') as file:
        imported = json.load(file)
    trained = {name: tensor.cpu().numpy() for name, tensor in run.average.items()}
    return client('delta').write(
        f'{run.directory}/delta', source, imported, config, tensors,
        {'attention': attention_of(run.p)}, trained)


def start(run, directory):
    """Begins at distillation with the weights of a delta. The optimizer starts afresh."""
    change = client('delta').read(directory)
    if change.config.get('attention') != attention_of(run.p):
        raise SystemExit(f'{directory}: attention is {change.config.get("attention")}; the run has '
                         f'{attention_of(run.p)}')
    config, tensors, source = _teacher(run)
    change.check_base(source)
    config, changed = change.apply(config, tensors)
    change.check_result(config, changed)
    widen = client('arrays').widen
    weights = {name: torch.from_numpy(widen(changed[name], 'float32').copy())
               for name in run.trained}
    run.set_weights(weights, weights)
    run.next_stage()
