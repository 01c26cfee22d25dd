#include "server/auth/api_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "base/error_details.h"
#include "base/str_cat.h"
#include "server/auth/access_control.h"
#include "server/auth/admission_control.h"
#include "tests/server/captured_log.h"
#include "tests/server/resident_memory.h"
#include "tests/support/scratch_directory.h"

namespace lssar {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kKey[] = "correct-horse-battery";
// printf %s correct-horse-battery | sha256sum
constexpr char kDigest[] = "62249369389075490555a758353aec61500c6218fa597252d52dc4bd0148f12d";

std::string Section(const std::string& name, const std::string& entries) {
  return StrCat("[", name, "]\n", entries, "\n");
}

TEST(ApiKeysTest, KeysAreFoundWhetherGivenAsTextOrAsHash) {
  const std::string plain = Section("alice", "key = \"correct-horse-battery\"");
  const std::string hashed = Section("alice", std::string("sha256 = \"") + kDigest + "\"");
  for (const std::string& text : {plain, hashed}) {
    const auto keys = ApiKeys::Parse(text);
    ASSERT_TRUE(keys.ok()) << keys.status();
    const ApiKey* key = keys->Find(kKey);
    ASSERT_NE(key, nullptr);
    EXPECT_EQ(key->name, "alice");
    EXPECT_EQ(key->role, KeyRole::kUser);
    EXPECT_EQ(key->limits.max_concurrent, 0);
    EXPECT_EQ(key->limits.requests_per_minute, 0);
    EXPECT_EQ(key->limits.tokens_per_minute, 0);
    EXPECT_EQ(keys->Find("correct-horse-batterz"), nullptr);
    EXPECT_EQ(keys->Find(""), nullptr);
    EXPECT_EQ(keys->Find(kDigest), nullptr);
  }
}

TEST(ApiKeysTest, EachSectionDefinesAKeyWithRoleAndLimits) {
  const auto keys = ApiKeys::Parse(
      "# who may call\n"
      "[alice]\nkey = \"alice-alice-alice-alice\"\nrole = \"admin\"\n"
      "[bob_2]\nkey = \"bob-bob-bob-bob-bob\"  # not an admin\nrole = \"user\"\n"
      "max-concurrent = 4\nrequests-per-minute = 60\ntokens-per-minute = 5000000000\n");
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_EQ(keys->All().size(), 2u);
  EXPECT_EQ(keys->Find("alice-alice-alice-alice")->role, KeyRole::kAdmin);
  const ApiKey* bob = keys->Find("bob-bob-bob-bob-bob");
  ASSERT_NE(bob, nullptr);
  EXPECT_EQ(bob->name, "bob_2");
  EXPECT_EQ(bob->role, KeyRole::kUser);
  EXPECT_EQ(bob->limits.max_concurrent, 4);
  EXPECT_EQ(bob->limits.requests_per_minute, 60);
  EXPECT_EQ(bob->limits.tokens_per_minute, 5'000'000'000);
}

// Each way of TOML to write the same entry, and characters that only strings may hold.
TEST(ApiKeysTest, KeysAreFoundHoweverTheFileSpellsThem) {
  const auto finds = [](const std::string& text, const std::string& key) {
    const auto keys = ApiKeys::Parse(text);
    EXPECT_TRUE(keys.ok()) << keys.status() << text;
    return keys.ok() && keys->Find(key) != nullptr;
  };
  EXPECT_TRUE(finds("alice.key = \"correct-horse-battery\"", kKey));
  EXPECT_TRUE(finds("alice = {key = \"correct-horse-battery\"}", kKey));
  EXPECT_TRUE(finds("[alice]  # a note\nkey = 'correct-horse-battery'", kKey));
  EXPECT_TRUE(finds("[a]\nkey = \"with#hash,comma[bracket]\"", "with#hash,comma[bracket]"));
  EXPECT_TRUE(finds("[a]\nkey = \"with\\\"quote\\\\slash\"", "with\"quote\\slash"));
}

struct BadFile {
  const char* name;
  std::string text;
  std::string sentence;
};

class BadFileTest : public testing::TestWithParam<BadFile> {};

TEST_P(BadFileTest, IsRejectedWithoutRevealingTheKey) {
  const auto keys = ApiKeys::Parse(GetParam().text);
  ASSERT_EQ(keys.status().code(), absl::StatusCode::kInvalidArgument) << keys.status();
  const std::string message(keys.status().message());
  EXPECT_THAT(message, HasSubstr(GetParam().sentence));
  EXPECT_THAT(message, Not(HasSubstr("secret")));
}

const std::string kGood = "key = \"secret-secret-secret\"\n";

const std::string kManyNames = [] {
  std::string names("a");
  for (int i = 0; i < 1500; ++i) names += ".a";
  return names + ".";
}();

INSTANTIATE_TEST_SUITE_P(
    ApiKeys, BadFileTest,
    testing::Values(
        BadFile{"Empty", "", "the file contains no key"},
        BadFile{"NoSection", kGood, "every entry must be in a section [NAME]"},
        BadFile{"BareKey", "secret-secret-secret\n", "line 1 is not valid TOML"},
        BadFile{"BareKeyInSection", Section("a", "secret-secret-secret"),
                "line 2 is not valid TOML"},
        BadFile{"UnquotedKey", Section("a", "key = secret-secret-secret"),
                "line 2 is not valid TOML"},
        BadFile{"NumberAsKey", Section("a", "key = 1234567890123456"),
                "[a]: key must be in quotes"},
        BadFile{"UnknownEntry", Section("a", "secret-secret-secret = 1"),
                "[a]: unknown entry; the entries are key, sha256"},
        BadFile{"Array", Section("a", "key = [\"secret-secret-secret\"]"), "have one value"},
        BadFile{"ArrayOfSections", "[[a]]\n" + kGood, "every entry must be in a section"},
        BadFile{"DeepName", kManyNames + kGood, "every entry must be in a section"},
        BadFile{"LongLine", Section("a", StrCat("#", std::string(5000, 'x'))),
                "line 2 has 5001 bytes, must have at most 4096"},
        BadFile{"DotFirst", "[.a]\n" + kGood, "not valid TOML"},
        BadFile{"NotUtf8", "\xFF\xFE", "line 1 is not valid TOML"},
        BadFile{"NestedSection", Section("a.b", kGood), "section [NAME]"},
        BadFile{"LongName", Section(std::string(65, 'a'), kGood), "of 1 to 64 characters"},
        BadFile{"NoKey", Section("a", "role = \"user\""), "[a]: key or sha256 is missing"},
        BadFile{"EmptySection", Section("a", ""), "[a]: key or sha256 is missing"},
        BadFile{"ShortKey", Section("a", "key = \"secret\""), "key must have 16 to 256"},
        BadFile{"KeyWithSpace", Section("a", "key = \"secret secret secret\""), "no space"},
        BadFile{"KeyNotAscii", Section("a", "key = \"secret-secret-secr\u00e9t\""), "printable"},
        BadFile{"TwoKeys", Section("a", kGood + kGood), "line 3 is not valid TOML"},
        BadFile{"KeyAndHash", Section("a", kGood + "sha256 = \"secret\""),
                "[a]: set either key or sha256, not both"},
        BadFile{"ShortHash", Section("a", "sha256 = \"abcd\""), "sha256 must be the 64 hex digits"},
        BadFile{"NotHex", Section("a", StrCat("sha256 = \"", std::string(64, 'g'), "\"")),
                "sha256 must be the 64 hex digits"},
        BadFile{"Role", Section("a", kGood + "role = \"secret-secret-secret\""),
                "[a]: role must be \"user\" or \"admin\""},
        BadFile{"Limit", Section("a", kGood + "max-concurrent = -1"),
                "[a]: max-concurrent must be a whole number in [0, 2147483647]"},
        BadFile{"Priority", Section("a", kGood + "max-priority = 11"),
                "[a]: max-priority must be a whole number in [-10, 10]"},
        BadFile{"LimitText", Section("a", kGood + "tokens-per-minute = \"many\""),
                "[a]: tokens-per-minute must be a whole number"},
        BadFile{"SectionTwice", Section("a", kGood) + Section("a", "role = \"admin\""),
                "line 4 is not valid TOML"},
        BadFile{"SameKeyTwice", Section("a", kGood) + Section("b", kGood),
                "[b]: has the same key as [a]"}),
    [](const auto& test) { return test.param.name; });

class KeyFileTest : public testing::Test {
 protected:
  KeyFileTest() { Write(Section("a", "key = \"key-number-1-of-alice\"")); }

  void Write(const std::string& text) const { directory_.Write("keys.toml", text); }
  std::string Error() const {
    return std::string(AccessControl::Open(path_, &log_).status().message());
  }

  const ScratchDirectory directory_;
  const std::string path_ = directory_.Path("keys.toml");
  const Log log_{"info"};
};

TEST_F(KeyFileTest, CallsRefusalsAndTokensAreCountedByKey) {
  Write(Section("alice", "key = \"key-number-1-of-alice\"\nmax-concurrent = 1") +
        Section("idle", "key = \"key-number-2-of-idle\""));
  const auto control = AccessControl::Open(path_, &log_);
  ASSERT_TRUE(control.ok());
  const auto alice = (*control)->Authenticate("Bearer key-number-1-of-alice", KeyRole::kUser);
  ASSERT_TRUE(alice.ok());
  EXPECT_TRUE((*control)->Counts().empty());
  EXPECT_TRUE((*alice)->Acquire(Clock::now()).ok());
  EXPECT_FALSE((*alice)->Acquire(Clock::now()).ok());
  (*alice)->CountTokens(70, 70, Clock::now());
  (*alice)->CountRejection();
  const auto counts = (*control)->Counts();
  ASSERT_EQ(counts.size(), 1u);
  EXPECT_EQ(counts.at("alice").num_calls, 1);
  EXPECT_EQ(counts.at("alice").num_refused, 2);
  EXPECT_EQ(counts.at("alice").num_tokens, 70);
}

TEST_F(KeyFileTest, SpacesMayFollowTheScheme) {
  Write(Section("alice", "key = \"key-number-1-of-alice\""));
  const auto control = AccessControl::Open(path_, &log_);
  ASSERT_TRUE(control.ok());
  for (const char* authorization : {"Bearer key-number-1-of-alice", "bearer  key-number-1-of-alice",
                                    "Bearer    key-number-1-of-alice "}) {
    EXPECT_TRUE((*control)->Authenticate(authorization, KeyRole::kUser).ok()) << authorization;
  }
  for (const char* authorization : {"Bearerkey-number-1-of-alice", "Bearer ", "Bearer  x"}) {
    EXPECT_FALSE((*control)->Authenticate(authorization, KeyRole::kUser).ok()) << authorization;
  }
}

TEST_F(KeyFileTest, OnlyARegularFileIsRead) {
  EXPECT_EQ(Error(), "");
  std::filesystem::remove(path_);
  EXPECT_EQ(Error(), "--api-keys " + path_ + ": No such file or directory");
  std::filesystem::create_directory(path_);
  EXPECT_EQ(Error(), "--api-keys " + path_ + ": is a directory, must be a regular file");
  std::filesystem::remove(path_);
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_EQ(Error(), "--api-keys " + path_ + ": is a FIFO, must be a regular file");
  Write(std::string((4 << 20) + 1, '#'));
  EXPECT_THAT(Error(), HasSubstr("has 4194305 bytes, must have at most 4194304"));
}

TEST_F(KeyFileTest, ABadReloadKeepsTheKeysAndIsLoggedOnce) {
  const auto control = AccessControl::Open(path_, &log_);
  ASSERT_TRUE(control.ok());
  const auto knows = [&](const std::string& key) {
    return (*control)->Authenticate("Bearer " + key, KeyRole::kUser).ok();
  };
  const auto wait = [] { std::this_thread::sleep_for(std::chrono::milliseconds(550)); };
  ASSERT_TRUE(knows("key-number-1-of-alice"));
  CaptureLog();
  for (const std::string& bad :
       {std::string("alice.key = \"\""), std::string("[x"), std::string()}) {
    Write(bad);
    for (int i = 0; i < 2; ++i) {
      wait();
      EXPECT_TRUE(knows("key-number-1-of-alice")) << bad;
    }
  }
  std::filesystem::remove(path_);
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  wait();
  EXPECT_TRUE(knows("key-number-1-of-alice"));
  const std::string lines = CapturedLog();
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 4) << lines;
  EXPECT_THAT(lines, HasSubstr("is a FIFO"));
  EXPECT_THAT(lines, HasSubstr("the old keys stay"));
  Write(Section("a", "key = \"key-number-2-of-alice\""));
  wait();
  EXPECT_TRUE(knows("key-number-2-of-alice"));
  EXPECT_FALSE(knows("key-number-1-of-alice"));
}

// Each of gRPC's threads that reloads must not keep the parser's memory for itself.
TEST_F(KeyFileTest, ReloadsOnManyThreadsKeepNoMemory) {
  std::string text;
  for (int i = 0; text.size() < 1'000'000; ++i) {
    text += StrCat("[user-", i, "]\nkey = \"key-of-user-", i, "-xyz\"\n");
  }
  Write(text);
  const auto control = AccessControl::Open(path_, &log_);
  ASSERT_TRUE(control.ok()) << control.status();
  CaptureLog();
  // As in the server. By itself glibc raises both when a large buffer is freed, in an earlier test
  // of this program for example.
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
  mallopt(M_TRIM_THRESHOLD, 128 << 10);
  int64_t after_first = 0;
  std::vector<std::thread> threads;
  std::promise<void> end;
  const std::shared_future<void> has_ended = end.get_future().share();
  for (int i = 0; i < 6; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(550));
    Write(text);
    std::promise<void> is_read;
    threads.emplace_back([&] {
      EXPECT_TRUE((*control)->Authenticate("Bearer key-of-user-77-xyz", KeyRole::kUser).ok());
      is_read.set_value();
      has_ended.wait();
    });
    is_read.get_future().wait();
    if (i == 0) after_first = ResidentMib();
  }
  // Shadow memory grows with every thread, and AddressSanitizer keeps freed memory for a while.
  if (!LSSAR_SANITIZED) {
    EXPECT_LE(ResidentMib(), after_first + 24);
  }
  end.set_value();
  for (std::thread& thread : threads) thread.join();
  const std::string lines = CapturedLog();
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 6) << lines;
}

