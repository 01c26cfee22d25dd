#include "server/api/sub_requests.h"

#include <utility>

#include "base/status_macros.h"
#include "base/str_cat.h"
#include "server/api/reply_fields.h"
#include "server/loaded_model.h"

namespace lssar {
namespace {

template <typename T>
int64_t BytesOf(const std::vector<T>& list) {
  return std::ssize(list) * int64_t{sizeof(T)};
}

// The memory that `request` takes, in round figures, without its attention and steering.
int64_t BytesOf(const Request& request) {
  int64_t num_bytes = int64_t{sizeof(SubRequest)} + BytesOf(request.prompt);
  if (const GenerateParams* const generate = request.Generate()) {
    const SamplingParams& sampling = generate->sampling;
    num_bytes += BytesOf(sampling.allowed_ids) + BytesOf(sampling.banned_ids) +
                 BytesOf(sampling.logit_bias) + BytesOf(generate->stop_strings);
    for (const auto& sequence : generate->banned_sequences) num_bytes += BytesOf(sequence);
  }
  if (const ScoreParams* const score = request.Score()) {
    num_bytes += BytesOf(score->continuations) + BytesOf(score->logprob_ids);
    for (const auto& continuation : score->continuations) num_bytes += BytesOf(continuation);
  }
  if (const EmbedParams* const embed = request.Embed()) {
    num_bytes += BytesOf(embed->layers) + BytesOf(embed->positions);
  }
  return num_bytes;
}

int64_t BytesOf(const AttentionOverride& attention) {
  int64_t num_bytes = BytesOf(attention.layers) + std::ssize(attention.name);
  for (const AttentionSpec& spec : attention.layers) {
    num_bytes += BytesOf(spec.steps);
    for (const PowerStep& step : spec.steps) num_bytes += BytesOf(step.p);
  }
  return num_bytes;
}

int64_t BytesOf(const Steering& steering) {
  int64_t num_bytes = 0;
  for (const SteeringVector& vector : steering.vectors) {
    num_bytes += int64_t{sizeof(vector)} + BytesOf(vector.values);
  }
  return num_bytes;
}

// What the items of a call share: they have the same attention and steering, or none.
int64_t SharedBytesOf(const std::vector<SubRequest>& items) {
  if (items.empty()) return 0;
  const Request& request = items.front().request;
  return (request.attention != nullptr ? BytesOf(*request.attention) : 0) +
         (request.steering != nullptr ? BytesOf(*request.steering) : 0);
}

// What the request may use of tokens-per-minute.
int64_t MaxTokens(const Request& request) {
  int64_t num_tokens = NumPromptTokens(request);
  if (const GenerateParams* const generate = request.Generate()) {
    num_tokens += int64_t{generate->num_choices} * generate->max_tokens;
  }
  return num_tokens;
}

}  // namespace

void SubRequests::Start(std::vector<SubRequest> items) {
  {
    const std::lock_guard lock(mutex_);
    has_started_ = true;
    const absl::Status status = Hold(std::move(items));
    if (!status.ok()) Fail(status);
  }
  SubmitMore();
}

absl::Status SubRequests::Hold(std::vector<SubRequest> items) {
  const int64_t num_shared_bytes = SharedBytesOf(items);
  int64_t num_bytes = num_shared_bytes;
  const std::string& id = context_.RequestId();
  for (size_t i = 0; i < items.size(); ++i) {
    context_.Complete(items.size() == 1 ? id : StrCat(id, "/", i), &items[i].request);
    num_bytes += items[i].num_bytes = BytesOf(items[i].request);
  }
  int64_t num_tokens = 0;
  for (const SubRequest& item : items) num_tokens += MaxTokens(item.request);
  RETURN_IF_ERROR(context_.ReserveTokens(num_tokens));
  RETURN_IF_ERROR(context_.RequestMemory().Take(num_bytes));
  items_ = std::move(items);
  num_shared_bytes_ = num_shared_bytes;
  return absl::OkStatus();
}

void SubRequests::Return(SubRequest* item) {
  context_.RequestMemory().Return(std::exchange(item->num_bytes, 0));
}

void SubRequests::Free() {
  for (SubRequest& item : items_) Return(&item);
  items_ = {};
  context_.RequestMemory().Return(std::exchange(num_shared_bytes_, 0));
}

void SubRequests::SubmitMore() {
  absl::Status end;
  RequestStats total;
  {
    const std::lock_guard lock(mutex_);
    while (error_.ok() && !is_retry_pending_ && next_item_ < items_.size() &&
           in_flight_.size() < kMaxItemsInFlight && owner_.HasSpaceForItems()) {
      const absl::Status status = SubmitNext();
      if (status.ok()) continue;
      const bool is_waiting = absl::IsResourceExhausted(status) && next_item_ > 0;
      if (!is_waiting) {
        Fail(status);
      } else if (in_flight_.empty()) {
        is_retry_pending_ = true;
        owner_.RetryLater(kRetryInterval);
      }
      break;
    }
    const bool is_last = has_started_ && next_item_ == items_.size();
    if (has_ended_ || !in_flight_.empty() || (error_.ok() && !is_last)) return;
    has_ended_ = true;
    Free();
    end = error_;
    total = total_;
  }
  owner_.OnItemsEnd(end, total);
}

absl::Status SubRequests::SubmitNext() {
  SubRequest& item = items_[next_item_];
  const int index = int(next_item_);
  const int64_t num_prompt_tokens = NumPromptTokens(item.request);
  if (item.known) {
    Return(&item);
    AddStats(*item.known, &total_);
    owner_.OnItemEnd(index, *item.known);
  } else {
    // The engine looks at the deadline of those that it has, not of one that waits for its queue.
    if (context_.Deadline() && *context_.Deadline() <= Clock::now()) {
      return absl::DeadlineExceededError(
          StrCat("the deadline passed before item ", index, " of the call began"));
    }
    Engine& engine = context_.Model().GetEngine();
    ASSIGN_OR_RETURN(RequestLease lease, context_.AddRequest(item.request));
    // Before the copy, which may be large: an item that waits comes here many times a second.
    RETURN_IF_ERROR(engine.CheckQueueCapacity(context_.Tenant(), item.request));
    ASSIGN_OR_RETURN(Engine::Handle handle,
                     engine.Submit(item.request, owner_.MakeSink(index), context_.Tenant()));
    in_flight_[index] = {.handle = std::move(handle), .lease = std::move(lease)};
    item.request = Request();  // frees the memory: the engine has its own copy
  }
  context_.CountTokens(num_prompt_tokens);
  ++next_item_;
  return absl::OkStatus();
}

void SubRequests::Fail(const absl::Status& error) {
  if (!error_.ok()) return;
  error_ = error;
  for (const auto& [item, running] : in_flight_) running.handle.Cancel();
}

void SubRequests::OnAdmitted(int item) {
  const std::lock_guard lock(mutex_);
  in_flight_[item].lease.EndWait();
}

void SubRequests::OnDone(int item, const absl::Status& status, const RequestStats& stats) {
  {
    const std::lock_guard lock(mutex_);
    in_flight_.erase(item);
    Return(&items_[size_t(item)]);
    AddStats(stats, &total_);
    context_.AddItem(item, stats);
    if (!status.ok()) {
      Fail(status);
    } else {
      owner_.OnItemEnd(item, stats);
    }
  }
  SubmitMore();
}

void SubRequests::Resume() {
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [item, running] : in_flight_) running.handle.Resume();
  }
  SubmitMore();
}

void SubRequests::Stop(const absl::Status& reason) {
  {
    const std::lock_guard lock(mutex_);
    Fail(reason);
  }
  SubmitMore();
}

void SubRequests::Retry() {
  {
    const std::lock_guard lock(mutex_);
    is_retry_pending_ = false;
  }
  SubmitMore();
}

}  // namespace lssar
