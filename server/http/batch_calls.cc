#include "server/http/batch_calls.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <ctime>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/time/time.h"
#include "base/quote.h"
#include "base/read_file.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "base/utf8.h"
#include "server/batch/batch_row.h"
#include "server/http/body_fields.h"
#include "server/http/json_text.h"
#include "server/http/multipart.h"
#include "server/http/request_fields.h"

namespace lssar {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::string_view kBatchesPath = "/v1/batches";
constexpr std::string_view kFilePath = "/v1/files/{id}", kContentPath = "/v1/files/{id}/content",
                           kBatchPath = "/v1/batches/{id}", kCancelPath = "/v1/batches/{id}/cancel";
constexpr std::string_view kPurpose = "batch";
constexpr size_t kMaxFilenameBytes = 255;
constexpr int kMaxFilesOfPage = 10'000, kMaxBatchesOfPage = 100, kBatchesOfPage = 20;
constexpr absl::Duration kMinWindow = absl::Seconds(1), kMaxWindow = absl::Hours(168);
constexpr size_t kBlockBytes = size_t{256} << 10;  // of a file that is sent

// "/v1/files/ID/content" -> "ID".
std::string_view IdOf(const HttpRequest& request) {
  std::string_view path = request.Path();
  for (const std::string_view prefix : {kFilesPath, kBatchesPath}) {
    if (path.starts_with(prefix)) path.remove_prefix(std::min(prefix.size() + 1, path.size()));
  }
  return path.substr(0, path.find('/'));
}

OrderedJson TimeOrNull(int64_t time) { return time == 0 ? OrderedJson() : OrderedJson(time); }
OrderedJson TextOrNull(const std::string& text) {
  return text.empty() ? OrderedJson() : OrderedJson(text);
}

OrderedJson ToJson(const StoredFile& file) {
  return {{"id", file.id},
          {"object", "file"},
          {"bytes", file.num_bytes},
          {"created_at", file.created_at},
          {"filename", file.filename},
          {"purpose", file.purpose},
          {"status", "processed"}};
}

OrderedJson ToJson(const Batch& batch) {
  OrderedJson errors;
  if (!batch.error_code.empty()) {
    errors = {{"object", "list"},
              {"data", OrderedJson::array({{{"code", batch.error_code},
                                            {"message", batch.error},
                                            {"param", nullptr},
                                            {"line", nullptr}}})}};
  }
  const auto ended = [&batch](BatchState state) {
    return TimeOrNull(batch.state == state ? batch.ended_at : 0);
  };
  return {{"id", batch.id},
          {"object", "batch"},
          {"endpoint", batch.endpoint},
          {"errors", errors},
          {"input_file_id", batch.input_file_id},
          {"completion_window", batch.completion_window},
          {"status", kBatchStateNames[size_t(batch.state)]},
          {"output_file_id", batch.HasEnded() ? TextOrNull(batch.output_file_id) : OrderedJson()},
          {"error_file_id", batch.HasEnded() ? TextOrNull(batch.error_file_id) : OrderedJson()},
          {"created_at", batch.created_at},
          {"in_progress_at", batch.created_at},
          {"expires_at", batch.expires_at},
          {"finalizing_at", ended(BatchState::kCompleted)},
          {"completed_at", ended(BatchState::kCompleted)},
          {"failed_at", ended(BatchState::kFailed)},
          {"expired_at", ended(BatchState::kExpired)},
          {"cancelling_at", TimeOrNull(batch.cancelling_at)},
          {"cancelled_at", ended(BatchState::kCancelled)},
          {"request_counts",
           {{"total", batch.num_rows},
            {"completed", batch.num_completed},
            {"failed", batch.num_failed}}},
          {"metadata", OrderedJson::parse(batch.metadata)}};
}

// The query of a target: "?limit=3&after=file-1". Escapes stay: no value that is right has one.
using Query = std::map<std::string, std::string, std::less<>>;
// Errors  INVALID_ARGUMENT: another name than `names`
absl::StatusOr<Query> ReadQuery(const HttpRequest& request,
                                std::initializer_list<std::string_view> names) {
  Query query;
  const size_t mark = request.target.find('?');
  std::string_view rest =
      mark == std::string::npos ? "" : std::string_view(request.target).substr(mark + 1);
  while (!rest.empty()) {
    const std::string_view pair = rest.substr(0, rest.find('&'));
    rest.remove_prefix(std::min(pair.size() + 1, rest.size()));
    if (pair.empty()) continue;
    const size_t equals = std::min(pair.find('='), pair.size());
    const std::string name(pair.substr(0, equals));
    if (std::ranges::find(names, name) == names.end()) {
      return FieldError(Shorten(name, kMaxQuotedBytes),
                        StrCat("is no parameter of this path; there are ", StrJoin(names)));
    }
    query[name] = pair.substr(std::min(equals + 1, pair.size()));
  }
  return query;
}

// The page of `all` that the query asks for.
template <typename Item>
absl::StatusOr<std::string> PageJson(const std::vector<Item>& all, const Query& query,
                                     int default_limit, int max_limit) {
  int limit = default_limit;
  if (const auto found = query.find("limit"); found != query.end()) {
    if (!absl::SimpleAtoi(found->second, &limit) || limit < 1 || limit > max_limit) {
      return FieldError(
          "limit", StrCat("is ", Quote(found->second), "; it must be in [1, ", max_limit, "]"));
    }
  }
  auto begin = all.begin();
  if (const auto after = query.find("after"); after != query.end()) {
    begin = std::ranges::find(all, after->second, &Item::id);
    if (begin == all.end()) {
      return FieldError("after", StrCat("is ", Quote(after->second),
                                        "; there is nothing of this "
                                        "id in the list"));
    }
    ++begin;
  }
  OrderedJson data = OrderedJson::array();
  const auto end = begin + std::min<std::ptrdiff_t>(limit, all.end() - begin);
  for (auto item = begin; item != end; ++item) data.push_back(ToJson(*item));
  const OrderedJson first = data.empty() ? OrderedJson() : data.front()["id"];
  const OrderedJson last = data.empty() ? OrderedJson() : data.back()["id"];
  return OrderedJson({{"object", "list"},
                      {"data", std::move(data)},
                      {"first_id", first},
                      {"last_id", last},
                      {"has_more", end != all.end()}})
      .dump();
}

absl::StatusOr<std::string> PostFile(BatchStore& store, const HttpRequest& request,
                                     const CallContext& context) {
  ASSIGN_OR_RETURN(const auto parts, ParseMultipart(request.Header("content-type"), request.body));
  const FormPart* file = nullptr;
  const FormPart* purpose = nullptr;
  for (const FormPart& part : parts) {
    const FormPart** const field = part.name == "file"      ? &file
                                   : part.name == "purpose" ? &purpose
                                                            : nullptr;
    if (field == nullptr) {
      return FieldError(Shorten(part.name, kMaxQuotedBytes),
                        part.name.starts_with("expires_after")
                            ? "is there; files stay until they are deleted"
                            : "is no field of this form; it may have file and purpose");
    }
    if (*field != nullptr) return FieldError(part.name, "is there twice");
    *field = &part;
  }
  if (purpose == nullptr) return FieldError("purpose", "is missing");
  if (purpose->content != kPurpose) {
    return FieldError("purpose", StrCat("is ", Quote(purpose->content), "; it must be \"batch\""));
  }
  if (file == nullptr) return FieldError("file", "is missing");
  const std::string& name = file->filename;
  if (name.size() > kMaxFilenameBytes || FindInvalidUtf8(name)) {
    return FieldError("file", StrCat("has the name ", Quote(name), "; it must be UTF-8 of at most ",
                                     kMaxFilenameBytes, " bytes"));
  }
  ASSIGN_OR_RETURN(
      const StoredFile stored,
      store.AddFile(context.KeyName(), name.empty() ? "file.jsonl" : name, file->content));
  return ToJson(stored).dump();
}

absl::StatusOr<std::string> ListFiles(BatchStore& store, const HttpRequest& request,
                                      const CallContext& context) {
  ASSIGN_OR_RETURN(const Query query, ReadQuery(request, {"after", "limit", "order", "purpose"}));
  std::vector<StoredFile> files = store.Files(context.KeyName());
  if (const auto purpose = query.find("purpose"); purpose != query.end()) {
    std::erase_if(files, [&](const StoredFile& file) { return file.purpose != purpose->second; });
  }
  if (const auto order = query.find("order"); order != query.end()) {
    if (order->second != "asc" && order->second != "desc") {
      return FieldError("order",
                        StrCat("is ", Quote(order->second), "; it must be \"asc\" or \"desc\""));
    }
    if (order->second == "asc") std::ranges::reverse(files);
  }
  return PageJson(files, query, kMaxFilesOfPage, kMaxFilesOfPage);
}

absl::StatusOr<std::string> GetFile(BatchStore& store, const HttpRequest& request,
                                    const CallContext& context) {
  ASSIGN_OR_RETURN(const StoredFile file, store.FindFile(context.KeyName(), IdOf(request)));
  return ToJson(file).dump();
}

absl::StatusOr<std::string> DeleteFile(BatchStore& store, const HttpRequest& request,
                                       const CallContext& context) {
  const std::string id(IdOf(request));
  RETURN_IF_ERROR(store.DeleteFile(context.KeyName(), id));
  return OrderedJson({{"id", id}, {"object", "file"}, {"deleted", true}}).dump();
}

absl::StatusOr<std::string> PostBatch(BatchStore& store, const HttpRequest& request,
                                      const CallContext& context) {
  ASSIGN_OR_RETURN(const nlohmann::json body, ParseJson(request.body));
  ASSIGN_OR_RETURN(const BodyFields fields, BodyFields::Of(body));
  RETURN_IF_ERROR(CheckFields(kBatchBody, fields));
  Batch batch;
  batch.owner = context.KeyName();
  batch.client = context.Client();
  ASSIGN_OR_RETURN(batch.endpoint, fields.RequireString("endpoint"));
  if (std::ranges::find(kBatchEndpoints, batch.endpoint) == kBatchEndpoints.end()) {
    return FieldError("endpoint", StrCat("is ", Quote(batch.endpoint), "; it must be one of ",
                                         StrJoin(kBatchEndpoints)));
  }
  ASSIGN_OR_RETURN(batch.completion_window, fields.RequireString("completion_window"));
  absl::Duration window;
  if (!absl::ParseDuration(batch.completion_window, &window) || window < kMinWindow ||
      window > kMaxWindow) {
    return FieldError("completion_window",
                      StrCat("is ", Quote(batch.completion_window),
                             "; it must be a time such as 24h, from 1s to 168h"));
  }
  batch.created_at = std::time(nullptr);
  batch.expires_at = batch.created_at + absl::ToInt64Seconds(window);
  if (const nlohmann::json* metadata = fields.Find("metadata")) {
    RETURN_IF_ERROR(CheckMetadata(*metadata));
    batch.metadata = metadata->dump();
  }
  ASSIGN_OR_RETURN(batch.input_file_id, fields.RequireString("input_file_id"));
  const absl::StatusOr<Batch> added = store.AddBatch(batch);
  if (absl::IsNotFound(added.status()) || absl::IsInvalidArgument(added.status())) {
    return FieldError("input_file_id",
                      StrCat("is ", Quote(batch.input_file_id), "; ", added.status().message()));
  }
  RETURN_IF_ERROR(added.status());
  return ToJson(*added).dump();
}

absl::StatusOr<std::string> ListBatches(BatchStore& store, const HttpRequest& request,
                                        const CallContext& context) {
  ASSIGN_OR_RETURN(const Query query, ReadQuery(request, {"after", "limit"}));
  return PageJson(store.Batches(context.KeyName()), query, kBatchesOfPage, kMaxBatchesOfPage);
}

absl::StatusOr<std::string> GetBatch(BatchStore& store, const HttpRequest& request,
                                     const CallContext& context) {
  ASSIGN_OR_RETURN(const Batch batch, store.FindBatch(context.KeyName(), IdOf(request)));
  return ToJson(batch).dump();
}

absl::StatusOr<std::string> CancelBatch(BatchStore& store, const HttpRequest& request,
                                        const CallContext& context) {
  ASSIGN_OR_RETURN(const Batch batch, store.Cancel(context.KeyName(), IdOf(request)));
  if (batch.HasEnded() && batch.state != BatchState::kCancelled) {
    return absl::FailedPreconditionError(StrCat("the batch ", Quote(batch.id), " is ",
                                                kBatchStateNames[size_t(batch.state)],
                                                "; only one that is in progress can be cancelled"));
  }
  return ToJson(batch).dump();
}

// A file's content, of any size: a part of it is in memory.
class ContentCodec final : public HttpCodec {
 public:
  explicit ContentCodec(const BatchStore* store) : store_(*store) {}