const Clock::time_point kStart = Clock::time_point(seconds(1000));

TEST(KeyUsageTest, ConcurrentCallsAreBounded) {
  KeyUsage usage("alice");
  usage.SetLimits({.max_concurrent = 2});
  EXPECT_TRUE(usage.Acquire(kStart).ok());
  EXPECT_TRUE(usage.Acquire(kStart).ok());
  const absl::Status refused = usage.Acquire(kStart);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("key alice has 2 running calls (max-concurrent = 2)"));
  usage.Release();
  EXPECT_TRUE(usage.Acquire(kStart).ok());
}

TEST(KeyUsageTest, RequestsRefillAtTheirRate) {
  KeyUsage usage("alice");
  usage.SetLimits({.requests_per_minute = 6});
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(usage.Acquire(kStart).ok());
  EXPECT_THAT(std::string(usage.Acquire(kStart).message()), HasSubstr("requests-per-minute = 6"));
  usage.ReturnRequest();
  EXPECT_TRUE(usage.Acquire(kStart).ok()) << "the row that was refused was no request";
  EXPECT_FALSE(usage.Acquire(kStart + seconds(9)).ok());
  EXPECT_TRUE(usage.Acquire(kStart + seconds(10)).ok());
  EXPECT_FALSE(usage.Acquire(kStart + seconds(10)).ok());
  // The bucket never holds more than one minute's worth.
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(usage.Acquire(kStart + seconds(10'000)).ok());
  EXPECT_FALSE(usage.Acquire(kStart + seconds(10'000)).ok());
}

TEST(KeyUsageTest, TokenDebtRefillsFirst) {
  KeyUsage usage("alice");
  usage.SetLimits({.tokens_per_minute = 600});
  EXPECT_TRUE(usage.Acquire(kStart).ok());
  usage.CountTokens(900, 900, kStart);  // 300 over: 30 s, plus 100 ms for one token
  EXPECT_THAT(std::string(usage.Acquire(kStart).message()), HasSubstr("tokens-per-minute = 600"));
  EXPECT_FALSE(usage.Acquire(kStart + seconds(30)).ok());
  EXPECT_TRUE(usage.Acquire(kStart + seconds(31)).ok());
}

TEST(KeyUsageTest, SequencesAreBoundedUntilTheRequestsEnd) {
  const auto usage = std::make_shared<KeyUsage>("alice");
  usage->SetLimits({.max_sequences = 20});
  auto first = usage->AddRequest(16, 0);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(usage->AddRequest(8, 0).status(),
            LimitError(error_reason::kMaxSequences,
                       "n = 8 sequences and the 16 of key alice's other requests "
                       "are 24, over its max-sequences = 20"));
  EXPECT_TRUE(usage->AddRequest(4, 0).ok());
  first = RequestLease();
  EXPECT_TRUE(usage->AddRequest(20, 0).ok());
  EXPECT_EQ(usage->AddRequest(21, 0).status(),
            absl::PermissionDeniedError("n = 21 is over max-sequences = 20 of key alice"));
}

TEST(KeyUsageTest, WaitingRequestsAreBoundedUntilTheyAreAdmitted) {
  const auto usage = std::make_shared<KeyUsage>("alice");
  usage->SetLimits({.max_queued = 2});
  auto first = usage->AddRequest(1, 0);
  auto second = usage->AddRequest(1, 0);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(
      usage->AddRequest(1, 0).status(),
      LimitError(error_reason::kMaxQueued, "key alice has 2 waiting requests (max-queued = 2)"));
  first->EndWait();
  first->EndWait();
  auto third = usage->AddRequest(1, 0);
  EXPECT_TRUE(third.ok());
  EXPECT_FALSE(usage->AddRequest(1, 0).ok());
  *second = RequestLease();  // ends while it waits
  EXPECT_TRUE(usage->AddRequest(1, 0).ok());
}

TEST(KeyUsageTest, ThePriorityHasACeiling) {
  const auto usage = std::make_shared<KeyUsage>("192.0.2.1", /*is_key=*/false);
  usage->SetLimits({}, {.max_priority = 2});
  EXPECT_TRUE(usage->AddRequest(1, 2).ok());
  EXPECT_EQ(usage->AddRequest(1, 3).status(),
            absl::PermissionDeniedError("priority = 3 (over HTTP -3) is over "
                                        "max-priority = 2 of client 192.0.2.1"));
  usage->SetLimits({.max_priority = 3}, {.max_priority = 2});
  EXPECT_TRUE(usage->AddRequest(1, 3).ok()) << "the key's own limit";
}

TEST(KeyUsageTest, TokensAreReservedAndRefunded) {
  KeyUsage usage("alice");
  usage.SetLimits({.tokens_per_minute = 600});
  const absl::Status refused = usage.ReserveTokens(601, kStart).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(refused.message(),
            "the request may use 601 tokens (prompts + n x max_tokens), and key alice has "
            "tokens-per-minute = 600");
  const auto reserved = usage.ReserveTokens(400, kStart);
  ASSERT_TRUE(reserved.ok());
  EXPECT_EQ(reserved->num_tokens, 400);
  EXPECT_THAT(std::string(usage.ReserveTokens(300, kStart).status().message()),
              HasSubstr("more than is left of tokens-per-minute = 600 of key alice"));
  usage.RefundTokens({.num_tokens = 100, .per_minute = reserved->per_minute});
  EXPECT_TRUE(usage.ReserveTokens(300, kStart).ok()) << "100 came back";
  EXPECT_FALSE(usage.ReserveTokens(1, kStart).ok());
  EXPECT_TRUE(usage.ReserveTokens(1, kStart + seconds(1)).ok()) << "10 tokens refill in a second";
}

TEST(KeyUsageTest, WhatWasReservedWithoutALimitIsNotRefunded) {
  KeyUsage usage("alice");
  const auto reserved = usage.ReserveTokens(500, kStart);
  ASSERT_TRUE(reserved.ok());
  EXPECT_EQ(reserved->num_tokens, 0);
  usage.SetLimits({.tokens_per_minute = 600});
  EXPECT_TRUE(usage.ReserveTokens(600, kStart).ok());
  usage.RefundTokens(*reserved);
  EXPECT_FALSE(usage.ReserveTokens(1, kStart).ok()) << "the other call has taken a minute's tokens";
}

TEST(KeyUsageTest, ARefundLastsAsLongAsWhatItGivesBack) {
  KeyUsage usage("alice");
  usage.SetLimits({.tokens_per_minute = 600});
  const auto reserved = usage.ReserveTokens(300, kStart);  // 30 s
  ASSERT_TRUE(reserved.ok());
  usage.SetLimits({.tokens_per_minute = 60});
  EXPECT_TRUE(usage.ReserveTokens(30, kStart).ok());
  EXPECT_FALSE(usage.ReserveTokens(1, kStart).ok());
  usage.RefundTokens(*reserved);
  const auto later = usage.ReserveTokens(30, kStart);
  ASSERT_TRUE(later.ok());
  EXPECT_FALSE(usage.ReserveTokens(1, kStart).ok()) << "the other call's tokens came back, too";
  usage.SetLimits({});
  usage.RefundTokens(*later);
  usage.SetLimits({.tokens_per_minute = 60});
  EXPECT_TRUE(usage.ReserveTokens(30, kStart).ok()) << "what came back while there was no limit";
}

// The key gets its limit by a reload, while the call runs.
TEST(AdmissionPermitTest, TokensUsedUnderALimitThatCameLaterAreCharged) {
  const Log log("off");
  const auto access = AccessControl::Open("", &log);
  ASSERT_TRUE(access.ok());
  AdmissionControl admission(2, access->get());
  int model = 0;  // only its address is used
  admission.Open(static_cast<LoadedModel*>(static_cast<void*>(&model)));
  const auto usage = std::make_shared<KeyUsage>("alice");
  {
    auto permit = admission.Admit({.caller = usage});
    ASSERT_TRUE(permit.ok());
    EXPECT_TRUE(permit->ReserveTokens(1'000'000'000).ok());
    permit->CountTokens(1000);
    usage->SetLimits({.tokens_per_minute = 600});
    EXPECT_TRUE(usage->Acquire(Clock::now()).ok()) << "1000 tokens were free";
    usage->Release();
    permit->CountTokens(1'000'000);  // a day's
  }
  EXPECT_THAT(std::string(usage->Acquire(Clock::now()).message()),
              HasSubstr("has used up its tokens-per-minute = 600"));
}

// Until it is a while ago the server does not end: a proxy still sends calls here.
TEST(AdmissionControlTest, TellsTheLastRefusalOfAClosedServer) {
  const Log log("off");
  const auto access = AccessControl::Open("", &log);
  ASSERT_TRUE(access.ok());
  AdmissionControl admission(2, access->get());
  EXPECT_FALSE(admission.Admit({}).ok()) << "it is loading";
  admission.Close(absl::UnavailableError("closed"));
  EXPECT_EQ(admission.LastRefusal(), Clock::time_point());
  const auto before_call = Clock::now();
  EXPECT_EQ(admission.Admit({}).status(), absl::UnavailableError("closed"));
  EXPECT_GE(admission.LastRefusal(), before_call);
}

// No burst is larger than a minute's worth, however many calls begin at once.
TEST(KeyUsageTest, ManyCallsAtOnceGetOneMinutesTokens) {
  KeyUsage usage("alice");
  usage.SetLimits({.tokens_per_minute = 1000});
  int num_calls = 0;
  for (int i = 0; i < 300; ++i) num_calls += usage.ReserveTokens(300, kStart).ok();
  EXPECT_EQ(num_calls, 3);
}

// Otherwise a batch keeps its owner from everything, its own cancellation too.
TEST(KeyUsageTest, RowsOfBatchesTakeNoPlaceFromTheOtherCalls) {
  const auto usage = std::make_shared<KeyUsage>("alice");
  usage->SetLimits({.max_concurrent = 1, .max_sequences = 2, .max_queued = 1});
  EXPECT_TRUE(usage->Acquire(kStart, CallSource::kBatch).ok());
  EXPECT_FALSE(usage->Acquire(kStart, CallSource::kBatch).ok());
  EXPECT_TRUE(usage->Acquire(kStart).ok());
  EXPECT_FALSE(usage->Acquire(kStart).ok());
  auto row = usage->AddRequest(2, 0, CallSource::kBatch);
  EXPECT_TRUE(row.ok());
  EXPECT_FALSE(usage->AddRequest(1, 0, CallSource::kBatch).ok());
  const auto call = usage->AddRequest(2, 0);
  EXPECT_TRUE(call.ok());
  EXPECT_FALSE(usage->AddRequest(1, 0).ok());
  // Each gives back its own.
  *row = RequestLease();
  usage->Release(CallSource::kBatch);
  EXPECT_FALSE(usage->Acquire(kStart).ok());
  EXPECT_FALSE(usage->AddRequest(1, 0).ok());
  EXPECT_TRUE(usage->Acquire(kStart, CallSource::kBatch).ok());
  EXPECT_TRUE(usage->AddRequest(2, 0, CallSource::kBatch).ok());
  EXPECT_EQ(usage->Counts().num_refused, 2) << "a row that is refused begins again";
}

// The counts are a client's own calls, and a row once, however often it begins.
TEST(KeyUsageTest, ARowThatBeginsAgainIsOneCall) {
  KeyUsage usage("alice");
  EXPECT_TRUE(usage.Acquire(kStart).ok());
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(usage.Acquire(kStart, CallSource::kBatch).ok());
    usage.Release(CallSource::kBatch);
    i < 2 ? usage.ReturnRequest() : usage.CountRow();
    EXPECT_EQ(usage.Counts().num_calls, i < 2 ? 1 : 2);
  }
}

TEST(KeyUsageTest, RowsOfBatchesLeaveHalfOfTheRates) {
  KeyUsage usage("alice");
  usage.SetLimits({.requests_per_minute = 6, .tokens_per_minute = 600});
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(usage.Acquire(kStart, CallSource::kBatch).ok());
  EXPECT_FALSE(usage.Acquire(kStart, CallSource::kBatch).ok());
  EXPECT_TRUE(usage.ReserveTokens(250, kStart, CallSource::kBatch).ok());
  EXPECT_FALSE(usage.ReserveTokens(51, kStart, CallSource::kBatch).ok());
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(usage.Acquire(kStart).ok());
  EXPECT_FALSE(usage.Acquire(kStart).ok());
  EXPECT_TRUE(usage.ReserveTokens(350, kStart).ok());
  // A row of more than half may run when all is there.
  EXPECT_FALSE(usage.ReserveTokens(500, kStart + seconds(59), CallSource::kBatch).ok());
  EXPECT_TRUE(usage.ReserveTokens(500, kStart + seconds(60), CallSource::kBatch).ok());
}

TEST(AccessControlTest, AddressesHaveTheServersLimits) {
  const Log log("off");
  const auto without = AccessControl::Open("", &log);
  ASSERT_TRUE(without.ok());
  EXPECT_EQ((*without)->OfAddress("192.0.2.1"), nullptr) << "no limits";
  const auto with = AccessControl::Open("", &log, {.max_sequences = 4});
  ASSERT_TRUE(with.ok());
  const auto one = (*with)->OfAddress("192.0.2.1");
  EXPECT_EQ((*with)->OfAddress("192.0.2.1"), one);
  EXPECT_NE((*with)->OfAddress("192.0.2.2"), one);
  const auto lease = one->AddRequest(4, 10);
  EXPECT_TRUE(lease.ok());
  EXPECT_FALSE(one->AddRequest(1, 0).ok());
}

TEST(KeyUsageTest, NewLimitsKeepPastUsage) {
  KeyUsage usage("alice");
  usage.SetLimits({.requests_per_minute = 2});
  EXPECT_TRUE(usage.Acquire(kStart).ok());
  EXPECT_TRUE(usage.Acquire(kStart).ok());
  usage.SetLimits({.requests_per_minute = 2});
  EXPECT_FALSE(usage.Acquire(kStart).ok());
  usage.SetLimits({.requests_per_minute = 6});
  EXPECT_FALSE(usage.Acquire(kStart + seconds(9)).ok());
  EXPECT_TRUE(usage.Acquire(kStart + seconds(10)).ok());
  usage.SetLimits({});
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(usage.Acquire(kStart).ok());
}

}  // namespace
}  // namespace lssar
