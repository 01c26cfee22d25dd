// Whether a file is another one than before.
#ifndef LSSAR_SERVER_FILE_VERSION_H_
#define LSSAR_SERVER_FILE_VERSION_H_

#include <string>

namespace lssar {

// Changes whenever the file does: by being written, or by another taking its place. Empty: it
// cannot be looked at. Take it before the file is read: what is written meanwhile is another
// change.
std::string FileVersion(const std::string& path);

}  // namespace lssar

#endif  // LSSAR_SERVER_FILE_VERSION_H_