  absl::Status Decode(const HttpRequest& request) override {
    ASSIGN_OR_RETURN(const StoredFile file, store_.FindFile(Context().KeyName(), IdOf(request)));
    ASSIGN_OR_RETURN(RegularFile opened, RegularFile::Open(store_.ContentPath(file.id)));
    file_.emplace(std::move(opened));
    return absl::OkStatus();
  }
  void OnReply(int /*prompt*/, Message& /*reply*/) override {}
  void OnEnd(const absl::Status& /*status*/) override {
    ReleaseModel();  // a reload need not wait for the client
    Exchange().BeginBody("application/octet-stream", int64_t(file_->NumBytes()));
    has_more_ = true;
    SendMore();
  }
  bool HasMore() const override { return has_more_; }
  bool HoldsKey() const override {
    return file_->NumBytes() > 0 && Exchange().Request().method != "HEAD";
  }
  void SendMore() override {
    const std::lock_guard lock(mutex_);
    std::string block(kBlockBytes, '\0');
    while (has_more_ && Exchange().HasSpace()) {
      const size_t num_wanted = std::min(block.size(), file_->NumBytes() - at_);
      const ssize_t num_read = pread(file_->Descriptor(), block.data(), num_wanted, off_t(at_));
      if (num_read < 0 && errno == EINTR) continue;
      at_ += size_t(std::max<ssize_t>(num_read, 0));
      // Who has read the last byte may call again at once.
      if (at_ == file_->NumBytes()) ReleaseKey();
      if (num_read > 0) Exchange().Send(std::string_view(block.data(), size_t(num_read)));
      // Where the file is shorter than it was, the client sees that the connection ends early.
      if (num_read <= 0 || at_ == file_->NumBytes() || !Context().CheckStop().ok() ||
          Exchange().HasEnded()) {
        has_more_ = false;
        Exchange().EndStream();
      }
    }
  }

