#include "server/batch/batch_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "base/error_details.h"
#include "base/quote.h"
#include "base/random_id.h"
#include "base/read_file.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "base/utf8.h"
#include "server/batch/batch_row.h"

namespace lssar {

// Descriptions. Reading throws Json::exception where a field is missing.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(StoredFile, id, owner, filename, purpose, num_rows, created_at,
                                   order)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Batch, id, owner, client, endpoint, completion_window,
                                   input_file_id, metadata, output_file_id, error_file_id,
                                   created_at, expires_at, cancelling_at, ended_at, state, num_rows,
                                   num_completed, num_failed, error_code, error, num_idle_starts,
                                   order)

namespace {

using Json = nlohmann::json;

constexpr std::string_view kFilePrefix = "file-", kBatchPrefix = "batch_";
constexpr std::string_view kContentSuffix = ".jsonl", kDescriptionSuffix = ".json",
                           kNewSuffix = ".new";
constexpr mode_t kMode = 0600;  // prompts and answers
constexpr int kNumOutputs = 2;  // files that a batch may make

// Whether `id` is one that is made here: only such a name becomes a path.
bool IsId(std::string_view id, std::string_view prefix) {
  if (!id.starts_with(prefix) || id.size() != prefix.size() + kRandomIdDigits) return false;
  id.remove_prefix(prefix.size());
  return std::ranges::all_of(id, [](char c) { return absl::ascii_isxdigit(uint8_t(c)); });
}

int CountRows(std::string_view content) {
  int num_rows = 0;
  for (size_t begin = 0; begin < content.size();) {
    const size_t end = std::min(content.find('\n', begin), content.size());
    num_rows += IsBlankLine(content.substr(begin, end - begin)) ? 0 : 1;
    begin = end + 1;
  }
  return num_rows;
}

template <typename Items>
auto NewestFirst(const Items& items, const std::string& owner) {
  std::vector<typename Items::mapped_type> found;
  for (const auto& [id, item] : items) {
    if (item.owner == owner) found.push_back(item);
  }
  std::ranges::sort(found, [](const auto& a, const auto& b) { return a.order > b.order; });
  return found;
}

absl::Status NoFile(std::string_view id) {
  return absl::NotFoundError(StrCat("there is no file ", Quote(id)));
}
absl::Status NoBatch(std::string_view id) {
  return absl::NotFoundError(StrCat("there is no batch ", Quote(id)));
}

}  // namespace

absl::Status DiskError(std::string_view path, int error) {
  return absl::InternalError(
      StrCat("--batch-dir: ", path, ": ", std::generic_category().message(error)));
}

absl::Status WriteAll(int fd, std::string_view path, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t num_written = write(fd, bytes.data(), bytes.size());
    if (num_written < 0 && errno == EINTR) continue;
    if (num_written < 0) return DiskError(path, errno);
    bytes.remove_prefix(size_t(num_written));
  }
  return absl::OkStatus();
}

std::string BatchStore::Path(std::string_view name) const {
  return StrCat(options_.directory, "/", name);
}

std::string BatchStore::ContentPath(std::string_view id) const {
  return StrCat(Path(id), kContentSuffix);
}

absl::StatusOr<std::unique_ptr<BatchStore>> BatchStore::Open(const Options& options) {
  std::unique_ptr<BatchStore> store(new BatchStore(options));
  const std::string& path = options.directory;
  // Errors of files are in answers.
  if (const absl::Status status = CheckUtf8(path); !status.ok()) {
    return absl::InvalidArgumentError(StrCat("--batch-dir: ", status.message()));
  }
  store->directory_.Reset(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!store->directory_.IsOpen()) {
    return WithPrefix("--batch-dir ", FileError(path, errno));
  }
  const std::string lock = store->Path("lock");
  store->lock_.Reset(open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, kMode));
  if (!store->lock_.IsOpen()) {
    return absl::InvalidArgumentError(
        StrCat("--batch-dir ", lock, ": ", std::generic_category().message(errno)));
  }
  if (flock(store->lock_.Get(), LOCK_EX | LOCK_NB) != 0) {
    return absl::FailedPreconditionError(
        StrCat("--batch-dir ", path, ": another server uses this directory"));
  }
  RETURN_IF_ERROR(store->Load());
  return store;
}

