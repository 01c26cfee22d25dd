// A directory of a test's own: two tests that run at once never share a file.
#ifndef LSSAR_TESTS_SUPPORT_SCRATCH_DIRECTORY_H_
#define LSSAR_TESTS_SUPPORT_SCRATCH_DIRECTORY_H_

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "base/check.h"

namespace lssar {

// Made empty with the object, removed with it.
class ScratchDirectory {
 public:
  ScratchDirectory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "lssar_test_XXXXXX").string();
    LSSAR_CHECK(mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~ScratchDirectory() { std::filesystem::remove_all(path_); }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;

  const std::string& Path() const { return path_; }
  // The path that the file `name` has or would have.
  std::string Path(std::string_view name) const { return path_ + "/" + std::string(name); }

  // Writes a file, and the directories that lead to it, and returns its path. A file of that name
  // is replaced at once: a reader sees the whole of one or the other.
  std::string Write(std::string_view name, std::string_view bytes) const {
    const std::string path = Path(name);
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    const std::string next = path + ".next";
    std::ofstream file(next, std::ios::binary);
    file << bytes;
    file.close();
    LSSAR_CHECK(file.good());
    std::filesystem::rename(next, path);
    return path;
  }

  // Copies every file of `directory`.
  void CopyFrom(std::string_view directory) const {
    for (const auto& entry : std::filesystem::directory_iterator(directory)) {
      if (!entry.is_regular_file()) continue;
      const std::filesystem::path to = Path(entry.path().filename().string());
      std::filesystem::copy_file(entry.path(), to);
      std::filesystem::permissions(to, std::filesystem::perms::owner_write,
                                   std::filesystem::perm_options::add);
    }
  }

 private:
  std::string path_;
};

}  // namespace lssar

#endif  // LSSAR_TESTS_SUPPORT_SCRATCH_DIRECTORY_H_
