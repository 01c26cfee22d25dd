#include "server/access_control.h"

#include <algorithm>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "kernels/read_file.h"
#include "kernels/status_macros.h"
#include "kernels/str_cat.h"
#include "server/file_version.h"
#include "server/retry_delay.h"

namespace lssar {
namespace {

constexpr size_t kMaxFileBytes = size_t{16} << 20;
constexpr auto kCheckInterval = std::chrono::milliseconds(500);
constexpr std::string_view kScheme = "bearer ";

absl::Status Unauthenticated(const std::string& reason) {
  return absl::UnauthenticatedError(
      StrCat(reason, "; send `authorization: Bearer KEY` as metadata or HTTP header"));
}

}  // namespace

Clock::duration TokenBucket::TimeFor(int64_t amount) const {
  using Minutes = std::chrono::duration<double, std::ratio<60>>;
  return std::chrono::round<Clock::duration>(Minutes(double(amount) / double(per_minute_)));
}

void TokenBucket::Take(int64_t amount, Clock::time_point now) {
  if (per_minute_ > 0) full_at_ = std::max(full_at_, now) + TimeFor(amount);
}

Clock::duration TokenBucket::TimeUntil(int64_t amount, Clock::time_point now) const {
  if (per_minute_ == 0) return Clock::duration::zero();
  const Clock::duration full_in = std::max(full_at_, now) + TimeFor(amount) - now;
  return std::max(full_in - Clock::duration(std::chrono::minutes(1)), Clock::duration::zero());
}

void KeyUsage::SetLimits(const KeyLimits& limits) {
  const std::lock_guard lock(mutex_);
  limits_ = limits;
  requests_.SetRate(limits.requests_per_minute);
  tokens_.SetRate(limits.tokens_per_minute);
}

absl::Status KeyUsage::Acquire(Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  if (limits_.max_concurrent > 0 && num_running_ >= limits_.max_concurrent) {
    return absl::ResourceExhaustedError(
        StrCat("key ", name_, " has ", num_running_,
               " running calls (max-concurrent = ", limits_.max_concurrent, ")"));
  }
  if (const Clock::duration wait = requests_.TimeUntil(1, now); wait > Clock::duration::zero()) {
    return RetryAfter(wait, StrCat("key ", name_, " has used up its requests-per-minute = ",
                                   limits_.requests_per_minute));
  }
  if (const Clock::duration wait = tokens_.TimeUntil(1, now); wait > Clock::duration::zero()) {
    return RetryAfter(
        wait,
        StrCat("key ", name_, " has used up its tokens-per-minute = ", limits_.tokens_per_minute));
  }
  requests_.Take(1, now);
  ++num_running_;
  return absl::OkStatus();
}

void KeyUsage::Release() {
  const std::lock_guard lock(mutex_);
  --num_running_;
}

void KeyUsage::CountTokens(int64_t num_tokens, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  tokens_.Take(num_tokens, now);
}

struct AccessControl::KeyTable {
  ApiKeys keys;
  // By name. A reload keeps the records of names that stay: editing a key does not reset its use.
  std::map<std::string, std::shared_ptr<KeyUsage>, std::less<>> usage;
};

AccessControl::AccessControl(std::string keys_path, const Log* log)
    : keys_path_(std::move(keys_path)), log_(log) {}

AccessControl::~AccessControl() = default;

absl::StatusOr<std::unique_ptr<AccessControl>> AccessControl::Open(const std::string& keys_path,
                                                                   const Log* log) {
  std::unique_ptr<AccessControl> control(new AccessControl(keys_path, log));
  if (keys_path.empty()) return control;
  control->version_ = FileVersion(keys_path);
  RETURN_IF_ERROR(control->Load());
  return control;
}

// Requires  mutex_ is held, except on the first call
absl::Status AccessControl::Load() {
  const auto text = ReadWholeFile(keys_path_, kMaxFileBytes);
  if (!text.ok()) {
    return absl::Status(text.status().code(), StrCat("--api-keys ", text.status().message()));
  }
  auto keys = ApiKeys::Parse(*text);
  if (!keys.ok()) {
    return absl::InvalidArgumentError(
        StrCat("--api-keys ", keys_path_, ": ", keys.status().message()));
  }
  auto table = std::make_shared<KeyTable>();
  table->keys = *std::move(keys);
  for (const ApiKey& key : table->keys.All()) {
    std::shared_ptr<KeyUsage>& usage = table->usage[key.name];
    if (table_ != nullptr) {
      if (const auto before = table_->usage.find(key.name); before != table_->usage.end()) {
        usage = before->second;
      }
    }
    if (usage == nullptr) usage = std::make_shared<KeyUsage>(key.name);
    usage->SetLimits(key.limits);
  }
  table_ = std::move(table);
  return absl::OkStatus();
}

// Requires  mutex_ is held
void AccessControl::ReloadIfChanged() {
  const Clock::time_point now = Clock::now();
  if (now - checked_at_ < kCheckInterval) return;
  checked_at_ = now;
  const std::string version = FileVersion(keys_path_);
  if (version == version_) return;
  version_ = version;
  if (const absl::Status status = Load(); !status.ok()) {
    log_->Error("api keys", {{"message", std::string(status.message())}});
  } else {
    log_->Info("api keys", {{"num_keys", table_->keys.All().size()}});
  }
}

std::shared_ptr<const AccessControl::KeyTable> AccessControl::Table() {
  const std::lock_guard lock(mutex_);
  ReloadIfChanged();
  return table_;
}

absl::StatusOr<std::shared_ptr<KeyUsage>> AccessControl::Authenticate(
    std::string_view authorization, KeyRole role) {
  if (!HasKeys()) return nullptr;
  if (authorization.empty()) return Unauthenticated("this server requires an API key");
  const std::string_view scheme = authorization.substr(0, kScheme.size());
  if (!absl::EqualsIgnoreCase({scheme.data(), scheme.size()}, {kScheme.data(), kScheme.size()})) {
    return Unauthenticated("the authorization scheme is not Bearer");
  }
  const auto table = Table();
  const ApiKey* key = table->keys.Find(authorization.substr(kScheme.size()));
  if (key == nullptr) return Unauthenticated("the API key is unknown");
  if (role == KeyRole::kAdmin && key->role != KeyRole::kAdmin) {
    return absl::PermissionDeniedError(
        StrCat("key ", key->name, " has role user; this call requires role admin"));
  }
  return table->usage.find(key->name)->second;
}

}  // namespace lssar
