"""`lssar import`: a source of any format to a checkpoint directory with golden rows."""

import dataclasses
import json
import os
from collections.abc import Mapping

import numpy as np

from lssar.checkpoints import (arrays, chat_roles, delta, directory, forward,
                                      gguf_source, golden, names, settings, sources, tensor_file,
                                      tokenizer_files, user_logits)
from lssar.checkpoints.arrays import Array, log_softmax, widen
from lssar.checkpoints.errors import CheckpointError, JsonObject, is_there

MATRIX_TYPES = {'fp32': 'F32', 'fp16': 'F16', 'bf16': 'BF16'}
HALF_OVERFLOW = 65520.0  # rounds to infinity in fp16


@dataclasses.dataclass
class Options:
    """The command line of `lssar import`."""

    source: str
    out: str
    given: JsonObject = dataclasses.field(default_factory=dict)
    ignored: set[str] = dataclasses.field(default_factory=set)
    tokenizer: str | None = None
    dtype: str | None = None  # one of MATRIX_TYPES; None: the source's
    overwrite: bool = False
    command: str = ''  # for origin.json
    logits: str | None = None  # a file of user_logits.py
    delta: str | None = None  # a directory of delta.py; it also says how its base is imported


@dataclasses.dataclass
class Report:
    """What an import did."""

    format: str
    sources: dict[str, str]  # path: sha256
    config: JsonObject
    origins: dict[str, str]
    num_parameters: int
    mapped: dict[str, list[str]]  # our name: the source's names
    left_out: dict[str, str]
    not_read: list[str]
    notes: list[str]
    dtype: str
    rounding: float | None  # largest change of a golden log-probability by `dtype`
    golden_rows: list[int]  # tokens of each
    tokenizer: list[str]
    checkpoint_hash: str
    num_bytes: int
    conditioning: dict[str, float]  # golden.conditioning()
    proof: str | None  # how far the user's logits are


def _transpose(mapped: names.Mapped) -> None:
    """Conv1D's [in, out] to [out, in], everywhere but in the embedding and the head."""
    for name, tensor in mapped.tensors.items():
        if name.startswith('h.') and tensor.ndim == 2:
            mapped.tensors[name] = tensor.T


def _drop_tied_head(mapped: names.Mapped) -> None:
    """An output projection that equals the embedding is no tensor of its own."""
    head, embedding = mapped.tensors.get('lm_head.weight'), mapped.tensors.get('wte.weight')
    if head is None or embedding is None:
        return
    if arrays.equal(head, embedding):
        [name] = mapped.sources.pop('lm_head.weight')
        del mapped.tensors['lm_head.weight']
        mapped.left_out[names.show(name, head)] = 'equals the embedding (tied)'


def _drop_zero_positions(mapped: names.Mapped) -> None:
    """A `wpe` of zeros is left of a program that was changed to rotary positions."""
    positions = mapped.tensors.get('wpe.weight')
    if positions is not None and not bool(widen(positions, np.float32).any()):
        [name] = mapped.sources.pop('wpe.weight')
        del mapped.tensors['wpe.weight']
        mapped.left_out[names.show(name, positions)] = 'learned positions that are all zero'


def _refuse_unknown(source: sources.Source, mapped: names.Mapped) -> None:
    """Errors: CheckpointError that lists the tensors that nothing maps."""
    if names.is_nanochat(mapped.unknown):
        raise CheckpointError(
            f'{source.path}: is a model of nanochat, which is not computed here: its value '
            'embeddings, lambdas of the residual stream, smear and backout are no values of a '
            f'model that config.json describes ({len(mapped.unknown)} tensors, from '
            f'{mapped.unknown[0]} on)')
    if mapped.unknown:
        listed = '\n'.join(f'  {shown}' for shown in mapped.unknown[:100])
        more = len(mapped.unknown) - 100
        raise CheckpointError(
            f'{source.path}: read as {source.format}, it has {len(mapped.unknown)} tensors that '
            f'are no part of a model computed here:\n{listed}'
            + (f'\n  and {more} more' if more > 0 else ''))


def _check_shapes(source: sources.Source, mapped: names.Mapped, config: JsonObject) -> None:
    """Errors: CheckpointError that lists missing tensors and wrong shapes."""
    expected = settings.expected_shapes(config)
    problems = [f'missing: {name} {list(shape)}' for name, shape in expected.items()
                if name not in mapped.tensors]
    for name, tensor in mapped.tensors.items():
        shown = ', '.join(mapped.sources[name])
        if name not in expected:
            problems.append(f'not part of the model: {shown} {list(tensor.shape)}')
        elif tuple(tensor.shape) != expected[name]:
            problems.append(f'{shown}: {list(tensor.shape)}; {name} must be '
                            f'{list(expected[name])}')
    if problems:
        listed = '\n'.join(f'  {problem}' for problem in problems[:100])
        raise CheckpointError(f'{source.path}: read as {source.format}, its tensors do not fit:\n'
                              f'{listed}')


