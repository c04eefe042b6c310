#include "comm/job.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <thread>

#include "base/error.h"
#include "base/files/sha256.h"
#include "base/text/json_text.h"
#include "comm/local/doorbell.h"
#include "comm/local/ring_links.h"
#include "comm/local/shared_memory.h"
#include "comm/local/thread_group.h"
#include "comm/mpi/library.h"
#include "comm/nccl/nccl_communicator.h"
#include "comm/tcp/tcp_links.h"

namespace primus::comm {
namespace {

using namespace std::chrono_literals;

constexpr auto kAnswerTime = 1000ms;  // limit for other ranks to report their status

Transport transport_of(const JobEnvironment& environment, const JobOptions& options) {
  return options.transport != Transport::kAuto ? options.transport : environment.transport;
}

std::string arrival_key(int rank) { return fmt::format("arrival/{}", rank); }

// Reports which ranks are missing, once per interval of JobOptions::notice_time.
class Waiting {
 public:
  Waiting(const JobOptions& options, std::string what)
      : notice_(options.notice), time_(options.notice_time), what_(std::move(what)) {}
  void operator()() {
    (*this)([this] { return what_; });
  }
  void operator()(const std::function<std::string()>& what) {
    const auto now = std::chrono::steady_clock::now();
    if (!notice_ || now - reported_ < time_) return;
    reported_ = now;
    notice_(fmt::format("waiting for {} ({} s)", what(),
                        std::chrono::duration_cast<std::chrono::seconds>(now - began_).count()));
  }

 private:
  std::function<void(const std::string&)> notice_;
  std::chrono::milliseconds time_;
  std::string what_;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now(), reported_ = began_;
};

// Returns "seq_length: 4096, 2048; lr: 0.1, 0.2": rank 0's value, then this rank's.
std::string differences_of(const nlohmann::json& reference,
                           const std::vector<std::pair<std::string, std::string>>& facts) {
  constexpr std::size_t kMaxNamed = 8, kMaxCharacters = 200;
  std::map<std::string, std::string> theirs;
  if (reference.is_array()) {
    for (const nlohmann::json& fact : reference) {
      if (fact.is_array() && fact.size() == 2 && fact[0].is_string() && fact[1].is_string())
        theirs.emplace(fact[0].get<std::string>(), fact[1].get<std::string>());
    }
  }
  const auto cut = [](const std::string& value) {
    return value.size() > kMaxCharacters ? value.substr(0, kMaxCharacters) + "..." : value;
  };
  std::vector<std::string> differences;
  const auto differ = [&](const std::string& key, const std::string& before, const std::string& after) {
    differences.push_back(fmt::format("{}: {}, {}", key, cut(before), cut(after)));
  };
  for (const auto& [key, value] : facts) {
    const auto found = theirs.find(key);
    if (found == theirs.end()) {
      differ(key, "unset", value);
    } else {
      if (found->second != value) differ(key, found->second, value);
      theirs.erase(found);
    }
  }
  for (const auto& [key, value] : theirs) differ(key, value, "unset");
  const std::size_t more = differences.size() > kMaxNamed ? differences.size() - kMaxNamed : 0;
  differences.resize(differences.size() - more);
  return fmt::format("{}{}", fmt::join(differences, "; "),
                     more > 0 ? fmt::format("; and {} more", more) : "");
}

// Makes a group's links: shared memory if all members are on one host, else MPI or TCP. Members find each
// other through the store.
class JobLinkFactory final : public LinkFactory {
 public:
  JobLinkFactory(std::shared_ptr<StoreClient> store, std::shared_ptr<AbortState> abort,
                 const JobEnvironment& environment, const JobOptions& options)
      : store_(std::move(store)), abort_(std::move(abort)), environment_(environment), options_(options) {
    // Each rank publishes its host's identity, so that all ranks know which ranks share a host.
    const Deadline deadline = in(options_.start_timeout);
    store_->set(fmt::format("host/{}", environment_.rank), local::host_identity());
    for (int rank = 0; rank < environment_.world; ++rank) {
      hosts_.push_back(store_->wait(fmt::format("host/{}", rank), deadline));
    }
    const auto here =
        std::count(hosts_.begin(), hosts_.end(), hosts_[static_cast<std::size_t>(environment_.rank)]);
    spins_ = local::Doorbells::spins_for(static_cast<int>(here));
  }

