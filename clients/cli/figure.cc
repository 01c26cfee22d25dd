#include "clients/cli/figure.h"

#include "base/status_macros.h"
#include "base/str_cat.h"
#include "clients/cli/argument_parser.h"

namespace lssar::cli {

void AddFigureFlag(ArgumentParser* parser, std::string* path) {
  parser
      ->Add("--figure", *path,
            "draw the result with matplotlib: a file .svg, .png, .pdf or .html; needs pip install "
            "'./clients/python[plot]' in lssar's repository")
      .ValueName("FILE")
      .Group("Output");
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
