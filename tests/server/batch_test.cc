// Rows of batches, forms that upload them, and the directory that keeps them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <latch>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "base/str_cat.h"
#include "server/batch/batch_row.h"
#include "server/batch/batch_store.h"
#include "server/config/limits.h"
#include "server/http/multipart.h"
#include "tests/support/scratch_directory.h"

namespace lssar {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

constexpr char kEndpoint[] = "/v1/completions";
constexpr char kLine[] =
    R"({"custom_id":"a","method":"POST","url":"/v1/completions","body":{"z":1,"b":{"y":2,"a":3}}})";

TEST(BatchRowTest, ALineKeepsItsBodyAsItIs) {
  const BatchRow row = ParseBatchRow(7, kLine, kEndpoint);
  EXPECT_EQ(row.error, "");
  EXPECT_EQ(row.number, 7);
  EXPECT_EQ(row.custom_id, "a");
  EXPECT_EQ(row.body, R"({"z":1,"b":{"y":2,"a":3}})");
}

// nlohmann's ordered objects are searched from their first key on: this line would take minutes.
TEST(BatchRowTest, ALineOfManyKeysIsReadInTimeThatIsLinearInIt) {
  std::string body = "{";
  for (int i = 250'000; i > 0; --i) body += StrCat("\"", i, "\":0", i > 1 ? "," : "}");
  const std::string line =
      StrCat(R"({"custom_id":"a","method":"POST","url":")", kEndpoint, R"(","body":)", body, "}");
  const BatchRow row = ParseBatchRow(1, line, kEndpoint);
  EXPECT_EQ(row.error, "");
  EXPECT_TRUE(row.body == body) << row.body.size() << " bytes of " << body.size();
}

TEST(BatchRowTest, ALineThatIsNoRequestSaysWhy) {
  const auto changed = [](const Json& change) {
    Json line = Json::parse(kLine);
    line.merge_patch(change);
    return line.dump();
  };
  const std::string text(limits::kMaxBatchRowBytes + 1, ' ');
  struct Case {
    std::string line, code, message;
  };
  for (const Case& one : std::vector<Case>{
           {"{\"custom_id\":", "invalid_json", "line 3: not JSON"},
           {"[1]", "invalid_request", "line 3: not an object"},
           {"\xff", "invalid_json", "line 3: not JSON"},
           {text, "line_too_long", "has 4194305 bytes; it may have 4194304"},
           {changed({{"custom_id", nullptr}}), "invalid_request", "custom_id must be"},
           {changed({{"custom_id", 5}}), "invalid_request", "custom_id must be"},
           {changed({{"custom_id", std::string(513, 'x')}}), "invalid_request", "1 to 512 bytes"},
           {changed({{"method", "GET"}}), "invalid_request", "method is \"GET\""},
           {changed({{"url", "/v1/files"}}), "invalid_request", "url is \"/v1/files\""},
           {changed({{"more", 1}}), "invalid_request", "has a field \"more\""},
           {changed({{"body", {{"stream", true}}}}), "invalid_request", "body.stream is true"},
           {changed({{"body", "x"}}), "invalid_request", "body must be an object"}}) {
    const BatchRow row = ParseBatchRow(3, one.line, kEndpoint);
    EXPECT_EQ(row.error_code, one.code) << one.line.substr(0, 100);
    EXPECT_THAT(row.error, HasSubstr(one.message));
  }
}

TEST(BatchRowTest, AnswersAreLinesThatNameTheirRow) {
  const BatchRow row{.number = 12, .custom_id = "a\"\n"};
  const std::string answered = AnsweredLine(row, 200, "r", "{\"x\":\n1}");
  EXPECT_EQ(answered.find('\n'), answered.size() - 1);
  EXPECT_EQ(Json::parse(answered),
            Json::parse(R"({"id":"batch_req_12","custom_id":"a\"\n","error":null,
                            "response":{"status_code":200,"request_id":"r","body":{"x":1}}})"));
  const Json refused = Json::parse(AnsweredLine(
      row, 400, "r", R"({"error":{"message":"top_p is 2","type":"t","param":"p","code":"c"}})"));
  EXPECT_EQ(refused["error"], Json::parse(R"({"code":"c","message":"top_p is 2"})"));
  EXPECT_EQ(refused["response"]["status_code"], 400);
  const std::string unanswered = UnansweredLine(row, "batch_expired", "late");
  EXPECT_EQ(Json::parse(unanswered)["response"], nullptr);
  for (const std::string& line : {answered, unanswered}) {
    EXPECT_EQ(AnsweredRow(line.substr(0, kRowIdBytes)), 12);
  }
  for (const std::string line : {"", "{}", R"({"id":"batch_req_)", R"({"id":"batch_req_12)",
                                 R"({"id":"batch_req_-1")", R"({"id":"batch_req_0")"}) {
    EXPECT_EQ(AnsweredRow(line), std::nullopt) << line;
  }
}

TEST(MultipartTest, PartsHaveNamesAndContents) {
  const std::string body =
      "ignored\r\n--x y\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n"
      "--x y  \r\ncontent-type: text/plain\r\n"
      "content-disposition: form-data; filename=\"a\\\"b;c.jsonl\"; name=file\r\n\r\n"
      "1\r\n--x\n2\r\n\r\n--x y\r\nContent-Disposition: form-data; name=e\r\n\r\n\r\n--x y--\r\n";
  const auto parts = ParseMultipart("Multipart/Form-Data; charset=utf-8; boundary=\"x y\"", body);
  ASSERT_TRUE(parts.ok()) << parts.status();
  ASSERT_EQ(parts->size(), 3);
  EXPECT_EQ((*parts)[0].name, "purpose");
  EXPECT_EQ((*parts)[0].content, "batch");
  EXPECT_EQ((*parts)[1].name, "file");
  EXPECT_EQ((*parts)[1].filename, "a\"b;c.jsonl");
  EXPECT_EQ((*parts)[1].content, "1\r\n--x\n2\r\n");
  EXPECT_EQ((*parts)[2].content, "");
}

TEST(MultipartTest, ABadFormIsRefused) {
  const std::string type = "multipart/form-data; boundary=b";
  const std::string part = "--b\r\nContent-Disposition: form-data; name=a\r\n\r\n1\r\n";
  std::string many;
  for (int i = 0; i < 17; ++i) many += part;
  struct Case {
    std::string type, body, message;
  };
  for (const Case& one : std::vector<Case>{
           {"application/json", part, "it must be multipart/form-data"},
           {"multipart/form-data", part, "must have a boundary"},
           {"multipart/form-data; boundary=", part, "must have a boundary"},
           {"multipart/form-data; boundary=" + std::string(71, 'b'), part, "1 to 70 bytes"},
           {"multipart/form-data" + std::string(10000, ';'), part, "must have a boundary"},
           {type, "", "was cut off"},
           {type, part, "was cut off"},
           {type, part + "--bc\r\n", "was cut off"},
           {type, part + "--b", "was cut off"},
           {type, "--b\r\n\r\n1\r\n--b--", "has no Content-Disposition"},
           {type, "--b\r\nContent-Disposition: form-data\r\n\r\n1\r\n--b--", "with a name"},
           {type, "--b\r\n" + std::string(5000, 'h') + "\r\n\r\n1\r\n--b--", "4096 bytes"},
           {type,
            "--b\r\nContent-Transfer-Encoding: base64\r\nContent-Disposition: form-data; name=a"
            "\r\n\r\n1\r\n--b--",
            "Content-Transfer-Encoding"},
           {type, many + "--b--", "more than 16 parts"}}) {
    const auto parts = ParseMultipart(one.type, one.body);
    ASSERT_FALSE(parts.ok()) << one.body.substr(0, 100);
    EXPECT_THAT(std::string(parts.status().message()), HasSubstr(one.message));
  }
}

class BatchStoreTest : public testing::Test {
 protected:
  std::unique_ptr<BatchStore> Open(int64_t max_bytes = 1 << 20) {
    auto store = BatchStore::Open({.directory = directory_.Path(),
                                   .max_bytes = max_bytes,
                                   .has_keys = true,
                                   .max_batches = 5});
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? *std::move(store) : nullptr;
  }
  static Batch NewBatch(const std::string& owner, const std::string& input) {
    Batch batch;
    batch.owner = owner;
    batch.endpoint = kEndpoint;
    batch.completion_window = "24h";
    batch.input_file_id = input;
    return batch;
  }
  size_t NumFiles() const {
    size_t num_files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(directory_.Path())) {
      num_files += entry.path().filename() == "lock" ? 0 : 1;
    }
    return num_files;
  }
  void Write(const std::string& path, const std::string& text) const {
    std::ofstream(path, std::ios::app) << text;
  }

  ScratchDirectory directory_;
};

TEST_F(BatchStoreTest, FilesAndBatchesStayOverARestart) {
  std::string file_id, batch_id;
  {
    const auto store = Open();
    const auto file = store->AddFile("alice", "in.jsonl", "a\n\n  \nb");
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(file->num_rows, 2);
    file_id = file->id;
    const auto batch = store->AddBatch(NewBatch("alice", file_id));
    ASSERT_TRUE(batch.ok()) << batch.status();
    batch_id = batch->id;
    // A second server is refused.
    EXPECT_EQ(BatchStore::Open({.directory = directory_.Path()}).status().code(),
              absl::StatusCode::kFailedPrecondition);
  }
  // What a crash leaves: contents without a description, a description that was not renamed.
  Write(StrCat(directory_.Path(), "/file-", std::string(24, 'a'), ".jsonl"), "x");
  Write(StrCat(directory_.Path(), "/", batch_id, ".json.new"), "{");
  Write(StrCat(directory_.Path(), "/notes.txt"), "the operator's");
  const auto store = Open();
  EXPECT_EQ(NumFiles(), 4);  // the file's two, the batch's, the operator's
  const auto file = store->FindFile("alice", file_id);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->filename, "in.jsonl");
  EXPECT_EQ(file->num_bytes, 7);
  const std::vector<Batch> unfinished = store->Unfinished();
  ASSERT_EQ(unfinished.size(), 1);
  EXPECT_EQ(unfinished[0].num_rows, 2);
  // Ends: the output becomes a file, the empty errors go.
  Write(store->ContentPath(unfinished[0].output_file_id), "{}\n");
  Write(store->ContentPath(unfinished[0].error_file_id), "");
  EXPECT_TRUE(store->End(batch_id, BatchState::kCompleted, "", "").ok());
  const auto ended = store->FindBatch("alice", batch_id);
  ASSERT_TRUE(ended.ok());
  EXPECT_EQ(ended->error_file_id, "");
  EXPECT_EQ(store->FindFile("alice", ended->output_file_id)->num_bytes, 3);
  EXPECT_TRUE(store->Unfinished().empty());
  EXPECT_TRUE(store->DeleteFile("alice", ended->output_file_id).ok());
  EXPECT_TRUE(store->DeleteFile("alice", file_id).ok());
  EXPECT_EQ(NumFiles(), 2);
}

TEST_F(BatchStoreTest, DescriptionsKeepTheirForm) {
  const std::string id = StrCat("batch_", std::string(24, 'b'));
  const auto text_of = [](int num_idle_starts, int state) {
    return StrCat(
        R"({"cancelling_at":6,"client":"10.0.0.1","completion_window":"24h","created_at":5,)"
        R"("ended_at":8,"endpoint":"/v1/completions","error":"why","error_code":"code",)"
        R"("error_file_id":"","expires_at":9,"id":"batch_bbbbbbbbbbbbbbbbbbbbbbbb",)"
        R"("input_file_id":"file-in","metadata":"{\"k\":1}","num_completed":1,"num_failed":2,)"
        R"("num_idle_starts":)",
        num_idle_starts,
        R"(,"num_rows":3,"order":7,"output_file_id":"file-out","owner":"alice","state":)", state,
        "}");
  };
  const std::string path = StrCat(directory_.Path(), "/", id, ".json");
  const auto read = [](const std::string& file) {
    std::ifstream stream(file);
    return std::string(std::istreambuf_iterator<char>(stream), {});
  };
  Write(path, text_of(0, 4));
  {
    const auto store = Open();
    const auto batch = store->FindBatch("alice", id);
    ASSERT_TRUE(batch.ok()) << batch.status();
    EXPECT_EQ(batch->metadata, R"({"k":1})");
    EXPECT_EQ(batch->state, BatchState::kCancelled);
    EXPECT_EQ(batch->order, 7);
    EXPECT_TRUE(store->SetIdleStarts(id, 2).ok());
    EXPECT_EQ(read(path), text_of(2, 4));
    const StoredFile file = *store->AddFile("alice", "in.jsonl", "a\n");
    EXPECT_EQ(read(StrCat(directory_.Path(), "/", file.id, ".json")),
              StrCat(R"({"created_at":)", file.created_at, R"(,"filename":"in.jsonl","id":")",
                     file.id, R"(","num_rows":1,"order":8,"owner":"alice","purpose":"batch"})"));
  }
  // A state of a later version.
  std::filesystem::remove(path);
  Write(path, text_of(0, 9));
  EXPECT_EQ(Open()->FindBatch("alice", id)->state, BatchState::kFailed);
}

