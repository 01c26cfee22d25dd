"""Writes the card (README.md) of an exported checkpoint: training, measurements and commands.

Every number in it comes from prepare.json, state.pt, loss.json or passkey.json.
"""

import json
import os

import torch

import batches
import plot_lengths
import presets

CARD = '''# {name}

{what} with {attention} attention: {layers} layers, {heads} heads of {dim}, hidden
size {hidden_size}, SentencePiece BPE vocabulary of {vocabulary} (byte fallback, digits split, role
tokens). It was trained at {ctx} tokens with the recipe in models/training.

## Training

{steps:,} steps, {tokens:,} tokens in {minutes:.0f} minutes (preset {preset}, seed {seed}). Shares
of the rows: {kinds}. The corpus has {text_ids:,} unique tokens of text
({text_documents:,} documents) and {dialog_ids:,} of dialogs ({dialog_documents:,}):
{text_epochs:.2f} epochs of text, {dialog_epochs:.2f} of dialogs. Muon + AdamW. The last tenth is
mostly dialogs. Passkey documents are {passkey:.0%} of the rows, from {least_document} tokens up to
the row length.

Held out by document: {held_text} texts and {held_dialogs} dialogs (`held_out.bin`,
{val_ids:,} ids). {dropped_text} texts and {dropped_dialogs} dialogs of the training documents were
dropped because they share an n-gram of {ngram_words} words with the held-out documents or other
evaluation text; {left} shared n-grams are left.

    python3 prepare.py --corpus CORPUS --evaluation FILES --out DATA --vocabulary {vocabulary}
    python3 train.py --data DATA --out RUN --attention {kind} --seed {seed} \\
      --preset {preset}{changes}

## Measured

![Loss and passkey accuracy by length](length.svg)

{table}
Loss in nats a token on held-out documents. Passkeys: greedy, a hit needs every digit and the full
stop; 95% Wilson intervals. Measured in PyTorch and with the served model:

    python3 evaluate.py --model . --lengths {lengths} --trials {trials}{eval_rows}
    lssar score --model . --ids held_out.bin --lengths {lengths}{rows} --max-model-len {context}
    lssar passkey --model . --lengths {lengths} --trials {trials} --max-model-len {context}

## Use and limits

Every document starts with id {eos_id} (`</s>`, both BOS and EOS). Chat: encode
`<|user|>...<|assistant|>...` as one string, stop at `<|user|>` or id {eos_id}. `golden.safetensors`
has token rows with the float64 logits of these weights. English only, no facts, no safety training.
The licences of the text are those of the training corpus.
'''


def read(path):
    with open(path) as file:
        return json.load(file)['lengths']


def kind_of(directory):
    """The attention kind of the run in a directory."""
    return torch.load(f'{directory}/state.pt', map_location='cpu')['config']['attention']


def table_of(runs):
    """Markdown: one row of losses and one of passkeys for each (name, directory)."""
    lengths = [row['length'] for row in read(f'{runs[0][1]}/loss.json')]
    lines = ['| length | ' + ' | '.join(map(plot_lengths.length_name, lengths)) + ' |',
             '|---' * (len(lengths) + 1) + '|']
    for name, directory in runs:
        losses = [f'{row["loss"]:.3f}' for row in read(f'{directory}/loss.json')]
        found = [f'{row["accuracy"]:.0%} ({row["interval95"][0]:.0%} to {row["interval95"][1]:.0%})'
                 for row in read(f'{directory}/passkey.json')]
        lines.append(f'| {name}, loss | ' + ' | '.join(losses) + ' |')
        lines.append(f'| {name}, passkeys found | ' + ' | '.join(found) + ' |')
    return '\n'.join(lines) + '\n'


def rows_flag(lengths, flag):
    """The flag, if evaluate.py had another number of rows than its default."""
    usual = all(row['num_rows'] == max(1, min(8, 32768 // row['length'])) for row in lengths)
    return '' if usual else f' {flag} {lengths[0]["num_rows"]}'


def trials_flag(found):
    """The value of --trials: one number, or one for each length."""
    trials = [str(row['num_trials']) for row in found]
    return trials[0] if len(set(trials)) == 1 else ','.join(trials)


def training(prepared, state):
    """The card's fields about the training."""
    config, rows = state['config'], state['rows']
    preset = presets.Preset(**state['preset'])
    tokens = {kind: num_rows * config['n_ctx'] for kind, num_rows in rows.items()}
    shares = ', '.join(f'{num_rows / sum(rows.values()):.0%} {kind}'
                       for kind, num_rows in sorted(rows.items(), key=lambda item: -item[1]))
    text, dialogs = prepared['text'], prepared['dialogs']
    return {
        'layers': config['n_layer'], 'heads': config['n_head'], 'hidden_size': config['n_embd'],
        'dim': config['n_embd'] // config['n_head'], 'vocabulary': config['vocab_size'],
        'ctx': config['n_ctx'], 'kind': config['attention'], 'steps': state['step'],
        'tokens': sum(tokens.values()), 'minutes': state['spent_s'] / 60, 'seed': state['seed'],
        'kinds': shares, 'preset': preset.name,
        'changes': presets.changes(preset) + (' --bf16' if state.get('bf16') else ''),
        'passkey': preset.passkey,
        'text_ids': text['ids'], 'text_documents': text['documents'],
        'dialog_ids': dialogs['ids'], 'dialog_documents': dialogs['documents'],
        'text_epochs': tokens.get('text', 0) / text['ids'],
        'dialog_epochs': tokens.get('dialogs', 0) / dialogs['ids'],
        'held_text': text['held_out'], 'held_dialogs': dialogs['held_out'],
        'val_ids': prepared['val_ids'], 'ngram_words': prepared['ngram_words'],
        'dropped_text': text['dropped_for_overlap'], 'eos_id': prepared['eos_id'],
        'dropped_dialogs': dialogs['dropped_for_overlap'],
        'least_document': batches.LEAST_DOCUMENT,
        'left': text['shared_ngrams_left'] + dialogs['shared_ngrams_left'],
    }


def write(out, source, twin, prepared, state):
    """Writes README.md and length.svg to `out` for the run in `source` and, if given, its twin."""
    config = state['config']
    kind = config['attention']
    runs = [(kind, source)] + ([(kind_of(twin), twin)] if twin else [])
    losses, found = read(f'{source}/loss.json'), read(f'{source}/passkey.json')
    lengths = [row['length'] for row in losses]
    plot_lengths.draw(f'{out}/length.svg', runs, config['n_ctx'])
    num_parameters = sum(weight.numel() for weight in state['net'].values())
    with open(f'{out}/README.md', 'w') as file:
        file.write(CARD.format(
            name=os.path.basename(os.path.abspath(out)),
            what=f'A {num_parameters / 1e6:.1f}M-parameter GPT',
            attention=f'{kind} (p = {config["p"]:g})' if kind == 'lssar' else kind,
            table=table_of(runs), lengths=','.join(map(str, lengths)),
            trials=trials_flag(found), rows=rows_flag(losses, '--rows'),
            eval_rows=rows_flag(losses, '--eval-rows'), context=lengths[-1] + 1,
            **training(prepared, state)))
