"""Turns a checkpoint with softmax attention into one with LSSAR, by learning from itself.

    heal.py --base BASE --corpus CORPUS --out RUN [--preset cpu] [--p 15]

BASE is what `lssar import` reads: a Hugging Face directory, a GGUF file, a checkpoint. The same
command resumes a stopped run. RUN gets teacher/ (BASE, imported), data/ (token ids), state.pt,
log.jsonl, curve.svg, and delta/: what changed, for `lssar import --base BASE --delta RUN/delta`.
"""

import argparse
import dataclasses
import json
import math
import os
import pathlib
import signal
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
# attention_cpu.cc has threads of its own: BLAS with threads inside them is 40 times slower.
os.environ.setdefault('OPENBLAS_NUM_THREADS', '1')

import torch  # noqa: E402

import attention  # noqa: E402
import checkpoint_files  # noqa: E402
import curve  # noqa: E402
import decoder  # noqa: E402
import differences  # noqa: E402
import budgets  # noqa: E402
import flags  # noqa: E402
import streams  # noqa: E402
import rows  # noqa: E402
import stages  # noqa: E402

STAGES = ('transfer', 'distil')
SOURCES = 'sources.json'  # in RUN: absolute paths of its base and corpus
LOG_STEPS = 10
LENGTHS = (512, 2048)  # of the held-out rows
HELD_OUT_TOKENS = 8192  # of each length
CLIP = 1.0  # largest norm of a distillation gradient; transfer's layers have losses of their own


def read_teacher(directory):
    """(config, {name: tensor}) of a checkpoint directory. Exits unless its attention is softmax."""
    with open(f'{directory}/config.json', encoding='utf-8') as file:
        config = json.load(file)
    if config.get('attention') != {'kind': 'softmax'}:
        raise SystemExit(f'{directory}: attention is {config.get("attention")}; the teacher needs '
                         '{"kind": "softmax"}')
    tensors = checkpoint_files.read_safetensors(f'{directory}/model.safetensors')
    return config, {name.removeprefix('transformer.'): tensor for name, tensor in tensors.items()}


def is_bf16_faster(device):
    """Whether a product of bfloat16 takes less time on the device than one of float32, measured.

    It does on GPUs and on CPUs with AMX or AVX512-BF16; on others it takes up to 17 times as long.
    """
    def seconds(dtype):
        x, w = (torch.ones(rows, 512, dtype=dtype, device=device) for rows in (256, 1024))
        times = []
        for _ in range(4):  # the first one warms up
            start_s = time.perf_counter()
            (x @ w.T)[0, 0].item()
            times.append(time.perf_counter() - start_s)
        return min(times[1:])
    return seconds(torch.bfloat16) < seconds(torch.float32)


def chosen_bf16(given, state, preset, device):
    """Whether products are in bfloat16: as given, else as the run began, else if it pays."""
    if given is not None:
        return given
    if state:
        return state.get('bf16', preset.bf16)  # the preset's: of versions before 0.4
    return preset.bf16 and is_bf16_faster(device)


def evaluation_lengths(shape):
    """LENGTHS, within what a model with learned positions reads."""
    if shape.position_kind != 'learned':
        return LENGTHS
    return sorted({min(length, shape.positions) for length in LENGTHS})


def is_trained(name):
    """The attention's matrices and biases, and every norm."""
    return '.attn.' in name or '.ln_' in name or name.startswith('ln_f')