TEST_F(BatchStoreTest, AnOwnerSeesItsOwn) {
  const auto store = Open();
  const std::string file = store->AddFile("alice", "a", "x\n")->id;
  const std::string batch = store->AddBatch(NewBatch("alice", file))->id;
  for (const std::string other : {"bob", ""}) {
    EXPECT_TRUE(absl::IsNotFound(store->FindFile(other, file).status()));
    EXPECT_TRUE(absl::IsNotFound(store->DeleteFile(other, file)));
    EXPECT_TRUE(absl::IsNotFound(store->FindBatch(other, batch).status()));
    EXPECT_TRUE(absl::IsNotFound(store->Cancel(other, batch).status()));
    EXPECT_TRUE(absl::IsNotFound(store->AddBatch(NewBatch(other, file)).status()));
    EXPECT_TRUE(store->Files(other).empty());
    EXPECT_TRUE(store->Batches(other).empty());
  }
  EXPECT_THAT(std::string(store->DeleteFile("alice", file).message()), HasSubstr("in use"));
  EXPECT_EQ(store->Cancel("alice", batch)->state, BatchState::kCancelling);
}

TEST_F(BatchStoreTest, LimitsAreNamed) {
  const auto store = Open(/*max_bytes=*/1000);
  EXPECT_THAT(std::string(store->AddFile("alice", "a", " \n\r\n").status().message()),
              HasSubstr("no lines"));
  EXPECT_THAT(std::string(store->AddFile("alice", "a", std::string(501, 'x')).status().message()),
              HasSubstr("exceed the 500 of --batch-max-bytes 1000"));
  ASSERT_TRUE(store->AddFile("alice", "a", std::string(500, 'x')).ok());
  ASSERT_TRUE(store->AddFile("bob", "a", std::string(400, 'x')).ok());
  const absl::Status all = store->AddFile("carol", "a", std::string(101, 'x')).status();
  EXPECT_TRUE(absl::IsResourceExhausted(all));
  EXPECT_THAT(std::string(all.message()), HasSubstr("the files of all keys have 900 bytes"));

  const std::string file = store->Files("bob")[0].id;
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(store->AddBatch(NewBatch("bob", file)).ok());
  }
  EXPECT_THAT(std::string(store->AddBatch(NewBatch("bob", file)).status().message()),
              HasSubstr("5 batches that have not ended; there may be 5"));
  // One that has ended is forgotten for a new one.
  const std::string oldest = store->Unfinished()[0].id;
  ASSERT_TRUE(store->End(oldest, BatchState::kFailed, "code", "why").ok());
  EXPECT_TRUE(store->AddBatch(NewBatch("bob", file)).ok());
  EXPECT_TRUE(absl::IsNotFound(store->FindBatch("bob", oldest).status()));
}

