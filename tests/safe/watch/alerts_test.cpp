// Tests of alerts: rules, messages, a local web server, programs and mail.
#include "safe/watch/alerts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/address_space.h"
#include "base/error.h"
#include "base/files/file.h"
#include "base/temporary_folder.h"
#include "comm/rendezvous/socket.h"
#include "lm/events/lost_rank.h"

namespace primus::watch {
namespace {

using nlohmann::json;
using primus::test::TemporaryFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using namespace std::chrono_literals;

// A web server on this machine, which keeps the bodies of requests. The first `refused` requests get status
// 503; with `silent`, no request gets an answer.
class Server {
 public:
  explicit Server(int refused = 0, bool silent = false)
      : listener_(comm::listen_on("127.0.0.1", 0)),
        refused_(refused),
        silent_(silent),
        thread_([this] { serve(); }) {}
  ~Server() {
    stop_ = true;
    thread_.join();
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  std::string address() const {
    return "http://127.0.0.1:" + std::to_string(comm::port_of(listener_)) + "/hook?token=abcdef";
  }
  std::vector<json> bodies() const {
    const std::lock_guard lock(mutex_);
    return bodies_;
  }
  int requests() const { return requests_; }

 private:
  void serve() {
    while (!stop_) {
      comm::Socket client = comm::accept_from(listener_);
      if (!client.valid()) {
        std::this_thread::sleep_for(2ms);
        continue;
      }
      if (silent_) {
        ++requests_;
        held_.push_back(std::move(client));
        continue;
      }
      std::string text;
      char c = 0;
      while (!text.ends_with("\r\n\r\n") &&
             comm::receive_all(client, {&c, 1}, comm::in(5s)) == comm::IoResult::kDone)
        text += c;
      const std::size_t length = text.find("Content-Length: ");
      if (length == std::string::npos) continue;
      std::string body(std::stoul(text.substr(length + 16)), ' ');
      comm::receive_all(client, body, comm::in(5s));
      const bool refuses = requests_++ < refused_;
      if (!refuses) {
        const std::lock_guard lock(mutex_);
        bodies_.push_back(json::parse(body));
      }
      comm::send_all(client,
                     std::string(refuses ? "HTTP/1.1 503 Busy" : "HTTP/1.1 204 No Content") +
                         "\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
                     comm::in(5s));
    }
  }

  comm::Socket listener_;
  int refused_;
  bool silent_;
  std::vector<comm::Socket> held_;
  std::vector<json> bodies_;
  mutable std::mutex mutex_;
  std::atomic<bool> stop_{false};
  std::atomic<int> requests_{0};
  std::thread thread_;
};

RunEvent warning(const std::string& detector, int rank = 0) {
  return {.step = 7,
          .rank = rank,
          .cause = detector,
          .facts = RunWarning{.iteration = 7, .detector = detector, .text = "text of " + detector}};
}
RunEvent step(std::int64_t iteration, double loss) {
  return {.step = iteration, .facts = IterationRecord{.iteration = iteration, .lm_loss = loss}};
}
std::string error_of(const std::string& rule) {
  try {
    parse_alert(rule);
  } catch (const Error& error) {
    return std::string(error.what()) + " | " + error.hint();
  }
  return "no error";
}
bool wait_for(const std::function<bool()>& condition) {
  for (int i = 0; i < 2000 && !condition(); ++i) std::this_thread::sleep_for(5ms);
  return condition();
}

TEST(AlertRules, AreParsed) {
  const AlertRule rule = parse_alert("fault, slow_rank ,lm_loss > 2.5e1 -> run: ./notify.sh --now");
  ASSERT_THAT(rule.when, SizeIs(3));
  EXPECT_EQ(rule.when[1].name, "slow_rank");
  EXPECT_EQ(rule.when[2].name, "lm_loss");
  EXPECT_EQ(rule.when[2].comparison, '>');
  EXPECT_EQ(rule.when[2].limit, 25);
  EXPECT_EQ(rule.action, AlertRule::Action::kRun);
  EXPECT_EQ(rule.target, "./notify.sh --now");
  EXPECT_EQ(parse_alert("warning -> mail:me@example.org").action, AlertRule::Action::kMail);
  setenv("PRIMUS_TEST_HOOK", "http://hook.example:81/x?token=secret", 1);
  const AlertRule hook = parse_alert("end -> $PRIMUS_TEST_HOOK");
  EXPECT_EQ(hook.target, "http://hook.example:81/x?token=secret");
  EXPECT_EQ(hook.shown(), "the webhook at hook.example:81");
}

TEST(AlertRules, MistakesAreNamed) {
  EXPECT_THAT(error_of("fault"), HasSubstr("the arrow is missing"));
  EXPECT_THAT(error_of("slow_rnk -> run:x"), HasSubstr("'slow_rnk' is not a condition"));
  EXPECT_THAT(error_of("los > 3 -> run:x"), HasSubstr("'los' is not a metric"));
  EXPECT_THAT(error_of("lm_loss > x -> run:x"), HasSubstr("'x' is not a number"));
  EXPECT_THAT(error_of("-> run:x"), HasSubstr("there is no condition"));
  EXPECT_THAT(error_of("fault -> run:"), HasSubstr("the action is empty"));
  EXPECT_THAT(error_of("fault -> ./x"), HasSubstr("the action is unknown"));
  EXPECT_THAT(error_of("fault -> https://a/?token=secret"), HasSubstr("needs encryption"));
  EXPECT_THAT(error_of("fault -> https://a/?token=secret"), Not(HasSubstr("secret")));
  EXPECT_THAT(error_of("fault -> mail:-odb"), HasSubstr("mail address"));
  EXPECT_THAT(error_of("fault -> $PRIMUS_NO_SUCH_VARIABLE"),
              HasSubstr("'PRIMUS_NO_SUCH_VARIABLE' is not set"));
}

TEST(Alerts, AWebhookGetsTheFindingsItWants) {
  const Server server;
  {
    Alerts alerts({parse_alert("slow_rank, failed -> " + server.address())}, {.run = "/runs/a"});
    alerts.on(warning("slow_rank"));
    alerts.on(warning("loss_growth"));
    alerts.on(
        {.step = 9,
         .cause = "NaN",
         .facts = RunEnding{.state = RunEnding::State::kFailed, .reason = "NaN", .text = "lm loss is NaN"}});
  }
  const std::vector<json> bodies = server.bodies();
  ASSERT_THAT(bodies, SizeIs(2));
  EXPECT_EQ(bodies[0].at("cause"), "slow_rank");
  EXPECT_EQ(bodies[0].at("text"), "text of slow_rank");
  EXPECT_EQ(bodies[0].at("run"), "/runs/a");
  EXPECT_EQ(bodies[0].at("step"), 7);
  EXPECT_EQ(bodies[1].at("text"), "lm loss is NaN");
  EXPECT_EQ(bodies[1].at("condition"), "failed");
}

TEST(Alerts, ASupervisorReportsWhatItsRanksCannot) {
  const RunEvent failed{.facts = RunEnding{.state = RunEnding::State::kFailed, .text = "killed"}};
  RunEvent lost{.cause = "rank_lost", .facts = FaultFacts{.text = "rank 1 was killed by signal 9"}};
  RunEvent gave_up = failed;
  gave_up.cause = "gave_up: crash loop";
  const AlertRule rule = parse_alert("rank_lost, gave_up -> run:x");
  ASSERT_TRUE(matching(rule, lost));
  EXPECT_EQ(matching(rule, lost)->name, "rank_lost");
  EXPECT_EQ(matching(rule, gave_up)->name, "gave_up");
  EXPECT_FALSE(matching(rule, failed));
  EXPECT_FALSE(matching(parse_alert("node_lost -> run:x"), lost));
  EXPECT_TRUE(matching(parse_alert("fault -> run:x"), lost));
  EXPECT_TRUE(matching(parse_alert("failed -> run:x"), gave_up));
  // The supervisor may restart the run.
  const Server server;
  {
    Alerts alerts({parse_alert("failed, fault -> " + server.address())}, {.supervised = true});
    alerts.on(failed);
    alerts.on({.cause = std::string(kLostRank), .facts = FaultFacts{.text = "rank 1"}});  // the supervisor's
    alerts.on({.facts = FaultFacts{.text = "NaN"}});
  }
  const std::vector<json> bodies = server.bodies();
  ASSERT_THAT(bodies, SizeIs(1));
  EXPECT_EQ(bodies[0].at("text"), "NaN");
}

TEST(Alerts, AMetricIsReportedWhenItCrossesTheLimit) {
  const Server server;
  {
    Alerts alerts({parse_alert("lm_loss > 5 -> " + server.address())}, {.pause = 0ms});
    for (int i = 1; i <= 9; ++i) alerts.on(step(i, i == 3 || i == 4 || i == 8 ? 6 : 4));
  }
  const std::vector<json> bodies = server.bodies();
  ASSERT_THAT(bodies, SizeIs(2));
  EXPECT_EQ(bodies[0].at("step"), 3);
  EXPECT_EQ(bodies[0].at("text"), "lm_loss is 6, above the limit 5");
  EXPECT_EQ(bodies[1].at("step"), 8);
}

TEST(Alerts, TheRateIsLimited) {
  const Server server;
  {
    Alerts alerts({parse_alert("slow_rank, warning, end -> " + server.address())}, {.pause = 400ms});
    for (int i = 0; i < 50; ++i) alerts.on(warning("slow_rank"));
    alerts.on(warning("loss_growth"));  // another condition
    std::this_thread::sleep_for(500ms);
    alerts.on(warning("slow_rank"));
  }
  std::vector<std::string> sent;
  for (const json& body : server.bodies())
    sent.push_back(body.at("condition").get<std::string>() + " " + body.at("left_out").dump());
  EXPECT_THAT(sent, ElementsAre("slow_rank 0", "warning 0", "slow_rank 49"));
}

TEST(Alerts, AFailedMessageIsTriedAgain) {
  const Server server(2);
  Alerts alerts({parse_alert("fault -> " + server.address())}, {.retry = 5ms});
  alerts.on({.step = 1, .cause = "error", .facts = FaultFacts{.text = "the disk is broken"}});
  EXPECT_TRUE(wait_for([&] { return alerts.sent() == 1; }));
  EXPECT_EQ(server.requests(), 3);
}

// A server that does not answer delays neither training nor, for long, the end of the program.
TEST(Alerts, ADeadServerDelaysNothing) {
  const TemporaryFolder folder;
  const Server server(0, true);
  Logger log(LogOptions{.folder = folder.path().string()});
  const auto began = std::chrono::steady_clock::now();
  {
    Alerts alerts({parse_alert("warning -> " + server.address())},
                  {.log = &log, .pause = 0ms, .retry = 1ms, .timeout = 100ms, .at_end = 200ms});
    for (int i = 0; i < 1000; ++i) alerts.on(warning("slow_rank"));
    EXPECT_LT(std::chrono::steady_clock::now() - began, 1s);
    EXPECT_TRUE(wait_for([&] { return alerts.failed() > 900; }));  // the queue is limited
  }
  std::ifstream file(folder.path() / "warning.log");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_THAT(text, HasSubstr("an alert was not sent by the webhook at 127.0.0.1"));
  EXPECT_THAT(text, Not(HasSubstr("abcdef")));
}

TEST(Alerts, AProgramGetsTheMessageOnItsInput) {
  const TemporaryFolder folder;
  const Path file = folder.path() / "got";
  {
    Alerts alerts({parse_alert("warning -> run:cat > " + file.string())}, {});
    alerts.on(warning("gpu_memory", 3));
  }
  const std::string text = read_file(file);
  const json got = json::parse(text);
  EXPECT_EQ(got.at("rank"), 3);
  EXPECT_EQ(got.at("cause"), "gpu_memory");
  EXPECT_TRUE(text.ends_with("}\n")) << "appended messages are lines of a file";
}

TEST(Alerts, MailGoesThroughSendmail) {
  const TemporaryFolder folder;
  const Path file = folder.path() / "sendmail";
  std::ofstream(file) << "#!/bin/sh\ncat > " << (folder.path() / "mail").string() << "\n";
  ASSERT_EQ(::chmod(file.c_str(), 0755), 0);
  const std::string path = std::getenv("PATH");
  setenv("PATH", (folder.path().string() + ":" + path).c_str(), 1);
  {
    Alerts alerts({parse_alert("warning -> mail:me@example.org")}, {.run = "/runs/a"});
    alerts.on(warning("slow_rank"));
  }
  setenv("PATH", path.c_str(), 1);
  std::ifstream mail(folder.path() / "mail");
  const std::string text{std::istreambuf_iterator<char>(mail), {}};
  EXPECT_THAT(text, HasSubstr("To: me@example.org\nSubject: Primus: warning in a\n"));
  EXPECT_THAT(text, HasSubstr("text of slow_rank"));
}

TEST(Alerts, LongMailsAreSentWhole) {
  const TemporaryFolder folder;
  const Path file = folder.path() / "sendmail";
  std::ofstream(file) << "#!/bin/sh\ncat > " << (folder.path() / "mail").string() << "\n";
  ASSERT_EQ(::chmod(file.c_str(), 0755), 0);
  const std::string path = std::getenv("PATH");
  setenv("PATH", (folder.path().string() + ":" + path).c_str(), 1);
  {
    Alerts alerts({parse_alert("warning -> mail:me@example.org")}, {.run = "/runs/" + std::string(500, 'r')});
    RunEvent event = warning("slow_rank");
    auto& facts = std::get<RunWarning>(event.facts);
    facts.text = std::string(590, '"');
    facts.advice = std::string(590, '"');
    alerts.on(event);
  }
  setenv("PATH", path.c_str(), 1);
  std::ifstream mail(folder.path() / "mail");
  const std::string text{std::istreambuf_iterator<char>(mail), {}};
  EXPECT_GT(text.size(), 4096U);
  EXPECT_TRUE(text.ends_with("\"left_out\": 0\n}\n")) << text.substr(text.size() - 100);
}

bool continues_without_thread() {
  const TemporaryFolder folder;
  Logger log(LogOptions{.folder = folder.path().string()});
  limit_address_space(1 << 20);
  Alerts alerts({parse_alert("warning -> run:true")}, {.log = &log});
  alerts.on(warning("slow_rank"));
  std::ifstream file(folder.path() / "warning.log");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return text.find("the run sends no alerts") != std::string::npos && !alerts.wants(EventKind::kWarning);
}

// The system also refuses a thread if a limit of processes is reached; a limit of memory is easier to set.
TEST(Alerts, ARunWithoutAThreadForAlertsContinues) {
  if (!kAddressSpaceCanBeLimited) GTEST_SKIP();
  // A new process has no stacks of earlier threads, which another thread could use again.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(std::_Exit(continues_without_thread() ? 0 : 1), ::testing::ExitedWithCode(0), "");
}

TEST(Alerts, LongTextsFitTheInputOfPrograms) {
  RunEvent event = warning("slow_rank");
  auto& facts = std::get<RunWarning>(event.facts);
  facts.text = std::string(100'000, '\n');
  facts.advice = std::string(100'000, '\xff');
  EXPECT_LE(alert_json({.run = std::string(10'000, '"')}, event, {.name = "warning"}, 0).size(), 4096U);
}

}  // namespace
}  // namespace primus::watch
