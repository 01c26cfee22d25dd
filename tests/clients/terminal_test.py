"""`lssar` on a terminal: line editing, Ctrl-C, colours, history."""

import fcntl
import os
import pty
import re
import select
import signal
import subprocess
import tempfile
import termios
import time
import unittest

from programs import CLI, MODEL, TIMEOUT_S, clean_environment

CTRL_A, CTRL_C, CTRL_D, UP = b'\x01', b'\x03', b'\x04', b'\x1b[A'


class TerminalProgram:
    """A program on its own pseudo-terminal, for a with block."""

    def __init__(self, *arguments, **extra):
        self._arguments = arguments
        self._extra = extra
        self.output = ''

    def __enter__(self):
        self._master, slave = pty.openpty()
        self._program = subprocess.Popen(
            [CLI, *self._arguments, '--model', MODEL], stdin=slave, stdout=slave, stderr=slave,
            preexec_fn=self._own_terminal,
            env=clean_environment(TERM='xterm-256color', **self._extra))
        os.close(slave)
        return self

    @staticmethod
    def _own_terminal():
        """Starts a session with this terminal, so that its Ctrl-C reaches the program."""
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    def __exit__(self, *unused):
        self._program.kill()
        self._program.wait()
        os.close(self._master)

    def type(self, keys):
        os.write(self._master, keys)

    def has_shown(self, pattern, seconds):
        """Reads for this long at most. -> whether the pattern is in the output since the last
        match, which it stays."""
        deadline = time.monotonic() + seconds
        while not re.search(pattern, self.output):
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self._master], [], [], left)[0]:
                return False
            self.output += os.read(self._master, 4096).decode(errors='replace')
        return True

    def expect(self, pattern):
        """Reads until the pattern is in the output since the last match. -> the output up to it."""
        deadline = time.monotonic() + TIMEOUT_S / 2
        while not (match := re.search(pattern, self.output)):
            left = max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([self._master], [], [], left)
            if not ready:
                raise AssertionError(f'{pattern!r} did not appear in {self.output!r}')
            try:
                self.output += os.read(self._master, 4096).decode(errors='replace')
            except OSError:  # the program has closed its end
                raise AssertionError(f'{pattern!r} did not appear before the end: {self.output!r}')
        seen, self.output = self.output[:match.end()], self.output[match.end():]
        return seen

    def expect_prompt(self):
        """Waits until the editor reads keys. It prints its prompt shortly before it controls the
        terminal; until then the terminal itself echoes keys and handles Ctrl-C and Ctrl-D."""
        self.expect('> ')
        deadline = time.monotonic() + TIMEOUT_S / 2
        while termios.tcgetattr(self._master)[3] & termios.ICANON:
            if time.monotonic() > deadline:
                raise AssertionError('the editor did not take control of the terminal')
            time.sleep(0.002)

    def wait(self):
        """Reads the rest of the output. -> the exit code."""
        try:
            while os.read(self._master, 4096):
                pass
        except OSError:
            pass
        return self._program.wait(timeout=TIMEOUT_S / 2)


class ChatOnATerminalTest(unittest.TestCase):

    def setUp(self):
        self._folder = tempfile.TemporaryDirectory()
        self.history = os.path.join(self._folder.name, 'state', 'history')
        self.addCleanup(self._folder.cleanup)

    def chat(self, *flags):
        return TerminalProgram('chat', '--seed', '1', *flags, LSSAR_HISTORY=self.history)

    def test_edits_lines_and_stores_the_history(self):
        with self.chat('--max-tokens', '8') as chat:
            chat.expect_prompt()
            chat.type(b'stats' + CTRL_A + b'/\r')
            chat.expect('0 answers')
            chat.expect_prompt()
            chat.type('Grüße\r'.encode())
            chat.expect(r'tokens.*\]')
            chat.expect_prompt()
            chat.type(UP + UP + b'\r')  # /stats again
            chat.expect('1 answers')
            chat.expect_prompt()
            chat.type(CTRL_D)
            self.assertEqual(chat.wait(), 0)
        with open(self.history, encoding='utf-8') as file:
            self.assertIn('/stats', file.read())
        self.assertEqual(os.stat(self.history).st_mode & 0o077, 0)

    def test_ctrl_c_stops_the_answer_and_keeps_the_chat(self):
        with self.chat('--min-tokens', '15000', '--max-tokens', '15000') as chat:
            chat.expect_prompt()
            chat.type(b'How are you?\r')
            chat.expect('How are you\\?[^>]*\n[^\n]*[a-z]{2}')  # the answer has begun
            chat.type(CTRL_C)
            chat.expect(r'\d tokens(, [\d.]+ tokens/s)?, stopped\]')  # one token has no rate
            chat.expect_prompt()
            chat.type(b'/stats\r')
            stats = chat.expect(r'1 answers, (\d+) tokens generated; context: (\d+) of')
            generated, context = map(int, re.search(r'(\d+) tokens generated; context: (\d+)',
                                                    stats).groups())
            self.assertGreater(generated, 0)
            self.assertLess(generated, 15000)
            self.assertGreater(context, generated)  # the partial answer is part of the chat
            chat.expect_prompt()
            chat.type(b'/quit\r')
            self.assertEqual(chat.wait(), 0)

    def test_ctrl_c_before_the_editor_listens_does_not_end_the_chat(self):
        with self.chat('--max-tokens', '8') as chat:
            for _ in range(5):
                chat.expect('> ')
                chat.type(CTRL_C)  # a signal or a key
                deadline = time.monotonic() + TIMEOUT_S / 2
                time.sleep(0.05)
                # Both drop what is typed before they have had their effect: then again.
                chat.type(b'/stats\r')
                while not chat.has_shown('0 answers', 2):
                    self.assertLess(time.monotonic(), deadline, chat.output)
                    chat.type(b'/stats\r')
                chat.expect('0 answers')

    def test_ctrl_c_at_the_prompt_discards_the_line(self):
        with self.chat('--max-tokens', '8') as chat:
            chat.expect_prompt()
            chat.type(b'/quit' + CTRL_C)
            chat.expect(r'\^C')
            chat.expect_prompt()
            chat.type(b'/stats\r')
            chat.expect('0 answers')
            chat.expect_prompt()
            chat.type(CTRL_D)
            self.assertEqual(chat.wait(), 0)


class OutputOnATerminalTest(unittest.TestCase):

    def test_ctrl_c_ends_generate(self):
        with TerminalProgram('generate', 'The river', '--ignore-eos', '--max-tokens', '16000',
                             '--seed', '1') as program:
            program.expect('[a-z]{3}')
            program.type(CTRL_C)
            program.expect(r'stopped by Ctrl-C \(CANCELLED\)')
            self.assertEqual(program.wait(), 1)

    def test_heat_map_has_colours_unless_NO_COLOR(self):
        arguments = 'passkey', '--lengths', '256', '--trials', '1', '--depths', '0.5'
        with TerminalProgram(*arguments) as program:
            program.expect(r'\x1b\[48;5;\d+;38;5;16m +100 \x1b\[0m')
        with TerminalProgram(*arguments, NO_COLOR='1') as program:
            seen = program.expect('50% +100 ██')
            self.assertNotIn('\x1b[48', seen)


if __name__ == '__main__':
    unittest.main()