TEST_F(BatchStoreTest, BytesAreGivenBackAndCountedAgainAtAStart) {
  const auto add = [](BatchStore& store, const std::string& owner, size_t num_bytes) {
    return std::string(store.AddFile(owner, "a", std::string(num_bytes, 'x')).status().message());
  };
  const std::string own = "your files have 500 bytes", all = "the files of all keys have 1000";
  Batch batch;
  {
    const auto store = Open(/*max_bytes=*/1000);
    EXPECT_EQ(add(*store, "alice", 500), "");
    EXPECT_EQ(add(*store, "bob", 500), "");
    EXPECT_THAT(add(*store, "alice", 1), HasSubstr(own));
    EXPECT_THAT(add(*store, "carol", 1), HasSubstr(all));
    EXPECT_TRUE(store->DeleteFile("alice", store->Files("alice")[0].id).ok());
    ASSERT_EQ(add(*store, "alice", 100), "");
    batch = *store->AddBatch(NewBatch("alice", store->Files("alice")[0].id));
    // Its outputs, which are no files yet, count too.
    EXPECT_EQ(store->AddOutputBytes(batch.id, 400), absl::OkStatus());
    Write(store->ContentPath(batch.output_file_id), std::string(300, 'x'));
    Write(store->ContentPath(batch.error_file_id), std::string(100, 'x'));
    EXPECT_THAT(add(*store, "alice", 1), HasSubstr(own));
    EXPECT_THAT(add(*store, "carol", 1), HasSubstr(all));
  }
  {
    const auto store = Open(/*max_bytes=*/1000);
    EXPECT_THAT(add(*store, "alice", 1), HasSubstr(own));
    EXPECT_THAT(add(*store, "carol", 1), HasSubstr(all));
    EXPECT_TRUE(store->End(batch.id, BatchState::kCompleted, "", "").ok());
    EXPECT_THAT(add(*store, "alice", 1), HasSubstr(own)) << "once, as files";
  }
  const auto store = Open(/*max_bytes=*/1000);
  EXPECT_THAT(add(*store, "alice", 1), HasSubstr(own));
  EXPECT_TRUE(store->DeleteFile("alice", batch.output_file_id).ok());
  EXPECT_THAT(add(*store, "carol", 301), HasSubstr("the files of all keys have 700"));
  EXPECT_EQ(add(*store, "alice", 300), "");
}

