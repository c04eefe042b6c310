// Answers the requests of 'primus dashboard': the page, its data as JSON (docs/dashboard.md), and Prometheus'
// metrics. Not thread-safe.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "safe/dashboard/access.h"
#include "safe/dashboard/http_server.h"
#include "safe/dashboard/workspace.h"

namespace primus::dashboard {

class Service {
 public:
  static constexpr std::size_t kMaxCompared = 8;  // runs in one page

  Service(Workspace& workspace, std::string version) : workspace_(workspace), version_(std::move(version)) {}

  // Access must be checked before.
  Reply answer(const Request& request);

  // Looks for changes for about 20 ms, and publishes the changed runs. Returns the time until the next call.
  std::chrono::milliseconds work(HttpServer& server);

 private:
  Reply runs() const;
  Reply report(const Request& request);
  Reply range(const Request& request);
  Reply events(const Request& request);
  Reply ranks(const Request& request);
  Reply timeline(const Request& request);
  std::vector<Run*> named(const Request& request);
  Run& one(const Request& request);

  Workspace& workspace_;
  std::string version_;
  std::vector<std::string> changed_, removed_;  // ids of runs that are to be published
  std::chrono::steady_clock::time_point published_ = {};
};

}  // namespace primus::dashboard
