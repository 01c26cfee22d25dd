#include "clients/cli/python_program.h"

#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/status_macros.h"
#include "base/str_cat.h"

namespace lssar::cli {
namespace {

constexpr const char* kPython = "python3";

// Names what is missing and how to install it.
std::string ModuleSource(const PythonProgram& program) {
  const std::string extra = *program.extra == '\0' ? "" : StrCat("[", program.extra, "]");
  return StrCat(
      "import sys\n"
      "try:\n"
      "    from ",
      program.module,
      " import main\n"
      "except ModuleNotFoundError as error:\n"
      "    sys.exit(f\"lssar: {sys.executable} has no module {error.name}; this is written in \"\n"
      "             \"Python: pip install './clients/python",
      extra,
      "' in lssar's repository\")\n"
      "sys.exit(main())\n");
}

// The ways to run the program, the preferred one first.
std::array<std::vector<std::string>, 2> CommandLines(const PythonProgram& program,
                                                     const std::vector<std::string>& arguments) {
  std::vector<std::string> script = {program.script};
  // -P: modules in the working directory, which may be that of a checkpoint, are not run.
  std::vector<std::string> module = {kPython, "-P", "-c", ModuleSource(program)};
  for (std::vector<std::string>* line : {&script, &module}) {
    line->insert(line->end(), arguments.begin(), arguments.end());
  }
  return {script, module};
}

std::vector<char*> Pointers(std::vector<std::string>* words) {
  std::vector<char*> pointers;
  for (std::string& word : *words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

absl::Status CannotStart(int error) {
  return absl::NotFoundError(
      StrCat("this is written in Python, and ", kPython, " cannot be started: ", strerror(error)));
}

}  // namespace

absl::Status ExecPythonProgram(const PythonProgram& program, std::vector<std::string> arguments) {
  // The mask of main's Interrupt would be inherited.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  for (std::vector<std::string>& line : CommandLines(program, arguments)) {
    execvp(line[0].c_str(), Pointers(&line).data());
  }
  return CannotStart(errno);
}

absl::StatusOr<PythonProcess> PythonProcess::Start(const PythonProgram& program,
                                                   std::vector<std::string> arguments) {
  std::array<int, 2> sockets = {};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets.data()) != 0) {
    return absl::ErrnoToStatus(errno, "socketpair");
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, sockets[1], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, sockets[1], STDOUT_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);

  pid_t pid = 0;
  int error = ENOENT;
  for (std::vector<std::string>& line : CommandLines(program, arguments)) {
    error =
        posix_spawnp(&pid, line[0].c_str(), &actions, &attributes, Pointers(&line).data(), environ);
    if (error == 0) break;
  }
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  close(sockets[1]);
  if (error != 0) {
    close(sockets[0]);
    return CannotStart(error);
  }
  return PythonProcess(pid, sockets[0]);
}

PythonProcess::PythonProcess(PythonProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, 0)), socket_(std::exchange(other.socket_, -1)) {}

PythonProcess::~PythonProcess() { Wait(); }

std::string PythonProcess::ReadLine() {
  std::string line;
  for (char c = 0; recv(socket_, &c, 1, 0) == 1 && c != '\n';) line += c;
  return line;
}

void PythonProcess::Write(std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = send(socket_, text.data(), text.size(), MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    text.remove_prefix(size_t(count));
  }
  shutdown(socket_, SHUT_WR);
}

int PythonProcess::Wait() {
  if (socket_ >= 0) close(std::exchange(socket_, -1));
  if (pid_ == 0) return 0;
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = 0;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace lssar::cli