def _collect(source: sources.Source, mapped: names.Mapped, given: JsonObject) -> JsonObject:
    """config.json. Also joins q, k and v of `mapped`. -> (config, origins)."""
    found = settings.Settings()
    found.add_all(source.recorded, settings.RECORDED, source.format)
    found.add_all(given, settings.GIVEN)
    for name, (dims, base) in mapped.rotary_bases.items():
        found.add('rope_theta', _like(found.get('rope_theta'), base), settings.DERIVED, name)
        if found.has('n_head') and not found.has('partial_rotary_factor'):
            hidden = int(mapped.tensors['wte.weight'].shape[1])
            whole = found.get('head_dim') or hidden // found.integer('n_head')
            if whole != dims:
                factor = forward.rotary_factor(dims, int(str(whole)))
                found.add('partial_rotary_factor', factor, settings.DERIVED, name)
    found.add_all(source.fixed, settings.FIXED, source.format)
    settings.derive(mapped.tensors, found, names.num_layers(mapped.tensors))
    settings.leave_out_rotary(found)
    found.require(*(field for field in settings.required(found) if field in source.required))
    if source.assumes_defaults:
        source.notes += settings.assume(found)
    if source.is_permuted:
        gguf_source.unpermute(mapped, found.integer('n_head'))
    names.fuse(mapped, found.integer('n_head'))
    heads, kv_heads, dim = settings.derive_heads(mapped.tensors, found)
    settings.derive_attention_bias(mapped.tensors, found)
    if source.is_rotated_back:
        names.reverse_rotation(mapped, heads, kv_heads, dim)
    return {'config': found.config(), 'origins': found.origins()}


def _like(said: object, base: float) -> object:
    """The rotary base of a table of frequencies: the one that was said if the table has it."""
    if isinstance(said, (int, float)) and abs(base - said) <= 1e-3 * abs(said):
        return said
    return float('%.5g' % base)


def _stored_type(name: str, tensor: Array, dtype: str | None) -> str:
    """Matrices get `dtype`; norms, biases and positions keep theirs: the server holds them in fp32.

    """
    own = arrays.type_name(tensor)
    own = 'F32' if own == 'F64' else own
    return MATRIX_TYPES[dtype] if dtype and tensor.ndim == 2 and name != 'wpe.weight' else own


def _check_values(mapped: names.Mapped, dtype: str | None) -> None:
    """Errors: CheckpointError for a NaN, an infinity, and a value beyond fp16 where that is asked.

    """
    for name, tensor in mapped.tensors.items():
        shown = mapped.sources[name][0]
        sources.check_finite(shown, tensor)
        if _stored_type(name, tensor, dtype) == 'F16' and tensor.size:
            largest = float(np.abs(widen(tensor, np.float32)).max())
            if largest >= HALF_OVERFLOW:
                raise CheckpointError(f'tensor "{shown}" holds {largest}; must be below 65520 for '
                                      '--dtype fp16')


def _largest_change(a: list[Array], b: list[Array]) -> float:
    """The largest change of a log-probability whose exact value is above -20."""
    worst = 0.0
    for exact, rounded in zip(a, b):
        exact, rounded = log_softmax(exact), log_softmax(rounded)
        worst = max(worst, float(np.abs(exact - rounded)[exact > -20].max()))
    return worst


@dataclasses.dataclass
class Loaded:
    """A source as a model of ours: config.json, tensors by our names, and a tokenizer."""

    source: sources.Source
    mapped: names.Mapped
    config: JsonObject
    origins: dict[str, str]  # of each field
    types: dict[str, str]  # of each tensor on disk
    tokenizer: tokenizer_files.Files
    hashes: dict[str, str]  # sha256 of the source's files by path
    dtype: str  # of the matrices

    def stored(self, name: str) -> Array | None:
        """A tensor as it is on disk; None: there is none of this name."""
        tensor = self.mapped.tensors.get(name)
        return None if tensor is None else arrays.convert(tensor, self.types[name])


