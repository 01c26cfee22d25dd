// Detects changes of a file.
#ifndef LSSAR_SERVER_FILE_VERSION_H_
#define LSSAR_SERVER_FILE_VERSION_H_

#include <string>

namespace lssar {

// Identifies the file's content: changes when the file is written or replaced. Empty if the file
// cannot be examined. Call before reading the file, so that a concurrent write counts as a change.
std::string FileVersion(const std::string& path);

}  // namespace lssar

#endif  // LSSAR_SERVER_FILE_VERSION_H_
