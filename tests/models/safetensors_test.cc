#include "models/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <signal.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/str_cat.h"
#include "tests/models/fixture.h"

namespace lssar {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::FloatBytes;
using ::testing::HasSubstr;
using testing::MakeRawSafetensors;
using testing::MakeSafetensors;
using testing::MessageOf;

absl::StatusOr<std::vector<TensorEntry>> Parse(const std::string& file) {
  return ParseSafetensorsHeader(std::as_bytes(std::span(file)), "f");
}

// Resident pages of mapped files, KiB.
int64_t ResidentFileKib() {
  std::ifstream status("/proc/self/status");
  int64_t kib = 0;
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssFile:")) kib += std::stoll(line.substr(8));
    if (line.starts_with("RssShmem:")) kib += std::stoll(line.substr(9));  // a file of tmpfs
  }
  EXPECT_GT(kib, 0);
  return kib;
}

TEST(SafetensorsTest, ReleasedTensorUsesNoMemoryAndReadsTheSame) {
  constexpr int64_t kElements = int64_t{8} << 20;  // 32 MiB
  const ScratchDirectory directory;
  const std::vector<float> values(kElements, 3.0f);
  const std::string path = directory.Write(
      "t.safetensors", MakeSafetensors({{"before", "F32", {1}, FloatBytes({1})},
                                        {"large", "F32", {kElements}, FloatBytes(values)},
                                        {"none", "F32", {0}, ""},
                                        {"behind", "F32", {1}, FloatBytes({2})}}));
  const absl::StatusOr<TensorFile> file = TensorFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status().message();
  const TensorView& large = *file->Find("large");
  EXPECT_EQ(large.ToFloats(), values);
  const int64_t resident_kib = ResidentFileKib();
  file->Release(large);
  EXPECT_LE(ResidentFileKib(), resident_kib - 31 * 1024);
  file->Release(*file->Find("none"));
  EXPECT_EQ(large.ToFloats(), values);
  EXPECT_THAT(file->Find("before")->ToFloats(), ElementsAre(1));
  EXPECT_THAT(file->Find("behind")->ToFloats(), ElementsAre(2));
}

TEST(SafetensorsTest, ReadsEveryType) {
  const ScratchDirectory directory;
  const std::string path = directory.Write(
      "t.safetensors",
      MakeSafetensors({{"i64", "I64", {1}, std::string("\xFE\xFF\xFF\xFF\xFF\xFF\xFF\xFF", 8)},
                       {"f32", "F32", {2, 1}, FloatBytes({1.5f, -2.0f})},
                       {"i32", "I32", {1}, std::string("\x07\0\0\0", 4)},
                       {"f16", "F16", {2}, std::string("\x00\x3C\x01\x80", 4)},
                       {"bf16", "BF16", {1}, std::string("\x80\x3F", 2)},
                       {"u8", "U8", {2}, "\xFF\x01"},
                       {"i16", "I16", {1}, "\x01\x02"},
                       {"bool", "BOOL", {2, 1}, std::string("\0\x01", 2)},
                       {"none", "U8", {0, 3}, ""}}));
  const absl::StatusOr<TensorFile> file = TensorFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_THAT(file->Find("f32")->ToFloats(), ElementsAre(1.5f, -2.0f));
  EXPECT_THAT(file->Find("f32")->shape, ElementsAre(2, 1));
  EXPECT_THAT(file->Find("f16")->ToFloats(), ElementsAre(1.0f, -0x1p-24f));
  EXPECT_THAT(file->Find("bf16")->ToFloats(), ElementsAre(1.0f));
  EXPECT_THAT(file->Find("i64")->ToInts(), ElementsAre(-2));
  EXPECT_THAT(file->Find("i32")->ToInts(), ElementsAre(7));
  EXPECT_THAT(file->Find("u8")->ToInts(), ElementsAre(255, 1));
  EXPECT_EQ(file->Find("none")->NumElements(), 0);
  EXPECT_EQ(NameOf(file->Find("i16")->type), "I16");
  EXPECT_EQ(file->Find("bool")->NumElements(), 2);
  EXPECT_EQ(file->Find("f33"), nullptr);
  EXPECT_THAT(file->Paths(), ElementsAre(path));
}

