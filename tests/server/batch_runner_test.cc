// The runner of batches, on a directory and with answers that the test gives.
#include "server/batch/batch_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/str_cat.h"
#include "server/batch/batch_row.h"
#include "server/batch/batch_store.h"
#include "server/http/http_exchange.h"
#include "server/ops/log.h"
#include "tests/server/poll_until.h"
#include "tests/support/scratch_directory.h"

namespace lssar {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kRowPath[] = "/v1/completions";
constexpr int64_t kMiB = int64_t{1} << 20;

// A call that ends when its row is given up.
class HeldCall : public ExchangeListener {
 public:
  explicit HeldCall(std::weak_ptr<HttpExchange> exchange) : exchange_(std::move(exchange)) {}
  void OnSpace() override {}
  void OnClientGone(const absl::Status&) override {
    if (const auto exchange = exchange_.lock()) exchange->Reply({});
  }
  void OnFinished(const absl::Status&) override {}

 private:
  const std::weak_ptr<HttpExchange> exchange_;
};

class BatchRunnerTest : public testing::Test {
 protected:
  static std::unique_ptr<BatchStore> Open(const std::string& directory,
                                          int64_t max_bytes = 16 * kMiB) {
    auto store =
        BatchStore::Open({.directory = directory, .max_bytes = max_bytes, .has_keys = true});
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }
  static Batch Add(BatchStore& store, const std::string& owner, int num_rows) {
    std::string lines;
    for (int i = 1; i <= num_rows; ++i) {
      lines += StrCat(R"({"custom_id":")", i, R"(","method":"POST","url":")", kRowPath,
                      R"(","body":{}})", "\n");
    }
    Batch batch;
    batch.owner = owner;
    batch.client = "unix";
    batch.endpoint = kRowPath;
    batch.completion_window = "24h";
    batch.input_file_id = store.AddFile(owner, "in", lines)->id;
    batch.created_at = std::time(nullptr);
    batch.expires_at = batch.created_at + 86400;
    return *store.AddBatch(std::move(batch));
  }

  // Begins up to eight rows, which wait for Answer.
  std::unique_ptr<BatchRunner> Run(BatchStore& store) {
    return std::make_unique<BatchRunner>(
        BatchRunner::Options{
            .max_rows = 8,
            .stream = {},
            .readiness =
                [this] {
                  return is_loading_ ? absl::UnavailableError("loading") : absl::OkStatus();
                },
            .find_caller = [](const std::string&) { return std::optional<Caller>(nullptr); },
            .num_other_calls = [] { return 0; },
            .answer =
                [this](std::shared_ptr<HttpExchange> exchange) {
                  exchange->Attach(std::make_shared<HeldCall>(exchange));
                  const std::lock_guard lock(mutex_);
                  asked_.push_back(std::move(exchange));
                }},
        &store, &log_);
  }
  // BATCH-ROW of each row that has begun, in their order.
  std::vector<std::string> Asked() {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> ids;
    for (const auto& exchange : asked_) ids.push_back(exchange->Request().headers.at(1).value);
    return ids;
  }
  bool WaitForRows(size_t num_rows) {
    return PollUntil([&] { return Asked().size() >= num_rows; });
  }
  void Answer(size_t index, const std::string& body = "{}") {
    std::shared_ptr<HttpExchange> exchange;
    {
      const std::lock_guard lock(mutex_);
      exchange = asked_.at(index);
    }
    exchange->Reply({.body = body});
  }
  static Batch WaitForEnd(BatchStore& store, const Batch& batch) {
    EXPECT_TRUE(PollUntil([&] { return store.FindBatch(batch.owner, batch.id)->HasEnded(); }));
    return *store.FindBatch(batch.owner, batch.id);
  }

  const Log log_{"off"};
  std::atomic<bool> is_loading_ = false;
  std::mutex mutex_;
  std::vector<std::shared_ptr<HttpExchange>> asked_;
  ScratchDirectory directory_;
};

std::string RowId(const Batch& batch, int row) { return StrCat(batch.id, "-", row); }

std::string ContentOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST_F(BatchRunnerTest, OneBatchOfAnOwnerRunsTheOldestFirst) {
  const auto store = Open(directory_.Path());
  std::vector<Batch> own;
  for (int i = 0; i < 5; ++i) own.push_back(Add(*store, "alice", 1));
  const Batch other = Add(*store, "bob", 1);
  const auto runner = Run(*store);
  // The rows begin in the order of their batches: all that could come before this one has come.
  ASSERT_TRUE(WaitForRows(2));
  EXPECT_THAT(Asked(), ElementsAre(RowId(own[0], 1), RowId(other, 1)));
  Answer(0);
  for (size_t i = 1; i < own.size(); ++i) {
    ASSERT_TRUE(WaitForRows(i + 2));
    EXPECT_EQ(Asked().back(), RowId(own[i], 1));
    EXPECT_EQ(Asked().size(), i + 2);
    Answer(i + 1);
  }
  for (const Batch& batch : own) {
    EXPECT_EQ(WaitForEnd(*store, batch).state, BatchState::kCompleted);
  }
}