TEST_F(BatchStoreTest, UploadsAtTheSameTimeKeepTheLimitOfFiles) {
  const auto store =
      *BatchStore::Open({.directory = directory_.Path(), .max_bytes = 1 << 30, .max_files = 3});
  const std::string content(size_t{1} << 20, 'x');  // which takes a while to write
  std::latch begin(8);
  std::atomic<int> num_added = 0;
  std::vector<std::thread> uploads;
  for (int i = 0; i < 8; ++i) {
    uploads.emplace_back([&] {
      begin.arrive_and_wait();
      num_added += store->AddFile("", "a", content).ok() ? 1 : 0;
    });
  }
  for (std::thread& upload : uploads) upload.join();
  EXPECT_EQ(num_added, 3);
  EXPECT_EQ(store->AddFile("", "a", content).status().message(),
            "you have 3 files; there may be 3; delete some");
  EXPECT_TRUE(store->DeleteFile("", store->Files("")[0].id).ok());
  EXPECT_TRUE(store->AddFile("", "a", content).ok());
}

TEST_F(BatchStoreTest, FilesThatBatchesAreGoingToMakeCount) {
  const auto store =
      *BatchStore::Open({.directory = directory_.Path(), .max_bytes = 1 << 20, .max_files = 5});
  const std::string file = store->AddFile("", "a", "x\n")->id;
  ASSERT_TRUE(store->AddFile("", "b", "x\n").ok());
  const Batch batch = *store->AddBatch(NewBatch("", file));
  const std::string full =
      "you have 2 files, and batches that have not ended may make 2; there may be 5; delete some";
  EXPECT_EQ(store->AddBatch(NewBatch("", file)).status(), absl::ResourceExhaustedError(full));
  EXPECT_EQ(store->Unfinished().size(), 1);
  ASSERT_TRUE(store->AddFile("", "c", "x\n").ok());
  EXPECT_TRUE(absl::IsResourceExhausted(store->AddFile("", "d", "x\n").status()));
  // Both outputs are written; another owner's batches do not count.
  Write(store->ContentPath(batch.output_file_id), "{}\n");
  Write(store->ContentPath(batch.error_file_id), "{}\n");
  ASSERT_TRUE(store->End(batch.id, BatchState::kCompleted, "", "").ok());
  EXPECT_EQ(store->Files("").size(), 5);
  EXPECT_EQ(store->AddBatch(NewBatch("", file)).status().message(),
            "you have 5 files; there may be 5; delete some");
  const std::string other = store->AddFile("bob", "a", "x\n")->id;
  EXPECT_TRUE(store->AddBatch(NewBatch("bob", other)).ok());
}

