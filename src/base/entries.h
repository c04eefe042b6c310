// Helpers for registries of entries. The build lists all entries of a type (primus_entry_list in
// cmake/PrimusBuild.cmake) as an array of pointers, kAll<Type>. The entries are defined in other files and
// may be initialized after the registry. Therefore a registry must copy or sort its entries in a function,
// not during static initialization.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <iterator>
#include <type_traits>
#include <vector>

namespace primus {

// Returns the entries in ascending order of a key (a member, or a function of an entry). The sort is stable.
template <class Entry, std::size_t count, class Key>
std::array<const Entry*, count> sorted_entries(const Entry* const (&list)[count], Key key) {
  std::array<const Entry*, count> sorted;
  std::copy(std::begin(list), std::end(list), sorted.begin());
  std::stable_sort(sorted.begin(), sorted.end(), [&](const Entry* a, const Entry* b) {
    return std::invoke(key, *a) < std::invoke(key, *b);
  });
  return sorted;
}

// Returns copies of the entries, for registries whose readers expect a span of values.
template <class Entries>
auto copies_of(const Entries& list) {
  std::vector<std::decay_t<decltype(**std::begin(list))>> copies;
  for (const auto* entry : list) copies.push_back(*entry);
  return copies;
}

}  // namespace primus
