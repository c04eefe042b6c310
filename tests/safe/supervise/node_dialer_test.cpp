// Calls of supervisors that answer, that do not listen, and whose machines do not answer.
#include "safe/supervise/nodes/node_dialer.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <map>

#include "base/error.h"

namespace primus::supervise {
namespace {

using namespace std::chrono_literals;

// A port that does not answer: the queue of its socket is full.
class SilentPort {
 public:
  SilentPort() : listener_(comm::listen_on("127.0.0.1", 0)), port(comm::port_of(listener_)) {
    ::listen(listener_.fd(), 0);
    int error = 0;
    while (queued_.emplace_back(comm::try_connect("127.0.0.1", port, comm::in(100ms), error)).valid()) {
    }
  }

 private:
  comm::Socket listener_;
  std::vector<comm::Socket> queued_;

 public:
  const std::uint16_t port;
};

TEST(NodeDialer, SilentMachinesDelayNoOtherCall) {
  const SilentPort silent;
  comm::Socket listener = comm::listen_on("127.0.0.1", 0), closed = comm::listen_on("127.0.0.1", 0);
  const std::uint16_t port = comm::port_of(listener), closed_port = comm::port_of(closed);
  closed.close();
  NodeServer server(std::move(listener), "secret", 1, 30, "job");
  NodeDialer dialer("secret", 0, 30);
  const auto began = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  };
  constexpr int kSilent = 20;
  for (int i = 0; i < kSilent; ++i) dialer.call({.node = 2 + i, .address = "127.0.0.1", .port = silent.port});
  dialer.call({.node = 1, .address = "127.0.0.1", .port = port});
  dialer.call({.node = 29, .address = "127.0.0.1", .port = closed_port});
  EXPECT_LT(seconds(), 0.5) << "a call must not wait for its answer";
  std::map<int, NodeDialer::Answer> answers;
  double opened = 0;
  while (answers.size() < kSilent + 2 && seconds() < 10) {
    server.serve({[](int, const NodeMessage&) {}, [](int, const std::string&) {}});
    for (const auto& answer : dialer.answers()) {
      answers[answer.node] = answer;
      if (answer.open) opened = seconds();
    }
    pollfd polled{dialer.fd(), POLLIN, 0};
    poll(&polled, 1, 5);
  }
  ASSERT_EQ(answers.size(), kSilent + 2U);
  EXPECT_LT(seconds(), 4);
  EXPECT_LT(opened, 1.2) << "before the silent ones are given up";
  for (const auto& [node, answer] : answers) {
    EXPECT_EQ(answer.open, node == 1);
    EXPECT_EQ(answer.refused, node == 29);
    EXPECT_FALSE(answer.error);
    EXPECT_EQ(dialer.take(node) != nullptr, node == 1);
  }
}

TEST(NodeDialer, ARefusalIsReportedAndAForgottenCallIsNot) {
  comm::Socket listener = comm::listen_on("127.0.0.1", 0);
  const std::uint16_t port = comm::port_of(listener);
  NodeServer server(std::move(listener), "secret", 1, 3, "job");
  NodeDialer dialer("another secret", 0, 3);
  dialer.call({.node = 2, .address = "127.0.0.1", .port = port});
  dialer.forget(2);
  dialer.call({.node = 1, .address = "127.0.0.1", .port = port});
  std::vector<NodeDialer::Answer> answers;
  for (const auto until = comm::in(5s); answers.empty() && comm::milliseconds_until(until) != 0;) {
    server.serve({[](int, const NodeMessage&) {}, [](int, const std::string&) {}});
    pollfd polled{dialer.fd(), POLLIN, 0};
    poll(&polled, 1, 5);
    answers = dialer.answers();
  }
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(answers[0].node, 1);
  EXPECT_FALSE(answers[0].open);
  ASSERT_TRUE(answers[0].error);
  EXPECT_THROW(std::rethrow_exception(answers[0].error), Error);
}

}  // namespace
}  // namespace primus::supervise