TEST_F(BatchRunnerTest, FiveStartsThatAnswerNoRowEndABatch) {
  // Each directory is what a kill leaves of the one before.
  std::vector<std::unique_ptr<ScratchDirectory>> directories;
  directories.push_back(std::make_unique<ScratchDirectory>());
  const Batch batch = Add(*Open(directories[0]->Path()), "alice", 2);
  for (int start = 1; start <= 5; ++start) {
    const std::string path = directories.back()->Path();
    {
      const auto store = Open(path);
      const auto runner = Run(*store);
      ASSERT_TRUE(WaitForRows(2 * size_t(start)));
      EXPECT_EQ(store->Unfinished()[0].num_idle_starts, start);
      directories.push_back(std::make_unique<ScratchDirectory>());
      directories.back()->CopyFrom(path);
    }
    EXPECT_EQ(Open(path)->Unfinished()[0].num_idle_starts, 0) << "a clean stop";
  }
  ScratchDirectory fourth;  // start, after which a row is answered
  fourth.CopyFrom(directories[4]->Path());
  {
    const auto store = Open(fourth.Path());
    const auto runner = Run(*store);
    ASSERT_TRUE(WaitForRows(12));
    Answer(11);
    EXPECT_TRUE(PollUntil([&] { return store->Unfinished()[0].num_idle_starts == 0; }));
  }
  const auto store = Open(directories.back()->Path());
  const auto runner = Run(*store);
  const Batch ended = WaitForEnd(*store, batch);
  EXPECT_EQ(ended.state, BatchState::kFailed);
  EXPECT_EQ(ended.error_code, "interrupted");
  EXPECT_EQ(ended.error, "the server has ended 5 times while it ran and no row was answered");
  EXPECT_EQ(Asked().size(), 12);
}

// Whatever ends it: out of memory, a deployment that is taken back, SIGTERM, which does not drain.
TEST_F(BatchRunnerTest, AServerThatEndsWhileItsModelLoadsHasNotRunTheBatch) {
  const Batch batch = Add(*Open(directory_.Path()), "alice", 1);
  is_loading_ = true;
  std::vector<std::unique_ptr<ScratchDirectory>> directories;
  directories.push_back(std::make_unique<ScratchDirectory>());
  directories[0]->CopyFrom(directory_.Path());
  for (int start = 1; start <= 6; ++start) {
    const std::string path = directories.back()->Path();
    const auto store = Open(path);
    const std::string errors = store->ContentPath(batch.error_file_id);
    const auto runner = Run(*store);
    ASSERT_TRUE(PollUntil([&] { return std::filesystem::exists(errors); })) << start;
    directories.push_back(std::make_unique<ScratchDirectory>());
    directories.back()->CopyFrom(path);
    std::filesystem::remove(directories.back()->Path(batch.error_file_id + ".jsonl"));
  }
  is_loading_ = false;
  const auto store = Open(directories.back()->Path());
  EXPECT_EQ(store->Unfinished()[0].num_idle_starts, 0);
  const auto runner = Run(*store);
  ASSERT_TRUE(WaitForRows(1));
  Answer(0);
  EXPECT_EQ(WaitForEnd(*store, batch).state, BatchState::kCompleted);
}

TEST_F(BatchRunnerTest, AStartWhoseFirstRowsNeedNoServerCountsOnceAnswersCome) {
  const auto store = Open(directory_.Path());
  const std::string lines = StrCat("no request\n", R"({"custom_id":"2","method":"POST","url":")",
                                   kRowPath, R"(","body":{}})", "\n");
  Batch added;
  added.owner = "alice";
  added.client = "unix";
  added.endpoint = kRowPath;
  added.input_file_id = store->AddFile("alice", "in", lines)->id;
  added.expires_at = std::time(nullptr) + 86400;
  const Batch batch = *store->AddBatch(std::move(added));
  ASSERT_TRUE(store->SetIdleStarts(batch.id, 4).ok());
  const auto runner = Run(*store);
  ASSERT_TRUE(WaitForRows(1));
  EXPECT_EQ(store->Unfinished()[0].num_idle_starts, 0) << "the first line has its error";
}

TEST_F(BatchRunnerTest, ABatchThatIsRefusedForItsStartsKeepsTheCountOfItsAnswers) {
  const auto store = Open(directory_.Path());
  const Batch batch = Add(*store, "alice", 3);
  ASSERT_TRUE(store->SetIdleStarts(batch.id, 5).ok());
  std::ofstream(store->ContentPath(batch.output_file_id), std::ios::binary)
      << AnsweredLine({.number = 2, .custom_id = "2"}, 200, "r", "{}");
  const auto runner = Run(*store);
  const Batch ended = WaitForEnd(*store, batch);
  EXPECT_EQ(ended.error_code, "interrupted");
  EXPECT_EQ(ended.num_completed, 1);
  EXPECT_TRUE(store->FindFile("alice", ended.output_file_id).ok());
}