absl::Status BatchStore::Load() {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator at(options_.directory, error), end; !error && at != end;
       at.increment(error)) {
    names.push_back(at->path().filename().string());
  }
  if (error) return DiskError(options_.directory, error.value());
  for (const std::string& name : names) RETURN_IF_ERROR(LoadEntry(name));

  // Contents without a description: outputs that are being written, else an upload that ended in
  // its middle. And the other way round, where a deletion did.
  std::set<std::string, std::less<>> outputs;
  for (const auto& [id, batch] : batches_) {
    if (batch.HasEnded()) continue;
    for (const std::string& output : {batch.output_file_id, batch.error_file_id}) {
      outputs.insert(output);
      struct stat info = {};
      if (stat(ContentPath(output).c_str(), &info) == 0 && !files_.contains(output)) {
        bytes_[batch.owner] += info.st_size;
        num_bytes_ += info.st_size;
      }
    }
  }
  for (const std::string& name : names) {
    const std::string_view id = std::string_view(name).substr(0, name.find('.'));
    if (name.ends_with(kNewSuffix) && (IsId(id, kFilePrefix) || IsId(id, kBatchPrefix))) {
      unlink(Path(name).c_str());
    } else if (IsId(id, kFilePrefix) && name == StrCat(id, kContentSuffix) &&
               !files_.contains(id) && !outputs.contains(id)) {
      unlink(Path(name).c_str());
    }
  }
  UpdateCounts();
  return absl::OkStatus();
}

absl::Status BatchStore::LoadEntry(const std::string& name) {
  const std::string id = name.substr(0, name.find('.'));
  const bool is_file = IsId(id, kFilePrefix);
  if (name != StrCat(id, kDescriptionSuffix) || (!is_file && !IsId(id, kBatchPrefix))) {
    return absl::OkStatus();
  }
  auto text = ReadWholeFile(Path(name), kMaxConfigFileBytes);
  if (!text.ok()) return WithPrefix("--batch-dir ", text.status());
  try {
    const Json json = Json::parse(*text);
    if (!is_file) {
      auto batch = json.get<Batch>();
      batch.state = std::min(batch.state, BatchState::kFailed);
      next_order_ = std::max(next_order_, batch.order + 1);
      if (batch.id == id) batches_[id] = std::move(batch);
      return absl::OkStatus();
    }
    auto file = json.get<StoredFile>();
    next_order_ = std::max(next_order_, file.order + 1);
    struct stat info = {};
    if (file.id != id || stat(ContentPath(id).c_str(), &info) != 0) {
      unlink(Path(name).c_str());  // a deletion that ended in its middle
      return absl::OkStatus();
    }
    file.num_bytes = info.st_size;
    bytes_[file.owner] += file.num_bytes;
    num_bytes_ += file.num_bytes;
    files_[id] = std::move(file);
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(
        StrCat("--batch-dir ", Path(name),
               " is no description of a file or batch: ", Shorten(error.what(), kMaxQuotedBytes)));
  }
  return absl::OkStatus();
}

void BatchStore::OnChange(std::function<void()> changed) {
  const std::lock_guard lock(mutex_);
  changed_ = std::move(changed);
}

absl::Status BatchStore::WriteNew(const std::string& path, std::string_view content) const {
  const FileDescriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, kMode));
  if (!file.IsOpen()) return DiskError(path, errno);
  absl::Status status = WriteAll(file.Get(), path, content);
  if (status.ok() && fsync(file.Get()) != 0) status = DiskError(path, errno);
  if (!status.ok()) unlink(path.c_str());
  return status;
}

absl::Status BatchStore::Replace(const std::string& name, std::string_view content) const {
  const std::string path = Path(name), next = path + std::string(kNewSuffix);
  RETURN_IF_ERROR(WriteNew(next, content));
  if (std::rename(next.c_str(), path.c_str()) != 0 || fsync(directory_.Get()) != 0) {
    return DiskError(path, errno);
  }
  return absl::OkStatus();
}

absl::Status BatchStore::WriteFile(const StoredFile& file) const {
  return Replace(StrCat(file.id, kDescriptionSuffix), Json(file).dump());
}

absl::Status BatchStore::WriteBatch(const Batch& batch) const {
  return Replace(StrCat(batch.id, kDescriptionSuffix), Json(batch).dump());
}

