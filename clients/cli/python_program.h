// Programs of the Python package lssar that commands run.
#ifndef LSSAR_CLIENTS_CLI_PYTHON_PROGRAM_H_
#define LSSAR_CLIENTS_CLI_PYTHON_PROGRAM_H_

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lssar::cli {

// A console script of the package. Without it in PATH, the module's main runs in the python3 of
// PATH.
struct PythonProgram {
  const char* script;
  const char* module;
  const char* extra;  // of the package, with what the module imports; empty: it needs none
};

// Replaces this process. Returns only if that fails.
// Errors  NOT_FOUND: neither the script nor python3 can be started
absl::Status ExecPythonProgram(const PythonProgram& program, std::vector<std::string> arguments);

// A running program whose standard input and output are one socket.
class PythonProcess {
 public:
  // Errors  NOT_FOUND: neither the script nor python3 can be started
  static absl::StatusOr<PythonProcess> Start(const PythonProgram& program,
                                             std::vector<std::string> arguments);

  // Closes the socket and waits for the program.
  ~PythonProcess();
  PythonProcess(PythonProcess&& other) noexcept;
  PythonProcess& operator=(PythonProcess&&) = delete;

  // One line of its output without the newline; what there is at the end of its output.
  std::string ReadLine();

  // Writes `text` and ends the program's input. A program that ended early is no error here.
  void Write(std::string_view text);

  // Waits for its end and returns the exit code; a signal gives 128 and its number.
  int Wait();

 private:
  PythonProcess(pid_t pid, int socket) : pid_(pid), socket_(socket) {}

  pid_t pid_;
  int socket_;
};

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_PYTHON_PROGRAM_H_
