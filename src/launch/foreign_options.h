// Options of the programs that a launch goes through (srun, docker ...). A table says which of them take a
// value, so that they can be read from a command line and from settings, merged, and written again. Names
// that a table does not have are handed on, unless they look like a mistyped one or the table is complete.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "launch/option_values.h"

namespace primus::launch {

struct ForeignOption {
  // kTruth: a switch that is usually on, and that "=false" puts out.
  enum class Takes { kNothing, kValue, kOptionalValue, kTruth };
  // Of an option that is given again: the last one counts; all count; or all that the command line gives, in
  // place of those of files.
  enum class Times { kOnce, kAddUp, kReplace };
  std::string_view name;  // "nodes"
  char letter = 0;        // 'N'; 0: none
  ValueForm form = {};    // of its value
  Takes takes = Takes::kValue;
  Times times = Times::kOnce;
  std::string_view only = {};     // the one tool of several that has it, or has it so: "podman"
  std::string_view another = {};  // another long name
};
using ForeignTable = std::span<const ForeignOption>;

// "nodes", "N" and "-N" are the same option. Of several entries, the one that `tool` has. Null: not in the
// table.
const ForeignOption* find_option(ForeignTable table, std::string_view name, std::string_view tool = {});

struct GivenOption {
  std::string name;  // as in the table ("nodes"); without dashes
  std::optional<std::string> value = {};
  bool operator==(const GivenOption&) const = default;
};

// Whether `tool` has the option so: with a value of its form, or without one. Names that the table does not
// have may be anybody's. Without a tool: whether any of them has it so.
bool takes(ForeignTable table, const GivenOption& option, std::string_view tool = {});

// What becomes of long names that the table does not have: of a complete table they are mistakes.
enum class Unknown { kHandOn, kRefuse };

// Reads `words`. Throws Error(kInvalid): a word that is no option and no value ('needs the command behind
// --'), an option without its value, one that looks like a mistyped one, a value that cannot be.
// `tool`: "srun", whose entries count.
std::vector<GivenOption> read_options(ForeignTable table, std::span<const std::string> words,
                                      std::string_view tool, Unknown rest = Unknown::kHandOn);

// The error for a name that is in no table and close to one that is; nullopt where it may be handed on.
std::optional<std::string> mistyped(ForeignTable table, std::string_view name);

// `over` over `base`, as Times says.
std::vector<GivenOption> merged(ForeignTable table, std::vector<GivenOption> base,
                                const std::vector<GivenOption>& over);

// The last one of that name; null: not given.
const GivenOption* find_given(const std::vector<GivenOption>& given, std::string_view name);

// "--nodes=4", "--exclusive", "-x": what the tool takes.
std::string written(const GivenOption& option);

}  // namespace primus::launch