absl::Status BatchStore::CheckFiles(const std::string& owner, int num_more) const {
  const int64_t num_files =
      std::ranges::count(writing_, owner) +
      std::ranges::count(files_, owner, [](const auto& entry) -> const std::string& {
        return entry.second.owner;
      });
  const int64_t num_outputs =
      kNumOutputs * std::ranges::count_if(batches_, [&owner](const auto& entry) {
        return entry.second.owner == owner && !entry.second.HasEnded();
      });
  if (num_files + num_outputs + num_more <= options_.max_files) return absl::OkStatus();
  const std::string outputs =
      num_outputs == 0 ? "" : StrCat(", and batches that have not ended may make ", num_outputs);
  return absl::ResourceExhaustedError(StrCat("you have ", num_files, " files", outputs,
                                             "; there may be ", options_.max_files,
                                             "; delete some"));
}

absl::Status BatchStore::CheckBytes(const std::string& owner, int64_t num_bytes) const {
  const auto own = bytes_.find(owner);
  const int64_t num_own = own == bytes_.end() ? 0 : own->second;
  const int64_t max_own = options_.has_keys ? options_.max_bytes / 2 : options_.max_bytes;
  if (num_own + num_bytes > max_own) {
    return absl::ResourceExhaustedError(
        StrCat("your files have ", num_own, " bytes; with ", num_bytes, " more they exceed the ",
               max_own, " of --batch-max-bytes ", options_.max_bytes, "; delete some"));
  }
  if (num_bytes_ + num_bytes > options_.max_bytes) {
    return absl::ResourceExhaustedError(
        StrCat("the files of all keys have ", num_bytes_, " bytes; with ", num_bytes,
               " more they exceed --batch-max-bytes ", options_.max_bytes));
  }
  return absl::OkStatus();
}

absl::StatusOr<StoredFile> BatchStore::AddFile(const std::string& owner,
                                               const std::string& filename,
                                               std::string_view content) {
  StoredFile file{.id = StrCat(kFilePrefix, RandomId()),
                  .owner = owner,
                  .filename = filename,
                  .purpose = "batch",
                  .num_bytes = std::ssize(content),
                  .num_rows = CountRows(content),
                  .created_at = std::time(nullptr)};
  if (file.num_rows == 0) return absl::InvalidArgumentError("the file has no lines");
  {
    const std::lock_guard lock(mutex_);
    RETURN_IF_ERROR(CheckFiles(owner, 1));
    RETURN_IF_ERROR(CheckBytes(owner, file.num_bytes));
    bytes_[owner] += file.num_bytes;
    num_bytes_ += file.num_bytes;
    writing_.push_back(owner);
    file.order = next_order_++;
  }
  absl::Status status = WriteNew(ContentPath(file.id), content);
  if (status.ok()) status = WriteFile(file);
  const std::lock_guard lock(mutex_);
  writing_.erase(std::ranges::find(writing_, owner));
  if (!status.ok()) {
    Remove(file.id).IgnoreError();
    bytes_[owner] -= file.num_bytes;
    num_bytes_ -= file.num_bytes;
    return status;
  }
  files_[file.id] = file;
  return file;
}

absl::StatusOr<StoredFile> BatchStore::FindFile(const std::string& owner,
                                                std::string_view id) const {
  const std::lock_guard lock(mutex_);
  const auto found = files_.find(id);
  if (found == files_.end() || found->second.owner != owner) return NoFile(id);
  return found->second;
}

std::vector<StoredFile> BatchStore::Files(const std::string& owner) const {
  const std::lock_guard lock(mutex_);
  return NewestFirst(files_, owner);
}

absl::Status BatchStore::Remove(const std::string& id) const {
  // The description first: a content without one goes at the next start.
  for (const std::string& path : {StrCat(Path(id), kDescriptionSuffix), ContentPath(id)}) {
    if (unlink(path.c_str()) != 0 && errno != ENOENT) return DiskError(path, errno);
  }
  if (fsync(directory_.Get()) != 0) return DiskError(options_.directory, errno);
  return absl::OkStatus();
}

