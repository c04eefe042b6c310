// Options of other programs in a launch (srun, docker ...). A table lists which options have a value. With
// the table, options can be read from a command line and from settings, merged, and written again. Unknown
// names are passed on to the other program. Exceptions: the table is complete, or the name looks like a
// typing error.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "launch/options/option_values.h"

namespace primus::launch {

struct ForeignOption {
  // kTruth: a switch that is usually on; "=false" turns it off.
  enum class Takes { kNothing, kValue, kOptionalValue, kTruth };
  // Meaning of a repeated option. kOnce: the last option counts. kAddUp: all occurrences count. kReplace: all
  // occurrences on the command line count, and replace the occurrences in files.
  enum class Times { kOnce, kAddUp, kReplace };
  std::string_view name;  // "nodes"
  char letter = 0;        // 'N'; 0: none
  ValueForm form = {};    // form of the value
  Takes takes = Takes::kValue;
  Times times = Times::kOnce;
  std::string_view only = {};     // the only tool that has the option in this form: "podman"; empty: all
                                  // tools
  std::string_view another = {};  // an alternative long name
};
using ForeignTable = std::span<const ForeignOption>;

// Finds an option; "nodes", "N" and "-N" are the same. If there are several entries, returns the one for
// `tool`. Null: not in the table.
const ForeignOption* find_option(ForeignTable table, std::string_view name, std::string_view tool = {});

struct GivenOption {
  std::string name;  // name in the table ("nodes"); without dashes
  std::optional<std::string> value = {};
  bool operator==(const GivenOption&) const = default;
};

// Returns whether `tool` accepts the option in this form: with a value of the right form, or without a value.
// Unknown names are accepted. Without `tool`: whether any tool accepts the option.
bool takes(ForeignTable table, const GivenOption& option, std::string_view tool = {});

// Whether long names that are not in the table are passed on or refused. kRefuse is for complete tables.
enum class Unknown { kHandOn, kRefuse };

// Parses `words`. Throws Error(kInvalid) for a word that is neither an option nor a value (with a hint to put
// the command after --), a missing value, an invalid value, different values of an option of which only one
// value has an effect, or a probable typing error. `tool`: the tool that will read the options, such as
// "srun".
std::vector<GivenOption> read_options(ForeignTable table, std::span<const std::string> words,
                                      std::string_view tool, Unknown rest = Unknown::kHandOn);

// Returns the error for an unknown name that is similar to a name in the table; nullopt if the name may be
// passed on.
std::optional<std::string> mistyped(ForeignTable table, std::string_view name);

// Merges `over` into `base`, according to Times.
std::vector<GivenOption> merged(ForeignTable table, std::vector<GivenOption> base,
                                const std::vector<GivenOption>& over);

// Returns the last option of that name, or null.
const GivenOption* find_given(const std::vector<GivenOption>& given, std::string_view name);

// Returns the option as a command-line word: "--nodes=4", "--exclusive", "-x".
std::string written(const GivenOption& option);

}  // namespace primus::launch
