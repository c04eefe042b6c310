#include "safe/supervise/nodes/node_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <future>
#include <thread>

#include "base/error.h"

namespace primus::supervise {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A server of `nodes` nodes, served until a condition holds.
class NodeServing {
 public:
  explicit NodeServing(int nodes) {
    comm::Socket listener = comm::listen_on("127.0.0.1", 0);
    port = comm::port_of(listener);
    server.emplace(std::move(listener), "secret", 0, nodes, "this job");
  }
  template <class Condition>
  bool serve_until(Condition condition) {
    const NodeServer::Handler handler{
        [&](int node, const NodeMessage& message) {
          if (message.kind == NodeMessage::Kind::kAlive)
            texts.push_back(std::to_string(node) + " " + message.text);
        },
        [&](int node, const std::string& why) { lost.push_back(std::to_string(node) + " " + why); }};
    for (const auto until = comm::in(5s); comm::milliseconds_until(until) != 0;) {
      server->serve(handler);
      if (condition()) return true;
      std::this_thread::sleep_for(1ms);
    }
    return false;
  }
  // Connects in another thread while this one serves.
  std::unique_ptr<NodeClient> client(int node, int nodes, const std::string& token = "secret",
                                     const std::string& job = "this job") {
    auto made = std::async(std::launch::async, [=, this] {
      auto one = std::make_unique<NodeClient>("127.0.0.1", port, token, node, nodes, comm::in(3s), [] {});
      one->send({.kind = NodeMessage::Kind::kHello, .more = job});
      return one;
    });
    serve_until([&] { return made.wait_for(0s) == std::future_status::ready; });
    return made.get();
  }

