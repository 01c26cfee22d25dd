#include "clients/cli/table.h"

#include <gtest/gtest.h>

#include <string>

#include "clients/cli/progress_bar.h"
#include "clients/cli/terminal.h"

namespace lssar::cli {
namespace {

using enum Table::Align;

TEST(Table, ColumnsAreAsWideAsTheirWidestCell) {
  Table table({{"name", kLeft}, {"n", kRight}});
  table.AddRow({"a", "1"});
  table.AddRow({"longer", "1234"});
  EXPECT_EQ(table.Render(),
            "name       n\n"
            "------  ----\n"
            "a          1\n"
            "longer  1234\n");
}

TEST(Table, CountsColumnsNotBytes) {
  EXPECT_EQ(DisplayWidth("naïve"), 5);
  EXPECT_EQ(DisplayWidth("日本"), 4);
  EXPECT_EQ(DisplayWidth("🙂"), 2);
  EXPECT_EQ(DisplayWidth("e\u0301"), 1);
  EXPECT_EQ(DisplayWidth("\xFF\xC3"), 2);
}

HeatMap TwoByTwo() {
  return {.corner = "d",
          .row_labels = {"0%", "100%"},
          .column_labels = {"1K", "2K"},
          .cells = {{{.num_hits = 2, .num_trials = 2}, {.num_hits = 1, .num_trials = 3}},
                    {{.num_hits = 0, .num_trials = 4}, {}}}};
}

TEST(HeatMap, ShowsNumbersInAPipe) {
  EXPECT_EQ(RenderHeatMap(TwoByTwo(), {}),
            "   d      1K      2K\n"
            "  0%     100      33\n"
            "100%       0       .\n");
}

TEST(HeatMap, ShowsShadesWithoutColours) {
  EXPECT_EQ(RenderHeatMap(TwoByTwo(), {.is_tty = true}),
            "   d      1K      2K\n"
            "  0%  100 ██   33 ░░\n"
            "100%    0          ·\n");
}

TEST(HeatMap, ShowsColoursOnATerminal) {
  const std::string map = RenderHeatMap(TwoByTwo(), {.is_tty = true, .has_colour = true});
  EXPECT_NE(map.find("\x1b[48;5;113;38;5;16m   100 \x1b[0m"), std::string::npos) << map;
  EXPECT_NE(map.find("\x1b[48;5;203;38;5;16m     0 \x1b[0m"), std::string::npos) << map;
}

TEST(Progress, ShowsShareNoteAndTimeLeft) {
  EXPECT_EQ(RenderProgress("scoring", 0.5, "2/4", 3.0),
            "scoring [===============>              ]  50%  2/4  3 s left");
  EXPECT_EQ(RenderProgress("scoring", 0.25, "1/4", 60.0),
            "scoring [=======>                      ]  25%  1/4  3:00 min left");
  EXPECT_EQ(RenderProgress("scoring", 1.0, "4/4", 3.0),
            "scoring [==============================] 100%  4/4");
}

TEST(SafeText, RemovesControlCharacters) {
  const std::string text = "a\x1b[31mb\tc\nd\x7F\u009B1m é";
  EXPECT_EQ(SafeText({.is_tty = true}, text), "a[31mb\tc\nd1m é");
  EXPECT_EQ(SafeText({}, text), text);
}

TEST(OneLine, EscapesAndTruncates) {
  EXPECT_EQ(OneLine("a\nb\tc", 10), "a\\nb\\tc");
  EXPECT_EQ(OneLine("ééééé", 5), "ééééé");
  EXPECT_EQ(OneLine("éééééé", 5), "éééé…");
  EXPECT_EQ(OneLine("a\xC3", 10), "a\\xC3");
  EXPECT_EQ(OneLine("\xC3(\x80", 10), "\\xC3(\\x80");
  EXPECT_EQ(OneLine("\xE0\x80\x80", 12), "\\xE0\\x80\\x80");
  EXPECT_EQ(OneLine("\xF4\x8F\xBF\xBF\xED\xA0", 10), "\xF4\x8F\xBF\xBF\\xED\\xA0");
}

}  // namespace
}  // namespace lssar::cli
