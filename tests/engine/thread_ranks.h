// Threads that are the ranks of one mesh.
#pragma once

#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "comm/local/thread_group.h"
#include "engine/parallel/mesh.h"

namespace primus::test {

// Returns body(mesh, rank) of every rank, or throws the first error of a rank: later errors are often those
// of ranks that waited for the first one. `worlds`: the ranks' communicators.
template <class Result, class World, class Body>
std::vector<Result> on_ranks_of(std::vector<World> worlds, const engine::MeshShape& shape, Body body) {
  std::vector<Result> results(worlds.size());
  std::mutex mutex;
  std::exception_ptr first;
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < worlds.size(); ++i) {
      threads.emplace_back([&, i] {
        try {
          results[i] = body(engine::Mesh(std::move(worlds[i]), shape), static_cast<int>(i));
        } catch (...) {
          const std::lock_guard lock(mutex);
          if (!first) first = std::current_exception();
        }
      });
    }
  }
  if (first) std::rethrow_exception(first);
  return results;
}

// Runs `ranks` ranks on CPUs.
template <class Result, class Body>
std::vector<Result> on_thread_ranks(int ranks, const engine::MeshShape& shape, Body body) {
  return on_ranks_of<Result>(comm::local::make_thread_group(ranks), shape, std::move(body));
}

}  // namespace primus::test
