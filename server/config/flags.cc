#include "server/config/flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/error_details.h"
#include "base/quote.h"
#include "base/read_file.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "server/config/toml_file.h"

namespace lssar {
namespace {

absl::Status MustBe(const std::string& what) {
  return absl::InvalidArgumentError(StrCat("it must be ", what));
}

// A number in `range`, which is not negative, with at most one of `suffixes`: 1024 for the first,
// 1024 times as much for each further one.
template <typename Int>
std::optional<Int> ParseScaled(absl::string_view value, absl::string_view suffixes,
                               limits::Range<Int> range) {
  Int unit = 1;
  const size_t suffix = value.empty() ? suffixes.npos : suffixes.find(value.back());
  if (suffix != suffixes.npos) {
    unit = Int{1} << 10 * (suffix + 1);
    value.remove_suffix(1);
  }
  Int number = 0;
  if (!absl::SimpleAtoi(value, &number) || number < 0 || number > range.max / unit ||
      number * unit < range.min) {
    return std::nullopt;
  }
  return number * unit;
}

// Levenshtein distance, one row of the table at a time.
size_t EditDistance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string DescribeError(const CLI::ParseError& error) {
  constexpr absl::string_view kTooMany = ": At Most 1 required but received ";
  const absl::string_view text = error.what();
  const size_t at = text.find(kTooMany);
  if (at == absl::string_view::npos) return std::string(text);
  return StrCat(text.substr(0, at), " is given ", text.substr(at + kTooMany.size()),
                " times; give it once");
}

AssignFlag AssignText(std::string* target) {
  return [target](const std::string& value) {
    // "$KEYS" of a variable that is not set: taken as "none", it would switch a protection off.
    if (value.empty()) return MustBe("a path; without the flag there is none");
    *target = value;
    return absl::OkStatus();
  };
}

template <typename Int>
AssignFlag AssignInt(Int* target, limits::Range<Int> range) {
  return [=](const std::string& value) {
    Int number = 0;
    if (!absl::SimpleAtoi(value, &number) || number < range.min || number > range.max) {
      return MustBe(StrCat("a whole number in [", range.min, ", ", range.max, "]"));
    }
    *target = number;
    return absl::OkStatus();
  };
}
template AssignFlag AssignInt(int* target, limits::Range<int> range);
template AssignFlag AssignInt(int64_t* target, limits::Range<int64_t> range);

template <typename Int>
AssignFlag AssignTokens(Int* target, limits::Range<Int> range) {
  return [=](const std::string& value) {
    // k as K: the lists of lengths of `lssar` take both.
    const std::string upper = absl::AsciiStrToUpper(value);
    const std::optional<Int> number = ParseScaled(absl::string_view(upper), "K", range);
    if (!number) {
      return MustBe(StrCat("a whole number in [", range.min, ", ", range.max, "]; 2K is 2048"));
    }
    *target = *number;
    return absl::OkStatus();
  };
}
template AssignFlag AssignTokens(int* target, limits::Range<int> range);
template AssignFlag AssignTokens(int64_t* target, limits::Range<int64_t> range);

AssignFlag AssignBool(bool* target) {
  return [target](const std::string& value) {
    if (value != "true" && value != "false") return MustBe("true or false");
    *target = value == "true";
    return absl::OkStatus();
  };
}

AssignFlag AssignBytes(int64_t* target, limits::Range<int64_t> range) {
  return [=](const std::string& value) {
    const std::optional<int64_t> number = ParseScaled(value, "KMG", range);
    if (!number) {
      return MustBe(StrCat("a number of bytes in [", range.min, ", ", range.max,
                           "], with K, M or G for powers of 1024: 512M, 2G"));
    }
    *target = *number;
    return absl::OkStatus();
  };
}

AssignFlag AssignDuration(absl::Duration* target, absl::Duration low, absl::Duration high) {
  return [=](const std::string& value) {
    absl::Duration duration;
    double seconds = 0;
    const bool is_plain = absl::SimpleAtod(value, &seconds);
    if (is_plain) duration = absl::Seconds(seconds);
    const bool is_known = is_plain || absl::ParseDuration(value, &duration);
    if (!is_known || !(duration >= low && duration <= high)) {
      return MustBe(StrCat("a time in [", absl::FormatDuration(low), ", ",
                           absl::FormatDuration(high), "]: 30s, 1m30s, 250ms"));
    }
    *target = duration;
    return absl::OkStatus();
  };
}

AssignFlag AssignChoice(std::vector<std::string> choices, std::function<void(size_t)> choose) {
  return [choices = std::move(choices), choose = std::move(choose)](const std::string& value) {
    const auto found = std::find(choices.begin(), choices.end(), value);
    if (found == choices.end()) {
      return MustBe(StrCat("one of ", absl::StrJoin(choices, ", ")));
    }
    choose(size_t(found - choices.begin()));
    return absl::OkStatus();
  };
}

std::string EnvironmentName(const std::string& flag_name) {
  return StrCat("LSSAR_", absl::AsciiStrToUpper(absl::StrReplaceAll(flag_name, {{"-", "_"}})));
}

void AddFlags(CLI::App& app, const std::vector<Flag>& flags) {
  for (const Flag& flag : flags) {
    const std::string variable = EnvironmentName(flag.name);
    const auto assign = [name = flag.name, variable,
                         assign = flag.assign](const std::string& value) {
      if (const absl::Status status = assign(value); !status.ok()) {
        // To a ValidationError of a switch CLI11 adds the name a second time.
        throw CLI::ConversionError(
            StrCat("--", name, " (or ", variable, ") is \"", value, "\"; ", status.message()));
      }
    };
    CLI::Option* option = nullptr;
    if (flag.is_switch) {
      // CLI11 writes to `value`, which `each` keeps alive, and hands the text to `assign`.
      const auto value = std::make_shared<std::string>();
      option = app.add_flag(StrCat("--", flag.name, ",!--no-", flag.name), *value, flag.help);
      option->each([assign, value](const std::string& text) { assign(text); });
    } else {
      option = app.add_option_function<std::string>("--" + flag.name, assign, flag.help)
                   ->type_name(flag.value_name);
    }
    option->group(flag.group)->envname(variable);
  }
}

absl::StatusOr<std::vector<std::string>> ApplyConfigFile(const std::string& path, CLI::App& app,
                                                         const std::vector<Flag>& flags) {
  ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path, kMaxConfigFileBytes));
  const auto sections = ParseToml(text, TomlErrors::kQuoteText);
  if (!sections.ok()) return WithPrefix(StrCat(path, ": "), sections.status());
  std::vector<std::string> known, names;
  for (const Flag& flag : flags) known.push_back(flag.name);
  for (const TomlSection& section : *sections) {
    if (!section.name.empty()) {
      return absl::InvalidArgumentError(
          StrCat(path, ": section ", Quote(section.name), "; the file has no sections"));
    }
    for (const TomlEntry& entry : section.entries) {
      const auto flag = std::find_if(flags.begin(), flags.end(),
                                     [&](const Flag& f) { return f.name == entry.name; });
      if (flag == flags.end()) {
        const std::string nearest = NearestName(Shorten(entry.name, kMaxQuotedBytes), known);
        return absl::InvalidArgumentError(
            StrCat(path, ": ", Quote(entry.name), " is unknown",
                   nearest.empty() ? "" : StrCat("; did you mean \"", nearest, "\"?")));
      }
      if (entry.kind == TomlKind::kOther) {
        return absl::InvalidArgumentError(StrCat(
            path, ": ", entry.name, " must have one value: a number, true, false or a text"));
      }
      // Set by the command line or the environment.
      if (app.get_option("--" + flag->name)->count() > 0) continue;
      if (const absl::Status status = flag->assign(entry.value); !status.ok()) {
        return absl::InvalidArgumentError(
            StrCat(path, ": ", entry.name, " is ", Quote(entry.value), "; ", status.message()));
      }
      names.push_back(entry.name);
    }
  }
  return names;
}

