#include "base/system/child_groups.h"

#include <signal.h>

#include <atomic>
#include <cerrno>

namespace primus {
namespace {

// A list that only grows, so that a signal handler can read it at any time. Removed groups leave an empty
// place, which the next group takes.
struct Place {
  std::atomic<pid_t> group{0};
  Place* next = nullptr;
};
static_assert(std::atomic<pid_t>::is_always_lock_free && std::atomic<Place*>::is_always_lock_free);

std::atomic<Place*> first_place{nullptr};

bool replace(pid_t from, pid_t to) {
  for (Place* place = first_place.load(); place != nullptr; place = place->next) {
    pid_t expected = from;
    if (place->group.compare_exchange_strong(expected, to)) return true;
  }
  return false;
}

}  // namespace

void add_child_group(pid_t group) {
  if (replace(0, group)) return;
  auto* const place = new Place;
  place->group = group;
  place->next = first_place.load();
  while (!first_place.compare_exchange_weak(place->next, place)) continue;
}

void remove_child_group(pid_t group) { replace(group, 0); }

void kill_child_groups() {
  const int before = errno;
  for (const Place* place = first_place.load(); place != nullptr; place = place->next) {
    const pid_t group = place->group.load();
    if (group > 0) ::kill(-group, SIGKILL);
  }
  errno = before;
}

}  // namespace primus