  std::uint16_t port = 0;
  std::optional<NodeServer> server;
  std::vector<std::string> texts, lost;
};

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(NodeLink, MessagesGoBothWays) {
  NodeServing server(3);
  const auto one = server.client(1, 3), two = server.client(2, 3);
  one->send({.text = "from one"});
  two->send({.text = "from two"});
  EXPECT_TRUE(server.serve_until([&] { return server.texts.size() == 2; }));
  EXPECT_THAT(server.texts, ::testing::UnorderedElementsAre("1 from one", "2 from two"));
  server.server->send(2, {.text = "to two"});
  std::vector<NodeMessage> got;
  EXPECT_TRUE(server.serve_until([&] {
    two->receive(got);
    return !got.empty();
  }));
  EXPECT_EQ(got[0].text, "to two");
  one->receive(got);
  EXPECT_EQ(got.size(), 1U);
}

TEST(NodeLink, TheEndOfAConnectionIsALoss) {
  NodeServing server(2);
  auto one = server.client(1, 2);
  one.reset();
  EXPECT_TRUE(server.serve_until([&] { return !server.lost.empty(); }));
  EXPECT_THAT(server.lost, ElementsAre("1 its connection ended"));
}

TEST(NodeLink, StrangersAreRefused) {
  NodeServing server(2);
  EXPECT_THAT(error_of([&] { server.client(1, 2, "other"); }), HasSubstr("wrong token"));
  EXPECT_THAT(error_of([&] { server.client(1, 3); }), HasSubstr("this job has 2 nodes"));
  EXPECT_THAT(error_of([&] { server.client(0, 2); }), HasSubstr("its node 0 runs"));
  EXPECT_TRUE(server.texts.empty());
  EXPECT_TRUE(server.lost.empty());
}

// A peer that sends other bytes, or nothing, disturbs no node.
TEST(NodeLink, NoiseIsHarmless) {
  NodeServing server(2);
  std::vector<comm::Socket> noise;
  for (int i = 0; i < 200; ++i) {
    noise.push_back(comm::connect_to("127.0.0.1", server.port, comm::in(1s)));
    if (i % 2 == 0)
      comm::send_all(noise.back(), "GET / HTTP/1.1\r\n\r\n" + std::string(200, 'x'), comm::in(1s));
    server.serve_until([] { return true; });
  }
  noise.resize(150);
  const auto one = server.client(1, 2);
  one->send({.text = "here"});
  EXPECT_TRUE(server.serve_until([&] { return !server.texts.empty(); }));
}

TEST(NodeLink, AnInvalidFrameEndsTheConnection) {
  NodeServing server(2);
  const auto one = server.client(1, 2);
  const std::string huge = "\xff\xff\xff\x7f" + std::string(64, 'x');
  ::send(one->fd(), huge.data(), huge.size(), MSG_NOSIGNAL);
  EXPECT_TRUE(server.serve_until([&] { return !server.lost.empty(); }));
  EXPECT_THAT(server.lost, ElementsAre("1 it sent an invalid message"));
}

// A node that connects again has noticed the end of its first connection earlier than the leader.
TEST(NodeLink, ASecondConnectionReplacesTheFirst) {
  NodeServing server(2);
  const auto one = server.client(1, 2), again = server.client(1, 2);
  EXPECT_TRUE(server.serve_until([&] { return !server.lost.empty(); }));
  EXPECT_THAT(server.lost, ElementsAre("1 another supervisor took its number"));
  std::vector<NodeMessage> got;
  EXPECT_TRUE(server.serve_until([&] {
    one->receive(got);
    return !one->open();
  }));
  ASSERT_EQ(got.size(), 1U);
  EXPECT_EQ(got[0].kind, NodeMessage::Kind::kQuit);
  EXPECT_THAT(got[0].text, HasSubstr("as node 1"));
  EXPECT_FALSE(got[0].flag);
  again->send({.text = "again"});
  EXPECT_TRUE(server.serve_until([&] { return !server.texts.empty(); }));
  EXPECT_EQ(server.lost.size(), 1U);
}

// A supervisor of another job may have the same token and port.
TEST(NodeLink, ANodeOfAnotherJobDisplacesNone) {
  NodeServing server(2);
  const auto one = server.client(1, 2), stranger = server.client(1, 2, "secret", "another job");
  std::vector<NodeMessage> got;
  EXPECT_TRUE(server.serve_until([&] {
    stranger->receive(got);
    return !stranger->open();
  }));
  ASSERT_EQ(got.size(), 1U);
  EXPECT_EQ(got[0].kind, NodeMessage::Kind::kQuit);
  EXPECT_THAT(got[0].text, HasSubstr("was started for another job (another job) than node 0 (this job)"));
  EXPECT_TRUE(got[0].flag);
  one->send({.text = "still here"});
  EXPECT_TRUE(server.serve_until([&] { return !server.texts.empty(); }));
  EXPECT_THAT(server.texts, ElementsAre("1 still here"));
  EXPECT_TRUE(server.lost.empty());
}

// The first message must describe the node's job.
TEST(NodeLink, AConnectionWithoutAHelloDisplacesNone) {
  NodeServing server(2);
  const auto one = server.client(1, 2);
  auto made = std::async(std::launch::async, [&] {
    return std::make_unique<NodeClient>("127.0.0.1", server.port, "secret", 1, 2, comm::in(3s), [] {});
  });
  server.serve_until([&] { return made.wait_for(0s) == std::future_status::ready; });
  const auto other = made.get();
  other->send({.text = "no hello"});
  std::vector<NodeMessage> got;
  EXPECT_TRUE(server.serve_until([&] {
    other->receive(got);
    return !other->open();
  }));
  EXPECT_TRUE(got.empty());
  EXPECT_TRUE(server.lost.empty());
  EXPECT_TRUE(server.texts.empty());
}

// The main loops of both sides may wait for a file system: the beats continue.
TEST(NodeLink, BeatsNeedNoMainLoop) {
  NodeServing server(2);
  const auto one = server.client(1, 2);
  server.serve_until([] { return true; });
  std::this_thread::sleep_for(2500ms);
  std::vector<NodeMessage> got;
  one->receive(got);
  EXPECT_GE(got.size(), 2U);
  int beats = 0;
  const NodeServer::Handler handler{
      [&](int, const NodeMessage& message) { beats += message.kind == NodeMessage::Kind::kBeat ? 1 : 0; },
      [](int, const std::string&) {}};
  server.server->serve(handler);
  EXPECT_GE(beats, 2);
}

}  // namespace
}  // namespace primus::supervise
