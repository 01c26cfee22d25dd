// Admits calls: the server's state (loading, serving, draining), the number of calls at once, and
// the limits of the call's API key.
#ifndef LSSAR_SERVER_AUTH_ADMISSION_CONTROL_H_
#define LSSAR_SERVER_AUTH_ADMISSION_CONTROL_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "server/auth/access_control.h"

namespace lssar {

class AdmissionControl;
class LoadedModel;

// Ends a call at once with the given status. Called from any thread.
using AbortCallback = std::function<void(const absl::Status&)>;

// One admitted call. Until it is destroyed the model stays loaded, WaitUntilIdle waits, and the
// call counts against the limits of the server and of its key.
class AdmissionPermit {
 public:
  AdmissionPermit(AdmissionPermit&& other) noexcept;
  AdmissionPermit& operator=(AdmissionPermit&&) = delete;
  ~AdmissionPermit();

  LoadedModel& Model() const { return *model_; }
  // Empty if the server has no keys.
  std::string_view KeyName() const;
  // The usage record of the key, or of the address where there are no keys and addresses have
  // limits. Null if neither, or after ReleaseKey.
  const Caller& Key() const { return key_; }
  // The caller's key has role admin, or the server has no keys.
  bool IsAdmin() const;
  // Reserves the tokens that the call may use. ReleaseKey gives back those that it has not used.
  // Call at most once.
  // Errors  those of KeyUsage::ReserveTokens
  absl::Status ReserveTokens(int64_t num_tokens);
  // Errors  those of KeyUsage::AddRequest
  absl::StatusOr<RequestLease> AddRequest(int num_sequences, int priority) const;
  // Charges prompt or output tokens to the key; no effect after ReleaseKey.
  void CountTokens(int64_t num_tokens);
  // Counts the call in AdmissionControl::NumEngineCalls, or not, until ReleaseKey.
  void CountEngineCall(bool is_counted);
  // The key may start another call. Idempotent.
  void ReleaseKey();
  // The call goes on without its model, which may be gone from now on.
  void ReleaseModel();

 private:
  friend class AdmissionControl;
  AdmissionPermit(AdmissionControl* control, LoadedModel* model, uint64_t id)
      : control_(control), model_(model), id_(id) {}

  AdmissionControl* control_;  // null: moved from
  LoadedModel* model_;
  uint64_t id_;
  // The usage of the key, or of the client's address. Null: it has no limits, or was released.
  std::shared_ptr<KeyUsage> key_;
  CallSource source_ = CallSource::kClient;
  TokenReservation reserved_;
  int64_t num_used_tokens_ = 0;
  bool is_engine_call_ = false, is_released_ = false;
};

// Threads  any
class AdmissionControl {
 public:
  // At most `max_calls` run at once. `access` must outlive this.
  AdmissionControl(int max_calls, AccessControl* access) : max_calls_(max_calls), access_(access) {}

  struct Asked {
    std::string_view authorization = {};  // see AccessControl::Authenticate
    KeyRole role = KeyRole::kUser;
    AbortCallback abort = {};  // how AbortAll ends this call; empty if it ends by itself soon
    // What Authenticate has returned before for this role.
    std::optional<Caller> caller = {};
    std::string client = {};      // the address that has the limits where there are no keys
    std::string request_id = {};  // for AbortCalls
    CallSource source = CallSource::kClient;  // whose limits of running calls and requests apply
  };
  // Errors  UNAVAILABLE: as Readiness
  //         RESOURCE_EXHAUSTED: too many calls, or a limit of the key; carries the retry delay
  //         UNAUTHENTICATED, PERMISSION_DENIED: as AccessControl::Authenticate
  absl::StatusOr<AdmissionPermit> Admit(Asked asked);

  // As AccessControl::Authenticate; in every state of the server.
  absl::StatusOr<Caller> Authenticate(std::string_view authorization, KeyRole role) const {
    return access_->Authenticate(authorization, role);
  }

  // Starts to admit calls, or goes on with another model. `model` must outlive the permits that are
  // given out until the next Open.
  void Open(LoadedModel* model);
  // Stops admitting calls; new ones get `reason` (UNAVAILABLE). The last reason applies.
  void Close(absl::Status reason);
  // When a call was last refused because of Close. Clock::time_point(): none was.
  Clock::time_point LastRefusal() const;
  // Ends the running calls of that request id with `reason`: those of the caller's own key; of all
  // keys where the caller is an admin or there are no keys. Returns how many there were.
  int AbortCalls(std::string_view request_id, const Caller& caller, const absl::Status& reason);
  // Ends every running call with `reason`.
  void AbortAll(const absl::Status& reason);

  // Running calls that the engine works for, without the rows of batches and the calls whose client
  // has to read first.
  int NumEngineCalls() const { return num_engine_calls_; }

  // OK if calls are admitted. UNAVAILABLE: loading, or the reason given to Close.
  absl::Status Readiness() const;

  // Waits until no permit is left. False if `limit` passes first.
  bool WaitUntilIdle(absl::Duration limit);
  // The same for the permits of one model, which Open has replaced.
  bool WaitUntilUnused(const LoadedModel* model, absl::Duration limit);

 private:
  friend class AdmissionPermit;

  absl::Status LockedReadiness() const;
  struct RunningCall {
    AbortCallback abort;
    std::string request_id;
    Caller caller = {};                  // set once it has been authenticated
    const LoadedModel* model = nullptr;  // that was served at its admission
  };
  absl::StatusOr<AdmissionPermit> AddCall(RunningCall call);
  // Aborts the calls of which `predicate` is true, which have a callback. Returns their number.
  template <typename Predicate>
  int Abort(const Predicate& predicate, const absl::Status& reason);
  void RemoveCall(uint64_t id);
  void ReleaseModel(uint64_t id);
  template <typename Condition>
  bool WaitUntil(absl::Duration limit, const Condition& condition);

  const int max_calls_;
  AccessControl* const access_;
  std::atomic<int> num_engine_calls_ = 0;
  mutable std::mutex mutex_;
  std::condition_variable ended_;  // a call
  LoadedModel* model_ = nullptr;   // null: loading
  absl::Status closed_;            // OK: not closed
  Clock::time_point last_refusal_;
  uint64_t next_id_ = 0;
  std::map<uint64_t, RunningCall> running_;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_AUTH_ADMISSION_CONTROL_H_
