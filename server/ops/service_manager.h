// Messages to the service manager that started the process: systemd's sd_notify protocol
// (Type=notify), a datagram to the Unix socket that NOTIFY_SOCKET names.
#ifndef LSSAR_SERVER_OPS_SERVICE_MANAGER_H_
#define LSSAR_SERVER_OPS_SERVICE_MANAGER_H_

#include <chrono>
#include <optional>
#include <string_view>

namespace lssar {

// Sends "READY=1", "STOPPING=1" and the like. Without NOTIFY_SOCKET, or without a listener there,
// does nothing. Never blocks.
void NotifyServiceManager(std::string_view message);

// How often "WATCHDOG=1" is due: half of WATCHDOG_USEC (WatchdogSec= of the unit). nullopt: the
// manager does not watch this process.
std::optional<std::chrono::microseconds> ServiceWatchdogInterval();

}  // namespace lssar

#endif  // LSSAR_SERVER_OPS_SERVICE_MANAGER_H_
