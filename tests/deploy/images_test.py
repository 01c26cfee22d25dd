"""The two Dockerfiles differ only where CUDA needs it, and the files that they copy exist.

Run by ctest from the repository's root.
"""

import fnmatch
import glob
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time
import unittest

import yaml

PLAIN, CUDA = 'deploy/Dockerfile', 'deploy/Dockerfile.cuda'
START = time.time()
INSTRUCTIONS = frozenset(
    'ARG COPY ENTRYPOINT ENV EXPOSE FROM HEALTHCHECK LABEL RUN STOPSIGNAL USER WORKDIR'.split())


def read(path):
    with open(path, encoding='utf-8') as file:
        return file.read()


def instructions(path):
    """The instructions of a Dockerfile: [(instruction, arguments with single spaces)]."""
    text = re.sub(r'^\s*#.*\n', '', read(path), flags=re.M)
    text = re.sub(r'\\\n', ' ', text)
    return [tuple(re.sub(r'\s+', ' ', line.strip()).split(' ', 1))
            for line in text.splitlines() if line.strip()]


def stages(path):
    """{stage name: its instructions}; instruction 0 is FROM and its image. The last stage is ''."""
    found = {}
    for instruction, rest in instructions(path):
        if instruction == 'FROM':
            image, _, name = rest.partition(' AS ')
            found[name] = stage = [('FROM', image)]
        elif found:
            stage.append((instruction, rest))
    return found


def build_line(found):
    return next(line for line in found['build'] if line[1].startswith('sh deploy/package.sh'))


class ImagesTest(unittest.TestCase):

    def test_every_line_is_an_instruction(self):
        for path in PLAIN, CUDA:
            for line in instructions(path):
                self.assertIn(line[0], INSTRUCTIONS, path)
                self.assertEqual(len(line), 2, path)

    def test_the_images_differ_by_cuda_alone(self):
        plain, cuda = stages(PLAIN), stages(CUDA)
        self.assertEqual(list(cuda), ['toolkit', *plain])
        for name, lines in plain.items():
            changed = [line for line in cuda[name] if line not in lines]
            expected = [tuple(line) for line in {
                'build': [('COPY', '--from=toolkit /toolkit /usr/local/cuda'),
                          build_line(cuda), self.libraries_line(cuda)],
                'model': [],
                '': [('COPY', '--from=build /libraries/ /usr/local/lib/'), ('RUN', 'ldconfig'),
                     ('ENV', 'NVIDIA_VISIBLE_DEVICES=all '
                             'NVIDIA_DRIVER_CAPABILITIES=compute,utility'),
                     ('ENV', 'LSSAR_DEVICE=cuda')],
            }[name]]
            self.assertEqual(changed, expected, name)
            self.assertEqual([line for line in cuda[name] if line not in changed],
                             [line for line in lines if line in cuda[name]], name)
        self.assertEqual(build_line(cuda)[1].replace(' --cuda', ''), build_line(plain)[1])

    def libraries_line(self, found):
        return next(line for line in found['build'] if 'mkdir /libraries' in line[1])

    def test_what_is_copied_exists(self):
        ignored = [line for line in read('.dockerignore').splitlines() if line]
        for path in PLAIN, CUDA:
            earlier = set()
            for name, lines in stages(path).items():
                for source in (re.sub(r' [^ ]+$', '', rest) for instruction, rest in lines
                               if instruction == 'COPY'):
                    if source.startswith('--from='):
                        self.assertIn(source[len('--from='):].split(' ')[0], earlier, path)
                    else:
                        self.assertTrue(os.path.exists(source), source)
                        self.assertFalse(any(fnmatch.fnmatch(source, p) for p in ignored), source)
                earlier.add(name)

    def test_every_checkpoint_of_the_tree_can_be_in_the_image(self):
        """Runs the command of the stage `model` on folders of this tree."""
        run = dict(stages(PLAIN)['model'])['RUN']
        models = [os.path.dirname(path)
                  for path in glob.glob('models/zoo/**/config.json', recursive=True)]
        self.assertIn('models/zoo/lssar-6m', models)
        with tempfile.TemporaryDirectory() as folder:
            os.symlink(os.getcwd(), f'{folder}/lssar')

            def copy(model):
                command = re.sub(r'/(models|lssar)\b', rf'{folder}/\1', run)
                return subprocess.run(['sh', '-c', command], env={**os.environ, 'MODEL': model},
                                      capture_output=True, text=True, timeout=60, check=False)

            for model in models:
                done = copy(model)
                self.assertEqual(done.returncode, 0, f'{model}: {done.stderr}')
                self.assertEqual(set(os.listdir(f'{folder}/models')),
                                 {entry.name for entry in os.scandir(model) if entry.is_file()})
                shutil.rmtree(f'{folder}/models')
            for wrong in 'models/zoo/none', 'models/zoo':
                self.assertNotEqual(copy(wrong).returncode, 0, wrong)
                shutil.rmtree(f'{folder}/models')
            self.assertEqual(copy('').returncode, 0)
            self.assertEqual(os.listdir(f'{folder}/models'), [])

    def test_the_health_check_reads_what_the_server_reads(self):
        for path in PLAIN, CUDA:
            final = dict(stages(path)[''])
            command = json.loads(re.search(r'CMD (\[.*\])', final['HEALTHCHECK']).group(1))
            self.assertEqual(command, [*json.loads(final['ENTRYPOINT']), '--check-health'], path)


