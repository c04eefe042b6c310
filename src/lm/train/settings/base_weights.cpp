#include "lm/train/settings/base_weights.h"

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "config/trainer_config.h"
#include "lm/checkpoint/manifest.h"
#include "lm/train/settings/training_settings.h"

namespace primus {

namespace {

constexpr std::size_t kBlock = 4096, kBlocksPerFile = 64;

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void append_blocks(std::string_view bytes, std::string& seal) {
  const std::size_t step = std::max(kBlock, bytes.size() / kBlocksPerFile);
  for (std::size_t at = 0; at < bytes.size(); at += step) seal += bytes.substr(at, kBlock);
}

bool within(const Path& folder, const Path& root) {
  const Path inner = std::filesystem::weakly_canonical(folder),
             outer = std::filesystem::weakly_canonical(root);
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

// Returns whether two paths name the same place. A recorded path may be relative to another folder.
bool names_same_path(const Path& path, const Path& recorded) {
  if (recorded.empty()) return false;
  const auto normal = [](const Path& p) { return std::filesystem::weakly_canonical(p).generic_string(); };
  return normal(path) == normal(recorded) || path.lexically_normal().generic_string().ends_with(
                                                 "/" + recorded.lexically_normal().generic_string());
}

}  // namespace

InputIdentity identity_of_weights(const Path& folder) {
  Env& env = Env::posix();
  std::string seal;  // data sampled from the files, at most 260 KiB per file
  if (const Path manifest = folder / Manifest::kFileName; env.status(manifest)) {
    seal = text_of(env.map(manifest).bytes());
  } else {
    std::vector<std::string> names = env.list(folder);
    std::ranges::sort(names);
    for (const std::string& name : names) {
      if (!name.ends_with(".safetensors")) continue;
      const MappedFile file = env.map(folder / name);
      seal += fmt::format("{} {}\n", name, file.bytes().size());
      append_blocks(text_of(file.bytes()), seal);
    }
  }
  return {.name = folder.string(), .fingerprint = XXH3_64bits(seal.data(), seal.size())};
}

std::string check_base_weights(const CheckpointReader& checkpoint, const TrainerState& state,
                               const config::Experiment& experiment, const Path& own) {
  if (!experiment.trainer->load) return {};
  const std::string load = *experiment.trainer->load, saved = checkpoint.folder().string();
  if (!Env::posix().status(load)) {
    const std::string before = recorded_setting(state, "load");
    if (!names_same_path(load, before) && !names_same_path(load, state.base)) {
      throw experiment.error_for(
          "load",
          fmt::format("'{}' does not exist, and '{}' was trained {}", load, saved,
                      before.empty() || before == "null" ? "without load" : "with load=" + before),
          "restore the old value, or omit load to continue this run");
    }
    return fmt::format("load is '{}', which does not exist any more; the trained weights come from {}", load,
                       saved);
  }
  const Path folder = loaded_folder(load);
  if (within(folder, own)) return {};
  const auto refuse = [&](const std::string& what) {
    throw experiment.error_for(
        "load", fmt::format("'{}' {}; load names '{}', which would be ignored", saved, what, folder.string()),
        "give the new run its own name: exp_name=NAME; or omit load to continue this run");
  };
  const std::string recorded = recorded_setting(state, "load");
  if (recorded.empty() && !state.base_weights && state.base.empty())
    refuse("was started from random weights");
  if (!state.base_weights) return {};
  const InputIdentity now = identity_of_weights(folder);
  if (now.fingerprint == state.base_weights->fingerprint) return {};
  const Path before = state.base_weights->name;
  const bool later_checkpoint = before != folder && within(before, folder.parent_path()) &&
                                folder.filename().string().starts_with("iter_");
  if (!later_checkpoint) {
    refuse(before == folder ? "was started from other weights: the folder's weights have changed since then"
                            : fmt::format("was started from the weights of '{}'", before.string()));
  }
  return {};
}

}  // namespace primus
