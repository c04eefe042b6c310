// Tests who may read the dashboard.
#include "safe/dashboard/access.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace primus::dashboard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Access, OnlyThisMachinesNamesAreLoopback) {
  for (const char* host : {"localhost", "127.0.0.1", "127.1.2.3", "::1"})
    EXPECT_TRUE(is_loopback(host)) << host;
  for (const char* host : {"0.0.0.0", "::", "localhost.evil.org", "127.evil.org", "10.0.0.1", ""})
    EXPECT_FALSE(is_loopback(host)) << host;
}

TEST(Access, WithoutATokenOtherHostNamesAreRefused) {
  const Access access("", 7007);
  for (const char* host : {"localhost", "localhost:7007", "127.0.0.1:1", "[::1]:7007"})
    EXPECT_FALSE(access.refuse({.path = "/", .host = host})) << host;
  for (const char* host : {"", "evil.org", "evil.org:7007", "localhost.evil.org", "[", "[]", "]", ":"})
    EXPECT_EQ(access.refuse({.path = "/", .host = host}).value().status, 403) << host;
}

TEST(Access, TheTokenIsNeeded) {
  const std::string token = Access::new_token();
  EXPECT_EQ(token.size(), 32U);
  EXPECT_NE(token, Access::new_token());
  const Access access(token, 7007);
  EXPECT_EQ(access.refuse({.path = "/", .host = "localhost"}).value().status, 401);
  for (const std::string& wrong :
       {std::string(), token.substr(1), token + "0", std::string(token.size(), '0')}) {
    EXPECT_EQ(access.refuse({.path = "/", .query = {{"token", wrong}}}).value().status, 401);
    EXPECT_EQ(access.refuse({.path = "/", .authorization = "Bearer " + wrong}).value().status, 401);
    EXPECT_EQ(access.refuse({.path = "/", .cookie = "primus_dashboard_7007=" + wrong}).value().status, 401);
  }
  EXPECT_FALSE(access.refuse({.path = "/", .host = "any.org", .authorization = "Bearer " + token}));
  EXPECT_FALSE(access.refuse({.path = "/", .cookie = "a=b; primus_dashboard_7007=" + token + "; c=d"}));
  EXPECT_TRUE(access.refuse({.path = "/", .cookie = "primus_dashboard_7008=" + token}));
  EXPECT_TRUE(access.refuse({.path = "/", .cookie = "xprimus_dashboard_7007=" + token}));
  // The token leaves the address, so that it is in no history and in no picture of the screen.
  const Reply moved = access.refuse({.path = "/", .query = {{"token", token}}}).value();
  EXPECT_EQ(moved.status, 303);
  EXPECT_EQ(moved.headers.at(0).second, "/");
  EXPECT_THAT(moved.headers.at(1).second, AllOf(HasSubstr(token), HasSubstr("HttpOnly")));
}

TEST(Access, ATokenThatIsEasyToGuessIsRefused) {
  for (const std::string& token :
       {std::string("short"), std::string(300, 'a'), std::string("with spaces in between"),
        std::string("header\r\nSet-Cookie: a")})
    EXPECT_THROW(Access(token, 1), Error) << token;
}

}  // namespace
}  // namespace primus::dashboard
