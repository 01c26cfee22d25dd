#include "server/auth/access_control.h"

#include <algorithm>
#include <exception>
#include <future>
#include <map>
#include <system_error>

#include "base/ascii.h"
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

// Time in which `amount` refills.
Clock::duration TimeFor(int64_t amount, int64_t per_minute) {
  using Minutes = std::chrono::duration<double, std::ratio<60>>;
  return std::chrono::round<Clock::duration>(Minutes(double(amount) / double(per_minute)));
}

// What a bucket must hold for `amount`, which is at most `per_minute`: half a minute's worth stays
// for clients.
int64_t Needed(int64_t amount, int64_t per_minute, CallSource source) {
  return source == CallSource::kClient ? amount : std::min(amount + per_minute / 2, per_minute);
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

TokenReservation TokenBucket::Take(int64_t amount, Clock::time_point now) {
  if (per_minute_ == 0) return {};
  full_at_ = std::max(full_at_, now) + TimeFor(amount, per_minute_);
  return {.num_tokens = amount, .per_minute = per_minute_};
}

void TokenBucket::Return(const TokenReservation& taken) {
  if (taken.per_minute > 0) full_at_ -= TimeFor(taken.num_tokens, taken.per_minute);
}

Clock::duration TokenBucket::TimeUntil(int64_t amount, Clock::time_point now) const {
  if (per_minute_ == 0) return Clock::duration::zero();
  const Clock::duration full_in = std::max(full_at_, now) + TimeFor(amount, per_minute_) - now;
  return std::max(full_in - Clock::duration(std::chrono::minutes(1)), Clock::duration::zero());
}

RequestLease& RequestLease::operator=(RequestLease&& other) noexcept {
  if (this == &other) return *this;
  End();
  client_ = std::move(other.client_);
  num_sequences_ = other.num_sequences_;
  source_ = other.source_;
  is_waiting_ = other.is_waiting_;
  return *this;
}

void RequestLease::EndWait() {
  if (client_ != nullptr && std::exchange(is_waiting_, false)) client_->EndWait(source_);
}

void RequestLease::End() {
  if (const auto client = std::exchange(client_, nullptr)) {
    client->RemoveRequest(num_sequences_, is_waiting_, source_);
  }
}

std::string KeyUsage::Description() const { return StrCat(is_key_ ? "key " : "client ", name_); }

absl::StatusOr<RequestLease> KeyUsage::AddRequest(int num_sequences, int priority,
                                                  CallSource source) {
  const std::lock_guard lock(mutex_);
  Load& load = LoadOf(source);
  const ClientLimits& limits = client_limits_;
  if (priority > limits.max_priority) {
    // Over HTTP, as in vLLM, the lowest runs first.
    return absl::PermissionDeniedError(StrCat("priority = ", priority, " (over HTTP ", -priority,
                                              ") is over max-priority = ", limits.max_priority,
                                              " of ", Description()));
  }
  if (limits.max_sequences > 0 && num_sequences > limits.max_sequences) {
    return absl::PermissionDeniedError(StrCat("n = ", num_sequences, " is over max-sequences = ",
                                              limits.max_sequences, " of ", Description()));
  }
  if (limits.max_sequences > 0 && load.num_sequences + num_sequences > limits.max_sequences) {
    return LimitError(
        error_reason::kMaxSequences,
        StrCat("n = ", num_sequences, " sequences and the ", load.num_sequences, " of ",
               Description(), "'s other requests are ", load.num_sequences + num_sequences,
               ", over its max-sequences = ", limits.max_sequences));
  }
  if (limits.max_queued > 0 && load.num_waiting >= limits.max_queued) {
    return LimitError(error_reason::kMaxQueued,
                      StrCat(Description(), " has ", load.num_waiting,
                             " waiting requests (max-queued = ", limits.max_queued, ")"));
  }
  load.num_sequences += num_sequences;
  ++load.num_waiting;
  return RequestLease(shared_from_this(), num_sequences, source);
}

void KeyUsage::EndWait(CallSource source) {
  const std::lock_guard lock(mutex_);
  --LoadOf(source).num_waiting;
}

void KeyUsage::RemoveRequest(int num_sequences, bool is_waiting, CallSource source) {
  const std::lock_guard lock(mutex_);
  LoadOf(source).num_sequences -= num_sequences;
  LoadOf(source).num_waiting -= is_waiting ? 1 : 0;
}

absl::StatusOr<TokenReservation> KeyUsage::ReserveTokens(int64_t num_tokens, Clock::time_point now,
                                                         CallSource source) {
  const std::lock_guard lock(mutex_);
  const int64_t limit = limits_.tokens_per_minute;
  if (limit == 0) return TokenReservation();
  const std::string sentence =
      StrCat("the request may use ", num_tokens, " tokens (prompts + n x max_tokens)");
  if (num_tokens > limit) {
    return NeverRetry(error_reason::kTokensPerMinute, StrCat(sentence, ", and ", Description(),
                                                             " has tokens-per-minute = ", limit));
  }
  const Clock::duration wait = tokens_.TimeUntil(Needed(num_tokens, limit, source), now);
  if (wait > Clock::duration::zero()) {
    return RetryAfter(error_reason::kTokensPerMinute, wait,
                      StrCat(sentence, ", more than is left of tokens-per-minute = ", limit, " of ",
                             Description()));
  }
  return tokens_.Take(num_tokens, now);
}

void KeyUsage::RefundTokens(const TokenReservation& unused) {
  const std::lock_guard lock(mutex_);
  tokens_.Return(unused);
}

void KeyUsage::SetLimits(const KeyLimits& limits, const ClientLimits& defaults) {
  const std::lock_guard lock(mutex_);
  limits_ = limits;
  client_limits_ = {.max_sequences = limits.max_sequences.value_or(defaults.max_sequences),
                    .max_queued = limits.max_queued.value_or(defaults.max_queued),
                    .max_priority = limits.max_priority.value_or(defaults.max_priority)};
  requests_.SetRate(limits.requests_per_minute);
  tokens_.SetRate(limits.tokens_per_minute);
}

KeyCounts KeyUsage::Counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

void KeyUsage::CountRejection() {
  const std::lock_guard lock(mutex_);
  ++counts_.num_refused;
}

void KeyUsage::ReturnRequest() {
  const std::lock_guard lock(mutex_);
  requests_.Return({.num_tokens = 1, .per_minute = limits_.requests_per_minute});
}

void KeyUsage::CountRow() {
  const std::lock_guard lock(mutex_);
  ++counts_.num_calls;
}

absl::Status KeyUsage::Acquire(Clock::time_point now, CallSource source) {
  const std::lock_guard lock(mutex_);
  if (absl::Status status = CheckLimits(now, source); !status.ok()) {
    if (source == CallSource::kClient) ++counts_.num_refused;  // a row waits and begins again
    return status;
  }
  requests_.Take(1, now);
  ++LoadOf(source).num_running;
  if (source == CallSource::kClient) ++counts_.num_calls;
  return absl::OkStatus();
}

absl::Status KeyUsage::CheckLimits(Clock::time_point now, CallSource source) const {
  const int num_running = loads_[int(source)].num_running;
  if (limits_.max_concurrent > 0 && num_running >= limits_.max_concurrent) {
    return LimitError(error_reason::kMaxConcurrent,
                      StrCat("key ", name_, " has ", num_running,
                             " running calls (max-concurrent = ", limits_.max_concurrent, ")"));
  }
  if (const Clock::duration wait =
          requests_.TimeUntil(Needed(1, limits_.requests_per_minute, source), now);
      wait > Clock::duration::zero()) {
    return RetryAfter(error_reason::kRequestsPerMinute, wait,
                      StrCat("key ", name_, " has used up its requests-per-minute = ",
                             limits_.requests_per_minute));
  }
  if (const Clock::duration wait =
          tokens_.TimeUntil(Needed(1, limits_.tokens_per_minute, source), now);
      wait > Clock::duration::zero()) {
    return RetryAfter(
        error_reason::kTokensPerMinute, wait,
        StrCat("key ", name_, " has used up its tokens-per-minute = ", limits_.tokens_per_minute));
  }
  return absl::OkStatus();
}

void KeyUsage::Release(CallSource source) {
  const std::lock_guard lock(mutex_);
  --LoadOf(source).num_running;
}

void KeyUsage::CountTokens(int64_t num_tokens, int64_t num_unreserved, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  if (num_unreserved > 0) tokens_.Take(num_unreserved, now);
  counts_.num_tokens += num_tokens;
}

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
