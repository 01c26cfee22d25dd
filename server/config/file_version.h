// Detects changes of files that are reloaded while the server runs: API keys, certificates, models.
#ifndef LSSAR_SERVER_CONFIG_FILE_VERSION_H_
#define LSSAR_SERVER_CONFIG_FILE_VERSION_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"

namespace lssar {

// Identifies the file's content: changes when the file is written, replaced or made readable. Empty
// if the file cannot be examined. Call before reading the file, so that a concurrent write counts
// as a change.
std::string FileVersion(const std::string& path);

// The same of the files that are directly in a directory, and of their names. Empty if it cannot be
// read.
std::string DirectoryVersion(const std::string& path);

// Decides when a set of files is read again, and which results of that are logged.
//
// Threads  one at a time
class FileWatch {
 public:
  // Empty paths are left out. Call before the files are read for the first time.
  FileWatch(std::vector<std::string> paths, Clock::duration check_interval);

  // True if a file has changed since the last call that returned true, or if the last read failed
  // for a reason that may pass. At most one call an interval examines the files. The caller then
  // reads the files and calls Finish.
  bool NeedsRead(Clock::time_point now);

  // Makes the next NeedsRead true, and the result of that read new.
  void ForceRead();

  // `status`: of the read. True if it should be logged: a success, or a failure with another
  // message than the last one.
  bool Finish(const absl::Status& status);

 private:
  std::string Version() const;

  const std::vector<std::string> paths_;
  const Clock::duration check_interval_;
  Clock::time_point checked_at_ = {};
  std::string version_;
  bool may_pass_ = false;     // the last read failed for a reason that may pass
  std::string last_failure_;  // message
};

}  // namespace lssar

#endif  // LSSAR_SERVER_CONFIG_FILE_VERSION_H_
