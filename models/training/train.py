"""Trains a GPT on the ids of prepare.py; CPU or one GPU.

    train.py --data DATA --out RUN --preset cpu-2h [--attention softmax] [--resume]

Writes to RUN state.pt (read by --resume, evaluate.py and export.py) and log.jsonl. The state is
saved at the end of the budget, on SIGTERM and on Ctrl-C.
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import json
import os
import signal
import time

import torch

import attention
import batches
import model
import optimizers
import presets

SAVE_SECONDS = 300
LOG_STEPS = 20


def compile_blocks(net):
    """Compiles one graph that all layers share. Embedding and loss are not compiled."""
    for block in net.h:
        block.forward = torch.compile(block.forward, fullgraph=True)


class Run:
    """A net, its optimizers and its progress."""

    def __init__(self, preset, config, directory, seed=0, bf16=None):
        self.preset, self.config, self.seed = preset, config, seed
        self.device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
        self.bf16 = self.device.type == 'cuda' if bf16 is None else bf16
        torch.manual_seed(seed)
        self.net = model.GPT(config).to(self.device)
        self.optimizers = optimizers.optimizers_of(self.net, preset.lr, preset.muon_lr)
        self.batches = batches.Batches(directory, preset, seed)
        self.step, self.spent_s = 0, 0.0
        self.rows = collections.Counter()  # number trained on, by kind
        if self.device.type == 'cuda':
            torch.set_float32_matmul_precision('high')  # tf32 for float32 matmuls
            if hasattr(torch, 'compile'):
                compile_blocks(self.net)

    @property
    def tokens(self):
        return sum(self.rows.values()) * self.preset.ctx

    def progress(self, step, spent_s):
        """0 to 1, by time or by steps, as the preset's budget."""
        if self.preset.steps:
            return step / self.preset.steps
        return spent_s / (60 * self.preset.minutes)

    def save(self, path):
        state = {'net': self.net.state_dict(), 'opt': [o.state_dict() for o in self.optimizers],
                 'config': dataclasses.asdict(self.config),
                 'preset': dataclasses.asdict(self.preset), 'seed': self.seed,
                 'bf16': self.bf16, 'torch': str(torch.__version__), 'step': self.step,
                 'spent_s': self.spent_s, 'rows': dict(self.rows)}
        torch.save(state, path + '.tmp')
        os.replace(path + '.tmp', path)

    def load(self, path):
        state = torch.load(path, map_location=self.device)
        if state['config'] != dataclasses.asdict(self.config) or state['seed'] != self.seed:
            raise SystemExit(f'{path} belongs to another model or seed: {state["config"]}')
        for name, value in dataclasses.asdict(self.preset).items():
            was = state['preset'].get(name, value)
            if was != value and name not in presets.RESUMED_WITH_OTHERS:
                flag = '--' + name.replace('_', '-')
                raise SystemExit(f'{path} was trained with {flag} {was}, not {value}: give '
                                 f'{flag} {was} again')
        if state.get('bf16', self.bf16) != self.bf16:
            flag = '--bf16' if state['bf16'] else '--no-bf16'
            raise SystemExit(f'{path} was trained with {flag}: give it again')
        self.net.load_state_dict(state['net'])
        for optimizer, saved in zip(self.optimizers, state['opt']):
            optimizer.load_state_dict(saved)
        self.step, self.spent_s = state['step'], state['spent_s']
        self.rows = collections.Counter(state['rows'])

    def gradients(self, tokens, weight):
        """Accumulates a step's gradients. Returns its loss and its answers' loss, nats a token.

        Each token counts by its weight in the step, however many rows a forward pass has.
        """
        micro, whole = self.preset.micro_rows, float(weight[:, 1:].sum())
        total, answers, num_answers = 0.0, 0.0, 0
        for part, scale in zip(tokens.split(micro), weight.split(micro)):
            part, scale = part.to(self.device), scale[:, 1:].reshape(-1).to(self.device)
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
                each = self.net(part[:, :-1], part[:, 1:])
            loss = (each * scale).sum() / whole
            loss.backward()
            total += loss.detach()
            answers += each.detach()[scale > 1].sum()
            num_answers += int((scale > 1).sum())
        return float(total), float(answers) / max(1, num_answers)

    def train_step(self, batch, progress):
        tokens, weight, kinds = batch
        rates = self.preset.lr, self.preset.muon_lr
        scale = presets.rate_scale(self.preset, self.step, progress)
        for optimizer, rate in zip(self.optimizers, rates):
            for group in optimizer.param_groups:
                group['lr'] = rate * scale
        self.net.train()
        losses = self.gradients(tokens, weight)
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
        self.net.zero_grad(set_to_none=True)
        self.step += 1
        self.rows.update(kinds)
        return losses


