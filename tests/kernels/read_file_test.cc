#include "base/read_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "tests/support/scratch_directory.h"

namespace lssar {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class ReadFileTest : public testing::Test {
 protected:
  std::string Path(const std::string& name) const { return directory_.Path(name); }
  std::string Write(const std::string& name, const std::string& bytes) const {
    return directory_.Write(name, bytes);
  }

  const ScratchDirectory directory_;
};

TEST_F(ReadFileTest, ReadsTheWholeFileUpToItsBound) {
  const std::string bytes = std::string(300'000, 'x') + std::string("\0end", 4);
  const std::string path = Write("a", bytes);
  std::filesystem::create_symlink(path, Path("link"));
  for (const std::string& name : {path, Path("link")}) {
    const auto read = ReadWholeFile(name, bytes.size());
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, bytes);
  }
  EXPECT_EQ(ReadWholeFile(Write("empty", "")).value(), "");
  const absl::Status status = ReadWholeFile(path, bytes.size() - 1).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(path), HasSubstr("300004 bytes"), HasSubstr("at most 300003")));
}

// None of them makes the reader wait.
TEST_F(ReadFileTest, OnlyRegularFilesAreRead) {
  ASSERT_EQ(mkfifo(Path("fifo").c_str(), 0600), 0);
  const int server = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = {}};
  const int old_directory = open(".", O_RDONLY);
  ASSERT_EQ(chdir(directory_.Path().c_str()), 0);  // the path of a socket is at most 107 bytes long
  std::strcpy(address.sun_path, "socket");
  ASSERT_EQ(bind(server, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(fchdir(old_directory), 0);
  close(old_directory);
  const struct {
    std::string path, kind;
  } cases[] = {{directory_.Path(), "a directory"},
               {Path("fifo"), "a FIFO"},
               {Path("socket"), "a socket"},
               {"/dev/zero", "a device"},
               {"/dev/tty", ""}};
  for (const auto& [path, kind] : cases) {
    const absl::Status status = ReadWholeFile(path).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << path;
    if (kind.empty()) continue;
    EXPECT_EQ(std::string(status.message()), path + ": is " + kind + ", must be a regular file");
  }
  close(server);
}

TEST_F(ReadFileTest, AMissingFileIsNotFound) {
  EXPECT_EQ(ReadWholeFile(Path("none")).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ReadWholeFile(Write("file", "") + "/none").status().code(),
            absl::StatusCode::kNotFound);
}

// An optional file that somebody put there is not left out in silence.
TEST_F(ReadFileTest, ALinkToNothingIsNoMissingFile) {
  std::filesystem::create_symlink(Path("gone"), Path("link"));
  const absl::Status status = ReadWholeFile(Path("link")).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(status.message()),
            Path("link") + ": is a link to a file that does not exist");
}

TEST_F(ReadFileTest, AWriteAfterOpenIsNoticed) {
  const std::string path = Write("a", "12345678");
  const auto file = RegularFile::Open(path);
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE(file->CheckUnchanged().ok());
  std::filesystem::resize_file(path, 7);
  const absl::Status status = file->CheckUnchanged();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("was changed while it was read"));
}

// A writer that truncates and writes again all the time: the reader sees one of the two contents,
// the empty file between them, or an error, and never a part.
TEST_F(ReadFileTest, AFileInTheMiddleOfAWriteIsReadWholeOrNotAtAll) {
  const std::string first(100'000, 'a'), second(200'000, 'b');
  const std::string path = Write("a", first);
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    for (bool is_first = false; !stop; is_first = !is_first) {
      const std::string& bytes = is_first ? first : second;
      const std::string next = path + ".next";
      std::ofstream(next, std::ios::binary) << bytes;
      if (is_first) {
        std::filesystem::rename(next, path);
      } else {
        std::filesystem::resize_file(path, 0);
        std::filesystem::rename(next, path);
      }
    }
  });
  int num_whole = 0;
  for (int i = 0; i < 2000; ++i) {
    const auto read = ReadWholeFile(path);
    if (!read.ok()) {
      EXPECT_TRUE(absl::IsAborted(read.status())) << read.status();
      continue;
    }
    ++num_whole;
    EXPECT_TRUE(read->empty() || *read == first || *read == second) << read->size();
  }
  stop = true;
  writer.join();
  EXPECT_GT(num_whole, 0);
}

TEST_F(ReadFileTest, NoDescriptorLeftIsAnErrorOfItsOwn) {
  const std::string path = Write("a", "x");
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none = {.rlim_cur = 0, .rlim_max = limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const absl::Status status = ReadWholeFile(path).status();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(ReadWholeFile(path).ok());
}

}  // namespace
}  // namespace lssar
