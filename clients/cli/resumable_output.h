// A file of JSON lines that a job writes in order and can go on with after it was stopped.
#ifndef LSSAR_CLIENTS_CLI_RESUMABLE_OUTPUT_H_
#define LSSAR_CLIENTS_CLI_RESUMABLE_OUTPUT_H_

#include <cstdio>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lssar::cli {

class ResumableOutput {
 public:
  // Opens `path`. With `resume`, cuts off a last line that is incomplete (the job was killed while
  // it wrote) and continues after the lines that are there, each of which on_line gets; without,
  // the file must not exist.
  // Errors  ALREADY_EXISTS: it exists and `resume` is false; PERMISSION_DENIED: it cannot be
  //         written; INTERNAL: reading failed; those of on_line
  static absl::StatusOr<ResumableOutput> Open(
      const std::string& path, bool resume,
      const std::function<absl::Status(const std::string&)>& on_line);

  // Appends a line. It is with the operating system when this returns, so a kill does not lose it.
  // Errors  RESOURCE_EXHAUSTED: it cannot be written, for example because the disk is full
  absl::Status Append(const std::string& line);

 private:
  struct Closer {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  std::string path_;
  std::unique_ptr<std::FILE, Closer> file_;
};

// FAILED_PRECONDITION: `path` is a file of another command.
absl::Status NotResumable(const std::string& path);

// A line of `path` that has the number `field` and was computed with this checkpoint.
// Errors  FAILED_PRECONDITION: it is of another command, or of another checkpoint
absl::StatusOr<nlohmann::ordered_json> ParseResumedLine(const std::string& path,
                                                        const std::string& line,
                                                        const std::string& field,
                                                        const std::string& checkpoint_hash);

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_RESUMABLE_OUTPUT_H_
