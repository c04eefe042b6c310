#include "launch/options/secret_values.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/text/secrets.h"
#include "launch/options/assignment.h"

namespace primus::launch {

void refuse_secret_values(const std::vector<GivenOption>& options, std::string_view hint) {
  for (const GivenOption& option : options) {
    if (option.name == "env") continue;
    for (std::string_view rest = option.value ? std::string_view(*option.value) : std::string_view();
         !rest.empty();) {
      const std::string_view word = rest.substr(0, rest.find(','));
      rest.remove_prefix(std::min(word.size() + 1, rest.size()));
      const std::size_t equals = word.find('=');
      const std::string_view name = word.substr(0, equals);
      const bool is_variable = equals != std::string_view::npos && is_variable_name(name);
      const bool secret = is_variable ? is_secret(name, word.substr(equals + 1)) : is_secret_value(word);
      if (!secret) continue;
      const std::string what = is_variable ? fmt::format("{} is a secret", name) : "the value is a secret";
      throw invalid(fmt::format("--{}: {}, but other users can read a command line", option.name, what),
                    is_variable && !hint.empty() ? fmt::format(fmt::runtime(hint), name)
                                                 : fmt::format("remove it from --{}", option.name));
    }
  }
}

}  // namespace primus::launch