TEST_F(BatchStoreTest, AFileThatTheDiskKeepsIsNotDeleted) {
  const auto store = Open(/*max_bytes=*/1000);
  const std::string id = store->AddFile("alice", "a", std::string(500, 'x'))->id;
  for (const std::string suffix : {".json", ".jsonl"}) {
    // A directory, which unlink does not remove.
    const std::string path = StrCat(directory_.Path(), "/", id, suffix);
    std::filesystem::remove(path);
    std::filesystem::create_directory(path);
    const absl::Status status = store->DeleteFile("alice", id);
    EXPECT_TRUE(absl::IsInternal(status));
    EXPECT_THAT(std::string(status.message()), HasSubstr(path));
    EXPECT_TRUE(store->FindFile("alice", id).ok());
    EXPECT_TRUE(absl::IsResourceExhausted(store->AddFile("alice", "b", "x").status()));
    std::filesystem::remove(path);
  }
  EXPECT_TRUE(store->DeleteFile("alice", id).ok()) << "both are gone already";
  EXPECT_TRUE(store->AddFile("alice", "b", "x").ok());
}

TEST_F(BatchStoreTest, CountsFollowTheirBatches) {
  const auto store = Open();
  const std::string file = store->AddFile("bob", "a", "x\ny\nz\n")->id;
  const std::string first = store->AddBatch(NewBatch("bob", file))->id;
  const std::string second = store->AddBatch(NewBatch("bob", file))->id;
  const auto expect = [&](int64_t num_waiting, int64_t num_completed, int64_t num_failed) {
    const BatchCounts counts = store->Counts();
    EXPECT_EQ(counts.num_waiting, num_waiting);
    EXPECT_EQ(counts.num_completed, num_completed);
    EXPECT_EQ(counts.num_failed, num_failed);
  };
  expect(6, 0, 0);
  for (int i = 0; i < 2; ++i) {
    store->SetCounts(first, 1, 1);
    expect(4, 1, 1);
  }
  store->SetCounts(second, 3, 0);
  expect(1, 4, 1);
  store->SetCounts(first, 0, 1);  // an answer that was not written whole
  expect(2, 3, 1);
  ASSERT_TRUE(store->End(first, BatchState::kFailed, "code", "why").ok());
  expect(0, 3, 1);
  store->SetCounts(first, 1, 1);
  expect(0, 4, 1);
}

