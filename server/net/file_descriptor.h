// An open file descriptor, closed when its owner is destroyed.
#ifndef LSSAR_SERVER_NET_FILE_DESCRIPTOR_H_
#define LSSAR_SERVER_NET_FILE_DESCRIPTOR_H_

#include <unistd.h>

#include <utility>

namespace lssar {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.Release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    Reset(other.Release());
    return *this;
  }
  ~FileDescriptor() { Reset(); }

  int Get() const { return fd_; }
  bool IsOpen() const { return fd_ >= 0; }
  // The caller closes it.
  int Release() { return std::exchange(fd_, -1); }
  void Reset(int fd = -1) {
    const int old = std::exchange(fd_, fd);
    if (old >= 0) close(old);
  }

 private:
  int fd_ = -1;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_NET_FILE_DESCRIPTOR_H_
