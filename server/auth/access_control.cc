#include "server/auth/access_control.h"

#include <chrono>
#include <exception>
#include <functional>
#include <future>
#include <map>
#include <system_error>
#include <utility>

#include "base/ascii.h"
#include "base/clock.h"
#include "base/error_details.h"
#include "base/read_file.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "runtime/limits.h"

namespace lssar {
namespace {

constexpr auto kCheckInterval = std::chrono::milliseconds(500);
constexpr auto kWatchInterval = std::chrono::seconds(1);
constexpr std::string_view kScheme = "bearer ";

absl::Status Unauthenticated(const std::string& reason) {
  return absl::UnauthenticatedError(
      StrCat(reason, "; send `authorization: Bearer KEY` as metadata or HTTP header"));
}

absl::StatusOr<ApiKeys> ReadKeys(const std::string& path) {
  try {
    const auto text = ReadWholeFile(path, kMaxKeyFileBytes);
    if (!text.ok()) return WithPrefix("--api-keys ", text.status());
    auto keys = ApiKeys::Parse(*text);
    if (keys.ok()) return keys;
    return WithPrefix(StrCat("--api-keys ", path, ": "), keys.status());
  } catch (const std::exception&) {  // its message may quote a key
    return absl::ResourceExhaustedError(StrCat("--api-keys ", path, ": no memory for the keys"));
  }
}

// Parsing needs many times the file's size for a moment, and malloc keeps that in an arena of the
// thread. gRPC's threads would each keep some; threads that end share one arena.
absl::StatusOr<ApiKeys> ReadKeysOnAThread(const std::string& path) {
  try {
    return std::async(std::launch::async, ReadKeys, path).get();
  } catch (const std::system_error&) {  // no thread can be started
    return ReadKeys(path);
  }
}

}  // namespace

struct AccessControl::KeyTable {
  ApiKeys keys;
  // By name. A reload keeps the records of names that stay: editing a key does not reset its use.
  std::map<std::string, std::shared_ptr<KeyUsage>, std::less<>> usage;
};

AccessControl::AccessControl(std::string keys_path, const Log* log, const ClientLimits& defaults)
    : keys_path_(std::move(keys_path)),
      log_(log),
      defaults_(defaults),
      watch_({keys_path_}, kCheckInterval) {}

AccessControl::~AccessControl() = default;

void AccessControl::Watch() {
  if (!HasKeys()) return;
  watcher_.emplace("api-keys", kWatchInterval, [this] {
    ReloadIfChanged();
    return true;
  });
}

absl::StatusOr<std::unique_ptr<AccessControl>> AccessControl::Open(const std::string& keys_path,
                                                                   const Log* log,
                                                                   const ClientLimits& defaults) {
  std::unique_ptr<AccessControl> control(new AccessControl(keys_path, log, defaults));
  if (keys_path.empty()) return control;
  ASSIGN_OR_RETURN(ApiKeys keys, ReadKeysOnAThread(keys_path));
  control->SetKeys(std::move(keys));
  return control;
}

// Requires  mutex_ is held, except on the first call
void AccessControl::SetKeys(ApiKeys keys) {
  auto table = std::make_shared<KeyTable>();
  table->keys = std::move(keys);
  for (const ApiKey& key : table->keys.All()) {
    std::shared_ptr<KeyUsage>& usage = table->usage[key.name];
    if (table_ != nullptr) {
      if (const auto before = table_->usage.find(key.name); before != table_->usage.end()) {
        usage = before->second;
      }
    }
    if (usage == nullptr) usage = std::make_shared<KeyUsage>(key.name);
    usage->SetLimits(key.limits, defaults_);
    usage->SetRole(key.role);
  }
  table_ = std::move(table);
}

// The call that finds a changed file reads it. Other calls use the old keys meanwhile.
void AccessControl::ReloadIfChanged() {
  {
    const std::lock_guard lock(mutex_);
    if (is_reading_ || !watch_.NeedsRead(Clock::now())) return;
    is_reading_ = true;
  }
  auto keys = ReadKeysOnAThread(keys_path_);
  const absl::Status status = keys.status();
  bool is_new = false;
  {
    const std::lock_guard lock(mutex_);
    is_reading_ = false;
    is_new = watch_.Finish(status);
    if (keys.ok()) SetKeys(*std::move(keys));
  }
  if (!is_new) return;
  if (status.ok()) {
    log_->Info("api keys", {{"num_keys", Table()->keys.All().size()}});
  } else {
    log_->Error("api keys", {{"message", StrCat(status.message(), "; the old keys stay")}});
  }
}

std::map<std::string, KeyCounts> AccessControl::Counts() {
  std::map<std::string, KeyCounts> counts;
  if (!HasKeys()) return counts;
  for (const auto& [name, usage] : Table()->usage) {
    const KeyCounts of_key = usage->Counts();
    if (of_key.num_calls + of_key.num_refused > 0) counts[name] = of_key;
  }
  return counts;
}

void AccessControl::Reload() {
  if (!HasKeys()) return;
  {
    const std::lock_guard lock(mutex_);
    watch_.ForceRead();
  }
  ReloadIfChanged();
}

std::shared_ptr<const AccessControl::KeyTable> AccessControl::Table() {
  const std::lock_guard lock(mutex_);
  return table_;
}

std::shared_ptr<KeyUsage> AccessControl::OfAddress(const std::string& address) {
  if (defaults_.max_sequences == 0 && defaults_.max_queued == 0 &&
      defaults_.max_priority == limits::kMaxPriority) {
    return nullptr;
  }
  const std::lock_guard lock(mutex_);
  std::weak_ptr<KeyUsage>& known = addresses_[address];
  std::shared_ptr<KeyUsage> usage = known.lock();
  if (usage == nullptr) {
    usage = std::make_shared<KeyUsage>(address, /*is_key=*/false);
    usage->SetLimits({}, defaults_);
    known = usage;
    // An address without calls has nothing to remember.
    std::erase_if(addresses_, [](const auto& entry) { return entry.second.expired(); });
  }
  return usage;
}

std::optional<std::shared_ptr<KeyUsage>> AccessControl::Find(const std::string& name) {
  if (!HasKeys())
    return name.empty() ? std::optional<std::shared_ptr<KeyUsage>>(nullptr) : std::nullopt;
  ReloadIfChanged();
  const auto table = Table();
  const auto found = table->usage.find(name);
  if (found == table->usage.end()) return std::nullopt;
  return found->second;
}

absl::StatusOr<std::shared_ptr<KeyUsage>> AccessControl::Authenticate(
    std::string_view authorization, KeyRole role) {
  if (!HasKeys()) return nullptr;
  if (authorization.empty()) return Unauthenticated("this server requires an API key");
  if (!EqualsIgnoreCase(authorization.substr(0, kScheme.size()), kScheme)) {
    return Unauthenticated("the authorization scheme is not Bearer");
  }
  ReloadIfChanged();
  const auto table = Table();
  // Spaces may follow the scheme (RFC 9110, section 11.4), and a key has none.
  const ApiKey* key = table->keys.Find(Trim(authorization.substr(kScheme.size())));
  if (key == nullptr) return Unauthenticated("the API key is unknown");
  if (role == KeyRole::kAdmin && key->role != KeyRole::kAdmin) {
    return absl::PermissionDeniedError(
        StrCat("key ", key->name, " has role user; this call requires role admin"));
  }
  return table->usage.find(key->name)->second;
}

}  // namespace lssar
