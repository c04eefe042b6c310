// Tests the environment of a job and its key-value store: values that ranks share, and clients that are
// rejected.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/error.h"
#include "comm/error_of.h"
#include "comm/rendezvous/environment.h"
#include "comm/rendezvous/store_client.h"
#include "comm/rendezvous/store_server.h"

namespace primus::comm {
namespace {

using namespace std::chrono_literals;
using test::error_of;
using ::testing::HasSubstr;

// ---- Environment --------------------------------------------------------------------------------

using Variables = std::map<std::string, std::string>;
std::optional<JobEnvironment> read(const Variables& variables) {
  return JobEnvironment::read([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

TEST(JobEnvironment, ReadsTorchrunsVariables) {
  EXPECT_FALSE(read({}));
  EXPECT_FALSE(read({{"MASTER_ADDR", "x"}, {"RANK", ""}}));
  const auto e = read({{"RANK", "5"},
                       {"WORLD_SIZE", "8"},
                       {"LOCAL_RANK", "1"},
                       {"LOCAL_WORLD_SIZE", "4"},
                       {"GROUP_RANK", "1"},
                       {"MASTER_ADDR", "[fe80::1]"},
                       {"MASTER_PORT", "29500"},
                       {"PRIMUS_JOB_TOKEN", "secret"}});
  ASSERT_TRUE(e);
  EXPECT_EQ(e->rank, 5);
  EXPECT_EQ(e->world, 8);
  EXPECT_EQ(e->local_rank, 1);
  EXPECT_EQ(e->local_world, 4);
  EXPECT_EQ(e->host, 1);
  EXPECT_EQ(e->master_address, "fe80::1");
  EXPECT_EQ(e->master_port, 29500);
  EXPECT_EQ(e->token, "secret");
  const Variables minimum = {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "7"}};
  EXPECT_EQ(read(minimum)->local_world, 2);
  // torchrun reserves MASTER_PORT for its own store, so the next port is used.
  auto agent = minimum;
  agent["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  EXPECT_EQ(read(agent)->master_port, 8);
  agent["PRIMUS_MASTER_PORT"] = "9";
  EXPECT_EQ(read(agent)->master_port, 9);
  const auto engines = [](const char* wanted) {
    return read({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"PRIMUS_COPY_ENGINES", wanted}})->copy_engines;
  };
  EXPECT_EQ(engines(""), CopyEngines::kAuto);
  EXPECT_EQ(engines("off"), CopyEngines::kOff);
  EXPECT_EQ(engines("on"), CopyEngines::kOn);
  EXPECT_EQ(engines("all"), CopyEngines::kAll);
  const auto counted = [](const char* wanted) {
    return read({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"PRIMUS_COUNTED_ROWS", wanted}})->counted_rows;
  };
  EXPECT_EQ(counted(""), CountedRows::kAuto);
  EXPECT_EQ(counted("auto"), CountedRows::kAuto);
  EXPECT_EQ(counted("direct"), CountedRows::kDirect);
  EXPECT_EQ(counted("on"), CountedRows::kOn);
  EXPECT_EQ(counted("off"), CountedRows::kOff);
  EXPECT_TRUE(read({{"RANK", "0"}, {"WORLD_SIZE", "1"}}));
}

TEST(JobEnvironment, NamesFaultyVariables) {
  const Variables good = {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "7"}};
  const auto with = [&](const std::string& name, const std::string& value) {
    auto variables = good;
    variables[name] = value;
    return error_of([&] { read(variables); });
  };
  EXPECT_THAT(with("RANK", "2"), HasSubstr("RANK=2 is not below WORLD_SIZE=2"));
  EXPECT_THAT(with("RANK", "-1"), HasSubstr("RANK='-1'"));
  EXPECT_THAT(with("RANK", "1x"), HasSubstr("RANK='1x'"));
  EXPECT_THAT(with("RANK", ""), HasSubstr("RANK is not"));
  EXPECT_THAT(with("WORLD_SIZE", ""), HasSubstr("WORLD_SIZE is not"));
  EXPECT_THAT(with("WORLD_SIZE", "99999999999999999999"), HasSubstr("WORLD_SIZE="));
  EXPECT_THAT(with("MASTER_ADDR", ""), HasSubstr("MASTER_ADDR is not set"));
  EXPECT_THAT(with("MASTER_PORT", ""), HasSubstr("MASTER_PORT is not set"));
  EXPECT_THAT(with("MASTER_PORT", "65536"), HasSubstr("MASTER_PORT='65536'"));
  EXPECT_THAT(with("PRIMUS_COPY_ENGINES", "1"), HasSubstr("PRIMUS_COPY_ENGINES='1' is not a valid setting"));
  EXPECT_THAT(with("PRIMUS_COUNTED_ROWS", "1"), HasSubstr("PRIMUS_COUNTED_ROWS='1' is not a valid setting"));
  EXPECT_THAT(with("LOCAL_RANK", "3"), HasSubstr("LOCAL_RANK=3 is not below"));
  EXPECT_THAT(with("PRIMUS_JOB_TOKEN_FILE", "/no/such/file"), HasSubstr("/no/such/file"));
  const std::string path = ::testing::TempDir() + "token";
  std::ofstream(path) << "from a file \n";
  auto variables = good;
  variables["PRIMUS_JOB_TOKEN_FILE"] = path;
  EXPECT_EQ(read(variables)->token, "from a file");
  std::ofstream(path) << "\n";
  EXPECT_THAT(with("PRIMUS_JOB_TOKEN_FILE", path), HasSubstr("is empty"));
  std::filesystem::remove(path);
}

// ---- The store ----------------------------------------------------------------------------------

struct Rendezvous {
  explicit Rendezvous(int size, const std::string& address = "127.0.0.1") : world(size), host(address) {
    Socket listener = listen_on(host, 0);
    port = port_of(listener);
    server = std::make_unique<StoreServer>(std::move(listener), "token", world);
  }
  JobEnvironment environment(int rank) const {
    JobEnvironment e;
    e.rank = rank;
    e.world = world;
    e.master_address = host;
    e.master_port = port;
    e.token = "token";
    return e;
  }
  std::unique_ptr<StoreClient> join(const JobEnvironment& e,
                                    std::shared_ptr<AbortState> abort = nullptr) const {
    return std::make_unique<StoreClient>(e, in(10s), abort ? abort : std::make_shared<AbortState>(),
                                         [rank = e.rank](const std::string& group) {
                                           return rank == 1 ? ""
                                                            : "rank " + std::to_string(rank) + " of " + group;
                                         });
  }
  std::unique_ptr<StoreClient> join(int rank, std::shared_ptr<AbortState> abort = nullptr) const {
    return join(environment(rank), std::move(abort));
  }
  Socket stranger() const { return connect_to(host, port, in(5s)); }

