// Tests rewards of an HTTP server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <thread>

#include "base/error.h"
#include "comm/rendezvous/socket.h"
#include "lm/reward/http_post.h"
#include "reward_testing.h"

namespace primus {
namespace {

using testing::HasSubstr;

// A server on this machine that answers each request with the text of `reply`, and closes the connection.
class Server {
 public:
  explicit Server(std::function<std::string(const nlohmann::json& request)> reply)
      : listener_(comm::listen_on("127.0.0.1", 0)), reply_(std::move(reply)), thread_([this] { serve(); }) {}
  ~Server() {
    stop_ = true;
    thread_.join();
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  std::vector<Reward> score(std::size_t count, double timeout = 20) const {
    const nlohmann::json record = {{"a", 1}};
    std::vector<ScoredAnswer> answers;
    for (std::size_t i = 0; i < count; ++i)
      answers.push_back({.completion = std::to_string(i), .record = &record});
    RewardSettings settings;
    settings.functions = {"http://127.0.0.1:" + std::to_string(comm::port_of(listener_)) + "/score"};
    settings.timeout_seconds = timeout;
    settings.workers = 2;
    const std::unique_ptr<RewardFunction> function = std::move(make_rewards(settings).front());
    std::vector<Reward> rewards = function->score(answers);
    retries = function->take_retries().value_or(RewardRetries{.count = -1});
    EXPECT_EQ(function->take_retries().value_or(RewardRetries{.count = -1}).count, 0);
    return rewards;
  }
  int requests() const { return requests_; }
  mutable RewardRetries retries;  // of the last score()

 private:
  void serve() {
    while (!stop_) {
      const comm::Socket client = comm::accept_from(listener_);
      if (!client.valid()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        continue;
      }
      std::string text;
      char c = 0;
      while (!text.ends_with("\r\n\r\n") &&
             comm::receive_all(client, {&c, 1}, comm::in(std::chrono::seconds(5))) == comm::IoResult::kDone) {
        text += c;
      }
      const std::size_t length = text.find("Content-Length: ");
      if (length == std::string::npos) continue;
      std::string body(std::stoul(text.substr(length + 16)), ' ');
      comm::receive_all(client, body, comm::in(std::chrono::seconds(5)));
      ++requests_;
      comm::send_all(client, reply_(nlohmann::json::parse(body)), comm::in(std::chrono::seconds(5)));
    }
  }

  comm::Socket listener_;
  std::function<std::string(const nlohmann::json&)> reply_;
  std::atomic<bool> stop_{false};
  std::atomic<int> requests_{0};
  std::thread thread_;
};

std::string ok(const std::string& body) {
  return "HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

TEST(HttpReward, RewardsAreAssignedInOrder) {
  const Server server([](const nlohmann::json& request) {
    nlohmann::json rewards = nlohmann::json::array();
    for (const auto& answer : request["answers"]) {
      rewards.push_back(std::stod(answer["completion"].get<std::string>()) +
                        answer["record"]["a"].get<double>());
    }
    return ok(nlohmann::json{{"rewards", rewards}}.dump());
  });
  const auto rewards = server.score(50);
  for (std::size_t i = 0; i < 50; ++i) EXPECT_EQ(value_of(rewards[i]), static_cast<double>(i) + 1);
  EXPECT_EQ(server.requests(), 4);
  EXPECT_EQ(server.retries.count, 0);
}

TEST(HttpReward, NullAndInvalidRewardsAreNoRewards) {
  const Server server([](const nlohmann::json&) {
    return ok(R"({"rewards": [null, {"reward": null, "reason": "busy"}, "x", {"reward": 2}]})");
  });
  const auto rewards = server.score(4);
  EXPECT_FALSE(rewards[0].value);
  EXPECT_EQ(rewards[1].problem, "busy");
  EXPECT_THAT(rewards[2].problem, HasSubstr("no reward"));
  EXPECT_EQ(value_of(rewards[3]), 2);
}

TEST(HttpReward, BrokenConnectionsAreRepeated) {
  int count = 0;
  const Server server([&count](const nlohmann::json&) {
    ++count;
    if (count == 1) return std::string();
    if (count == 2) return std::string("HTTP/1.1 503 Busy\r\n\r\n");
    return std::string(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n{\"rewards\r\n6\r\n\":[3]}\r\n0\r\n\r\n");
  });
  EXPECT_EQ(value_of(server.score(1)[0]), 3);
  EXPECT_EQ(server.retries.count, 2);
  EXPECT_THAT(server.retries.problems,
              testing::ElementsAre("the server closed the connection", "the server replied with status 503"));
}

TEST(HttpReward, EachReasonForARetryIsReportedOnce) {
  std::atomic<int> count{0};
  const Server server([&count](const nlohmann::json& request) {
    if (++count % 2 == 1) return std::string("HTTP/1.1 503 Busy\r\n\r\n");
    return ok(nlohmann::json{{"rewards", std::vector<double>(request["answers"].size(), 1)}}.dump());
  });
  for (const Reward& reward : server.score(32)) EXPECT_EQ(value_of(reward), 1);
  EXPECT_EQ(server.retries.count, server.requests() - 2);
  EXPECT_THAT(server.retries.problems, testing::ElementsAre("the server replied with status 503"));
}

TEST(HttpReward, LateRepliesAreNoRewards) {
  const Server server([](const nlohmann::json&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(800));
    return ok(R"({"rewards": [1]})");
  });
  EXPECT_THAT(server.score(1, 0.2)[0].problem, HasSubstr("did not reply within 0.2"));
}

TEST(HttpReward, ServersThatScoreNoAnswerAreErrors) {
  const auto error_of = [](const std::string& reply) {
    const Server server([&](const nlohmann::json&) { return reply; });
    try {
      server.score(1);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(error_of("HTTP/1.1 404 Not Found\r\n\r\nno such page"), HasSubstr("status 404: no such page"));
  EXPECT_THAT(error_of(ok(R"({"rewards": [1, 2]})")), HasSubstr("without a list of 1 rewards"));
  EXPECT_THAT(error_of(ok("[")), HasSubstr("without a list"));
}

TEST(HttpReply, HostileRepliesAreRefused) {
  using Outcome = HttpReply::Outcome;
  for (const char* text :
       {"", "x", "HTTP/1.1 200", "HTTP/1.1 abc OK\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nx",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab"}) {
    EXPECT_EQ(parse_http_reply(text).outcome, Outcome::kBroken) << text;
  }
  EXPECT_EQ(parse_http_reply("HTTP/1.0 200 OK\r\n\r\nab").body, "ab");
}

TEST(HttpUrl, Forms) {
  const HttpUrl url = parse_http_url("http://[::1]:81/a?b");
  EXPECT_EQ(url.host, "::1");
  EXPECT_EQ(url.port, 81);
  EXPECT_EQ(url.path, "/a?b");
  EXPECT_EQ(parse_http_url("http://host").port, 80);
  for (const char* text : {"http:host", "http://", "http://h:0", "http://h:99999", "http://h:x",
                           "http://u:p@h", "http://h/ x", "http://h/\r\nX: y", "http://[::1"}) {
    EXPECT_THROW(parse_http_url(text), Error) << text;
  }
}

}  // namespace
}  // namespace primus
