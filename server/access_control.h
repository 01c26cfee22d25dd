// Which call may do what: keys, roles, and how much of each.
#ifndef LSSAR_SERVER_ACCESS_CONTROL_H_
#define LSSAR_SERVER_ACCESS_CONTROL_H_

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/api_keys.h"
#include "server/key_usage.h"
#include "server/log.h"

namespace lssar {

// Without a file everyone is an admin without limits. With one, a change of it is in force within a
// second; a changed file that cannot be read or parsed is logged and the keys stay as they were.
//
// Threads  any
class AccessControl {
 public:
  // `keys_path` empty: no keys. `log` outlives this.
  // Errors  NOT_FOUND: the file cannot be read; INVALID_ARGUMENT: those of ApiKeys::Parse
  static absl::StatusOr<std::unique_ptr<AccessControl>> Open(const std::string& keys_path,
                                                             const Log* log);
  ~AccessControl();

  // One call's stay under its key.
  class Visit {
   public:
    explicit Visit(std::shared_ptr<KeyUsage> usage) : usage_(std::move(usage)) {}
    Visit(Visit&& other) noexcept : usage_(std::move(other.usage_)) {}
    Visit& operator=(Visit&&) = delete;
    ~Visit() {
      if (usage_ != nullptr) usage_->Leave();
    }

    // Empty: the server has no keys.
    std::string_view KeyName() const {
      return usage_ == nullptr ? std::string_view() : usage_->Name();
    }
    void CountTokens(int64_t num_tokens) const {
      if (usage_ != nullptr) usage_->CountTokens(num_tokens, Clock::now());
    }

   private:
    std::shared_ptr<KeyUsage> usage_;  // null: the server has no keys
  };

  // `authorization`: the call's metadata of that name, "Bearer KEY"; empty: none.
  // Errors  UNAUTHENTICATED: no key, or an unknown one; PERMISSION_DENIED: `role` is beyond it;
  //         RESOURCE_EXHAUSTED: its limits, with RetryInfo. None of them tells anything of the key.
  absl::StatusOr<Visit> Enter(std::string_view authorization, KeyRole role);

  // May this HTTP header see what only admins may? Errors  as Enter, without its limits
  absl::Status CheckAdmin(std::string_view authorization);

  bool HasKeys() const { return !keys_path_.empty(); }

 private:
  struct KeyTable;

  AccessControl(std::string keys_path, const Log* log);
  absl::Status Load();
  void ReloadIfChanged();
  std::shared_ptr<const KeyTable> Table();
  absl::StatusOr<std::shared_ptr<KeyUsage>> Identify(std::string_view authorization, KeyRole role);

  const std::string keys_path_;
  const Log* const log_;

  std::mutex mutex_;
  Clock::time_point checked_at_ = {};
  std::string version_;  // of the file as loaded
  std::shared_ptr<const KeyTable> table_;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_ACCESS_CONTROL_H_
