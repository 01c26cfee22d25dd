// The fields of config.json that ParseConfig does not read: those that must have one value, those
// that change nothing, and all others, which are refused.
// Internal to models/: nlohmann's types stay out of the other headers.
#ifndef LSSAR_MODELS_CONFIG_FIELDS_H_
#define LSSAR_MODELS_CONFIG_FIELDS_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "models/json_fields.h"
#include "nlohmann/json.hpp"

namespace lssar {

// They keep a damaged or hostile config from asking for absurd memory.
inline constexpr int kMaxLayers = 1024;
inline constexpr int kMaxWindow = 1 << 20;

// Errors  INVALID_ARGUMENT, starting with `source`: a field that would make another function and
//         has not the value that we compute; a field under another program's name that differs
//         from ours; an unknown field that "ignored_fields" does not name; "ignored_fields" names a
//         field that changes the function
absl::Status CheckOtherFields(const nlohmann::json& config, std::string_view source);

// True if a field of that name changes nothing that is computed, in the config.json of any program.
bool IsHarmlessField(std::string_view name);

// True if CheckOtherFields refuses the field but for one value.
bool IsFixedField(std::string_view name);

// The field of ours that a name stands for, of this project or of another program. Empty: none.
std::string_view OurFieldOf(std::string_view name);

// "ignored_fields": names of fields that change nothing. Fails as CheckOtherFields says.
std::vector<std::string> ReadIgnoredFields(const nlohmann::json& config, JsonFields* fields);

}  // namespace lssar

#endif  // LSSAR_MODELS_CONFIG_FIELDS_H_
