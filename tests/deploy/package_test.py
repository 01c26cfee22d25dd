"""The Debian package: what is in it, its unit by systemd's own check, its man pages by groff.

LSSAR_BUILD is the build folder, LSSAR_SERVER and LSSAR_CLI its programs.
"""

import os
import pathlib
import re
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ['LSSAR_BUILD'])
UNIT = 'usr/lib/systemd/system/lssar-server.service'
USER = 'usr/lib/sysusers.d/lssar-server.conf'


def run(*command, **options):
    """-> standard output. Errors: AssertionError with all output."""
    done = subprocess.run([str(part) for part in command], text=True, capture_output=True,
                          check=False, **options)
    if done.returncode:
        raise AssertionError(f'{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}')
    return done.stdout


class PackageTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        run('/usr/bin/python3', '-B', ROOT / 'deploy/debian/manual.py', BUILD / 'bin',
            BUILD / 'manual', env={**os.environ, 'PATH': '/usr/bin:/bin',
                                   'PYTHONPATH': str(ROOT / 'clients/python')})
        run('cpack', '--config', BUILD / 'CPackConfig.cmake', '-D',
            'CPACK_DEBIAN_COMPRESSION_TYPE=none', '-B', cls.folder)
        [cls.package] = cls.folder.glob('lssar_*.deb')
        cls.tree = cls.folder / 'tree'
        run('dpkg-deb', '--extract', cls.package, cls.tree)

    def test_files_and_dependencies(self):
        files = {str(path.relative_to(self.tree)) for path in self.tree.rglob('*')
                 if path.is_file()}
        self.assertLessEqual({
            'usr/bin/lssar', 'usr/bin/lssar-server', UNIT, USER, 'etc/lssar/server.toml',
            'usr/share/man/man1/lssar.1', 'usr/share/man/man1/lssar-server.1',
            'usr/share/bash-completion/completions/lssar',
            'usr/share/bash-completion/completions/lssar-server',
            'usr/share/doc/lssar/copyright'}, files)
        fields = run('dpkg-deb', '--field', self.package)
        [version] = re.findall(r'^project\(lssar VERSION ([0-9.]+)',
                               (ROOT / 'CMakeLists.txt').read_text(), re.M)
        self.assertIn(f'Version: {version}', fields)
        for library in 'libgrpc++1.51', 'libc6', 'libhwy1':
            self.assertIn(library, fields)
        control = self.folder / 'control'
        run('dpkg-deb', '--control', self.package, control)
        self.assertEqual((control / 'conffiles').read_text(), '/etc/lssar/server.toml\n')
        for script in 'postinst', 'postrm', 'prerm':
            run('sh', '-n', control / script)
            run(control / script, 'nothing')
        self.assertEqual(run(self.tree / 'usr/bin/lssar', '--version'), f'lssar {version}\n')

    def test_systemd_takes_the_unit(self):
        text = (self.tree / UNIT).read_text()
        self.assertIn('ExecStart=/usr/bin/lssar-server ', text)
        cuda = (ROOT / 'deploy/debian/cuda.conf').read_text()
        for name, changes in ('lssar-server', ''), ('lssar-server-cuda', cuda):
            unit = self.folder / f'{name}.service'
            program = str(self.tree / 'usr/bin/lssar-server')
            unit.write_text((text + changes).replace('/usr/bin/lssar-server', program))
            self.assertEqual(run('systemd-analyze', 'verify', '--man=no', unit), '')
            exposure = run('systemd-analyze', 'security', '--offline=yes', unit)
            level = float(re.search(r'Overall exposure level.*: ([0-9.]+)', exposure)[1])
            self.assertLess(level, 2.5, exposure)
            # A GPU is a device of the machine, which PrivateDevices hides.
            self.assertEqual('✗ PrivateDevices=' in exposure, bool(changes), exposure)

    def test_the_services_user_can_read_keys_and_write_batches(self):
        unit = (self.tree / UNIT).read_text()
        [user] = re.findall(r'^User=(.*)$', unit, re.M)
        [state] = re.findall(r'^StateDirectory=(.*)$', unit, re.M)
        settings = (self.tree / 'etc/lssar/server.toml').read_text()
        self.assertIn(f'chgrp {user} ', settings)
        self.assertIn(f'# batch-dir = "/var/lib/{state}"\n', settings)
        root = self.folder / 'root'
        (root / 'usr/lib/sysusers.d').mkdir(parents=True)
        (root / 'etc').mkdir()
        (root / USER).write_text((self.tree / USER).read_text())
        run('systemd-sysusers', f'--root={root}', 'lssar-server.conf')
        for file in 'passwd', 'group':  # a system user and a group of the same name
            [number] = re.findall(rf'^{user}:[^:]*:(\d+):', (root / 'etc' / file).read_text(), re.M)
            self.assertLess(int(number), 1000)

    def test_a_setting_that_the_server_does_not_know_starts_it_once(self):
        [codes] = re.findall(r'^RestartPreventExitStatus=(.*)$', (self.tree / UNIT).read_text(),
                             re.M)
        config = self.folder / 'wrong.toml'
        config.write_text((self.tree / 'etc/lssar/server.toml').read_text() + 'no-such = 1\n')
        done = subprocess.run([self.tree / 'usr/bin/lssar-server', '--config', config], text=True,
                              capture_output=True, timeout=60, check=False)
        self.assertEqual(str(done.returncode), codes, done.stderr)

    def test_a_service_that_does_not_start_or_stop_holds_no_package_back(self):
        programs = self.folder / 'programs'
        programs.mkdir()
        calls = self.folder / 'calls'
        for name, code in ('systemctl', 1), ('systemd-sysusers', 0):
            (programs / name).write_text(f'#!/bin/sh\necho "{name} $*" >>{calls}\nexit {code}\n')
            (programs / name).chmod(0o755)
        for script, argument in ('postinst', 'configure'), ('prerm', 'remove'), ('postrm', 'purge'):
            text = (ROOT / 'deploy/debian' / script).read_text()
            copy = self.folder / script
            text = text.replace('/run/systemd/system', str(programs))  # it is there
            copy.write_text(text.replace('/run/', f'{self.folder}/'))
            run('sh', copy, argument, env={**os.environ, 'PATH': f'{programs}:/usr/bin:/bin'})
        self.assertEqual(calls.read_text().splitlines(), [
            'systemd-sysusers lssar-server.conf', 'systemctl daemon-reload',
            'systemctl try-restart lssar-server.service',
            'systemctl --quiet is-enabled lssar-server.service',
            'systemctl --quiet is-active lssar-server.service',
            'systemctl disable --now lssar-server.service'])

    def test_the_services_settings_are_the_servers(self):
        done = subprocess.run([self.tree / 'usr/bin/lssar-server', '--config',
                               self.tree / 'etc/lssar/server.toml', '--model', '/nowhere',
                               '--listen', '127.0.0.1:0', '--http-listen', '127.0.0.1:0'],
                              text=True, capture_output=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn('/nowhere: No such file', done.stderr)

    def test_man_pages_name_every_flag_and_have_no_warnings(self):
        for program in 'lssar', 'lssar-server':
            page = self.tree / f'usr/share/man/man1/{program}.1'
            done = subprocess.run(['groff', '-man', '-Tutf8', '-ww', '-P-c', page], text=True,
                                  capture_output=True, check=True)
            self.assertEqual(done.stderr, '', program)
            shown = re.sub('.\b', '', done.stdout).replace('‐', '-').replace('−', '-')
            helped = run(self.tree / f'usr/bin/{program}', '--help')
            for flag in set(re.findall(r'--[a-z-]+[a-z]', helped)):
                self.assertIn(flag, shown)
        self.assertIn('--attention-p', run('groff', '-man', '-Tascii', '-P-c', '-P-b', '-P-u',
                                           self.tree / 'usr/share/man/man1/lssar.1'))

    def test_completion(self):
        script = (f'. {self.tree}/usr/share/bash-completion/completions/lssar\n'
                  'COMP_WORDS=(lssar pas); COMP_CWORD=1; _lssar; echo "${COMPREPLY[@]}"\n'
                  'COMP_WORDS=(lssar run-); COMP_CWORD=1; _lssar; echo "${COMPREPLY[@]}"\n'
                  'COMP_WORDS=(lssar passkey --tri); COMP_CWORD=2; _lssar\n'
                  'echo "${COMPREPLY[@]}"\n'
                  # Its help speaks of verify's --request.
                  'COMP_WORDS=(lssar generate --re); COMP_CWORD=2; _lssar\n'
                  'echo "${COMPREPLY[@]}"\n')
        self.assertEqual(run('bash', '-c', script),
                         'passkey\nrun-batch\n--trials\n--regex --repetition-penalty\n')


class CudaPackageTest(unittest.TestCase):
    """cmake/package.cmake with programs that do nothing, for both names of the package."""

    def test_only_the_cuda_package_changes_the_unit(self):
        for device, package, expected in ('ON', 'lssar-cuda', True), ('OFF', 'lssar', False):
            folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
            for name in 'cmake', 'deploy', 'LICENSE':
                (folder / name).symlink_to(ROOT / name)
            (folder / 'main.c').write_text('int main(void) { return 0; }\n')
            (folder / 'CMakeLists.txt').write_text(
                'cmake_minimum_required(VERSION 3.25)\n'
                'project(lssar VERSION 1.2.3 LANGUAGES C)\n'
                'add_executable(lssar-server main.c)\nadd_executable(lssar_program main.c)\n'
                'include(cmake/package.cmake)\n')
            build = folder / 'build'
            for each in 'man1', 'bash-completion':
                (build / 'manual' / each).mkdir(parents=True)
            run('cmake', '-S', folder, '-B', build, f'-DLSSAR_WITH_CUDA={device}')
            run('cmake', '--build', build)
            run('cpack', '--config', build / 'CPackConfig.cmake', '-B', folder / 'out')
            [file] = (folder / 'out').glob(f'{package}_1.2.3_*.deb')
            run('dpkg-deb', '--extract', file, folder / 'tree')
            drop_in = folder / 'tree' / f'{UNIT}.d/cuda.conf'
            self.assertEqual(drop_in.is_file(), expected, package)
            self.assertTrue((folder / 'tree' / UNIT).is_file())


if __name__ == '__main__':
    unittest.main()
