// Threads that are the ranks of one mesh.
#pragma once

#include <cstddef>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include "comm/local/thread_group.h"
#include "engine/parallel/mesh.h"

namespace primus::test {

// Returns body(mesh, rank) of every rank, or throws the error of a rank.
template <class Result, class Body>
std::vector<Result> on_thread_ranks(int ranks, const engine::MeshShape& shape, Body body) {
  auto worlds = comm::local::make_thread_group(ranks);
  std::vector<Result> results(static_cast<std::size_t>(ranks));
  std::vector<std::exception_ptr> errors(results.size());
  {
    std::vector<std::jthread> threads;
    for (int r = 0; r < ranks; ++r) {
      threads.emplace_back([&, r] {
        const auto i = static_cast<std::size_t>(r);
        try {
          results[i] = body(engine::Mesh(std::move(worlds[i]), shape), r);
        } catch (...) {
          errors[i] = std::current_exception();
        }
      });
    }
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  return results;
}

}  // namespace primus::test
