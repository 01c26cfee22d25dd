// The files and batches of a directory: OpenAI's /v1/files and /v1/batches, kept over restarts.
#ifndef LSSAR_SERVER_BATCH_BATCH_STORE_H_
#define LSSAR_SERVER_BATCH_BATCH_STORE_H_

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/config/limits.h"
#include "server/net/file_descriptor.h"

namespace lssar {

// `owner` is the name of an API key; empty: made on a server without keys. Times: seconds since
// 1970; 0: not yet.
struct StoredFile {
  std::string id;  // "file-..."
  std::string owner, filename;
  std::string purpose;  // "batch": was uploaded; "batch_output"
  int64_t num_bytes = 0;
  int num_rows = 0;  // lines that are not blank; 0 of an output
  int64_t created_at = 0;
  int64_t order = 0;  // of creation, over files and batches
};

enum class BatchState : uint8_t {
  kInProgress,
  kCancelling,
  // The batch has ended.
  kCompleted,
  kExpired,
  kCancelled,
  kFailed,
};

// As OpenAI calls them, in the order of BatchState.
inline constexpr std::array<std::string_view, 6> kBatchStateNames = {
    "in_progress", "cancelling", "completed", "expired", "cancelled", "failed"};

struct Batch {
  std::string id;             // "batch_..."
  std::string owner, client;  // the client's address, for the limits and the log
  std::string endpoint, completion_window, input_file_id;
  std::string metadata = "null";  // JSON
  // For the answers and the errors. Files once the batch has ended; empty then: there are none.
  std::string output_file_id, error_file_id;
  int64_t created_at = 0, expires_at = 0, cancelling_at = 0, ended_at = 0;
  BatchState state = BatchState::kInProgress;
  int num_rows = 0, num_completed = 0, num_failed = 0;
  std::string error_code, error;  // kFailed
  // Starts of the server, one after the other, in which no row was answered.
  int num_idle_starts = 0;
  int64_t order = 0;

  bool HasEnded() const { return state >= BatchState::kCompleted; }
};

// All batches that are kept, and their rows.
struct BatchCounts {
  std::array<int64_t, kBatchStateNames.size()> num_batches = {};  // by BatchState
  int64_t num_waiting = 0;                                        // rows without an answer yet
  int64_t num_completed = 0, num_failed = 0;
};

// INTERNAL: what the disk has done to `path`. `error`: errno.
absl::Status DiskError(std::string_view path, int error);
// Errors  DiskError
absl::Status WriteAll(int fd, std::string_view path, std::string_view bytes);

// In the directory, for an id: ID.jsonl is a file's content and ID.json its description, which is
// written last; batch_....json is a batch. Descriptions are replaced as a whole, by renaming. The
// outputs of a batch that has not ended are contents without a description.
//
// Threads  any
class BatchStore {
 public:
  struct Options {
    std::string directory;  // exists
    int64_t max_bytes = 0;  // of all contents; with keys, one owner has half of it
    bool has_keys = false;
    int max_files = limits::kMaxBatchFiles;  // of one owner
    int max_batches = limits::kMaxBatches;   // of one owner
  };

  // Reads the directory, and removes what a crash has left unfinished. No other server may use it.
  // Errors  NOT_FOUND, INVALID_ARGUMENT: no such directory, not writable, or a description is
  //         broken; FAILED_PRECONDITION: another server uses it. The message names --batch-dir.
  static absl::StatusOr<std::unique_ptr<BatchStore>> Open(const Options& options);
  BatchStore(const BatchStore&) = delete;
  BatchStore& operator=(const BatchStore&) = delete;

  // Calls `changed` after a batch was added or cancelled, until it is set again.
  void OnChange(std::function<void()> changed);

  // Errors of these  NOT_FOUND: `owner` has none of this id; INTERNAL: the disk's

