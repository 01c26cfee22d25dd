// OPERATIONS.md lists every flag, metric and exit code, and no flag that does not
// exist.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "server/config/options.h"
#include "server/ops/metrics.h"
#include "server/run_server.h"

namespace lssar {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

std::string Page() {
  std::ifstream file("server/OPERATIONS.md");
  return {std::istreambuf_iterator<char>(file), {}};
}

std::set<std::string> FlagsIn(const std::string& text) {
  const std::regex flag("--[a-z][a-z-]*");
  std::set<std::string> flags;
  for (std::sregex_iterator it(text.begin(), text.end(), flag), end; it != end; ++it) {
    flags.insert(it->str());
  }
  return flags;
}

std::set<std::string> FlagsOfTheProgram() {
  const char* const arguments[] = {"lssar-server", "--help"};
  return FlagsIn(ParseCommandLine(2, arguments).text);
}

// The first column of the table of flags.
std::string FlagCells() {
  std::istringstream page(Page());
  std::string cells;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("| --")) cells += line.substr(0, line.find('|', 1)) + "\n";
  }
  return cells;
}

TEST(OperationsTest, TheFlagTableListsExactlyTheFlags) {
  std::set<std::string> flags = FlagsOfTheProgram();
  EXPECT_GT(flags.size(), 30u);
  for (const char* shown : {"--help", "--version", "--check-health"}) flags.erase(shown);
  EXPECT_EQ(FlagsIn(FlagCells()), flags);
}

TEST(OperationsTest, TheMetricTableListsEveryMetricWithItsType) {
  std::istringstream metrics(Metrics().Text(EngineStats()));
  const std::regex type("# TYPE lssar_([a-z0-9_]+) ([a-z]+)");
  const std::string page = Page();
  int num_metrics = 0;
  for (std::string line; std::getline(metrics, line);) {
    std::smatch match;
    if (!std::regex_match(line, match, type)) continue;
    ++num_metrics;
    const std::string name = match[1], kind = match[2];
    EXPECT_THAT(page, ContainsRegex("\n[|][^|\n]*" + name + "[^|\n]*[|] " + kind + " [|]")) << name;
  }
  EXPECT_GT(num_metrics, 15);
}

TEST(OperationsTest, TheExitCodeTableListsEveryCode) {
  for (const int code : {kExitOk, kExitFailure, 2, kExitEngineFailure, kExitDeviceLost}) {
    EXPECT_THAT(Page(), HasSubstr("\n| " + std::to_string(code) + " | "));
  }
}

}  // namespace
}  // namespace lssar
