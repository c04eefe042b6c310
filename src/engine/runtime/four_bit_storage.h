// Frozen matrices in 4 bits (turbo/four_bit/four_bit_format.h), for adapters on quantised weights (QLoRA;
// Dettmers et al. 2023, arXiv:2305.14314).
//
// Each published tensor of a matrix is quantised separately, so that its bits are those of bitsandbytes and
// of checkpoints. The tensors of a matrix are stored one after another. Neighbouring tensors of equal size
// (keys and values, or the matrices of experts) form a run, which one kernel call expands.
//
// Operators read 16 or 32 bits: the tape expands a matrix into scratch memory before each operator that reads
// it, and releases the memory after the operator (ExpandedWeight). A rank therefore never has more than one
// expanded matrix. Under Sharding::kParameters, ranks gather the 4-bit values.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "device/device.h"
#include "tensor/scratch_tensor.h"
#include "tensor/tensor.h"
#include "turbo/context.h"
#include "turbo/four_bit/four_bit_format.h"

namespace primus::engine {

struct Parameter;

struct FourBitStorage {
  // Where the arrays of a tensor, or of a run's tensors, begin: bytes within the parameter's storage.
  struct Places {
    std::int64_t packed = 0, factors = 0, codes = 0, offset = 0;
  };
  struct Run {
    std::vector<int> parts;     // indices in Parameter::parts, in the order of their elements
    std::int64_t first = 0;     // the first element within this rank's parameter
    std::int64_t elements = 0;  // number of elements of each tensor
    Places places;
  };

  turbo::FourBitFormat format;  // without a type, the parameter is not quantised
  DType dtype = DType::kF32;    // type of the expanded values
  std::vector<Run> runs;        // ascending
  std::int64_t table = 0;       // place of ExpandFourBit::table
  std::int64_t bytes = 0;       // size of the storage
  Tensor values;                // [bytes] uint8; absent while the unit is not gathered
  // For checkpoints, on the host: FourBitTensor::offset of each part, and FourBitTensor::nested_map of all.
  std::vector<float> offsets, nested_map;

  explicit operator bool() const { return static_cast<bool>(format); }
  // Returns the places of one part's arrays, or nullopt if another rank has the part.
  std::optional<Places> places_of(int part) const;
  // Returns the number of elements of one part; 0 if another rank has the part.
  std::int64_t elements_of(int part) const;
};

// Lays out the storage of a parameter with a format. `dtype`: type of the expanded values. Throws
// kUnsupported if the parameter has only a part of a published tensor, or has the tensor's elements in
// another order.
void lay_out_four_bit(Parameter& parameter, DType dtype);

// Writes a part into the memory that this rank stores, and waits for the copies. The parts of a parameter
// must be written in order. Throws kUnsupported if their nested maps differ.
void write_four_bit(Parameter& parameter, int part, const turbo::FourBitTensor& tensor, Stream& stream);

// Returns the fp32 tensors of factors. The unit must be gathered.
std::vector<Tensor> factors_of(const Parameter& parameter);

// All published tensors in 4 bits of a model, on all ranks.
struct FourBitTotals {
  std::int64_t elements = 0;
  std::int64_t saved_bytes = 0;  // in a checkpoint
};
FourBitTotals four_bit_totals(const std::deque<Parameter>& parameters);

// While this object lives, Parameter::value holds the expanded values of a quantised parameter, for kernels
// that are enqueued on the context's stream. Does nothing for other parameters and for null.
class ExpandedWeight {
 public:
  ExpandedWeight(turbo::Context& context, Parameter* parameter);
  ~ExpandedWeight();
  ExpandedWeight(const ExpandedWeight&) = delete;
  ExpandedWeight& operator=(const ExpandedWeight&) = delete;

 private:
  Parameter* parameter_ = nullptr;  // null: nothing is expanded
  std::optional<ScratchTensor> memory_;
};

}  // namespace primus::engine