class PackageTest(unittest.TestCase):
    """deploy/package.sh --to in a small tree, where nothing can be built."""

    def setUp(self):
        self.tree = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        for name in ('base', 'clients', 'cmake', 'deploy/debian', 'dist', 'kernels', 'models/zoo',
                     'proto', 'runtime', 'server'):
            self.write(f'{name}/file')
        for name in 'CMakeLists.txt', 'deploy/package.sh', 'deploy/steps.sh', 'deploy/xgrammar.sh':
            self.write(name, read(name))
        self.write('deploy/packages.sh', 'install_packages() { echo building; return 9; }\n')
        [version] = re.findall(r'^project\(lssar VERSION ([0-9.]+)', read('CMakeLists.txt'), re.M)
        system = subprocess.check_output(['dpkg', '--print-architecture'], text=True).strip()
        self.package = f'lssar_{version}_{system}.deb'
        self.write(f'dist/{self.package}', 'a package', age_s=60)

    def write(self, name, text='', age_s=120):
        path = self.tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        os.utime(path, (START - age_s, START - age_s))

    def take(self):
        """-> whether the package of dist/ was taken."""
        done = subprocess.run(['sh', self.tree / 'deploy/package.sh', '--to', self.tree / 'to'],
                              capture_output=True, text=True, timeout=60, check=False)
        self.assertIn(done.returncode, (0, 9), done.stderr)
        is_taken = (self.tree / 'to' / self.package).is_file()
        self.assertEqual(is_taken, done.returncode == 0, done.stdout)
        return is_taken

    def test_a_package_older_than_its_sources_is_not_taken(self):
        self.assertTrue(self.take())
        shutil.rmtree(self.tree / 'to')
        for name in 'server/DESIGN.md', 'models/zoo/weights', 'docs/page', 'tests/test.cc':
            self.write(name, age_s=0)
        self.assertTrue(self.take())
        for name in 'server/main.cc', 'CMakeLists.txt', 'deploy/debian/server.toml':
            shutil.rmtree(self.tree / 'to')
            before = read(self.tree / name) if (self.tree / name).exists() else ''
            self.write(name, before, age_s=0)
            self.assertFalse(self.take(), name)
            self.write(name, before)


class CudaBuildTest(unittest.TestCase):
    """Runs where nvcc is installed."""

    def test_the_cuda_build_is_configured_as_the_image_does(self):
        shown = subprocess.check_output(
            ['sh', '-c', '. deploy/steps.sh; logged() { echo "$*"; }; '
             'build_portable cuda lssar_manual'], text=True)
        _, configure, build = (line.split() for line in shown.splitlines())
        configure.remove('-DLSSAR_XGRAMMAR=ON')  # it may not be built here
        with tempfile.TemporaryDirectory() as folder:
            configure[configure.index('-B') + 1] = folder
            done = subprocess.run(configure, capture_output=True, text=True, timeout=300,
                                  check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn('cuda backend: ON', done.stdout)
            query = ['ninja', '-C', folder, '-t', 'query', *build[build.index('--target') + 1:]]
            targets = subprocess.run(query, capture_output=True, text=True, timeout=60,
                                     check=False)
            self.assertEqual(targets.returncode, 0, targets.stderr)


class ManifestsTest(unittest.TestCase):

    def test_images_in_kubernetes_have_the_tag_of_this_version(self):
        """A node keeps an image that it has, and would keep an older one called latest."""
        [version] = re.findall(r'^project\(lssar VERSION ([0-9.]+)', read('CMakeLists.txt'), re.M)
        for overlay in 'cpu', 'cuda':
            text = read(f'deploy/kubernetes/overlays/{overlay}/kustomization.yaml')
            tags = {each['newName']: each['newTag'] for each in yaml.safe_load(text)['images']}
            self.assertNotIn('latest', tags.values())
            own = {'cpu': 'lssar-6m', 'cuda': 'lssar-cuda'}[overlay]
            self.assertEqual(tags[own], version)
            self.assertIn(f' -t {own}:{version} .', text)

    def test_all_parse(self):
        for path in glob.glob('deploy/**/*.y*ml', recursive=True):
            self.assertTrue(all(yaml.safe_load_all(read(path))), path)

    def test_the_gpu_service_is_the_plain_one_on_a_gpu(self):
        services = yaml.safe_load(read('deploy/compose.yaml'))['services']
        gpu, plain = services['lssar-gpu'], services['lssar']
        self.assertNotIn('profiles', plain)
        self.assertEqual(gpu['profiles'], ['gpu'])
        self.assertEqual((gpu['build']['dockerfile'], plain['build']['dockerfile']), (CUDA, PLAIN))
        device, = gpu['deploy']['resources']['reservations']['devices']
        self.assertEqual(device, {'driver': 'nvidia', 'count': 1, 'capabilities': ['gpu']})
        own = {'build', 'deploy', 'image', 'profiles'}
        self.assertEqual({key: value for key, value in gpu.items() if key not in own},
                         {key: value for key, value in plain.items() if key not in own})


if __name__ == '__main__':
    unittest.main()
