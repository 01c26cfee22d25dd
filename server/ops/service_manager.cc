#include "server/ops/service_manager.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace lssar {
namespace {

std::string_view Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string_view() : value;
}

std::optional<int64_t> PositiveNumber(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number <= 0) return std::nullopt;
  return number;
}

}  // namespace

void NotifyServiceManager(std::string_view message) {
  const std::string_view path = Variable("NOTIFY_SOCKET");
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.empty() || (path[0] != '/' && path[0] != '@') ||
      path.size() > sizeof(address.sun_path)) {
    return;
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  if (path[0] == '@') address.sun_path[0] = '\0';  // an abstract socket
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return;
  const auto size = socklen_t(offsetof(sockaddr_un, sun_path) + path.size());
  sendto(fd, message.data(), message.size(), MSG_NOSIGNAL,
         reinterpret_cast<const sockaddr*>(&address), size);
  close(fd);
}

std::optional<std::chrono::microseconds> ServiceWatchdogInterval() {
  const std::string_view process = Variable("WATCHDOG_PID");
  if (!process.empty() && PositiveNumber(process) != getpid()) return std::nullopt;
  const std::optional<int64_t> timeout_us = PositiveNumber(Variable("WATCHDOG_USEC"));
  if (!timeout_us) return std::nullopt;
  return std::chrono::microseconds((*timeout_us + 1) / 2);
}

}  // namespace lssar
