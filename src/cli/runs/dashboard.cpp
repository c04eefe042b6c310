// primus dashboard
#include <fmt/format.h>

#include <atomic>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/command.h"
#include "cli/train/stop_signal.h"
#include "lm/events/run_event.h"
#include "safe/dashboard/access.h"
#include "safe/dashboard/http_server.h"
#include "safe/dashboard/service.h"
#include "safe/dashboard/workspace.h"

namespace primus::cli {
namespace {

constexpr const char* kTokenVariable = "PRIMUS_DASHBOARD_TOKEN";

class Dashboard final : public Command {
 public:
  void declare(Arguments& args) override {
    Argument& folders = args.positional("FOLDER", &folders_, "runs, or folders with runs at any depth");
    folders.required = false;
    folders.default_note("output");
    constexpr double kMaxPort = 65535;
    args.option("--port", "N", &port_, "port of the page; 0: any free port").between(0, kMaxPort);
    args.option("--host", "H", &host_, "address on which the page is served; 0.0.0.0: all addresses");
    args.option("--token", "T", &token_,
                "secret that viewers need; random if --host is reachable from other machines");
  }

  int run(Console& console) override {
    if (token_ && token_->empty())
      throw invalid("--token needs a secret, not ''", "without --token, a token is made where one is needed");
    if (folders_.empty()) folders_ = {"output"};
    dashboard::Workspace workspace({folders_.begin(), folders_.end()});
    const std::string token = chosen_token();
    dashboard::Service service(workspace, PRIMUS_VERSION);
    std::optional<dashboard::Access> access;
    dashboard::HttpServer server(host_, static_cast<int>(port_), [&](const dashboard::Request& request) {
      const auto refused = access->refuse(request);
      return refused ? *refused : service.answer(request);
    });
    access.emplace(token, server.port());
    const std::atomic<bool>& stop = catch_stop_signals();
    for (const std::string& note : workspace.notes()) console.note("note: " + note);
    console.print(fmt::format("{} runs: http://{}:{}/{}\n", workspace.runs().size(), shown_host(),
                              server.port(), token.empty() ? "" : "?token=" + token));
    if (!dashboard::is_loopback(host_))
      console.note("note: the page is not encrypted; use it only in a network that you trust");
    server.serve([&] { return service.work(server); }, stop);
    return 0;
  }

 private:
  std::string chosen_token() const {
    if (token_) return *token_;
    const char* const variable = std::getenv(kTokenVariable);
    if (variable && *variable) return variable;
    return dashboard::is_loopback(host_) ? "" : dashboard::Access::new_token();
  }

  // The host for an address that a browser can open.
  std::string shown_host() const {
    if (host_ == "0.0.0.0" || host_ == "::") return host_name();
    return host_.find(':') != std::string::npos ? "[" + host_ + "]" : host_;
  }

  std::vector<std::string> folders_;
  std::string host_ = "127.0.0.1";
  std::int64_t port_ = 7007;
  std::optional<std::string> token_;
};

}  // namespace

extern const CommandEntry kDashboard{
    "dashboard",
    "Serves a page that shows runs while they train",
    "The page lists the runs, and shows the curves, events, step times by rank, goodput and texts of the "
    "runs that you choose, also of several runs side by side. New steps appear while the runs train. The "
    "page needs only the connection to this program. The program stops with Ctrl-C and changes no "
    "file.\n\nThe page is reachable only from this machine. From another machine, use 'ssh -L "
    "7007:localhost:7007 HOST'. With another --host, viewers need the token in the printed address. The "
    "environment variable PRIMUS_DASHBOARD_TOKEN also sets the token, and hides it from other users of the "
    "machine. /metrics has the newest values for Prometheus. docs/dashboard.md describes the page and its "
    "data.",
    "primus dashboard\n"
    "primus dashboard output/team/user\n"
    "primus dashboard output/team/user/try1 output/team/user/try2 --port 0\n"
    "primus dashboard output --host 0.0.0.0",
    make_command<Dashboard>,
    {Section::kTrain, 12}};

}  // namespace primus::cli