TEST(SafetensorsTest, NoSuchFile) {
  EXPECT_EQ(TensorFile::Open("/no/such/file").status().code(), absl::StatusCode::kNotFound);
  const ScratchDirectory directory;
  const absl::Status status = TensorFile::OpenModel(directory.Path()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("model.safetensors"), HasSubstr("index.json")));
  EXPECT_EQ(TensorFile::Open(directory.Path()).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(SafetensorsTest, BadHeaders) {
  const auto entry = [](std::string_view dtype, std::string_view shape, std::string_view offsets) {
    return "{\"a\":{\"dtype\":\"" + std::string(dtype) + "\",\"shape\":" + std::string(shape) +
           ",\"data_offsets\":" + std::string(offsets) + "}}";
  };
  std::string past_the_end = MakeRawSafetensors("{}", 0);
  past_the_end[0] = 100;
  std::string absurd = past_the_end;
  absurd[7] = char(0xFF);
  const std::string two =
      R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":)";
  const struct {
    std::string file;
    std::vector<std::string> parts;
  } cases[] = {
      {"", {"truncated", "0 bytes"}},
      {"\x05", {"truncated", "1 bytes"}},
      {past_the_end, {"header length", "100", "2 follow"}},
      {absurd, {"header length", "at most", "100000000"}},
      {MakeRawSafetensors("{\"a\":", 0), {"header", "not JSON"}},
      {MakeRawSafetensors("[]", 0), {"not a JSON object"}},
      {MakeRawSafetensors("{\"a\xFF\":1}", 0), {"not JSON"}},
      {MakeRawSafetensors("{\"a\":1}", 0), {"\"a\"", "must be a JSON object"}},
      {MakeRawSafetensors(R"({"__metadata__":{"x":1}})", 0), {"__metadata__", "x is 1", "string"}},
      {MakeRawSafetensors(entry("F8_E4M3", "[8]", "[0,8]"), 8), {"\"a\"", "F8_E4M3", "F32, F16"}},
      {MakeRawSafetensors(entry("F32", "[1]", "[0,8]"), 8), {"span 8 bytes", "F32 [1] takes 4"}},
      {MakeRawSafetensors(entry("F32", "[-1]", "[0,4]"), 4), {"shape", "non-negative"}},
      {MakeRawSafetensors(entry("F32", "[1.5]", "[0,4]"), 4), {"shape", "integers"}},
      {MakeRawSafetensors(entry("F32", "[1]", "[4,0]"), 4), {"[4, 0]", "must be ascending"}},
      {MakeRawSafetensors(entry("F32", "[1]", "[0]"), 4), {"data_offsets", "two"}},
      {MakeRawSafetensors(entry("F32", "[2]", "[0,8]"), 4), {"[0, 8]", "4 bytes"}},
      {MakeRawSafetensors(entry("F32", "[4294967296,4294967296]", "[0,0]"), 0), {"more than 2^64"}},
      {MakeRawSafetensors(entry("U8", "[1]", "[0,1]"), 2), {"end at byte 1 of 2"}},
      {MakeRawSafetensors(two + "[2,6]}}", 6), {"\"b\"", "overlaps", "byte 2", "must start at 4"}},
      {MakeRawSafetensors(two + "[5,9]}}", 9), {"\"b\"", "gap", "byte 5", "must start at 4"}},
      {MakeRawSafetensors(two + "[0,4]}}", 4), {"overlaps"}},
      {MakeRawSafetensors(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{}})", 1),
       {"\"a\"", "twice"}},
      {MakeRawSafetensors(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":0}})", 1),
       {"unknown field \"x\""}},
      {MakeRawSafetensors(entry("F32", "[1]", "[0,4]") + " ", 4),  // 60 bytes of header and length
       {"misaligned", "multiple of 4"}},
      {MakeRawSafetensors("{\"a\":" + std::string(200, '['), 0), {"header", "64 levels"}},
  };
  for (const auto& c : cases) {
    const absl::Status status = Parse(c.file).status();
    ASSERT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.parts.front();
    for (const std::string& part : c.parts) EXPECT_THAT(MessageOf(status), HasSubstr(part));
  }
}

// Random damage: Parse returns, and every entry lies inside the file.
TEST(SafetensorsTest, CorruptedFilesNeverReadOutOfBounds) {
  const std::string good = MakeSafetensors(
      {{"a", "F32", {2, 2}, FloatBytes({1, 2, 3, 4})}, {"b", "F16", {3}, "123456"}});
  ASSERT_TRUE(Parse(good).ok());
  std::mt19937 rng(5);
  int num_refused = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string file = good;
    for (int flips = 1 + int(rng() % 3); flips > 0; --flips) {
      file[rng() % file.size()] = char(rng());
    }
    if (rng() % 4 == 0) file.resize(rng() % file.size());
    const absl::StatusOr<std::vector<TensorEntry>> entries = Parse(file);
    num_refused += !entries.ok();
    if (!entries.ok()) continue;
    for (const TensorEntry& entry : *entries) {
      ASSERT_LE(entry.begin, entry.end);
      ASSERT_LE(entry.end, file.size());
    }
  }
  EXPECT_GT(num_refused, 5000);
}

