// Authenticates calls by API key: who calls, and may it?
#ifndef LSSAR_SERVER_AUTH_ACCESS_CONTROL_H_
#define LSSAR_SERVER_AUTH_ACCESS_CONTROL_H_

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/periodic_thread.h"
#include "server/auth/api_keys.h"
#include "server/auth/key_usage.h"
#include "server/config/file_version.h"
#include "server/ops/log.h"

namespace lssar {

// Without a key file every caller is an admin without limits. A changed key file applies within a
// second; if the changed file cannot be read or parsed, the error is logged and the old keys stay.
//
// Threads  any
class AccessControl {
 public:
  // An empty `keys_path` means no keys. `defaults`: for keys that set no limits of their own, and
  // for addresses where there are no keys. `log` must outlive this.
  // Errors  those of ReadWholeFile and ApiKeys::Parse
  static absl::StatusOr<std::unique_ptr<AccessControl>> Open(const std::string& keys_path,
                                                             const Log* log,
                                                             const ClientLimits& defaults = {});
  ~AccessControl();

  // Returns the usage record of the call's key; null if the server has no keys.
  // `authorization`: the header of that name, "Bearer KEY"; empty if the call has none.
  // Errors  UNAUTHENTICATED: the key is missing or unknown
  //         PERMISSION_DENIED: the key lacks `role`
  //         No message reveals any part of a key.
  absl::StatusOr<std::shared_ptr<KeyUsage>> Authenticate(std::string_view authorization,
                                                         KeyRole role);

  // The usage record of the key of that name; null for an empty name where there are no keys.
  // Nullopt: there is no such key.
  std::optional<std::shared_ptr<KeyUsage>> Find(const std::string& name);

  // Reads the key file now, whether it has changed or not, and logs the result.
  void Reload();
  // From now on a change is found without a call, so that the operator hears of it. Call at most
  // once.
  void Watch();

  // The counts of the keys that have made a call, by name.
  std::map<std::string, KeyCounts> Counts();
  // The usage record of a client address; null: addresses have no limits.
  std::shared_ptr<KeyUsage> OfAddress(const std::string& address);

  bool HasKeys() const { return !keys_path_.empty(); }

 private:
  struct KeyTable;

  AccessControl(std::string keys_path, const Log* log, const ClientLimits& defaults);
  void SetKeys(ApiKeys keys);
  void ReloadIfChanged();
  std::shared_ptr<const KeyTable> Table();

  const std::string keys_path_;
  const Log* const log_;
  const ClientLimits defaults_;

  std::mutex mutex_;
  std::map<std::string, std::weak_ptr<KeyUsage>> addresses_;
  FileWatch watch_;
  bool is_reading_ = false;  // a call reads the changed file
  std::shared_ptr<const KeyTable> table_;
  std::optional<PeriodicThread> watcher_;  // last: uses the members above
};

}  // namespace lssar

#endif  // LSSAR_SERVER_AUTH_ACCESS_CONTROL_H_
