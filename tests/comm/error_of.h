// Catches the Error of a call.
#pragma once

#include <string>

#include "base/error.h"

namespace primus::comm::test {

// Returns the message of the Error that `body` throws.
template <class Body>
std::string error_of(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace primus::comm::test