// The header of `count` tensors without elements.
std::string ManyTensors(int count) {
  std::string header("{");
  for (int i = 0; i < count; ++i) {
    if (i > 0) header += ',';
    header += '"';
    header += std::to_string(i);
    header += R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  }
  header += '}';
  return MakeRawSafetensors(header, 0);
}

// Took minutes for 100,000 when each entry scanned the ones before it.
TEST(SafetensorsTest, AHeaderOfManyTensorsIsReadInLinearTime) {
  const absl::StatusOr<std::vector<TensorEntry>> entries = Parse(ManyTensors(200'000));
  ASSERT_TRUE(entries.ok()) << entries.status().message();
  EXPECT_EQ(entries->size(), 200'000u);
}

TEST(SafetensorsTest, LongNamesAreCutInMessages) {
  const std::string name(1'000'000, 'n');
  for (const std::string_view entry :
       {R"(":{"dtype":"F99","shape":[0],"data_offsets":[0,0]})", R"(":{"x":1})", R"(":1)"}) {
    std::string header("{\"");
    header += name;
    header += entry;
    header += '}';
    EXPECT_LT(MessageOf(Parse(MakeRawSafetensors(header, 0)).status()).size(), 600u) << entry;
  }
}

TEST(SafetensorsTest, OnlyARegularFileIsOpened) {
  const ScratchDirectory directory;
  const std::string fifo = directory.Path() + "/model.safetensors";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(MessageOf(TensorFile::Open(fifo).status()), HasSubstr("is a FIFO"));
  EXPECT_THAT(MessageOf(TensorFile::OpenModel(directory.Path()).status()), HasSubstr("a FIFO"));
  EXPECT_THAT(MessageOf(TensorFile::Open(directory.Path()).status()), HasSubstr("is a directory"));
}

// One page, so that a cut to 4096 bytes leaves the tensor's end without content.
std::string WriteLarge(const ScratchDirectory& directory) {
  return directory.Write(
      "t.safetensors",
      MakeSafetensors({{"a", "F32", {8192}, FloatBytes(std::vector<float>(8192, 1))}}));
}

TEST(SafetensorsTest, AFileThatChangesWhileItIsMappedIsNoticed) {
  const ScratchDirectory directory;
  const std::string path = WriteLarge(directory);
  const absl::StatusOr<TensorFile> file = TensorFile::Open(path);
  ASSERT_TRUE(file.ok());
  Sha256 hash;
  EXPECT_TRUE(file->AddBytesTo(&hash).ok());
  EXPECT_TRUE(file->CheckUnchanged().ok());
  std::filesystem::resize_file(path, 4096);
  EXPECT_EQ(file->CheckUnchanged().code(), absl::StatusCode::kAborted);
  Sha256 changed;
  EXPECT_THAT(MessageOf(file->AddBytesTo(&changed)), HasSubstr("was changed while it was read"));
}

// A reload maps files while calls run: the process goes on.
TEST(SafetensorsTest, AFileThatIsTruncatedWhileItIsMappedReadsAsZerosAndIsNoticed) {
  const ScratchDirectory directory;
  const std::string path = WriteLarge(directory);
  const auto whole = std::filesystem::file_size(path);
  const auto written = std::filesystem::last_write_time(path);
  const absl::StatusOr<TensorFile> other = TensorFile::Open(
      directory.Write("u.safetensors", MakeSafetensors({{"b", "F32", {1}, FloatBytes({2})}})));
  ASSERT_TRUE(other.ok());
  {
    const absl::StatusOr<TensorFile> file = TensorFile::Open(path);
    ASSERT_TRUE(file.ok());
    std::filesystem::resize_file(path, 4096);
    const TensorView& tensor = *file->Find("a");
    for (int i = 0; i < 2; ++i) {
      const std::vector<float> values = tensor.ToFloats();
      EXPECT_EQ(values.front(), 1);
      EXPECT_EQ(values.back(), 0);
      file->Release(tensor);
    }
    EXPECT_EQ(file->CheckUnchanged().code(), absl::StatusCode::kAborted);
    // What a disk that fails leaves: the file is as it was.
    std::filesystem::resize_file(path, whole);
    std::filesystem::last_write_time(path, written);
    EXPECT_EQ(file->CheckUnchanged().code(), absl::StatusCode::kAborted);
    EXPECT_THAT(MessageOf(file->CheckUnchanged()),
                HasSubstr("t.safetensors: a part of the file could not be read"));
    EXPECT_TRUE(other->CheckUnchanged().ok());
  }
  EXPECT_TRUE(TensorFile::Open(path)->CheckUnchanged().ok());
  EXPECT_THAT(other->Find("b")->ToFloats(), ElementsAre(2.0f));
}

TEST(SafetensorsTest, TheSignalHandlerEndsWithTheLastFile) {
  struct sigaction before, during, after;
  ASSERT_EQ(sigaction(SIGBUS, nullptr, &before), 0);
  {
    const ScratchDirectory directory;
    const absl::StatusOr<TensorFile> file = TensorFile::Open(WriteLarge(directory));
    const absl::StatusOr<TensorFile> again = TensorFile::Open(directory.Path() + "/t.safetensors");
    ASSERT_EQ(sigaction(SIGBUS, nullptr, &during), 0);
  }
  ASSERT_EQ(sigaction(SIGBUS, nullptr, &after), 0);
  EXPECT_NE(during.sa_sigaction, before.sa_sigaction);
  EXPECT_EQ(after.sa_sigaction, before.sa_sigaction);
}

class ShardTest : public ::testing::Test {
 protected:
  absl::StatusOr<TensorFile> OpenWith(const std::string& weight_map) {
    directory_.Write("one.safetensors", MakeSafetensors({{"a", "F32", {1}, FloatBytes({1})}}));
    directory_.Write("two.safetensors", MakeSafetensors({{"b", "F32", {1}, FloatBytes({2})}}));
    directory_.Write("model.safetensors.index.json",
                     "{\"metadata\": {\"total_size\": 8}, \"weight_map\": " + weight_map + "}");
    return TensorFile::OpenModel(directory_.Path());
  }
  ScratchDirectory directory_;
};

TEST_F(ShardTest, LoadsAllShards) {
  const absl::StatusOr<TensorFile> file =
      OpenWith(R"({"a": "one.safetensors", "b": "two.safetensors"})");
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_THAT(file->Find("a")->ToFloats(), ElementsAre(1.0f));
  EXPECT_THAT(file->Find("b")->ToFloats(), ElementsAre(2.0f));
  EXPECT_EQ(file->Paths().size(), 2u);
}

TEST_F(ShardTest, BadIndex) {
  EXPECT_THAT(MessageOf(OpenWith(R"({"a": "one.safetensors", "c": "two.safetensors"})").status()),
              AllOf(HasSubstr("\"c\""), HasSubstr("not in two.safetensors")));
  EXPECT_THAT(MessageOf(OpenWith(R"({"a": "two.safetensors", "b": "two.safetensors"})").status()),
              HasSubstr("\"a\""));
  EXPECT_THAT(MessageOf(OpenWith(R"({"a": "two.safetensors", "b": "one.safetensors"})").status()),
              HasSubstr("tensor \"b\" is not in one.safetensors"));
  EXPECT_THAT(MessageOf(OpenWith(R"({"a": "../one.safetensors"})").status()),
              AllOf(HasSubstr("../one"), HasSubstr("beside the index")));
  EXPECT_THAT(MessageOf(OpenWith(R"({"a": 1})").status()), HasSubstr("must be a string"));
  EXPECT_EQ(OpenWith(R"({"a": "three.safetensors"})").status().code(), absl::StatusCode::kNotFound);
  directory_.Write("model.safetensors.index.json", "{}");
  EXPECT_THAT(MessageOf(TensorFile::OpenModel(directory_.Path()).status()),
              HasSubstr("weight_map is missing"));
}

TEST(SafetensorsTest, TheBytesOfEveryTypeAreChecked) {
  for (const auto& [type, num_bytes] : std::vector<std::pair<std::string, size_t>>{
           {"BOOL", 1}, {"I16", 2}, {"U16", 2}, {"U32", 4}, {"F64", 8}, {"U64", 8}}) {
    const auto problem = [&](size_t count) {
      const std::string file = MakeSafetensors({{"a", type, {3}, std::string(count, 'x')}});
      return StrCat(ParseSafetensorsHeader(std::as_bytes(std::span(file)), "f").status().message());
    };
    EXPECT_EQ(problem(3 * num_bytes), "");
    for (const size_t wrong : {3 * num_bytes - 1, 3 * num_bytes + 1, size_t{0}}) {
      EXPECT_THAT(problem(wrong), HasSubstr(StrCat("but ", type, " [3] takes ", 3 * num_bytes)));
    }
  }
}

TEST_F(ShardTest, TensorInTwoShards) {
  directory_.Write("three.safetensors", MakeSafetensors({{"a", "F32", {1}, FloatBytes({3})}}));
  EXPECT_THAT(MessageOf(OpenWith(R"({"a": "one.safetensors", "b": "three.safetensors"})").status()),
              AllOf(HasSubstr("\"a\""), HasSubstr("earlier shard")));
}

}  // namespace
}  // namespace lssar