class Run:
    """Teacher, student, optimizer and progress."""

    def __init__(self, preset, directory, p=15, seed=0, device='cpu', minutes=None, bf16=False):
        self.preset, self.directory, self.p, self.seed = preset, directory, p, seed
        self.bf16 = bf16
        self.time_s = math.inf if minutes is None else 60 * minutes
        self.end_s = time.monotonic() + self.time_s
        self.device = torch.device(device)
        config, tensors = read_teacher(f'{directory}/teacher')
        shape, vocabulary = decoder.shape_of(config), config['vocab_size']
        self.lengths = evaluation_lengths(shape)
        if shape.position_kind == 'learned':
            preset = self.preset = dataclasses.replace(
                preset, transfer=preset.transfer.within(shape.positions),
                distil=preset.distil.within(shape.positions))
        for _, length in preset.distil.cycle:
            try:
                stages.check_length(length, shape.positions)
            except ValueError as error:
                raise SystemExit(f'--rows: {error}') from None
        dtype = torch.bfloat16 if bf16 else torch.float32
        frozen = {name: tensor.to(self.device, dtype if tensor.dim() == 2 else torch.float32)
                  for name, tensor in tensors.items()}
        self.trained = {name: tensor.float().to(self.device).clone().requires_grad_()
                        for name, tensor in tensors.items() if is_trained(name)}
        self.average = {name: tensor.detach().clone() for name, tensor in self.trained.items()}
        self.teacher = decoder.Decoder(shape, frozen, 'softmax', dtype=dtype)
        self.student = decoder.Decoder(shape, {**frozen, **self.trained}, 'lssar', p, dtype)
        self.averaged = decoder.Decoder(shape, {**frozen, **self.average}, 'lssar', p, dtype)
        self.bos = streams.bos_of(f'{directory}/data')
        self.rows = rows.Rows(f'{directory}/data', vocabulary, preset.shares, seed, self.bos)
        self.vocabulary = vocabulary
        self.stage, self.step, self.tokens, self.spent_s = 0, 0, 0, 0.0
        self.optimizer = self.new_optimizer()

    @property
    def plan(self):
        """The running stage's part of the preset."""
        return getattr(self.preset, STAGES[self.stage])

    def parameters(self):
        """{name: tensor} that the stage trains."""
        if STAGES[self.stage] == 'distil':
            return self.trained
        return {name: tensor for name, tensor in self.trained.items() if '.attn.c_attn.' in name}

    def new_optimizer(self):
        named = self.parameters().items()
        groups = [{'params': [w for _, w in named if w.dim() == 2], 'rate': self.plan.lr},
                  {'params': [w for _, w in named if w.dim() < 2], 'rate': self.plan.vector_lr}]
        return torch.optim.Adam([group for group in groups if group['params']], lr=self.plan.lr,
                                betas=(0.9, 0.95))

    def train_step(self):
        """One step. Returns (loss, tokens)."""
        num_rows, length, at_a_time = self.plan.row_count(self.step)
        tokens, answers = (each.to(self.device) for each in self.rows.draw(
            self.stage, self.step, num_rows, length))
        loss, counts = 0.0, stages.counts_of(answers)
        is_distillation = STAGES[self.stage] == 'distil'
        for part, asked in zip(tokens.split(at_a_time), answers.split(at_a_time)):
            if is_distillation:
                loss += stages.distil(self.teacher, self.student, part, asked, counts)
            else:
                share = len(part) / num_rows
                loss += share * stages.transfer(self.teacher, self.student, part, share)
        if is_distillation:
            torch.nn.utils.clip_grad_norm_(self.parameters().values(), CLIP)
        for group in self.optimizer.param_groups:
            group['lr'] = group['rate'] * self.plan.rate_scale(self.step) * self.time_scale()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self.tokens += tokens.numel()
        self.update_average()
        return loss, tokens.numel()

    @torch.no_grad()
    def update_average(self):
        """A mean over about the last twentieth of the stage, up to 500 steps: what is exported.

        It is better than any single step at a constant rate, so a run can end at any moment.
        """
        keep = 1 - max(1 / 500, min(1.0, 20 / (self.step + 20)))
        for name, tensor in self.parameters().items():
            self.average[name].lerp_(tensor.detach(), 1 - keep)

    def next_stage(self):
        """Goes on to the next stage, if any, from the averaged weights."""
        self.stage += 1
        if not self.is_finished():  # else `step` says how many there were, for a resume with more
            self.step = 0
            with torch.no_grad():
                for name, tensor in self.trained.items():
                    tensor.copy_(self.average[name])
            self.optimizer = self.new_optimizer()

    def time_scale(self):
        """Factor of the learning rate: falls from 1 to 0 while the time of `minutes` passes."""
        if self.time_s == math.inf or STAGES[self.stage] != 'distil':
            return 1.0
        return self.time_left_s() / self.time_s

    def time_left_s(self):
        """What is left of `minutes`; inf without them."""
        return max(0.0, self.end_s - time.monotonic())

    def is_finished(self):
        return self.stage == len(STAGES)

    def save(self, path):
        """Writes the state. Exits where weights are not finite, and what was saved before stays."""
        for name, tensor in self.trained.items():
            self.check_finite(f'{name} has values that are', bool(torch.isfinite(tensor).all()))
        state = {'trained': {name: tensor.detach() for name, tensor in self.trained.items()},
                 'average': self.average, 'optimizer': self.optimizer.state_dict(),
                 'stage': self.stage, 'step': self.step, 'tokens': self.tokens,
                 'spent_s': self.spent_s, 'p': self.p, 'seed': self.seed, 'bf16': self.bf16,
                 'torch': str(torch.__version__)}
        torch.save(state, path + '.tmp')
        os.replace(path + '.tmp', path)

    def check_finite(self, what, is_finite):
        """Exits unless is_finite."""
        if not is_finite:
            stage = STAGES[min(self.stage, 1)]
            raise SystemExit(f'\n{stage}, step {self.step}: {what} not finite: the run has '
                             'diverged. state.pt is as it was; try a smaller --lr')

    def resume(self, state):
        """Goes on from what save() wrote; from its end, where there are more steps now."""
        if (state['p'], state['seed']) != (self.p, self.seed):
            raise SystemExit(f'{self.directory}/state.pt: p {state["p"]}, seed {state["seed"]}; '
                             f'the command line says {self.p}, {self.seed}')
        self.stage, self.step, self.tokens = state['stage'], state['step'], state['tokens']
        self.spent_s = state['spent_s']
        self.set_weights(state['trained'], state['average'])
        # Versions before 0.4 wrote step 0 at the end.
        if self.is_finished() and 0 < self.step < self.preset.distil.steps:
            self.stage -= 1
        if not self.is_finished():
            self.optimizer = self.new_optimizer()
            rates = [group['rate'] for group in self.optimizer.param_groups]
            self.optimizer.load_state_dict(state['optimizer'])
            for group, rate in zip(self.optimizer.param_groups, rates):
                group['rate'] = rate  # of the command line, which may have changed

    @torch.no_grad()
    def set_weights(self, trained, average):
        for name in self.trained:
            self.trained[name].copy_(trained[name])
            self.average[name].copy_(average[name])

    def losses(self, decoders):
        """{length: [loss of each decoder]} on held-out text."""
        found = {}
        for length in self.lengths:
            held_out = rows.held_out(f'{self.directory}/data', self.vocabulary, length,
                                     HELD_OUT_TOKENS // length, self.bos).to(self.device)
            found[length] = [sum(stages.next_token_loss(each, row[None]) for row in held_out)
                             / len(held_out) for each in decoders]
        return found


class Progress:
    """The line on the terminal and the lines of log.jsonl."""

    def __init__(self, run, file, out):
        self.run, self.file, self.out, self.since = run, file, out, []

    def note(self, **fields):
        line = {'time': round(time.time()), 'stage': STAGES[min(self.run.stage, 1)],
                'step': self.run.step, 'tokens': self.run.tokens, **fields}
        self.file.write(json.dumps(line) + '\n')
        self.file.flush()

    def step(self, loss, num_tokens, seconds):
        run = self.run
        self.since.append((loss, num_tokens, seconds))
        spent_s = sum(each[2] for each in self.since)
        rate = sum(each[1] for each in self.since) / spent_s
        steps = run.plan.steps
        left_s = min((steps - run.step) * spent_s / len(self.since), run.time_left_s())
        done = round(30 * max(run.step / steps, 1 - run.time_scale()))
        mean = sum(each[0] for each in self.since) / len(self.since)
        print(f'\r{STAGES[run.stage]:8} [{"#" * done}{"." * (30 - done)}] {run.step}/{steps}  '
              f'loss {mean:.3f}  {run.tokens / 1e6:.2f}M tokens  {rate:,.0f}/s  '
              f'{left_s / 60:.0f} min left ', end='', flush=True, file=self.out)
        if run.step % LOG_STEPS == 0 or run.step >= steps:
            self.note(loss=round(mean, 4), tokens_per_s=round(rate))
            self.since = []

    def held_out(self):
        """Evaluates the averaged student beside the teacher."""
        losses = self.run.losses((self.run.teacher, self.run.averaged))
        self.run.check_finite('the loss on held-out text is', all(
            math.isfinite(loss) for pair in losses.values() for loss in pair))
        self.note(held_out={str(length): [round(each, 4) for each in pair]
                            for length, pair in losses.items()})
        shown = ', '.join(f'{length} tokens: teacher {teacher:.3f}, student {student:.3f}'
                          for length, (teacher, student) in losses.items())
        print(f'\nheld out  {shown}', flush=True, file=self.out)


def train(run, is_stopped=lambda: False, pause_file='', out=None):
    """Trains to the end of the preset, of the run's minutes, or until is_stopped()."""
    if run.is_finished():
        return
    path = f'{run.directory}/state.pt'
    with open(f'{run.directory}/log.jsonl', 'a+b') as log:
        log.seek(max(0, log.seek(0, os.SEEK_END) - 1))
        if log.read() not in (b'', b'\n'):  # a full disk or a power cut ended the last line
            log.write(b'\n')
    with open(f'{run.directory}/log.jsonl', 'a', encoding='utf-8') as file:
        progress = Progress(run, file, out)
        saved_s = time.monotonic()
        progress.note(device=str(run.device), bf16=run.bf16, torch=str(torch.__version__))
        if run.tokens == 0:
            progress.held_out()
        while not (run.is_finished() or run.time_left_s() == 0 or is_stopped()):
            while pause_file and os.path.exists(pause_file) and not is_stopped():
                time.sleep(1)
            start_s = time.monotonic()
            loss, num_tokens = run.train_step()
            run.check_finite(f'the loss is {loss},', math.isfinite(loss))
            run.spent_s += time.monotonic() - start_s
            progress.step(loss, num_tokens, time.monotonic() - start_s)
            is_end = run.step >= run.plan.steps
            if is_end or time.monotonic() - saved_s > run.preset.save_s:
                progress.held_out()
                if is_end:
                    run.next_stage()
                run.save(path)
                saved_s = time.monotonic()
        if run.time_left_s() == 0:
            progress.held_out()
    run.save(path)


def check_sources(args):
    """Notes the base and the corpus of a run. Exits where a run with others is resumed."""
    path, sources = f'{args.out}/{SOURCES}', {}
    if os.path.exists(path):
        with open(path, encoding='utf-8') as file:
            sources = json.load(file)
    for name, made in ('base', 'teacher/config.json'), ('corpus', 'data/prepare.json'):
        given = getattr(args, name) and os.path.abspath(getattr(args, name))
        if not os.path.exists(f'{args.out}/{made}'):
            sources[name] = given
        elif given and sources.get(name, given) != given:
            raise SystemExit(f'{args.out} was begun with --{name} {sources[name]}, not {given}: '
                             f'give another --out, or leave --{name} out to go on')
    with open(path, 'w', encoding='utf-8') as file:
        json.dump(sources, file)


def prepare_run(args, preset):
    """Imports the base and encodes the corpus, once each."""
    check_sources(args)
    teacher, data = f'{args.out}/teacher', f'{args.out}/data'
    if not os.path.exists(f'{teacher}/config.json'):
        if not args.base:
            raise SystemExit('--base is missing: give the checkpoint to start from')
        print(f'importing {args.base}', flush=True)
        differences.import_base(args.base, teacher, args.dtype, args.set, args.ignore,
                                args.start)
    if not os.path.exists(f'{data}/prepare.json'):
        if not args.corpus:
            raise SystemExit('--corpus is missing: give a directory of *.txt and *.jsonl')
        print(f'encoding {args.corpus}', flush=True)
        # A word has 1.3 tokens, so the longest documents fill the longest rows.
        longest = max(preset.transfer.longest, preset.distil.longest)
        with open(f'{teacher}/config.json', encoding='utf-8') as file:
            shape = decoder.shape_of(json.load(file))
        streams.run(args.corpus, streams.Tokenizer(teacher), data, preset.max_ids,
                    int(0.7 * longest), args.evaluation, args.held_out,
                    1 + max(evaluation_lengths(shape)))
    elif not os.path.exists(f'{data}/dialogs.lengths'):
        raise SystemExit(f'{data} was written by an earlier version, without dialogs.lengths: '
                         'remove it')


def powers(text):
    """'15' -> 15.0; '12,15' -> (12.0, 15.0), one for each layer."""
    values = tuple(float(word) for word in text.split(','))
    return values if len(values) > 1 else values[0]


def cycle(text):
    """'32x1024,4x8192' -> ((32, 1024), (4, 8192))."""
    try:
        steps = tuple(tuple(map(int, step.split('x'))) for step in text.split(','))
        if all(len(step) == 2 and min(step) > 0 for step in steps):
            return steps
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f'{text!r} is not like 32x1024,4x8192')