absl::Status BatchStore::DeleteFile(const std::string& owner, std::string_view id) {
  const std::lock_guard lock(mutex_);
  const auto found = files_.find(id);
  if (found == files_.end() || found->second.owner != owner) return NoFile(id);
  for (const auto& [batch_id, batch] : batches_) {
    if (batch.HasEnded()) continue;
    if (batch.input_file_id == id || batch.output_file_id == id || batch.error_file_id == id) {
      return absl::FailedPreconditionError(StrCat("the file ", Quote(id),
                                                  " is in use by the batch ", batch_id,
                                                  ", which has not ended; cancel it first"));
    }
  }
  RETURN_IF_ERROR(Remove(found->first));
  bytes_[owner] -= found->second.num_bytes;
  num_bytes_ -= found->second.num_bytes;
  files_.erase(found);
  return absl::OkStatus();
}

absl::StatusOr<std::string> BatchStore::FindReplaced(const std::string& owner) const {
  const Batch* oldest = nullptr;
  int64_t num_batches = 0;
  for (const auto& [id, batch] : batches_) {
    if (batch.owner != owner) continue;
    ++num_batches;
    if (batch.HasEnded() && (oldest == nullptr || batch.order < oldest->order)) oldest = &batch;
  }
  if (num_batches < options_.max_batches) return std::string();
  if (oldest == nullptr) {
    return absl::ResourceExhaustedError(StrCat("you have ", num_batches,
                                               " batches that have not ended; there may be ",
                                               options_.max_batches, "; wait, or cancel some"));
  }
  return oldest->id;
}

absl::StatusOr<Batch> BatchStore::AddBatch(Batch batch) {
  std::function<void()> changed;
  {
    const std::lock_guard lock(mutex_);
    const auto input = files_.find(batch.input_file_id);
    if (input == files_.end() || input->second.owner != batch.owner) {
      return NoFile(batch.input_file_id);
    }
    if (input->second.purpose != "batch") {
      return absl::InvalidArgumentError(StrCat(
          "the file has the purpose ", Quote(input->second.purpose), "; it must be \"batch\""));
    }
    if (input->second.num_rows > limits::kMaxBatchRows) {
      return absl::InvalidArgumentError(StrCat("the file has ", input->second.num_rows,
                                               " lines; a batch may have ", limits::kMaxBatchRows));
    }
    ASSIGN_OR_RETURN(const std::string replaced, FindReplaced(batch.owner));
    RETURN_IF_ERROR(CheckFiles(batch.owner, kNumOutputs));
    batch.id = StrCat(kBatchPrefix, RandomId());
    batch.output_file_id = StrCat(kFilePrefix, RandomId());
    batch.error_file_id = StrCat(kFilePrefix, RandomId());
    batch.num_rows = input->second.num_rows;
    batch.order = next_order_++;
    RETURN_IF_ERROR(WriteBatch(batch));
    batches_[batch.id] = batch;
    if (!replaced.empty()) {
      unlink(StrCat(Path(replaced), kDescriptionSuffix).c_str());
      batches_.erase(replaced);
    }
    UpdateCounts();
    changed = changed_;
  }
  if (changed) changed();
  return batch;
}

Batch* BatchStore::Find(const std::string& id) {
  const auto found = batches_.find(id);
  return found == batches_.end() ? nullptr : &found->second;
}

absl::StatusOr<Batch> BatchStore::FindBatch(const std::string& owner, std::string_view id) const {
  const std::lock_guard lock(mutex_);
  const auto found = batches_.find(id);
  if (found == batches_.end() || found->second.owner != owner) return NoBatch(id);
  return found->second;
}

std::vector<Batch> BatchStore::Batches(const std::string& owner) const {
  const std::lock_guard lock(mutex_);
  return NewestFirst(batches_, owner);
}

absl::StatusOr<Batch> BatchStore::Cancel(const std::string& owner, std::string_view id) {
  std::function<void()> changed;
  Batch cancelled;
  {
    const std::lock_guard lock(mutex_);
    const auto found = batches_.find(id);
    if (found == batches_.end() || found->second.owner != owner) return NoBatch(id);
    Batch& batch = found->second;
    if (batch.state == BatchState::kInProgress) {
      Batch next = batch;
      next.state = BatchState::kCancelling;
      next.cancelling_at = std::time(nullptr);
      RETURN_IF_ERROR(WriteBatch(next));
      batch = std::move(next);
      UpdateCounts();
    }
    cancelled = batch;
    changed = changed_;
  }
  if (changed) changed();
  return cancelled;
}

BatchCounts BatchStore::Counts() const {
  const std::lock_guard lock(counts_mutex_);
  return counts_;
}

