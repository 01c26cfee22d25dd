// Figures of results, for --figure. lssar.figures draws them with matplotlib from what
// --json prints.
#ifndef LSSAR_CLIENTS_CLI_FIGURE_H_
#define LSSAR_CLIENTS_CLI_FIGURE_H_

#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "clients/cli/python_program.h"
#include "nlohmann/json.hpp"

namespace lssar::cli {

class ArgumentParser;

inline constexpr PythonProgram kFigureProgram = {
    .script = "lssar-figure", .module = "lssar.figures", .extra = "plot"};

// --figure FILE.
void AddFigureFlag(ArgumentParser* parser, std::string* path);

// Draws a result at the end of a command. Without a path it does nothing.
class Figure {
 public:
  // Starts the program that draws, before the work: a missing matplotlib or a wrong name of the
  // file then costs no result.
  // `kind`: as `lssar figure` names it
  // `path`: of the file; empty for no figure
  // Errors  INVALID_ARGUMENT: the program refuses (it says why on stderr); NOT_FOUND: no python3
  static absl::StatusOr<Figure> Start(const char* kind, const std::string& path);

  // Errors  INTERNAL: the program failed (it says why on stderr)
  absl::Status Draw(const std::function<nlohmann::ordered_json()>& result);

 private:
  explicit Figure(std::optional<PythonProcess> process) : process_(std::move(process)) {}

  std::optional<PythonProcess> process_;
};

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_FIGURE_H_