def log(run, file, losses, progress):
    """Prints a line and appends one to log.jsonl."""
    line = {'step': run.step, 'tokens': run.tokens, 'seconds': round(run.spent_s, 1),
            'loss': round(losses[0], 4), 'answer_loss': round(losses[1], 4),
            'progress': round(progress, 4)}
    file.write(json.dumps(line) + '\n')
    file.flush()
    rate = run.tokens / max(1e-9, run.spent_s)
    aim = run.tokens / max(1e-9, progress)
    print(f'{100 * progress:3.0f}%  step {run.step}  loss {losses[0]:.3f}  '
          f'answers {losses[1]:.3f}  {run.tokens / 1e6:.2f}M of {aim / 1e6:.1f}M tokens, '
          f'{rate:,.0f} a second', flush=True)


def train(run, path, file, is_stopped=lambda: False):
    """Trains to the end of the budget or until is_stopped(). A thread prepares the next rows."""
    before_s, start_s = run.spent_s, time.monotonic()
    saved_s = start_s
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        progress = run.progress(run.step, run.spent_s)
        coming = thread.submit(run.batches.step, run.step, progress)
        while progress < 1 and not is_stopped():
            batch, at = coming.result(), progress
            run.spent_s = before_s + time.monotonic() - start_s
            progress = run.progress(run.step + 1, run.spent_s)
            coming = thread.submit(run.batches.step, run.step + 1, progress)
            losses = run.train_step(batch, at)
            run.spent_s = before_s + time.monotonic() - start_s
            if run.step % LOG_STEPS == 0:
                log(run, file, losses, progress)
            if time.monotonic() - saved_s > SAVE_SECONDS:
                saved_s = time.monotonic()
                run.save(path)
    run.save(path)
    return progress


def run(args, directory, out):
    """Returns True if the budget is used up."""
    os.makedirs(out, exist_ok=True)
    with open(f'{directory}/prepare.json') as file:
        prepared = json.load(file)
    preset = presets.chosen(args)
    path = f'{out}/state.pt'
    if os.path.exists(path) and not args.resume:
        raise SystemExit(f'{path} exists: use --resume to continue')
    config = presets.config_of(preset, args.attention, args.p, prepared['vocabulary'])
    this = Run(preset, config, directory, args.seed, args.bf16)
    if os.path.exists(path):
        this.load(path)
    num_parameters = sum(w.numel() for w in this.net.parameters())
    budget = f'{preset.steps} steps' if preset.steps else f'{preset.minutes:g} minutes'
    millions = {kind: f'{prepared[kind]["ids"] / 1e6:.1f}M' for kind in ('text', 'dialogs')}
    print(f'{args.preset}, {args.attention}: {num_parameters / 1e6:.2f}M parameters on '
          f'{this.device}, {budget}, meant for {preset.aim_tokens / 1e6:g}M tokens; one epoch is '
          f'{millions["text"]} of text and {millions["dialogs"]} of dialogs', flush=True)
    attention.warn_if_slow(this.device.type, args.attention)
    signals = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda which, frame: signals.append(which))
    with open(f'{out}/log.jsonl', 'a') as file:
        progress = train(this, path, file, is_stopped=lambda: bool(signals))
    print(f'{path}: step {this.step}, {this.tokens / 1e6:.2f}M tokens, {dict(this.rows)} rows',
          flush=True)
    return progress >= 1


def add_arguments(parser):
    presets.add_arguments(parser)
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--bf16', action=argparse.BooleanOptionalAction,
                        help='autocast products to bfloat16; default: on a GPU alone. Pays on CPUs '
                        'with AVX512-BF16 or AMX under PyTorch 2')
    parser.add_argument('--resume', action='store_true')


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--data', required=True)
    parser.add_argument('--out', required=True)
    add_arguments(parser)
    args = parser.parse_args()
    if not run(args, args.data, args.out):
        raise SystemExit('stopped before the end: use --resume to continue')


if __name__ == '__main__':
    main()