  std::unique_ptr<Links> make(const std::string& id, std::span<const int> members, int rank) override {
    const int size = static_cast<int>(members.size());
    if (size == 1) return local::make_thread_link_factory(1, false)->make(id, members, rank);
    const auto host_of = [&](int member) -> const std::string& {
      return hosts_[static_cast<std::size_t>(member)];
    };
    const bool one_host = std::all_of(members.begin(), members.end(),
                                      [&](int member) { return host_of(member) == host_of(members[0]); });
    // The id lists all members, and may be too long for a key. Therefore the key contains a hash of the id.
    const std::string key = "links/" + hex(as_text(sha256(id)));
    const Deadline deadline = in(options_.start_timeout);
    const auto check = [&] { abort_->check(); };
    const Transport transport = transport_of(environment_, options_);
    check_transport(transport, one_host, environment_.mpi != nullptr);
    if (environment_.mpi && (transport == Transport::kMpi || (transport == Transport::kAuto && !one_host))) {
      if (rank == 0) store_->set(key, std::to_string(next_tag()));
      return environment_.mpi->make_links(members, std::stoi(store_->wait(key, deadline)));
    }
    if (one_host && transport != Transport::kTcp) {
      const std::size_t bytes = local::RingRegion::bytes(size);
      std::shared_ptr<std::byte> region;
      if (rank == 0) {
        local::SharedMemory memory = local::create_shared_memory(bytes);
        local::DescriptorGiver giver;
        store_->set(key, giver.name());
        giver.give(memory.descriptor, size - 1, deadline, check);
        region = std::move(memory.memory);
      } else {
        region = local::map_from_giver(store_->wait(key, deadline), bytes, deadline, check);
      }
      return std::make_unique<local::RingLinks>(std::move(region), size, rank, spins_);
    }
    const tcp::Directory directory{
        [&](const std::string& name, const std::string& value) { store_->set(name, value); },
        [&](const std::string& name) { return store_->wait(name, deadline); }, check, store_->own_address(),
        environment_.token};
    return std::make_unique<tcp::TcpLinks>(tcp::connect_group(key, size, rank, directory, deadline), rank);
  }

 private:
  // Returns a tag for a group whose first member is this rank. Each rank has its own range of tags.
  int next_tag() {
    const int each = environment_.mpi->max_tag() / environment_.world;
    static std::atomic<int> given = 0;  // shared by consecutive jobs of a process
    const int tag = given++;
    if (tag >= each) {
      throw Error(ErrorKind::kDependency,
                  fmt::format("{} has too few message tags for the groups of {} ranks",
                              environment_.mpi->version(), environment_.world),
                  "set PRIMUS_TRANSPORT=tcp");
    }
    return environment_.rank * each + tag;
  }

