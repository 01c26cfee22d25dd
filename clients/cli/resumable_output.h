// A file of JSON lines that a job writes in order and can go on with after it was stopped.
#ifndef LSSAR_CLIENTS_CLI_RESUMABLE_OUTPUT_H_
#define LSSAR_CLIENTS_CLI_RESUMABLE_OUTPUT_H_

#include <cstdio>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lssar::cli {

class ResumableOutput {
 public:
  // Opens `path`. With `resume`, cuts off a last line that is incomplete (the job was killed while
  // it wrote) and continues after the lines that are there; without, the file must not exist.
  // Errors  ALREADY_EXISTS: it exists and `resume` is false; PERMISSION_DENIED: it cannot be
  //         written; INTERNAL: reading failed
  static absl::StatusOr<ResumableOutput> Open(const std::string& path, bool resume);

  // The last line that was there; empty: none.
  const std::string& LastLine() const { return last_line_; }

  // Appends a line. It is with the operating system when this returns, so a kill does not lose it.
  // Errors  RESOURCE_EXHAUSTED: it cannot be written, for example because the disk is full
  absl::Status Append(const std::string& line);

 private:
  struct Closer {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  std::string path_;
  std::string last_line_;
  std::unique_ptr<std::FILE, Closer> file_;
};

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_RESUMABLE_OUTPUT_H_