TEST_F(BatchStoreTest, ABatchThatCannotBeWrittenReplacesNone) {
  const auto store = Open();
  const std::string file = store->AddFile("bob", "a", "x\n")->id;
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(store->AddBatch(NewBatch("bob", file)).ok());
  const std::string oldest = store->Unfinished()[0].id;
  ASSERT_TRUE(store->End(oldest, BatchState::kFailed, "code", "why").ok());
  std::filesystem::remove_all(directory_.Path());
  EXPECT_TRUE(absl::IsInternal(store->AddBatch(NewBatch("bob", file)).status()));
  EXPECT_TRUE(store->FindBatch("bob", oldest).ok());
}

TEST_F(BatchStoreTest, ABatchWhoseEndCannotBeWrittenHasNotEnded) {
  const auto store = Open();
  const std::string file = store->AddFile("bob", "a", "x\n")->id;
  const Batch batch = *store->AddBatch(NewBatch("bob", file));
  Write(store->ContentPath(batch.output_file_id), "{}\n");
  const auto end = [&] { return store->End(batch.id, BatchState::kCompleted, "", ""); };
  // The descriptions cannot be written, one after the other.
  for (const std::string& id : {batch.output_file_id, batch.id}) {
    const std::string path = StrCat(directory_.Path(), "/", id, ".json.new");
    std::filesystem::create_directory(path);
    EXPECT_TRUE(absl::IsInternal(end()));
    EXPECT_EQ(store->FindBatch("bob", batch.id)->state, BatchState::kInProgress);
    EXPECT_TRUE(absl::IsNotFound(store->FindFile("bob", batch.output_file_id).status()));
    EXPECT_EQ(store->Unfinished().size(), 1);
    std::filesystem::remove(path);
  }
  EXPECT_TRUE(end().ok());
  EXPECT_EQ(store->FindBatch("bob", batch.id)->state, BatchState::kCompleted);
  EXPECT_EQ(store->FindBatch("bob", batch.id)->error_file_id, "");
  EXPECT_TRUE(store->FindFile("bob", batch.output_file_id).ok());
}

TEST_F(BatchStoreTest, ABrokenDirectoryIsRefusedWithASentence) {
  const auto missing = BatchStore::Open({.directory = "/nonexistent"});
  EXPECT_TRUE(absl::IsNotFound(missing.status()));
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("--batch-dir /nonexistent"));
  EXPECT_THAT(std::string(BatchStore::Open({.directory = "/tmp/d\xff"}).status().message()),
              HasSubstr("--batch-dir: text is not UTF-8: byte 6 of 7 is 255"));
  const std::string path = StrCat(directory_.Path(), "/batch_", std::string(24, 'b'), ".json");
  for (const std::string text : {"{", "{}", "[]", R"({"id":5})"}) {
    std::filesystem::remove(path);
    Write(path, text);
    const auto store = BatchStore::Open({.directory = directory_.Path()});
    ASSERT_FALSE(store.ok()) << text;
    EXPECT_THAT(std::string(store.status().message()), HasSubstr("is no description"));
  }
}

}  // namespace
}  // namespace lssar