 private:
  const BatchStore& store_;
  std::optional<RegularFile> file_;
  std::mutex mutex_;
  std::atomic<bool> has_more_ = false;
  size_t at_ = 0;
};

HttpMethod MakeContent(BatchStore* store) {
  return {.method = MakeNoMethod(), .codec = std::make_unique<ContentCodec>(store)};
}

template <auto kAnswer>
HttpMethod Make(BatchStore* store) {
  return MakeAnswer([store](const HttpRequest& request, const CallContext& context) {
    return kAnswer(*store, request, context);
  });
}

}  // namespace

std::span<const BatchPath> BatchPaths() {
  static constexpr auto kPaths = std::to_array<BatchPath>({
      {"POST", kFilesPath, "POST /v1/files", Make<PostFile>},
      {"GET", kFilesPath, "GET /v1/files", Make<ListFiles>},
      {"GET", kFilePath, "GET /v1/files/{id}", Make<GetFile>},
      {"DELETE", kFilePath, "DELETE /v1/files/{id}", Make<DeleteFile>},
      {"GET", kContentPath, "GET /v1/files/{id}/content", MakeContent},
      {"POST", kBatchesPath, "POST /v1/batches", Make<PostBatch>},
      {"GET", kBatchesPath, "GET /v1/batches", Make<ListBatches>},
      {"GET", kBatchPath, "GET /v1/batches/{id}", Make<GetBatch>},
      {"POST", kCancelPath, "POST /v1/batches/{id}/cancel", Make<CancelBatch>},
  });
  return kPaths;
}

std::string_view BatchPathOf(std::string_view path) {
  const auto pattern_of = [path](std::string_view begin, std::string_view one, std::string_view end,
                                 std::string_view other) -> std::string_view {
    if (path == begin) return begin;
    if (!path.starts_with(begin) || path[begin.size()] != '/') return {};
    const std::string_view rest = path.substr(begin.size() + 1);
    const size_t slash = rest.find('/');
    if (rest.empty() || slash == 0) return {};
    if (slash == rest.npos) return one;
    return rest.substr(slash) == end ? other : std::string_view();
  };
  const std::string_view file = pattern_of(kFilesPath, kFilePath, "/content", kContentPath);
  return file.empty() ? pattern_of(kBatchesPath, kBatchPath, "/cancel", kCancelPath) : file;
}

HttpMethod MakeBatchesOff() {
  return MakeAnswer([](const HttpRequest&, const CallContext&) -> absl::StatusOr<std::string> {
    return absl::NotFoundError("files and batches are off (--batch-dir)");
  });
}

}  // namespace lssar
