#include "server/access_control.h"

#include <chrono>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "kernels/str_cat.h"
#include "server/file_version.h"

namespace lssar {
namespace {

constexpr auto kCheckInterval = std::chrono::milliseconds(500);
constexpr std::string_view kScheme = "bearer ";

std::optional<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file.is_open() || file.bad()) return std::nullopt;
  return text;
}

absl::Status Unauthenticated(const std::string& what) {
  return absl::UnauthenticatedError(
      StrCat(what, "; send one as metadata `authorization: Bearer KEY`"));
}

}  // namespace

struct AccessControl::KeyTable {
  ApiKeys keys;
  // By name, and so over a reload: a key that is written anew has not less used up.
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
  if (absl::Status status = control->Load(); !status.ok()) return status;
  return control;
}

// Under the lock, but for the first time.
absl::Status AccessControl::Load() {
  const auto text = ReadFile(keys_path_);
  if (!text) {
    return absl::NotFoundError(StrCat("--api-keys ", keys_path_, ": cannot be read"));
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

// Under the lock.
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

absl::StatusOr<std::shared_ptr<KeyUsage>> AccessControl::Identify(std::string_view authorization,
                                                                  KeyRole role) {
  if (authorization.empty()) return Unauthenticated("the server takes calls with a key only");
  const std::string_view scheme = authorization.substr(0, kScheme.size());
  if (!absl::EqualsIgnoreCase({scheme.data(), scheme.size()}, {kScheme.data(), kScheme.size()})) {
    return Unauthenticated("the call's authorization is no Bearer key");
  }
  const auto table = Table();
  const ApiKey* key = table->keys.Find(authorization.substr(kScheme.size()));
  if (key == nullptr) return Unauthenticated("the server does not know the call's key");
  if (role == KeyRole::kAdmin && key->role != KeyRole::kAdmin) {
    return absl::PermissionDeniedError(
        StrCat("key ", key->name, " is a user's; this takes an admin's"));
  }
  return table->usage.find(key->name)->second;
}

absl::StatusOr<AccessControl::Visit> AccessControl::Enter(std::string_view authorization,
                                                          KeyRole role) {
  if (!HasKeys()) return Visit(nullptr);
  auto usage = Identify(authorization, role);
  if (!usage.ok()) return usage.status();
  if (absl::Status status = (*usage)->Enter(Clock::now()); !status.ok()) return status;
  return Visit(*std::move(usage));
}

absl::Status AccessControl::CheckAdmin(std::string_view authorization) {
  if (!HasKeys()) return absl::OkStatus();
  return Identify(authorization, KeyRole::kAdmin).status();
}

}  // namespace lssar
