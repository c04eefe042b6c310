#include "safe/dashboard/access.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "base/error.h"
#include "base/files/sha256.h"

namespace primus::dashboard {
namespace {

bool is_token_character(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '.' || c == '_' || c == '~';
}

// Returns the value of a cookie: "a=1; b=2".
std::string_view cookie_in(std::string_view cookies, std::string_view name) {
  while (!cookies.empty()) {
    std::string_view one = cookies.substr(0, cookies.find(';'));
    cookies.remove_prefix(std::min(cookies.size(), one.size() + 1));
    one.remove_prefix(std::min(one.size(), one.find_first_not_of(' ')));
    if (one.starts_with(name) && one.substr(name.size()).starts_with('=')) return one.substr(name.size() + 1);
  }
  return {};
}

}  // namespace

bool is_loopback(std::string_view host) {
  if (host == "localhost" || host == "::1") return true;
  return host.starts_with("127.") &&
         std::ranges::all_of(host, [](char c) { return (c >= '0' && c <= '9') || c == '.'; });
}

Access::Access(std::string token, int port)
    : token_(std::move(token)), cookie_(fmt::format("primus_dashboard_{}", port)) {
  if (token_.empty()) return;
  if (token_.size() < kMinToken || token_.size() > kMaxToken ||
      !std::ranges::all_of(token_, is_token_character)) {
    throw invalid(fmt::format("the token must have {} to {} letters, digits, '-', '.', '_' or '~'", kMinToken,
                              kMaxToken),
                  "without --token, a random token is made where one is needed");
  }
}

std::string Access::new_token() {
  constexpr std::size_t kBytes = 16;
  return hex(random_bytes(kBytes));
}

bool Access::is_token(std::string_view given) const {
  // Digests have equal lengths, so the time tells nothing about the token's length either.
  return equal_in_constant_time(as_text(sha256(given)), as_text(sha256(token_)));
}

std::optional<Reply> Access::refuse(const Request& request) const {
  if (token_.empty()) {
    std::string_view host = request.host;
    if (host.starts_with('[')) {
      host = host.substr(1, std::min(host.find(']'), host.size()) - 1);
    } else {
      host = host.substr(0, host.find(':'));
    }
    if (is_loopback(host)) return std::nullopt;
    return Reply{.status = 403, .body = "this dashboard answers only requests to localhost\n"};
  }
  if (const auto given = request.query.find("token");
      given != request.query.end() && is_token(given->second)) {
    const std::string cookie = fmt::format("{}={}; Path=/; HttpOnly; SameSite=Lax", cookie_, given->second);
    return Reply{.status = 303, .headers = {{"Location", "/"}, {"Set-Cookie", cookie}}};
  }
  constexpr std::string_view kBearer = "Bearer ";
  if (request.authorization.starts_with(kBearer) &&
      is_token(std::string_view(request.authorization).substr(kBearer.size())))
    return std::nullopt;
  if (is_token(cookie_in(request.cookie, cookie_))) return std::nullopt;
  return Reply{
      .status = 401,
      .body = "this dashboard needs its token: open the address that 'primus dashboard' has printed\n",
      .headers = {{"WWW-Authenticate", "Bearer"}}};
}

}  // namespace primus::dashboard