TEST_F(BatchRunnerTest, AnInputThatHasLostItsEndIsNoCompletedBatch) {
  const auto store = Open(directory_.Path());
  const Batch batch = Add(*store, "alice", 3);
  const std::string path = store->ContentPath(batch.input_file_id);
  const std::string lines = ContentOf(path);
  std::filesystem::resize_file(path, lines.find("\n", lines.find("\n") + 1) + 1);
  const auto runner = Run(*store);
  ASSERT_TRUE(WaitForRows(2));
  Answer(0);
  Answer(1);
  const Batch ended = WaitForEnd(*store, batch);
  EXPECT_EQ(ended.state, BatchState::kFailed);
  EXPECT_EQ(ended.error_code, "storage_error");
  EXPECT_EQ(ended.error,
            "its input file has changed or cannot be read: 2 of its 3 lines have an answer");
  EXPECT_EQ(ended.num_completed, 2);
  EXPECT_TRUE(store->FindFile("alice", ended.output_file_id).ok());
}

TEST_F(BatchRunnerTest, AnOutputOfMoreThanTheBlockThatIsReadIsGoneOnWith) {
  std::string path, done;
  std::string batch_id;
  {
    const auto store = Open(directory_.Path());
    const Batch batch = Add(*store, "alice", 5);
    batch_id = batch.id;
    path = store->ContentPath(batch.output_file_id);
    const auto line = [](int row, size_t num_bytes) {
      const std::string text(num_bytes, 'x');
      return AnsweredLine({.number = row, .custom_id = StrCat(row)}, 200, "r", "\"" + text + "\"");
    };
    // The second line begins shortly before the end of a block, the third one is longer than one,
    // and the fourth one has no end.
    done = line(1, size_t(kMiB) - 5 - line(1, 0).size()) + line(2, 100) + line(3, 2 * size_t(kMiB));
    std::ofstream(path, std::ios::binary) << done << line(4, 100).substr(0, 80);
  }
  const auto store = Open(directory_.Path());
  const auto runner = Run(*store);
  ASSERT_TRUE(WaitForRows(2));
  const Batch batch = *store->FindBatch("alice", batch_id);
  EXPECT_THAT(Asked(), ElementsAre(RowId(batch, 4), RowId(batch, 5)));
  Answer(0);
  Answer(1);
  const Batch ended = WaitForEnd(*store, batch);
  EXPECT_EQ(ended.state, BatchState::kCompleted);
  EXPECT_EQ(ended.num_completed, 5);
  const std::string output = ContentOf(path);
  ASSERT_TRUE(output.starts_with(done));
  std::vector<std::optional<int>> rows;
  for (size_t at = done.size(); at < output.size(); at = output.find('\n', at) + 1) {
    rows.push_back(AnsweredRow(output.substr(at, kRowIdBytes)));
  }
  EXPECT_THAT(rows, testing::UnorderedElementsAre(4, 5));
}

TEST_F(BatchRunnerTest, OutputsThatFillTheDirectoryEndABatchAndStay) {
  const auto store = Open(directory_.Path(), /*max_bytes=*/10'000);  // 5,000 of an owner
  const Batch batch = Add(*store, "alice", 5);
  const auto runner = Run(*store);
  ASSERT_TRUE(WaitForRows(5));
  for (size_t i = 0; i < 5; ++i) {
    Answer(i, "\"" + std::string(1200, 'x') + "\"");
    PollUntil([&] {
      const Batch now = *store->FindBatch("alice", batch.id);
      return now.HasEnded() || now.num_completed == int(i) + 1;
    });
  }
  const Batch ended = WaitForEnd(*store, batch);
  EXPECT_EQ(ended.state, BatchState::kFailed);
  EXPECT_EQ(ended.error_code, "storage_full");
  EXPECT_THAT(ended.error, HasSubstr("line 4: its answer cannot be kept: your files have "));
  EXPECT_THAT(ended.error, HasSubstr("they exceed the 5000 of --batch-max-bytes 10000"));
  EXPECT_EQ(ended.num_completed, 3);
  const auto output = store->FindFile("alice", ended.output_file_id);
  ASSERT_TRUE(output.ok()) << output.status();
  const std::string kept = ContentOf(store->ContentPath(output->id));
  EXPECT_EQ(std::ranges::count(kept, '\n'), 3);
  EXPECT_EQ(output->num_bytes, std::ssize(kept));
  // The place of the line that was not kept is free.
  const int64_t num_left =
      5000 - output->num_bytes - store->FindFile("alice", batch.input_file_id)->num_bytes;
  EXPECT_TRUE(absl::IsResourceExhausted(
      store->AddFile("alice", "more", std::string(size_t(num_left) + 1, 'x')).status()));
  EXPECT_TRUE(store->AddFile("alice", "more", std::string(size_t(num_left), 'x')).ok());
}

}  // namespace
}  // namespace lssar