void BatchStore::UpdateCounts() {
  BatchCounts counts;
  for (const auto& [id, batch] : batches_) {
    ++counts.num_batches[size_t(batch.state)];
    counts.num_completed += batch.num_completed;
    counts.num_failed += batch.num_failed;
    if (batch.HasEnded()) continue;
    counts.num_waiting += batch.num_rows - batch.num_completed - batch.num_failed;
  }
  const std::lock_guard lock(counts_mutex_);
  counts_ = counts;
}

std::vector<Batch> BatchStore::Unfinished() const {
  const std::lock_guard lock(mutex_);
  std::vector<Batch> unfinished;
  for (const auto& [id, batch] : batches_) {
    if (!batch.HasEnded()) unfinished.push_back(batch);
  }
  std::ranges::sort(unfinished, {}, &Batch::order);
  return unfinished;
}

void BatchStore::SetCounts(const std::string& id, int num_completed, int num_failed) {
  const std::lock_guard lock(mutex_);
  Batch* const batch = Find(id);
  if (batch == nullptr) return;
  const int more_completed = num_completed - batch->num_completed;
  const int more_failed = num_failed - batch->num_failed;
  // The runner calls this a hundred times a second for each batch that runs.
  if (more_completed == 0 && more_failed == 0) return;
  batch->num_completed = num_completed;
  batch->num_failed = num_failed;
  const std::lock_guard counts_lock(counts_mutex_);
  counts_.num_completed += more_completed;
  counts_.num_failed += more_failed;
  if (!batch->HasEnded()) counts_.num_waiting -= more_completed + more_failed;
}

absl::Status BatchStore::SetIdleStarts(const std::string& id, int num_idle_starts) {
  const std::lock_guard lock(mutex_);
  Batch* const batch = Find(id);
  if (batch == nullptr || batch->num_idle_starts == num_idle_starts) return absl::OkStatus();
  Batch next = *batch;
  next.num_idle_starts = num_idle_starts;
  RETURN_IF_ERROR(WriteBatch(next));
  *batch = std::move(next);
  return absl::OkStatus();
}

absl::Status BatchStore::AddOutputBytes(const std::string& id, int64_t num_bytes) {
  const std::lock_guard lock(mutex_);
  Batch* const batch = Find(id);
  if (batch == nullptr) return NoBatch(id);
  if (num_bytes > 0) RETURN_IF_ERROR(CheckBytes(batch->owner, num_bytes));
  bytes_[batch->owner] += num_bytes;
  num_bytes_ += num_bytes;
  return absl::OkStatus();
}

std::optional<StoredFile> BatchStore::OutputFile(const Batch& batch, std::string_view suffix,
                                                 const std::string& id) {
  struct stat info = {};
  if (stat(ContentPath(id).c_str(), &info) != 0 || info.st_size == 0) return std::nullopt;
  return StoredFile{.id = id,
                    .owner = batch.owner,
                    .filename = StrCat(batch.id, suffix),
                    .purpose = "batch_output",
                    .num_bytes = info.st_size,
                    .created_at = batch.ended_at,
                    .order = next_order_++};
}

absl::Status BatchStore::End(const std::string& id, BatchState state, std::string error_code,
                             std::string error) {
  const std::lock_guard lock(mutex_);
  Batch* const batch = Find(id);
  if (batch == nullptr) return NoBatch(id);
  Batch ended = *batch;
  ended.state = state;
  ended.ended_at = std::time(nullptr);
  ended.error_code = std::move(error_code);
  ended.error = std::move(error);
  const auto output = OutputFile(ended, "_output.jsonl", ended.output_file_id);
  const auto errors = OutputFile(ended, "_error.jsonl", ended.error_file_id);
  if (output) RETURN_IF_ERROR(WriteFile(*output));
  if (errors) RETURN_IF_ERROR(WriteFile(*errors));
  if (!output) ended.output_file_id.clear();
  if (!errors) ended.error_file_id.clear();
  // Last: a batch that has ended on the disk has its files.
  RETURN_IF_ERROR(WriteBatch(ended));
  if (!output) Remove(batch->output_file_id).IgnoreError();
  if (!errors) Remove(batch->error_file_id).IgnoreError();
  for (const auto& file : {output, errors}) {
    if (file) files_[file->id] = *file;
  }
  *batch = std::move(ended);
  UpdateCounts();
  return absl::OkStatus();
}

}  // namespace lssar
