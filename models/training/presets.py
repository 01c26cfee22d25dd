"""Model sizes, budgets and row shares of training runs."""

import argparse
import dataclasses

import attention
import flags
import model


@dataclasses.dataclass
class Preset:
    name: str
    what: str
    layers: int
    heads: int
    hidden_size: int
    ctx: int  # trained length, tokens
    rows: int  # per step, of ctx tokens
    micro_rows: int  # per forward pass, by memory; gradients of rows / micro_rows passes add up
    aim_tokens: float  # the tokens that the budget is meant for; only the budget ends the run
    minutes: float = 0.0  # budget by time ...
    steps: int = 0  # ... or by steps, which makes runs bit-identical
    lr: float = 3e-3  # of AdamW: embedding, biases, norms
    muon_lr: float = 0.02  # of Muon: the blocks' matrices
    warmup: int = 100  # steps
    passkey: float = 0.12  # share of the rows until DIALOGS
    repeat: float = 0.20  # share of the rows during REPEAT


# What a resumed run may change: its budget, and what changes no result.
RESUMED_WITH_OTHERS = ('name', 'what', 'micro_rows', 'aim_tokens', 'minutes', 'steps')

PRESETS = {preset.name: preset for preset in (
    Preset('smoke', 'seconds: tests the whole chain', 2, 2, 32, 256, rows=4, micro_rows=2,
           aim_tokens=30e3, steps=30, warmup=5),
    Preset('cpu-10min', 'one core: curves at toy size', 4, 4, 128, 256, rows=16, micro_rows=16,
           aim_tokens=2.5e6, minutes=10, warmup=50),
    Preset('cpu-2h', 'two cores: the shape of lssar-6m', 6, 4, 256, 1024, rows=8, micro_rows=8,
           aim_tokens=20e6, minutes=120),
    Preset('gpu-25min', 'one GPU: a model to ship', 6, 8, 512, 1024, rows=128, micro_rows=64,
           aim_tokens=500e6, minutes=25, warmup=200),
    Preset('gpu-24h', "one GPU: the paper's 124M", 12, 12, 768, 1024, rows=512, micro_rows=32,
           aim_tokens=10e9, minutes=1440, warmup=500, lr=1.5e-3),
)}

# Parts of the run, from 0 to 1. Repeated segments teach retrieval.
REPEAT = (0.1, 0.5)
DIALOGS = (0.9, 1.0)
DIALOG_SHARES = {'dialogs': 0.75, 'passkey': 0.15}


def shares(preset, progress):
    """{row kind: share of the rows}; the rest is text."""
    if progress >= DIALOGS[0]:
        return DIALOG_SHARES
    in_repeat = REPEAT[0] <= progress < REPEAT[1]
    return {'passkey': preset.passkey, 'repeat': preset.repeat if in_repeat else 0.0}


def rate_scale(preset, step, progress):
    """Factor of both learning rates: warm-up, constant to the middle, then linear decay."""
    scale = min(1.0, (step + 1) / preset.warmup)
    return scale if progress < 0.5 else scale * max(0.02, (1 - progress) / 0.5)


def add_arguments(parser):
    """Adds the flags that chosen() and config_of() read."""
    text = '; '.join(f'{name}: {preset.what}' for name, preset in PRESETS.items())
    parser.add_argument('--preset', choices=PRESETS, default='cpu-2h', help=text)
    parser.add_argument('--attention', default='lssar', choices=attention.KINDS)
    parser.add_argument('--p', type=float, default=15)
    for field in dataclasses.fields(Preset):
        if field.type in (int, float) and field.name != 'aim_tokens':
            kind = (flags.count if field.type is int else
                    flags.share if field.name in ('passkey', 'repeat') else flags.above_0)
            parser.add_argument('--' + field.name.replace('_', '-'), type=kind,
                                default=argparse.SUPPRESS, help='overrides the preset')


def chosen(args):
    """The preset with the command line's overrides."""
    given = {name: value for name, value in vars(args).items()
             if name in {field.name for field in dataclasses.fields(Preset)}}
    if given.get('steps'):
        given.setdefault('minutes', 0.0)
    elif given.get('minutes'):
        given.setdefault('steps', 0)
    preset = dataclasses.replace(PRESETS[args.preset], **given)
    if preset.rows % preset.micro_rows:
        raise SystemExit(f'--rows {preset.rows} must be a multiple of '
                         f'--micro-rows {preset.micro_rows}')
    return preset


def changes(preset):
    """The flags that turn the preset of the same name into this one."""
    usual = PRESETS[preset.name]
    return ''.join(f' --{field.name.replace("_", "-")} {getattr(preset, field.name)}'
                   for field in dataclasses.fields(Preset)
                   if getattr(preset, field.name) != getattr(usual, field.name)
                   and not (field.name in ('minutes', 'steps') and not getattr(preset, field.name)))


def config_of(preset, kind, p, vocab_size):
    return model.Config(vocab_size, preset.layers, preset.heads, preset.hidden_size, preset.ctx,
                        kind, p)
