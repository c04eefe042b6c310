// Tests of the dashboard's server, with requests of browsers and of attackers.
#include "safe/dashboard/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <list>
#include <random>

#include "base/error.h"
#include "safe/dashboard/client.h"

namespace primus::dashboard {
namespace {

using std::chrono::milliseconds;
using test::ask;
using test::Client;
using test::Serving;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

Reply echo(const Request& request) {
  if (request.path == "/stream") return {.body = "retry: 1\n\n", .stream = true};
  std::string body = request.path + "\n";
  for (const auto& [key, value] : request.query) body += key + "=" + value + "\n";
  return {.body = body};
}

TEST(HttpServer, AnswersGetAndHead) {
  HttpServer server("127.0.0.1", 0, echo);
  const Serving serving(server);
  const std::string answer = ask(server.port(), "/page?a=1&b=%3Cscript%3E");
  EXPECT_THAT(answer,
              AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), HasSubstr("Content-Length: 21\r\n"),
                    HasSubstr("Content-Security-Policy: default-src 'none'"),
                    HasSubstr("X-Content-Type-Options: nosniff"), EndsWith("/page\na=1\nb=<script>\n")));
  EXPECT_THAT(
      ask(server.port(), "/page", "", "HEAD"),
      AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), HasSubstr("Content-Length: 6\r\n"), EndsWith("\r\n\r\n")));
  for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS", "PATCH"})
    EXPECT_THAT(ask(server.port(), "/page", "", method), StartsWith("HTTP/1.1 405")) << method;
  EXPECT_THAT(ask(server.port(), "/page", "", "BREW"), StartsWith("HTTP/1.1 501"));
}

