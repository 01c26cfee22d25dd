#include "server/file_version.h"

#include <sys/stat.h>

#include "kernels/str_cat.h"

namespace lssar {

std::string FileVersion(const std::string& path) {
  struct stat file;
  if (stat(path.c_str(), &file) != 0) return "";
  return StrCat(file.st_dev, ".", file.st_ino, ".", file.st_size, ".", file.st_mtim.tv_sec, ".",
                file.st_mtim.tv_nsec);
}

}  // namespace lssar