  int world;
  std::string host;
  std::uint16_t port = 0;
  std::unique_ptr<StoreServer> server;
};

TEST(Store, SharesValuesSumsAndBarriers) {
  for (const char* host : {"127.0.0.1", "::1", "localhost"}) {
    Rendezvous rendezvous(3, host);
    const auto a = rendezvous.join(0), b = rendezvous.join(1), c = rendezvous.join(2);
    EXPECT_FALSE(a->get("key"));
    std::thread later([&] {
      std::this_thread::sleep_for(20ms);
      b->set("key", std::string("with\0zero", 9));
    });
    EXPECT_EQ(a->wait("key", in(10s)), std::string("with\0zero", 9));
    later.join();
    EXPECT_EQ(c->get("key")->size(), 9U);
    b->set("key", "");
    EXPECT_EQ(c->get("key"), "");
    b->set("large", std::string(wire::kMaxValue, 'x'));
    EXPECT_EQ(c->wait("large", in(10s)).size(), wire::kMaxValue);
    a->erase("large");
    a->erase("never there");
    EXPECT_FALSE(b->get("large"));
    EXPECT_EQ(a->add("sum", 5), 5);
    EXPECT_EQ(b->add("sum", -7), -2);
    std::thread second([&] { b->barrier("here", in(10s)); }), third([&] { c->barrier("here", in(10s)); });
    a->barrier("here", in(10s));
    second.join();
    third.join();
    const auto answers = a->ask("world", 500ms);
    ASSERT_EQ(answers.size(), 3U);
    EXPECT_EQ(answers[0], "rank 0 of world");
    EXPECT_EQ(answers[1], std::nullopt);
    EXPECT_EQ(answers[2], "rank 2 of world");
    for (const auto& client : {a.get(), b.get(), c.get()}) client->leave();
    rendezvous.server->wait_until_left(in(5s));
  }
}

// The store holds up to 256 MiB at a time. Erased values free their space.
TEST(Store, ErasedValuesNeedNoMemory) {
  Rendezvous rendezvous(1);
  const auto a = rendezvous.join(0);
  const std::string large(wire::kMaxValue, 'x');
  for (int i = 0; i < 300; ++i) {
    a->set("value", large);
    a->erase("value");
  }
  EXPECT_FALSE(a->get("value"));
  a->leave();
}

TEST(Store, AWaitTimesOutAndNamesTheMissingRank) {
  Rendezvous rendezvous(4);
  const auto a = rendezvous.join(0), b = rendezvous.join(2);
  EXPECT_THAT(error_of([&] { a->wait("never", in(50ms)); }),
              HasSubstr("rank 0 timed out while waiting for 'never'"));
  std::thread other([&] { EXPECT_NE(error_of([&] { b->barrier("start", in(200ms)); }), "no error"); });
  EXPECT_THAT(error_of([&] { a->barrier("start", in(200ms)); }),
              HasSubstr("2 of 4 ranks did not reach 'start' in time: 1, 3"));
  other.join();
}

TEST(Store, RefusesAWrongTokenASecondRankAndAnotherSize) {
  Rendezvous rendezvous(3);
  const auto abort = std::make_shared<AbortState>();
  const auto a = rendezvous.join(0, abort);
  JobEnvironment e = rendezvous.environment(1);
  e.token = "Token";
  EXPECT_THAT(error_of([&] { rendezvous.join(e); }), HasSubstr("refuses rank 1: wrong token"));
  e.token = "";
  EXPECT_THAT(error_of([&] { rendezvous.join(e); }), HasSubstr("wrong token"));
  EXPECT_EQ(rendezvous.server->strangers(), 2);
  EXPECT_THAT(error_of([&] { rendezvous.join(0); }), HasSubstr("two processes were started with RANK=0"));
  EXPECT_FALSE(abort->aborted());  // none of these aborts the job
  e = rendezvous.environment(2);
  e.world = 4;
  const std::string differs = "rank 2 was started with WORLD_SIZE=4, rank 0 with WORLD_SIZE=3";
  EXPECT_THAT(error_of([&] { rendezvous.join(e); }), HasSubstr(differs));
  // Rank 0 must not wait for a rank that cannot join.
  EXPECT_THAT(error_of([&] { a->wait("never", in(10s)); }), HasSubstr(differs));
  EXPECT_THAT(error_of([&] { rendezvous.join(1); }), HasSubstr(differs));
}

TEST(Store, DistinguishesVersionsAndOtherPrograms) {
  Rendezvous rendezvous(2);
  const Socket stranger = rendezvous.stranger();
  char hello[wire::kHelloBytes];
  ASSERT_EQ(receive_all(stranger, hello, in(5s)), IoResult::kDone);
  ASSERT_EQ(send_all(stranger, std::string(wire::kClientMagic, 8) + wire::u32(99), in(5s)), IoResult::kDone);
  char verdict[wire::kVerdictBytes];
  ASSERT_EQ(receive_all(stranger, verdict, in(5s)), IoResult::kDone);
  std::string text(wire::u32_at({verdict, sizeof(verdict)}, 36), '\0');
  ASSERT_EQ(receive_all(stranger, text, in(5s)), IoResult::kDone);
  EXPECT_EQ(text, "rank 0 uses version 1 of the rendezvous protocol, this rank version 99");

  for (const std::string& greeting :
       {std::string("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"),
        std::string(wire::kServerMagic, 8) + wire::u32(2) + std::string(wire::kNonce, 'n')}) {
    const Socket other = listen_on("127.0.0.1", 0);
    std::thread program([&] {
      pollfd entry{other.fd(), POLLIN, 0};
      poll(&entry, 1, 10000);
      const Socket peer = accept_from(other);
      send_all(peer, greeting, in(5s));
      char byte;
      receive_all(peer, {&byte, 1}, in(200ms));
    });
    JobEnvironment e = rendezvous.environment(1);
    e.master_port = port_of(other);
    EXPECT_THAT(error_of([&] { rendezvous.join(e); }),
                greeting[0] == 'H'
                    ? HasSubstr("is not the rendezvous of this job")
                    : HasSubstr("rank 0 uses version 2 of the rendezvous protocol, rank 1 version 1"));
    program.join();
  }
}

// The launcher opens the port, and rank 0 may work for a long time before it serves the port, for example on
// the measurements of preflight.
TEST(Store, RanksWaitUntilRank0ServesItsPort) {
  Socket listener = listen_on("127.0.0.1", 0);
  JobEnvironment e = Rendezvous(2).environment(1);
  e.master_port = port_of(listener);
  std::unique_ptr<StoreServer> server;
  std::thread rank0([&] {
    std::this_thread::sleep_for(12s);
    server = std::make_unique<StoreServer>(std::move(listener), "token", 2);
  });
  int calls = 0;
  const StoreClient rank1(e, in(60s), std::make_shared<AbortState>(), {}, [&] { ++calls; });
  EXPECT_GT(calls, 5);
  rank0.join();
}

TEST(Store, AUsedPortAndAnUnknownNameAreUserErrors) {
  Rendezvous rendezvous(2);
  try {
    listen_on("127.0.0.1", rendezvous.port);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    EXPECT_THAT(error.what(), HasSubstr("is in use by another program"));
    EXPECT_THAT(error.hint(), HasSubstr("set MASTER_PORT to a free port"));
  }
  EXPECT_THAT(error_of([] { listen_on("no such host", 1); }), HasSubstr("cannot find the address of"));
  JobEnvironment e = rendezvous.environment(1);
  e.master_port = 1;  // no listener on this port
  EXPECT_THAT(error_of([&] {
                StoreClient(e, in(200ms), std::make_shared<AbortState>(),
                            [](const std::string&) { return ""; });
              }),
              HasSubstr("cannot connect to port 1 of 127.0.0.1: Connection refused"));
}

TEST(Store, ALostRankAndAnAbortReachEveryRank) {
  Rendezvous rendezvous(3);
  const auto first = std::make_shared<AbortState>(), second = std::make_shared<AbortState>();
  const auto a = rendezvous.join(0, first), b = rendezvous.join(1, second);
  auto c = rendezvous.join(2);
  std::thread waiting(
      [&] { EXPECT_THAT(error_of([&] { b->wait("never", in(30s)); }), HasSubstr("rank 2 was lost")); });
  c.reset();  // without leave()
  waiting.join();
  EXPECT_THAT(error_of([&] { a->wait("never", in(30s)); }), HasSubstr("rank 2 was lost"));

  Rendezvous other(2);
  const auto d = other.join(0, std::make_shared<AbortState>());
  const auto reason = std::make_shared<AbortState>();
  const auto e = other.join(1, reason);
  reason->abort("the loss is no number");
  EXPECT_EQ(error_of([&] { d->wait("never", in(30s)); }), "the loss is no number");
}

// Rank 0 ends right after it has reported the reason, while its peers keep the server busy.
TEST(Store, TheReasonArrivesBeforeRank0Ends) {
  constexpr int kWorld = 5;
  for (int round = 0; round < 60; ++round) {
    Rendezvous rendezvous(kWorld);
    const auto reason = std::make_shared<AbortState>();
    auto first = rendezvous.join(0, reason);
    std::vector<std::string> heard(kWorld - 1);
    std::vector<std::thread> peers;
    std::atomic<int> busy{0};
    for (int rank = 1; rank < kWorld; ++rank) {
      peers.emplace_back([&, rank] {
        const auto peer = rendezvous.join(rank);
        heard[static_cast<std::size_t>(rank) - 1] = error_of([&] {
          for (++busy;;) peer->set(fmt::format("key of {}", rank), std::string(200'000, 'x'));
        });
      });
    }
    while (busy < kWorld - 1) std::this_thread::yield();
    reason->abort("the devices differ");
    first.reset();
    rendezvous.server.reset();
    for (std::thread& peer : peers) peer.join();
    for (const std::string& error : heard) ASSERT_EQ(error, "the devices differ") << "round " << round;
  }
}

// ---- Strangers ----------------------------------------------------------------------------------

// Returns whether the other side closes the connection within `time`.
bool closes(const Socket& socket, std::chrono::milliseconds time) {
  char buffer[4096];
  const Deadline end = in(time);
  while (milliseconds_until(end) != 0) {
    pollfd entry{socket.fd(), POLLIN, 0};
    poll(&entry, 1, 50);
    const ssize_t got = recv(socket.fd(), buffer, sizeof(buffer), 0);
    if (got == 0 || (got < 0 && errno != EAGAIN)) return true;
  }
  return false;
}

TEST(Store, UnauthenticatedConnectionsHaveNoEffect) {
  Rendezvous rendezvous(2);
  const auto a = rendezvous.join(0);
  // Opens more silent connections than the server accepts. One of them sends a byte now and then.
  std::vector<Socket> silent;
  for (int i = 0; i < 200; ++i) silent.push_back(rendezvous.stranger());
  std::thread slow([&] {
    const Socket one = rendezvous.stranger();
    for (int i = 0; i < 12; ++i) {
      send_all(one, "P", in(1s));
      std::this_thread::sleep_for(500ms);
    }
    EXPECT_TRUE(closes(one, 10s));
  });
  const Socket garbage = rendezvous.stranger();
  send_all(garbage, std::string(100000, '\xff'), in(5s));
  EXPECT_TRUE(closes(garbage, 10s));
  const auto b = rendezvous.join(1);  // a legitimate rank joins nevertheless, once a place is free
  b->set("key", "value");
  EXPECT_EQ(a->get("key"), "value");
  slow.join();
  for (const Socket& one : silent) EXPECT_TRUE(closes(one, 10s));
}

// A client with the token cannot make the server allocate unbounded memory or crash.
TEST(Store, BrokenFramesDropTheirSender) {
  const std::string frames[] = {
      wire::u32(0xffffffff) + "x",            // too long
      wire::u32(0),                           // empty
      wire::u32(9) + std::string(9, '\x7f'),  // an unknown type
      wire::Writer(wire::Type::kSet, 1).string(std::string(600, 'k')).string("v").frame(),
      wire::Writer(wire::Type::kSet, 1).frame(),  // fields are missing
      wire::Writer(wire::Type::kWait, 1).string("key").frame(),
      wire::Writer(wire::Type::kAnswer).number(77).frame(),
  };
  for (const std::string& frame : frames) {
    Rendezvous rendezvous(2);
    const auto abort = std::make_shared<AbortState>();
    const auto a = rendezvous.join(0, abort);
    const Socket peer = rendezvous.stranger();
    char hello[wire::kHelloBytes], verdict[wire::kVerdictBytes];
    ASSERT_EQ(receive_all(peer, hello, in(5s)), IoResult::kDone);
    const std::string nonce(wire::kNonce, 'n');
    const std::string introduction =
        std::string(wire::kClientMagic, 8) + wire::u32(wire::kVersion) + wire::u32(1) + wire::u32(2) + nonce +
        wire::client_code("token", std::string_view(hello + 12, wire::kNonce), nonce, 1, 2);
    ASSERT_EQ(send_all(peer, introduction, in(5s)), IoResult::kDone);
    ASSERT_EQ(receive_all(peer, verdict, in(5s)), IoResult::kDone);
    EXPECT_EQ(wire::u32_at({verdict, sizeof(verdict)}, 0), 0U);
    ASSERT_EQ(send_all(peer, frame, in(5s)), IoResult::kDone);
    EXPECT_TRUE(closes(peer, 10s));
    EXPECT_THAT(error_of([&] { a->wait("never", in(10s)); }), HasSubstr("rank 1 was lost"));
  }
}

}  // namespace
}  // namespace primus::comm
