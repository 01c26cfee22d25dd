// The kinds of files that the programs read: good examples, and how each is read.
#ifndef LSSAR_TESTS_FILES_FILE_KINDS_H_
#define LSSAR_TESTS_FILES_FILE_KINDS_H_

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace lssar::testing {

struct FileKind {
  std::string name;
  std::vector<std::string> examples;    // the content of good files
  std::vector<std::string_view> words;  // of the format, for mutations
  // Reads a file with this content as the programs do, and uses what it got. True if the file is
  // accepted.
  std::function<bool(const std::string& bytes)> read;
};

// `directory`: scratch, exists. The examples are good: `read` accepts them.
std::vector<FileKind> MakeFileKinds(const std::string& directory);

}  // namespace lssar::testing

#endif  // LSSAR_TESTS_FILES_FILE_KINDS_H_
