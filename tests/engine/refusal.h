// What a call that makes no sense is refused with.
#pragma once

#include <stdexcept>
#include <string>

namespace primus::test {

// The words of the std::logic_error that `call` throws; "accepted" where it throws none.
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