def arguments(words=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--base', help='what `lssar import` reads: directory or GGUF file')
    parser.add_argument('--corpus', help='directory of *.txt and *.jsonl, plain or .xz')
    parser.add_argument('--out', required=True, metavar='RUN')
    parser.add_argument('--preset', choices=budgets.PRESETS, default='cpu',
                        help='; '.join(f'{name}: {each.what}'
                                       for name, each in budgets.PRESETS.items()))
    parser.add_argument('--p', type=powers,
                        help='power of the re-weighting, or one for each layer: 12,12,15; default: '
                             'those of --start, or 15')
    parser.add_argument('--steps', type=flags.count, help='of distillation; default: by the preset')
    parser.add_argument('--rows', type=cycle, metavar='LIST',
                        help='rows x tokens of the steps of distillation, in turn: '
                             '32x1024,4x8192; default: by the preset')
    parser.add_argument('--minutes', type=flags.above_0,
                        help='stop after this time; the learning rate falls to 0 until then')
    parser.add_argument('--lr', type=flags.above_0, help='of distillation; default: by the preset')
    parser.add_argument('--retrieval', type=float, metavar='SHARE',
                        default=budgets.RETRIEVAL_SHARE,
                        help='of the rows that hold a document with hidden facts and questions '
                             'about them; default: %(default)s')
    parser.add_argument('--dialogs', type=float, metavar='SHARE', default=budgets.DIALOG_SHARE,
                        help='of the other rows, that begin with a dialog; the rest is text; '
                             'default: %(default)s')
    parser.add_argument('--dtype', choices=('fp32', 'fp16', 'bf16'),
                        help="type of the imported matrices; default: the source's")
    parser.add_argument('--set', action='append', default=[], metavar='FIELD=VALUE',
                        help='a field of config.json that the base does not say, as lssar import')
    parser.add_argument('--ignore', action='append', default=[], metavar='FIELD',
                        help='a field of the base that changes nothing, as lssar import')
    parser.add_argument('--bf16', action=argparse.BooleanOptionalAction,
                        help='products in bfloat16; default: as the run began, at first if they '
                             'are the faster here (smoke: no)')
    parser.add_argument('--start', metavar='DELTA', help='begin from a difference, at distillation')
    parser.add_argument('--evaluation', nargs='*', default=[], metavar='FILE',
                        help='text that the training rows must not share 13 words with')
    parser.add_argument('--held-out', type=flags.share, metavar='SHARE', default=streams.HELD_OUT,
                        help='of the documents, for evaluation; default: %(default)s')
    parser.add_argument('--export', action='store_true',
                        help='write delta/ and curve.svg from the saved state, train no further')
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--threads', type=flags.count, default=os.cpu_count())
    parser.add_argument('--pause-file', default='', help='training waits while this file exists')
    return parser.parse_args(words)


def finish(run):
    """Writes delta/ and curve.svg."""
    differences.write(run)
    curve.draw(curve.read(f'{run.directory}/log.jsonl'), f'{run.directory}/curve.svg')
    print(f'{run.directory}/delta: after {run.tokens:,} tokens, {run.spent_s / 3600:.1f} hours')


def main():
    args = arguments()
    preset = budgets.PRESETS[args.preset]
    given = ('steps', args.steps), ('lr', args.lr), ('cycle', args.rows)
    changes = {name: value for name, value in given if value}
    preset = dataclasses.replace(preset, distil=dataclasses.replace(preset.distil, **changes))
    preset = dataclasses.replace(preset, shares=budgets.shares(args.retrieval, args.dialogs))
    torch.set_num_threads(args.threads)
    os.makedirs(args.out, exist_ok=True)
    prepare_run(args, preset)
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    attention.warn_if_slow(device, 'lssar')
    if args.export and not os.path.exists(f'{args.out}/log.jsonl'):
        raise SystemExit(f'--export: {args.out} has no log.jsonl: nothing was trained there')
    if args.p is None:
        args.p = differences.powers_of(args.start) if args.start else 15
    path = f'{args.out}/state.pt'
    state = torch.load(path, map_location=device) if os.path.exists(path) else None
    bf16 = chosen_bf16(args.bf16, state, preset, device)
    try:
        run = Run(preset, args.out, args.p, args.seed, device, args.minutes, bf16)
    except ValueError as error:  # powers by layer
        raise SystemExit(f'--p: {error}') from None
    if state:
        run.resume(state)
    elif args.start:
        differences.start(run, args.start)
    if args.export:
        finish(run)
        return
    if run.is_finished():
        print(f'{args.out}: finished; ' + (
            f'more than --steps {run.step} train it on' if run.step else
            f'another --out with --start {args.out}/delta goes on'))
    signals = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda which, frame: signals.append(which))
    train(run, lambda: bool(signals), args.pause_file)
    finish(run)
    if not (run.is_finished() or run.time_left_s() == 0):
        raise SystemExit('stopped before the end: the same command goes on')


if __name__ == '__main__':
    main()
