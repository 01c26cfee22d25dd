#include "clients/cli/figure.h"

#include <CLI/CLI.hpp>

#include "base/status_macros.h"
#include "base/str_cat.h"

namespace lssar::cli {

void AddFigureFlag(CLI::App* app, std::string* path) {
  app->add_option("--figure", *path,
                  "draw the result with matplotlib: a file .svg, .png, .pdf or .html; needs pip "
                  "install 'lssar[plot]'")
      ->option_text("FILE")
      ->group("Output");
}

absl::StatusOr<Figure> Figure::Start(const char* kind, const std::string& path) {
  if (path.empty()) return Figure(std::nullopt);
  ASSIGN_OR_RETURN(PythonProcess process,
                   PythonProcess::Start(kFigureProgram, {"--announce", kind, path, "-"}));
  if (process.ReadLine() != "ready") {
    process.Wait();
    return absl::InvalidArgumentError(StrCat("--figure: ", path, " cannot be drawn, see above"));
  }
  return Figure(std::move(process));
}

absl::Status Figure::Draw(const std::function<nlohmann::ordered_json()>& result) {
  if (!process_.has_value()) return absl::OkStatus();
  process_->Write(result().dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  if (process_->Wait() != 0) return absl::InternalError("--figure: no figure was written");
  return absl::OkStatus();
}

}  // namespace lssar::cli