def load(options: Options) -> Loaded:
    """Reads a source, with a delta if there is one; writes nothing. Errors: CheckpointError."""
    change = delta.read(options.delta) if options.delta else None
    if change:
        options = dataclasses.replace(options, given=change.given, ignored=change.ignored,
                                      dtype=change.dtype)
    source = sources.read(options.source, options.ignored)
    hashes = {path: directory.sha256(path) for path in source.files}
    if change:
        change.check_base(hashes)
    mapped = names.apply(source.rules, source.tensors)
    _refuse_unknown(source, mapped)
    if source.is_transposed:
        _transpose(mapped)
    # A head of its own may have the embedding's values, as before the first step of training.
    if options.given.get('tie_word_embeddings',
                         source.recorded.get('tie_word_embeddings')) is not False:
        _drop_tied_head(mapped)
    _drop_zero_positions(mapped)
    dtype = options.dtype or source.matrix_type
    collected = _collect(source, mapped, options.given)
    config, origins = collected['config'], collected['origins']
    assert isinstance(config, dict) and isinstance(origins, dict)
    settings.check(config, source.files[0], origins)
    _check_shapes(source, mapped, config)
    _check_values(mapped, dtype)
    types = {name: _stored_type(name, tensor, dtype) for name, tensor in mapped.tensors.items()}
    if change:  # a delta adds to the tensors as they are stored
        config, mapped.tensors = change.apply(config, {
            name: arrays.convert(tensor, types[name]) for name, tensor in mapped.tensors.items()})
        origins.update({field: f'delta: {change.path}' for field in change.config})
        change.check_result(config, mapped.tensors)
        settings.check(config)
    if source.tokenizer is not None and options.tokenizer is None:
        tokenizer = tokenizer_files.Files(
            dict(source.tokenizer), dict.fromkeys(source.tokenizer, source.format))
    else:
        tokenizer = tokenizer_files.read(source.folder, options.tokenizer)
    own = os.path.join(source.folder, tokenizer_files.GENERATION)
    has_own = is_there(own)
    if len(source.ends) > 1 and not has_own and 'eos_token_id' not in options.given:
        tokenizer.contents[tokenizer_files.GENERATION] = json.dumps(
            {'eos_token_id': source.ends}).encode()
        tokenizer.origins[tokenizer_files.GENERATION] = 'eos_token_id of config.json'
        source.notes.append(f'eos_token_id is a list, {source.ends}: config.json gets the first, '
                            'generation_config.json all of them')
    generation = tokenizer.json(tokenizer_files.GENERATION)
    if generation.get('eos_token_id') is not None:
        settings.check_ends(generation['eos_token_id'], config, own if has_own else
                            tokenizer.origins[tokenizer_files.GENERATION])
    return Loaded(source, mapped, config, {str(k): str(v) for k, v in origins.items()}, types,
                  tokenizer, hashes, dtype or '/'.join(sorted(set(types.values()))))


def _tokenizer_notes(files: tokenizer_files.Files, config: JsonObject) -> list[str]:
    """A note on a vocabulary of another size. Errors: CheckpointError for a larger one."""
    count, vocabulary = tokenizer_files.num_tokens(files), config['vocab_size']
    assert isinstance(vocabulary, int)
    if count is None or count == vocabulary or count == config.get('unpadded_vocab_size'):
        return []
    if count == 0:
        raise CheckpointError('the tokenizer has no tokens; --tokenizer PATH names the right one')
    if count > vocabulary:
        raise CheckpointError(f'the tokenizer has {count:,} tokens, the model {vocabulary:,}: it '
                              "is another model's, or the files beside it add tokens that the "
                              'model lacks; --tokenizer PATH names the right one')
    return [f'the tokenizer has {count:,} tokens, the model {vocabulary:,}: ids from {count:,} on '
            f'have no text; if they pad the vocabulary, --set unpadded_vocab_size={count} keeps '
            'them from being sampled']


def _add_chat_roles(files: tokenizer_files.Files) -> list[str]:
    """Adds the role table of the chat template. -> notes. Errors: CheckpointError."""
    template = tokenizer_files.chat_template(files)
    if template is None:
        return []
    tokens, specials = tokenizer_files.special_tokens(files)
    try:
        table = chat_roles.derive(template, tokens, specials)
    except chat_roles.NoTable as error:
        return [f'no role table is made of the chat template: it {error}']
    except ModuleNotFoundError:
        return ['no role table is made of the chat template: jinja2 is not installed']
    files.contents[chat_roles.NAME] = json.dumps(table, ensure_ascii=False, indent=1).encode()
    files.origins[chat_roles.NAME] = 'chat template'
    allowed = table['next']
    assert isinstance(allowed, dict)
    system = '' if 'system' in allowed[''] else '; it allows no system message'
    return [f'the chat template is a role table, equal to it in {chat_roles.NUM_CONVERSATIONS:,} '
            f'random conversations, without tools and dates{system}']


