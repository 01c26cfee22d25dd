"""Build steps that pyproject.toml cannot express.

- build_py generates the code of the proto file and client.py into the build directory.
- egg2dist names extras by every spelling.
- sdist packs what a wheel is generated from, so that it needs no repository.
- All scratch files go to a temporary directory: a build leaves nothing in the source tree.
"""

import os
import re
import shutil
import sys
import tempfile

import setuptools
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist
from wheel.bdist_wheel import bdist_wheel

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import generate_stubs  # noqa: E402

# Where an extra is named in the metadata.
EXTRA = re.compile(r'(?<=^Provides-Extra: ).*|(?<=extra == )[\'"][^\'"]*[\'"]')


def has_programs():
    """Whether deploy/wheel.sh has put lssar-server and lssar into the package."""
    return os.path.isdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), 'lssar', 'bin'))


class Distribution(setuptools.Distribution):
    """Programs make it a distribution of this platform."""

    def has_ext_modules(self):
        return has_programs()


class BuildPy(build_py):
    """Adds lssar/v1/inference_pb2.py, its types and lssar/client.py to the wheel."""

    def run(self):
        super().run()
        if self.editable_mode:
            raise SystemExit('no editable install: use generate_stubs.py and PYTHONPATH instead, '
                             'see README.md')
        generate_stubs.generate(self.build_lib)


class BinaryWheel(bdist_wheel):
    """With programs in lssar/bin (deploy/wheel.sh): a wheel of this platform, for any Python 3."""

    def get_tag(self):
        python, abi, platform = super().get_tag()
        return ('py3', 'none', platform) if has_programs() else (python, abi, platform)

    def egg2dist(self, egginfo_path, distinfo_path):
        """Writes the metadata. For pip before 23.3 lm_eval is another extra than lm-eval: an extra
        with a hyphen is there with an underscore, too."""
        super().egg2dist(egginfo_path, distinfo_path)
        path = os.path.join(distinfo_path, 'METADATA')
        with open(path, encoding='utf-8') as file:
            fields, _, readme = file.read().partition('\n\n')
        lines = []
        for line in fields.split('\n'):
            spelled = EXTRA.sub(lambda found: found[0].replace('-', '_'), line)
            lines += [line] if spelled == line else [line, spelled]
        with open(path, 'w', encoding='utf-8') as file:
            file.write('\n'.join(lines) + '\n\n' + readme)


class Sdist(sdist):
    """Adds what generates code, and proto/lssar/v1/inference.proto."""

    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, [*files, 'derive_client.py', 'generate_stubs.py'])
        target = os.path.join(base_dir, 'proto', generate_stubs.PROTO)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copyfile(os.path.join(generate_stubs.proto_root(), generate_stubs.PROTO), target)


SCRIPTS = ['lssar-lm-eval = lssar.lm_eval:main',
           'lssar-checkpoint = lssar.checkpoints.command:main',
           'lssar-figure = lssar._scripts:figure',
           'lssar-ruler = lssar.ruler:main',
           'lssar-kl = lssar._scripts:kl',
           'lssar-run-batch = lssar.run_batch:main']
PROGRAMS = ['lssar = lssar.llm:main_cli', 'lssar-server = lssar.llm:main_server']

with tempfile.TemporaryDirectory() as scratch:
    setuptools.setup(
        distclass=Distribution,
        cmdclass={'build_py': BuildPy, 'sdist': Sdist, 'bdist_wheel': BinaryWheel},
        entry_points={'console_scripts': [*SCRIPTS, *(PROGRAMS if has_programs() else [])]},
        options={'build': {'build_base': scratch}, 'egg_info': {'egg_base': scratch}})