TEST(HttpServer, KeepsAConnectionForSeveralRequests) {
  HttpServer server("127.0.0.1", 0, echo);
  const Serving serving(server);
  Client client(server.port());
  client.send(
      "GET /first HTTP/1.1\r\nHost: localhost\r\n\r\nGET /second HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(client.read_until("/second\n"), AllOf(HasSubstr("/first\n"), HasSubstr("/second\n")));
}

TEST(HttpServer, HostileRequestsAreRefused) {
  HttpServer server("127.0.0.1", 0, echo, {.request = milliseconds(500)});
  const Serving serving(server);
  const std::vector<std::string> requests = {
      "GET / HTTP/1.1\r\nHost: localhost\r\nX: " + std::string(40'000, 'a') + "\r\n\r\n",  // long header
      "GET /" + std::string(40'000, 'a') + " HTTP/1.1\r\n\r\n",                            // long address
      "GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello",
      "GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n0\r\n\r\n",
      "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n",
      "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
      "GET / HTTP/9.9\r\n\r\n",
      "GET\r\n\r\n",
      "GET http:// HTTP/1.1\r\n\r\n",
      "GET /\x01\x02 HTTP/1.1\r\nno colon\r\n\r\n",
      std::string("\0\0\0\0\r\n\r\n", 8),
      "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",  // TLS
  };
  for (const std::string& request : requests) {
    Client client(server.port());
    client.send(request);
    const std::string answer = client.read_all(milliseconds(2000));
    EXPECT_THAT(answer, Not(HasSubstr("200 OK"))) << request.substr(0, 60);
    EXPECT_TRUE(client.ended()) << request.substr(0, 60);
  }
  std::string many = "GET / HTTP/1.1\r\nHost: localhost\r\n";
  for (int i = 0; i < 10'000; ++i) many += "a: b\r\n";
  Client client(server.port());
  client.send(many);
  EXPECT_THAT(client.read_all(milliseconds(2000)), Not(HasSubstr("200 OK")));
  EXPECT_THAT(ask(server.port(), "/still"), EndsWith("/still\n"));
}

TEST(HttpServer, RandomBytesDoNoHarm) {
  HttpServer server("127.0.0.1", 0, echo);
  const Serving serving(server);
  std::mt19937 random(1);
  const std::string valid = "GET /page?a=b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
  for (int i = 0; i < 300; ++i) {
    std::string text = valid;
    for (int change = 0; change < 4; ++change)
      text[random() % text.size()] = static_cast<char>(random() % 256);
    Client client(server.port());
    client.send(text);
  }
  EXPECT_THAT(ask(server.port(), "/still"), EndsWith("/still\n"));
}

TEST(HttpServer, SlowClientsDoNotBlockOthers) {
  HttpServer server("127.0.0.1", 0, echo, {.request = milliseconds(500)});
  const Serving serving(server);
  std::list<Client> slow;
  for (std::size_t i = 0; i < HttpServer::kMaxConnections + 100; ++i) {
    slow.emplace_back(server.port());
    slow.back().send("GET / HTTP/1.1\r\nHost: loc");
  }
  EXPECT_THAT(ask(server.port(), "/other"), EndsWith("/other\n"));
  // A client that sends a byte now and then has no more time than a silent one.
  Client drip(server.port());
  for (int i = 0; i < 20 && drip.send("G"); ++i) std::this_thread::sleep_for(milliseconds(100));
  drip.read_all(milliseconds(1000));
  EXPECT_TRUE(drip.ended());
  for (int i = 0; i < 100 && server.connections() > 0; ++i) std::this_thread::sleep_for(milliseconds(50));
  EXPECT_EQ(server.connections(), 0U);
}

TEST(HttpServer, StreamsReachSeveralViewers) {
  HttpServer server("127.0.0.1", 0, echo);
  int sent = 0;
  const Serving serving(server, [&] {
    if (server.streams() == 3) server.publish("run", "{\"n\":" + std::to_string(++sent) + "}");
    return milliseconds(20);
  });
  std::list<Client> viewers;
  for (int i = 0; i < 3; ++i) {
    viewers.emplace_back(server.port());
    viewers.back().send("GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n");
  }
  for (Client& viewer : viewers)
    EXPECT_THAT(viewer.read_until("{\"n\":2}"),
                AllOf(HasSubstr("retry: 1\n\n"), HasSubstr("event: run\ndata: {\"n\":1}\n\n")));
  viewers.pop_back();
  for (int i = 0; i < 100 && server.streams() == 3; ++i) std::this_thread::sleep_for(milliseconds(20));
  EXPECT_EQ(server.streams(), 2U);
}

TEST(HttpServer, AViewerThatDoesNotReadDelaysNoOther) {
  HttpServer server("127.0.0.1", 0, echo, {.silence = milliseconds(1000)});
  const std::string large(64 << 10, 'x');
  int sent = 0;
  const Serving serving(server, [&] {
    if (server.streams() > 0 && sent < 500) {
      ++sent;
      server.publish("run", large);
    }
    return milliseconds(1);
  });
  Client viewer(server.port());
  viewer.send("GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n");
  for (int i = 0; i < 20; ++i) EXPECT_THAT(ask(server.port(), "/other"), EndsWith("/other\n"));
  for (int i = 0; i < 100 && server.streams() > 0; ++i) std::this_thread::sleep_for(milliseconds(100));
  EXPECT_EQ(server.streams(), 0U);
}

TEST(HttpServer, TooManyViewersAreRefused) {
  HttpServer server("127.0.0.1", 0, echo);
  const Serving serving(server);
  std::list<Client> viewers;
  for (std::size_t i = 0; i < HttpServer::kMaxStreams; ++i) {
    viewers.emplace_back(server.port());
    viewers.back().send("GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n");
    viewers.back().read_until("retry");
  }
  EXPECT_THAT(ask(server.port(), "/stream"), StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(ask(server.port(), "/other"), EndsWith("/other\n"));
}

TEST(HttpServer, AnAddressInUseIsNamed) {
  const HttpServer server("127.0.0.1", 0, echo);
  try {
    const HttpServer second("127.0.0.1", server.port(), echo);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    EXPECT_THAT(error.render(), AllOf(HasSubstr("in use"), HasSubstr("--port")));
  }
  EXPECT_THROW(HttpServer("no.such.host.invalid", 0, echo), Error);
}

}  // namespace
}  // namespace primus::dashboard