  // Errors  INVALID_ARGUMENT: no rows; RESOURCE_EXHAUSTED: names the limit of files or bytes
  absl::StatusOr<StoredFile> AddFile(const std::string& owner, const std::string& filename,
                                     std::string_view content);
  absl::StatusOr<StoredFile> FindFile(const std::string& owner, std::string_view id) const;
  std::vector<StoredFile> Files(const std::string& owner) const;  // newest first
  // The file is there until the disk has let go of it.
  // Errors  FAILED_PRECONDITION: of a batch that has not ended
  absl::Status DeleteFile(const std::string& owner, std::string_view id);
  // The path of a file, or of an output that is being written.
  std::string ContentPath(std::string_view id) const;

  // `batch` has owner, client, endpoint, completion_window, expires_at after created_at,
  // input_file_id and metadata. Where too many have ended, the oldest is forgotten; its
  // files stay.
  // Errors  INVALID_ARGUMENT: the input has too many rows or another purpose
  //         RESOURCE_EXHAUSTED: names the limit of batches, or of files, which has no room for the
  //         outputs
  absl::StatusOr<Batch> AddBatch(Batch batch);
  absl::StatusOr<Batch> FindBatch(const std::string& owner, std::string_view id) const;
  std::vector<Batch> Batches(const std::string& owner) const;  // newest first
  // A batch that has ended stays as it is.
  absl::StatusOr<Batch> Cancel(const std::string& owner, std::string_view id);

  // Never waits for the disk.
  BatchCounts Counts() const;

  // The runner's part.

  std::vector<Batch> Unfinished() const;  // oldest first
  void SetCounts(const std::string& id, int num_completed, int num_failed);
  absl::Status SetIdleStarts(const std::string& id, int num_idle_starts);
  // Counts bytes that are going to be appended to an output.
  // Errors  RESOURCE_EXHAUSTED: names the limit
  absl::Status AddOutputBytes(const std::string& id, int64_t num_bytes);
  // The batch has ended: its outputs, which are on the disk, become files, or go where they are
  // empty. If the disk fails the batch has not ended.
  absl::Status End(const std::string& id, BatchState state, std::string error_code,
                   std::string error);

 private:
  explicit BatchStore(const Options& options) : options_(options) {}

  absl::Status Load();
  absl::Status LoadEntry(const std::string& name);
  // Under the lock.
  // That `owner` may have more files, beside those that its batches are going to write.
  absl::Status CheckFiles(const std::string& owner, int num_more) const;
  absl::Status CheckBytes(const std::string& owner, int64_t num_bytes) const;
  absl::Status WriteFile(const StoredFile& file) const;
  absl::Status WriteBatch(const Batch& batch) const;
  // Replaces DIRECTORY/`name`.
  absl::Status Replace(const std::string& name, std::string_view content) const;
  absl::Status WriteNew(const std::string& path, std::string_view content) const;
  // Removes both files of `id`, as far as they are there.
  absl::Status Remove(const std::string& id) const;
  // The file that the output `id` becomes; nullopt: it is empty.
  std::optional<StoredFile> OutputFile(const Batch& batch, std::string_view suffix,
                                       const std::string& id);
  // The id of the batch that is forgotten for a new one; empty: none.
  absl::StatusOr<std::string> FindReplaced(const std::string& owner) const;
  Batch* Find(const std::string& id);
  void UpdateCounts();  // walks all batches
  std::string Path(std::string_view name) const;

  const Options options_;
  FileDescriptor directory_, lock_;

  mutable std::mutex mutex_;
  std::function<void()> changed_;
  std::map<std::string, StoredFile, std::less<>> files_;
  std::vector<std::string> writing_;  // the owners of files that are being written
  std::map<std::string, Batch, std::less<>> batches_;
  std::map<std::string, int64_t> bytes_;  // by owner
  int64_t num_bytes_ = 0;                 // of all owners
  int64_t next_order_ = 1;

  mutable std::mutex counts_mutex_;  // locked after mutex_, which is held while files are written
  BatchCounts counts_;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_BATCH_BATCH_STORE_H_
