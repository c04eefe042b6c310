// Decides who may read the dashboard. Without a token, only requests whose Host header names this machine are
// answered, so that a web page of another site cannot read it through the browser (DNS rebinding). With a
// token, each request must have the token: in the header Authorization, in a cookie, or, for the first page,
// in its address. Immutable; thread-safe.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "safe/dashboard/http_server.h"

namespace primus::dashboard {

// Returns whether only this machine can reach `host`: localhost, 127.x.x.x, ::1.
bool is_loopback(std::string_view host);

class Access {
 public:
  static constexpr std::size_t kMinToken = 16, kMaxToken = 256;
  // `token`: empty for none. Throws Error(kInvalid) if it is too short, too long, or has other characters
  // than letters, digits, '-', '.', '_' and '~'.
  Access(std::string token, int port);
  // Returns a token of 32 random digits.
  static std::string new_token();

  // Returns the reply that refuses the request, or that moves the token from the address into a cookie.
  // Returns nullopt if the request may be answered.
  std::optional<Reply> refuse(const Request& request) const;

 private:
  bool is_token(std::string_view given) const;

  std::string token_, cookie_;
};

}  // namespace primus::dashboard