absl::Status CheckNeeds(const std::vector<FlagNeed>& needs,
                        const std::function<FlagSource(const std::string& name)>& source_of) {
  for (const FlagNeed& need : needs) {
    if (need.is_met) continue;
    const FlagSource source = source_of(need.name);
    const bool is_allowed =
        source == FlagSource::kNobody || (source == FlagSource::kVariable && need.allows_variable);
    if (is_allowed) continue;
    return absl::InvalidArgumentError(StrCat("--", need.name, " needs ", need.needs));
  }
  return absl::OkStatus();
}

std::string DescribeUnknown(const std::vector<std::string>& left_over,
                            const std::vector<std::string>& known_names) {
  for (const std::string& argument : left_over) {
    absl::string_view name = argument;
    if (!absl::ConsumePrefix(&name, "-")) continue;
    const std::string flag = argument.substr(0, argument.find('='));
    if (flag == "--port") {
      return "unknown flag --port; give --http-listen HOST:PORT for HTTP, --listen HOST:PORT for "
             "gRPC";
    }
    absl::ConsumePrefix(&name, "-");
    name = name.substr(0, name.find('='));
    const std::string nearest = NearestName(std::string(name), known_names);
    return StrCat("unknown flag ", flag,
                  nearest.empty() ? "" : StrCat("; did you mean --", nearest, "?"));
  }
  return StrCat("unexpected argument ", absl::StrJoin(left_over, " "),
                "; the checkpoint's directory is --model DIR");
}

std::string NearestName(const std::string& name, const std::vector<std::string>& known_names) {
  std::string nearest;
  size_t fewest = std::string::npos;
  for (const std::string& known : known_names) {
    const size_t num_edits = EditDistance(name, known);
    if (num_edits < fewest && 3 * num_edits <= known.size() + 2) {
      nearest = known;
      fewest = num_edits;
    }
  }
  return nearest;
}

}  // namespace lssar
