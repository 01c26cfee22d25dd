"""Writes man pages and shell completions of `lssar` and `lssar-server` from what --help prints.

    python3 deploy/debian/manual.py PROGRAMS OUT     PROGRAMS: the folder of both programs

OUT gets man1/*.1 and bash-completion/*. A command that is written in Python shows Python's help if
the package is in PYTHONPATH, with what the command imports.
"""

import pathlib
import re
import subprocess
import sys

HEADING = re.compile(r'^(\S.*):$')
ENTRY = re.compile(r'^  (?=\S)(.*?)(?:  +(\S.*))?$')
OPTION = re.compile(r'^  (-.*?)(?:  | \(Env:|$)', re.M)  # "-h,--help", "--model DIR"
FLAG = re.compile(r'(?<![\w-])--[a-z][a-z0-9-]*')


def help_of(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def help_of_command(program, name):
    try:
        return help_of(program, 'help', name)
    except subprocess.CalledProcessError:
        return ("Written in Python: pip install './clients/python[import,plot]' in lssar's "
                f'repository, then lssar help {name}.')


def escape(text):
    """Text for roff."""
    text = text.replace('\\', '\\e').replace('-', '\\-')
    return '\\&' + text if text.startswith(('.', "'")) else text


def section(text):
    """What --help prints, as roff: headings, entries with their explanation, lines as they are."""
    lines = []
    is_plain = False
    for line in text.split('\n'):
        heading, entry = HEADING.match(line), ENTRY.match(line)
        if heading:
            is_plain = heading[1].startswith('Examples')
            lines += ['.SS ' + escape(heading[1])]
        elif not line.strip():
            lines.append('.PP')
        elif is_plain:
            lines += ['.nf', escape(line), '.fi']
        elif entry:
            lines += ['.TP', '.B ' + escape(entry[1]), *([escape(entry[2])] if entry[2] else [])]
        else:
            lines.append(escape(line.strip()))
    return '\n'.join(lines)


def page(name, about, version, sections):
    """A man page. sections: [(title, help)]."""
    parts = [f'.TH {name.upper()} 1 "" "lssar {version}" "User Commands"', '.SH NAME',
             f'{name} \\- {escape(about)}']
    for title, text in sections:
        parts += ['.SH ' + escape(title), '.ad l', section(text)]
    return '\n'.join(parts) + '\n'


def bash_completion(name, flags, commands):
    """flags: those of the program without a command; commands: {name: flags}."""
    cases = '\n'.join(f'    {command}) words="{" ".join(those)}" ;;'
                      for command, those in commands.items())
    chosen = f'''  case ${{COMP_WORDS[1]}} in
{cases}
    *) words="{' '.join([*commands, *flags])}" ;;
  esac
''' if commands else f'  words="{" ".join(flags)}"\n'
    return f'''# bash completion of {name}, made from its --help.
_{name.replace('-', '_')}() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} words
{chosen}  case $current in
    -*) mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current") ;;
    *)
      mapfile -t COMPREPLY < <(compgen -f -- "$current")
      if [ "$COMP_CWORD" = 1 ]; then mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current"); fi
      ;;
  esac
}}
complete -o filenames -F _{name.replace('-', '_')} {name}
'''


def flags_of(text):
    """Those that have a line of their own; sentences name flags of other programs too."""
    return sorted({flag for names in OPTION.findall(text) for flag in FLAG.findall(names)})


def main():
    programs, out = map(pathlib.Path, sys.argv[1:])
    version = help_of(programs / 'lssar', '--version').split()[-1]
    overview = help_of(programs / 'lssar', '--help')
    names = re.findall(r'^  ([a-z-]+)  +', overview.split('Commands:')[1].split('\n\n')[0], re.M)
    commands = {name: help_of_command(programs / 'lssar', name) for name in names}
    server = help_of(programs / 'lssar-server', '--help')
    files = {
        'man1/lssar.1': page('lssar', 'command-line client of lssar-server', version, [
            ('DESCRIPTION', overview),
            *((f'lssar {name}'.upper(), text) for name, text in commands.items())]),
        'man1/lssar-server.1': page('lssar-server', 'inference server for models with LSSAR '
                                    'attention', version, [('DESCRIPTION', server)]),
        'bash-completion/lssar': bash_completion(
            'lssar', flags_of(overview), {name: flags_of(text) for name, text in commands.items()}),
        'bash-completion/lssar-server': bash_completion('lssar-server', flags_of(server), {}),
    }
    for path, text in files.items():
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        (out / path).write_text(text, encoding='utf-8')


if __name__ == '__main__':
    main()
