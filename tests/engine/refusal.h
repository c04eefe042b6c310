// Returns the error text of calls that throw std::logic_error.
#pragma once

#include <stdexcept>
#include <string>

namespace primus::test {

// Returns the text of the std::logic_error that `call` throws, or "accepted".
template <class Call>
std::string refusal(Call&& call) {
  try {
    call();
  } catch (const std::logic_error& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace primus::test