def run(options: Options) -> Report:
    """Imports. Errors: CheckpointError; nothing is left in `out` then."""
    directory.check_target(options.out, options.overwrite, (
        options.source, options.tokenizer, options.logits, options.delta))
    loaded = load(options)
    source, mapped, config, types = loaded.source, loaded.mapped, loaded.config, loaded.types
    tokenizer = loaded.tokenizer
    proof = (user_logits.check(options.logits, config, mapped.tensors.get).render()
             if options.logits else None)
    notes = [*source.notes, *tokenizer.notes, *_tokenizer_notes(tokenizer, config),
             *_add_chat_roles(tokenizer)]
    logits = golden.compute(config, loaded.stored)
    changes = golden.conditioning(config, loaded.stored, logits)
    is_rounded = any(types[name] != arrays.type_name(tensor)
                     for name, tensor in mapped.tensors.items())
    rounding = (_largest_change(golden.compute(config, mapped.tensors.get), logits)
                if is_rounded else None)
    with directory.new_directory(options.out, options.overwrite) as scratch:
        directory.write_config(config, scratch)
        tensor_file.write(os.path.join(scratch, directory.WEIGHTS), [
            tensor_file.output_of('transformer.' * (name != 'lm_head.weight') + name, tensor,
                                  types[name])
            for name, tensor in mapped.tensors.items()], directory.METADATA)
        directory.write_origin(
            scratch, options.command, source_format=source.format,
            source_sha256={os.path.basename(path): each for path, each in loaded.hashes.items()})
        golden.write(config, logits, scratch, changes)
        for name, content in tokenizer.contents.items():
            with open(os.path.join(scratch, name), 'wb') as file:
                file.write(content)
        checkpoint_hash = directory.checkpoint_hash(scratch)
        num_bytes = os.path.getsize(os.path.join(scratch, directory.WEIGHTS))
    return Report(
        source.format, loaded.hashes, config, loaded.origins,
        sum(tensor.size for tensor in mapped.tensors.values()), mapped.sources, mapped.left_out,
        source.not_read, notes, loaded.dtype, rounding,
        [len(tokens) for tokens, _ in golden.rows(config)],
        [f'{theirs} -> {ours}' for ours, theirs in tokenizer.origins.items()], checkpoint_hash,
        num_bytes, changes, proof)


def _grouped(left_out: Mapping[str, str]) -> dict[str, list[str]]:
    """Names by reason."""
    groups: dict[str, list[str]] = {}
    for shown, why in left_out.items():
        groups.setdefault(why, []).append(shown)
    return groups


def render(report: Report) -> str:
    """The report as text."""
    lines = [f'source      {path}, {report.format}\n            sha256 {digest}'
             for path, digest in report.sources.items()]
    lines.append('config.json')
    width = max(len(field) for field in report.origins)
    for field, origin in report.origins.items():
        value = json.dumps(report.config.get(field))
        lines.append(f'  {field:{width}}  {value}  [{origin}]')
    lines.append(f'tensors     {len(report.mapped)} mapped, {report.num_parameters:,} parameters')
    for why, dropped in _grouped(report.left_out).items():
        more = f' and {len(dropped) - 1} more' if len(dropped) > 1 else ''
        lines.append(f'left out    {dropped[0]}{more}: {why}')
    if report.not_read:
        lines.append(f'not read    {", ".join(report.not_read)}')
    lines += [f'note        {note}' for note in report.notes]
    rounding = ''
    if report.rounding is not None:
        rounding = f'; rounding changed golden log-probabilities by up to {report.rounding:.2g}'
    if report.proof:
        lines.append(f'your logits {report.proof}')
    shown = ', '.join(f'{name} {value:.1g}' for name, value in report.conditioning.items())
    lines += [
        f'weights     {report.dtype}, {report.num_bytes:,} bytes{rounding}',
        f'golden rows {", ".join(map(str, report.golden_rows))} tokens, float64; what rounding '
        f'changes of a logit: {shown} of the largest',
        f'tokenizer   {", ".join(report.tokenizer) or "none found: the model serves token ids"}',
        f'checksum    {report.checkpoint_hash} (as `lssar info` shows it)']
    if 'eos_token_id' not in report.config:
        lines.append('note        no eos_token_id: texts end at max_tokens; --set eos_token_id=ID '
                     'names the end of a text')
    return '\n'.join(lines)