  std::shared_ptr<StoreClient> store_;
  std::shared_ptr<AbortState> abort_;
  JobEnvironment environment_;
  JobOptions options_;
  std::vector<std::string> hosts_;  // by rank
  int spins_ = 0;
};

Socket master_socket(const JobEnvironment& environment) {
  if (environment.listening_socket >= 0) {
    Socket inherited(environment.listening_socket);
    const int flags = fcntl(inherited.fd(), F_GETFL);
    if (flags < 0 || fcntl(inherited.fd(), F_SETFL, flags | O_NONBLOCK) != 0 ||
        fcntl(inherited.fd(), F_SETFD, FD_CLOEXEC) != 0) {
      inherited.release();
      throw invalid(
          fmt::format("PRIMUS_RENDEZVOUS_FD={} is not an open file descriptor", environment.listening_socket),
          "unset it: only the launcher of this program sets it");
    }
    return inherited;
  }
  return listen_on(environment.master_address, environment.master_port);
}

}  // namespace

std::int64_t shared_memory_of_rank(int ranks) {
  // Each pair of ranks has one ring in each direction.
  return ranks < 2 ? 0
                   : 2 * (ranks - std::int64_t{1}) *
                         static_cast<std::int64_t>(local::RingRegion::ring_bytes(ranks));
}

Job::Job(const JobEnvironment& environment, const JobOptions& options)
    : environment_(environment), options_(options), state_(std::make_shared<RankState>()) {
  state_->rank = environment.rank;
  state_->world = environment.world;
  state_->timeout = options.timeout;
  if (environment.world == 1) {
    factory_ = local::make_thread_link_factory(1, false);
    return;
  }
  if (environment.token.empty() && !is_loopback(environment.master_address)) {
    throw invalid("a job over a network needs a secret token, which keeps other programs out",
                  "set PRIMUS_JOB_TOKEN, or PRIMUS_JOB_TOKEN_FILE, to the same secret on all ranks");
  }
  const Deadline deadline = in(options.start_timeout);
  if (environment.rank == 0) {
    server_ = std::make_unique<StoreServer>(master_socket(environment), environment.token, environment.world);
  }
  // A separate thread answers questions, so a rank can report its status during computation.
  client_ = std::make_shared<StoreClient>(
      environment, deadline, state_->abort,
      [state = state_.get()](const std::string& group) { return status_of(*state, group).encode(); },
      Waiting(options,
              fmt::format("rank 0 at port {} of {}", environment.master_port, environment.master_address)));
  state_->ask_all = [client = std::weak_ptr(client_)](const std::string& group) {
    std::vector<std::optional<RankStatus>> statuses;
    if (const auto alive = client.lock()) {
      for (const auto& answer : alive->ask(group, kAnswerTime)) {
        statuses.push_back(answer ? RankStatus::decode(*answer) : std::nullopt);
      }
    }
    return statuses;
  };
  try {
    if (options.before_start) options.before_start(*client_);
    client_->set(arrival_key(rank()), name_of(transport_of(environment_, options_)));
    // If rank 0 reached the barrier after the deadline, other ranks would report rank 0 as missing. So rank 0
    // stops waiting for ranks before the deadline.
    if (rank() == 0)
      wait_for_ranks(deadline - std::min<std::chrono::milliseconds>(options.start_timeout / 4, 5s));
    client_->barrier("start", deadline);
  } catch (const Error& error) {
    Error cause = error;
    if (server_ && server_->strangers() > 0 && !state_->abort->aborted()) {
      cause = Error(error.kind(),
                    fmt::format("{}; {} connections were refused because their token was wrong", error.what(),
                                server_->strangers()),
                    "give all ranks the same PRIMUS_JOB_TOKEN or PRIMUS_JOB_TOKEN_FILE");
    }
    // Inform waiting ranks of the cause before this rank's exit breaks their connections.
    state_->abort->abort(cause.what(), cause.kind());
    throw cause;
  }
  factory_ = std::make_shared<JobLinkFactory>(client_, state_->abort, environment_, options_);
}

void Job::wait_for_ranks(Deadline deadline) {
  Waiting waiting(options_, "");
  const std::string mine = name_of(transport_of(environment_, options_));
  for (int other = 1; other < size(); ++other) {
    std::optional<std::string> theirs;
    while (!(theirs = client_->get(arrival_key(other)))) {
      if (milliseconds_until(deadline) == 0) return;  // the barrier reports the missing ranks
      waiting([&] {
        std::string missing;
        int count = 0;
        constexpr int kNamed = 8;
        for (int r = other; r < size(); ++r) {
          if (client_->get(arrival_key(r)) || ++count > kNamed) continue;
          missing += fmt::format("{}{}", missing.empty() ? "" : ", ", r);
        }
        return fmt::format("rank{} {}{} of {}", count == 1 ? "" : "s", missing,
                           count > kNamed ? fmt::format(" and {} more", count - kNamed) : "", size());
      });
      std::this_thread::sleep_for(20ms);
    }
    if (*theirs != mine) {
      throw invalid(fmt::format("ranks 0 and {} have different transports (PRIMUS_TRANSPORT): {}, {}", other,
                                mine, *theirs),
                    "set PRIMUS_TRANSPORT to the same value on all nodes, or unset it on all");
    }
  }
}

std::unique_ptr<Job> Job::connect(const JobEnvironment& environment, const JobOptions& options) {
  std::unique_ptr<Job> job(new Job(environment, options));
  if (!options.flight_folder.empty()) {
    job->flight_subscription_ = job->state_->abort->subscribe(
        [self = job.get()](const std::string& reason, ErrorKind) { self->write_flight_record(reason); });
  }
  return job;
}

Job::~Job() {
  if (!left_ && environment_.world > 1) {
    abort(fmt::format("rank {} stopped before the end", environment_.rank));
  }
}

std::unique_ptr<HostCommunicator> Job::world() {
  std::vector<int> members(static_cast<std::size_t>(size()));
  std::iota(members.begin(), members.end(), 0);
  return std::make_unique<HostCommunicator>("world", fmt::format("world#{}", worlds_++), members, rank(),
                                            factory_, state_);
}

std::unique_ptr<Communicator> Job::world(Device& device, const DeviceCollectives* collectives) {
  std::shared_ptr<const nccl::Library> library;
  if (collectives && size() > 1) library = nccl::open_library(*collectives);
  const std::string id = fmt::format("world#{}", worlds_);
  if (size() > 1) check_devices("devices/" + id, device, collectives, library ? library->version_text : "");
  if (!collectives) return world();
  ++worlds_;
  auto context = std::make_shared<nccl::Context>(device, *collectives, std::move(library), state_);
  context->start_timeout = options_.start_timeout;
  context->copy_engines = environment_.copy_engines;
  context->counted_rows = environment_.counted_rows;
  context->publish = [store = client_](const std::string& key, const std::string& value) {
    store->set(key, value);
  };
  context->wait_for = [store = client_, time = options_.start_timeout](const std::string& key) {
    return store->wait(key, in(time));
  };
  std::vector<int> members(static_cast<std::size_t>(size()));
  std::iota(members.begin(), members.end(), 0);
  return std::make_unique<nccl::NcclCommunicator>("world", id, std::move(members), rank(),
                                                  std::move(context));
}

void Job::check_devices(const std::string& key, Device& device, const DeviceCollectives* collectives,
                        const std::string& version) {
  struct Facts {
    std::string kind, place, version;  // place: identifies a GPU uniquely across hosts
  };
  const DeviceProperties properties = device.properties();
  Facts mine{properties.kind, "", version};
  if (collectives) mine.place = local::host_identity() + " " + collectives->identity(properties.ordinal);
  const auto deadline = in(options_.start_timeout);
  const auto name_of_rank = [&](int rank) { return fmt::format("{}/{}", key, rank); };
  client_->set(name_of_rank(rank()), nlohmann::json{mine.kind, mine.place, mine.version}.dump());
  if (rank() == 0) {
    std::string verdict;
    std::map<std::string, int> places;
    for (int other = 0; other < size() && verdict.empty(); ++other) {
      const auto text = nlohmann::json::parse(client_->wait(name_of_rank(other), deadline), nullptr, false);
      const auto fact = [&](std::size_t at) {
        return text.is_array() && text.size() == 3 && text[at].is_string() ? text[at].get<std::string>()
                                                                           : "?";
      };
      const Facts theirs{fact(0), fact(1), fact(2)};
      const auto [first, fresh] = places.emplace(theirs.place, other);
      if (theirs.kind != mine.kind) {
        verdict = fmt::format("ranks 0 and {} compute on devices of different kinds: {}, {}", other,
                              mine.kind, theirs.kind);
      } else if (theirs.version != mine.version) {
        verdict = fmt::format("ranks 0 and {} have different versions of {}: {}, {}", other,
                              collectives->library, mine.version, theirs.version);
      } else if (!fresh && !theirs.place.empty()) {
        verdict = fmt::format("ranks {} and {} have the same GPU, {}", first->second, other,
                              theirs.place.substr(theirs.place.rfind(' ') + 1));
      }
    }
    client_->set(key + "/verdict", verdict);
  }
  const std::string verdict = client_->wait(key + "/verdict", deadline);
  client_->barrier(key, deadline);  // all ranks have read the verdict, so rank 0 may exit
  if (!verdict.empty()) {
    throw invalid(verdict,
                  "give each rank its own GPU, all of one kind, and all hosts the same "
                  "libraries");
  }
}

void Job::require_same(const std::vector<std::pair<std::string, std::string>>& facts) {
  if (!client_) return;
  const Deadline deadline = in(options_.start_timeout);
  const std::string name = fmt::format("same#{}", comparisons_++);
  nlohmann::json mine = nlohmann::json::array();
  for (const auto& [key, value] : facts) mine.push_back({key, value});
  const std::string text = mine.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  client_->set(fmt::format("{}/{}", name, rank()), hex(as_text(sha256(text))));
  if (rank() == 0) client_->set(name + "/facts", text);
  const std::string reference = client_->wait(name + "/0", deadline);
  if (reference != hex(as_text(sha256(text)))) {
    // Names the differences. Rank 0's values are not trusted: a malformed text causes no exception here.
    const auto theirs = nlohmann::json::parse(client_->wait(name + "/facts", deadline), nullptr, false);
    client_->set(name + "/difference",
                 fmt::format("ranks 0 and {} differ in {}", rank(), differences_of(theirs, facts)));
  }
  client_->barrier(name, deadline);
  if (const auto difference = client_->get(name + "/difference")) {
    throw invalid(*difference, "start all ranks with the same experiment, overrides and data");
  }
}

void Job::barrier(const std::string& name) {
  if (client_) client_->barrier("user/" + name, in(options_.start_timeout));
}

void Job::leave() {
  if (left_) return;
  left_ = true;
  if (client_) client_->leave();
  if (server_) server_->wait_until_left(in(state_->timeout.load()));
}

void Job::write_flight_record(const std::string& reason) noexcept {
  try {
    nlohmann::ordered_json record = {
        {"rank", rank()},
        {"world_size", size()},
        {"pid", getpid()},
        {"reason", reason},
        {"written",
         std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count()}};
    record.update(state_->recorder.to_json());
    make_folders(options_.flight_folder);
    write_file_atomic(options_.flight_folder / fmt::format("flight-rank-{}.json", rank()), json_text(record));
  } catch (const std::exception&) {
    // This error is ignored, because it would hide the reason for the abort.
  }
}

}  // namespace primus::comm
