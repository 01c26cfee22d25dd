#include "server/config/file_version.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/str_cat.h"

namespace lssar {

std::string FileVersion(const std::string& path) {
  struct stat file;
  if (stat(path.c_str(), &file) != 0) return "";
  // The time of the last change of the inode notices a chmod, too.
  return StrCat(file.st_dev, ".", file.st_ino, ".", file.st_size, ".", file.st_mtim.tv_sec, ".",
                file.st_mtim.tv_nsec, ".", file.st_ctim.tv_sec, ".", file.st_ctim.tv_nsec);
}

std::string DirectoryVersion(const std::string& path) {
  std::vector<std::string> files;
  std::error_code error;
  // operator++ of a range-based loop throws.
  for (std::filesystem::directory_iterator entry(path, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code is_not;
    if (!entry->is_regular_file(is_not)) continue;  // follows links
    files.push_back(
        StrCat(entry->path().filename().string(), "\n", FileVersion(entry->path().string()), "\n"));
  }
  if (error) return "";
  std::sort(files.begin(), files.end());
  std::string version;
  for (const std::string& file : files) version += file;
  return version;
}

FileWatch::FileWatch(std::vector<std::string> paths, Clock::duration check_interval)
    : paths_(std::move(paths)), check_interval_(check_interval), version_(Version()) {}

std::string FileWatch::Version() const {
  std::string version;
  for (const std::string& path : paths_) {
    if (!path.empty()) version += FileVersion(path) + " ";
  }
  return version;
}

bool FileWatch::NeedsRead(Clock::time_point now) {
  if (now - checked_at_ < check_interval_) return false;
  checked_at_ = now;
  std::string version = Version();
  if (version == version_ && !may_pass_) return false;
  version_ = std::move(version);
  return true;
}

void FileWatch::ForceRead() {
  checked_at_ = {};
  may_pass_ = true;
  last_failure_.clear();
}

bool FileWatch::Finish(const absl::Status& status) {
  // A bad content stays bad until the file changes. No descriptor or no memory left, or a write
  // during the read, may pass without one.
  may_pass_ = absl::IsResourceExhausted(status) || absl::IsAborted(status);
  const std::string failure(status.message());
  const bool is_new = status.ok() || failure != last_failure_;
  last_failure_ = failure;
  return is_new;
}

}  // namespace lssar
