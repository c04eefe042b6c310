// Compares weights and optimizer states that several ranks have copies of. All copies must have the same
// bits after each update, because every rank applies the same gradients to them. Internal to lm/train.
//
// Copies exist on data ranks (with Sharding: of the parts that are not sharded), on tensor ranks of weights
// that are not split, and on the first and last pipeline stage of tied embeddings. Megatron-LM has the same
// check for data ranks (check_weight_hash_across_dp_replicas_interval). Free functions without state, except
// for the hash.
#pragma once

#include <string>
#include <vector>

#include "engine/runtime/parameters.h"
#include "lm/checkpoint/checkpoint_group.h"
#include "lm/train/corruption/corruption.h"
#include "lm/train/corruption/device_hash.h"

namespace primus {

// A tensor of this rank.
struct StoredTensor {
  // Names the ranks that have copies: ranks with equal texts have equal tensors under equal names.
  std::string copies;
  std::string name;  // "layers.3 exp_avg"
  Tensor tensor;
};
// Returns all weights and optimizer states of a store. `prefix` is put in front of names.
std::vector<StoredTensor> stored_tensors(const engine::ParameterStore& store, const engine::Mesh& mesh,
                                         const std::string& prefix);

// Compares the copies. All ranks of the group must call it, after all their work is done. They exchange one
// hash for each kind of copy, and the hash of each tensor only after a difference. `copied`: set on rank 0 to
// whether any tensor has copies. Returns the same finding on all ranks.
Corruption compare_copies(const std::vector<StoredTensor>& tensors, DeviceHash& hash, CheckpointGroup& group,
                          bool* copied = nullptr);

// Judges the lines "<copies>\t<name>\t<hash>" of each rank. The ranks with the rarer hash are wrong. If no
// hash has a majority, all ranks may be wrong. Returns the finding about the first tensor with a difference.
Corruption judge_copies(const std::vector<std::string>& lines_of_ranks, bool* copied = nullptr);

}  // namespace primus
