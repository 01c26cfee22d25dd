"""Attacks through files: what an operator, or who may write one of the server's files, can do."""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import time
import typing

MODEL = 'models/zoo/lssar-6m'
START_SECONDS = 120  # a start with a bad file has to end within; only a hang reaches it

KEY = 'a-key-of-sixteen-characters'


def make_certificate(folder: pathlib.Path, name: str) -> tuple[pathlib.Path, pathlib.Path]:
    """A self-signed certificate of 127.0.0.1: (certificate, key)."""
    certificate, key = folder / f'{name}.pem', folder / f'{name}.key'
    subprocess.run(
        ['openssl', 'req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256',
         '-nodes', '-days', '2', '-subj', '/CN=localhost', '-addext',
         'subjectAltName=IP:127.0.0.1,DNS:localhost', '-keyout', key, '-out', certificate],
        check=True, capture_output=True)
    return certificate, key


def replace_with(path: pathlib.Path, kind: str, text: str = '') -> None:
    """What happens to a file under a running server."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif path.exists() or path.is_symlink() or path.is_fifo():
        path.unlink()
    if kind == 'directory':
        path.mkdir()
    elif kind == 'fifo':
        os.mkfifo(path)
    elif kind == 'text':
        path.write_text(text)


def damage_tls(certificate: pathlib.Path, key: pathlib.Path, seconds: float) -> None:
    """Row 7: key and certificate empty for a moment, half written, a directory, a FIFO, of
    another pair, gone; good again at the end."""
    good_certificate, good_key = certificate.read_text(), key.read_text()
    with tempfile.TemporaryDirectory() as folder:
        other, _ = make_certificate(pathlib.Path(folder), 'other')
        other_text = other.read_text()
    states: list[tuple[pathlib.Path, str, str]] = []
    for path, good in ((key, good_key), (certificate, good_certificate)):
        states += [(path, 'text', ''), (path, 'text', good[:len(good) // 2]),
                   (path, 'directory', ''), (path, 'fifo', ''), (path, 'gone', '')]
    states.append((certificate, 'text', other_text))
    until = time.monotonic() + seconds
    turn = 0
    while time.monotonic() < until:
        path, kind, text = states[turn % len(states)]
        replace_with(path, kind, text)
        time.sleep(max(0.05, min(1.2, seconds / len(states))))
        replace_with(key, 'text', good_key)
        replace_with(certificate, 'text', good_certificate)
        turn += 1


def damage_keys(path: pathlib.Path, seconds: float) -> None:
    """Row 8: a key too short in dotted form, an empty file, 10 MB, a directory, a FIFO, gone, not
    TOML; good again at the end."""
    good = path.read_text()
    many = ''.join(f'[k{i}]\nsha256 = "{i:064x}"\n' for i in range(120000))
    states = [('text', 'alice.key = "short"\n'), ('text', ''), ('text', many),
              ('directory', ''), ('fifo', ''), ('gone', ''), ('text', '[a\nkey = ')]
    until = time.monotonic() + seconds
    turn = 0
    while time.monotonic() < until:
        replace_with(path, *states[turn % len(states)])
        time.sleep(max(0.05, min(1.2, seconds / len(states))))
        replace_with(path, 'text', good)
        turn += 1


def copy_model(folder: pathlib.Path) -> pathlib.Path:
    """A checkpoint whose files can be replaced; the large ones are links."""
    copy = folder / 'model'
    copy.mkdir()
    for path in pathlib.Path(MODEL).resolve().iterdir():
        (copy / path.name).symlink_to(path)
    return copy


def with_template(folder: pathlib.Path, template: str) -> pathlib.Path:
    copy = copy_model(folder)
    settings = json.loads((copy / 'tokenizer_config.json').read_text())
    settings['chat_template'] = template
    (copy / 'tokenizer_config.json').unlink()
    (copy / 'tokenizer_config.json').write_text(json.dumps(settings))
    return copy


def many_tensors(folder: pathlib.Path) -> pathlib.Path:
    """golden.safetensors with a header of 100,000 empty tensors."""
    copy = copy_model(folder)
    header = json.dumps({f't{i}': {'dtype': 'F32', 'shape': [0], 'data_offsets': [0, 0]}
                         for i in range(100000)}).encode()
    (copy / 'golden.safetensors').unlink()
    (copy / 'golden.safetensors').write_bytes(len(header).to_bytes(8, 'little') + header)
    return copy


def broken_tokenizer(folder: pathlib.Path) -> pathlib.Path:
    """tokenizer.model with a normalizer of random bytes (row 12)."""
    copy = copy_model(folder)
    model = bytearray((copy / 'tokenizer.model').read_bytes())
    charsmap = bytes(range(255, 155, -1))
    normalizer = b'\x0a\x01x' + b'\x12' + bytes([len(charsmap)]) + charsmap
    model += b'\x1a' + bytes([len(normalizer)]) + normalizer  # ModelProto.normalizer_spec
    (copy / 'tokenizer.model').unlink()
    (copy / 'tokenizer.model').write_bytes(model)
    return copy


def start_once(server: str, environment: dict[str, str], *flags: str) -> tuple[str, float]:
    """Starts a server that should refuse; returns its exit code, or 'serves', and the seconds."""
    begin = time.monotonic()
    with tempfile.TemporaryFile('w+') as log:
        process = subprocess.Popen(
            [server, '--listen', '127.0.0.1:0', '--http-listen', '127.0.0.1:0', *flags],
            stdout=log, stderr=log, env=environment)
        outcome = 'hangs'
        while time.monotonic() < begin + START_SECONDS:
            if process.poll() is not None:
                outcome = f'exit {process.returncode}'
                break
            log.seek(0)
            if '"serving"' in log.read():
                outcome = 'serves'
                break
            time.sleep(0.05)
        seconds = time.monotonic() - begin
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                outcome += ', not ended by SIGTERM'
        return outcome, seconds


def starts(folder: pathlib.Path) -> typing.Iterator[tuple[str, str, list[str], tuple[str, ...]]]:
    """(row, what, flags, outcomes that are good) of each start with a bad file."""
    model = ['--model', MODEL]
    refused = ('exit 1', 'exit 2')
    directory = folder / 'directory'
    directory.mkdir()
    fifo = folder / 'fifo'
    os.mkfifo(fifo)
    dotted = folder / 'dotted.toml'
    dotted.write_text('alice.key = "short"\n')
    empty = folder / 'empty.pem'
    empty.touch()
    certificate, key = make_certificate(folder, 'good')
    yield '7', 'TLS key empty', model + ['--tls-cert', str(certificate), '--tls-key',
                                         str(empty)], refused
    yield '7', 'TLS certificate a directory', model + ['--tls-cert', str(directory), '--tls-key',
                                                       str(key)], refused
    yield '8', 'key file, a short key in dotted form', model + ['--api-keys', str(dotted)], refused
    yield '8', '--api-keys a directory', model + ['--api-keys', str(directory)], refused
    yield '8', '--api-keys a FIFO', model + ['--api-keys', str(fifo)], refused
    yield '8', '--config a directory', model + ['--config', str(directory)], refused
    yield '8', '--config a FIFO', model + ['--config', str(fifo)], refused
    templates = {'40 or': "{{ " + " or ".join(["''"] * 40) + " }}",
                 '30,000 +': "{{ " + " + ".join(["'a'"] * 30000) + " }}",
                 '40,000 |trim': "{{ 'a'" + "|trim" * 40000 + " }}"}
    for name, template in templates.items():
        part = folder / name.replace(' ', '_').replace('|', '')
        part.mkdir()
        yield '10', f'template of {name}', ['--model', str(with_template(part, template))], (
            *refused, 'serves')
    part = folder / 'tensors'
    part.mkdir()
    yield 'also', '100,000 golden tensors', ['--model', str(many_tensors(part))], (
        *refused, 'serves')
    part = folder / 'tokenizer'
    part.mkdir()
    yield '12', 'tokenizer.model, bad normalizer', ['--model', str(broken_tokenizer(part))], refused


def run_starts(server: str, is_short: bool,
               environment: dict[str, str]) -> typing.Iterator[tuple[str, ...]]:
    """(row, what, outcome, PASS or FAIL) of each start."""
    with tempfile.TemporaryDirectory() as name:
        for number, (row, what, flags, good) in enumerate(starts(pathlib.Path(name))):
            if is_short and number % 3 != 0:
                continue
            outcome, seconds = start_once(server, environment, *flags)
            verdict = 'PASS' if outcome in good else 'FAIL: ' + ' or '.join(good)
            yield row, what, f'{outcome} after {seconds:.1f} s', verdict
