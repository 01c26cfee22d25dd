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

from fake_server import FakeService, RunningFake
from programs import CLI, MODEL, TIMEOUT_S, clean_environment

CTRL_A, CTRL_C, CTRL_D, UP = b'\x01', b'\x03', b'\x04', b'\x1b[A'
PASTE_ON, PASTE_OFF = '\x1b[?2004h', '\x1b[?2004l'


def paste(text):
    return b'\x1b[200~' + text.encode() + b'\x1b[201~'


class TerminalProgram:
    """A program on its own pseudo-terminal, for a with block."""

    def __init__(self, *arguments, **extra):
        model = () if '--server' in arguments else ('--model', MODEL)
        self._arguments = *arguments, *model
        self._extra = extra
        self.output = ''

    def __enter__(self):
        self._master, slave = pty.openpty()
        self._program = subprocess.Popen(
            [CLI, *self._arguments], stdin=slave, stdout=slave, stderr=slave,
            preexec_fn=self._own_terminal,
            env=clean_environment(**{'TERM': 'xterm-256color', **self._extra}))
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

    def end_by(self, signal_number):
        self._program.send_signal(signal_number)

    def has_line_mode(self):
        return bool(termios.tcgetattr(self._master)[3] & termios.ICANON)

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

    def expect_prompt(self, prompt='> '):
        """Waits until the editor reads keys. It prints its prompt shortly before it controls the
        terminal; until then the terminal itself echoes keys and handles Ctrl-C and Ctrl-D."""
        self.expect(re.escape(prompt))
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


class MessagesOfSeveralLinesTest(unittest.TestCase):
    """On a service that says what it was sent."""

    def setUp(self):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        self.history = os.path.join(folder, 'history')
        self.service = FakeService(pieces=['an answer'])
        self.address = self.enterContext(RunningFake(self.service)).address

    def chat(self, **extra):
        return TerminalProgram('chat', '--server', self.address, LSSAR_HISTORY=self.history,
                               **extra)

    def expect_message(self, chat, expected):
        chat.expect(r'\[1 tokens')
        request, _ = self.service.metadata[-1]
        self.assertEqual(request.chat.messages[-1].content, expected)
        chat.expect_prompt()

    def test_pasted_lines_are_one_message(self):
        with self.chat() as chat:
            chat.expect_prompt()
            chat.type(b'read: ' + paste('// Grüße\n\tint x;\r日本 \x1b[31m\n'))
            shown = chat.expect('31m')
            self.assertRegex(shown, r'// Grüße\r*\n +int x;\r*\n日本 ')
            self.assertNotIn('\x1b[31m', shown)
            chat.type(b'end\r')
            self.expect_message(chat, 'read: // Grüße\n\tint x;\n日本 [31m\nend')
            chat.type(UP + b'\r')  # the history has it whole
            self.expect_message(chat, 'read: // Grüße\n\tint x;\n日本 [31m\nend')
            chat.type(paste('// code\n/quit') + b'\r')  # not a command, and no slash is lost
            self.expect_message(chat, '// code\n/quit')
            chat.type(paste('one line') + b'\r')
            self.expect_message(chat, 'one line')
            chat.type(CTRL_D)
            self.assertEqual(chat.wait(), 0)
        with self.chat() as chat:
            chat.expect_prompt()
            chat.type(UP + UP + UP + b'\r')  # from the file
            self.expect_message(chat, 'read: // Grüße\n\tint x;\n日本 [31m\nend')
        self.assertEqual(len(self.service.metadata), 5)

    def test_a_backslash_at_the_end_continues_the_line(self):
        with self.chat() as chat:
            chat.expect_prompt()
            chat.type(b'one \\\r')
            chat.expect_prompt('... ')
            chat.type(b'two\\\r')
            chat.expect_prompt('... ')
            chat.type(b'three\r')
            self.expect_message(chat, 'one \ntwo\nthree')
            chat.type(b'dropped\\\r')
            chat.expect_prompt('... ')
            chat.type(b'too' + CTRL_C)
            chat.expect(r'\^C')
            chat.expect_prompt()
            chat.type(b'sent by Ctrl-D\\\r')
            chat.expect_prompt('... ')
            chat.type(CTRL_D)
            self.expect_message(chat, 'sent by Ctrl-D')
            chat.type(b'in the \\ middle\r')
            self.expect_message(chat, 'in the \\ middle')

    def test_pastes_are_marked_only_while_a_line_is_read(self):
        for end in (CTRL_D, b'/quit\r', signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            with self.subTest(end), self.chat() as chat:
                chat.expect(re.escape(PASTE_ON))
                chat.expect_prompt()
                chat.type(b'hello\r')
                chat.expect(re.escape(PASTE_OFF))
                chat.expect('an answer')
                chat.expect(re.escape(PASTE_ON))
                chat.expect_prompt()
                if isinstance(end, bytes):
                    chat.type(end)
                else:
                    chat.end_by(end)
                    # The first SIGINT is for an answer, and two that come together are one.
                    while end == signal.SIGINT and not chat.has_shown(re.escape(PASTE_OFF), 0.2):
                        chat.end_by(end)
                chat.expect(re.escape(PASTE_OFF))
                self.assertEqual(chat.wait(), 0 if isinstance(end, bytes) else -end)
                self.assertTrue(chat.has_line_mode())

    def test_a_terminal_without_sequences_gets_none(self):
        with self.chat(TERM='dumb') as chat:
            chat.expect_prompt()
            chat.type(b'hello\r')
            chat.expect('hello')
            chat.expect('an answer')
            shown = chat.expect('> ')
            self.assertNotIn('2004', shown)

    def test_a_paste_without_an_end_is_left_by_ctrl_c(self):
        with self.chat() as chat:
            chat.expect_prompt()
            chat.type(b'\x1b[200~lost' + CTRL_C)
            chat.expect(r'\^C')
            chat.expect_prompt()
            chat.type(b'hello\r')
            self.expect_message(chat, 'hello')


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
