// A forward pass through a stage's parts of the model outside of any schedule, for evaluation and for
// generation.
//
// Each part sends one tensor, the residual stream, to the next part. Between parts on one stage, memory is
// passed on without a copy. Transfers run on the rank's communication stream, and the compute stream waits
// for them. Not thread-safe; all stages of a pipeline run the same passes in the same order.
#pragma once

#include <memory>

#include "base/system/thread_pool.h"
#include "engine/parallel/pipeline_schedule.h"
#include "engine/runtime/rank.h"
#include "engine/runtime/tape.h"

namespace primus::engine {

class StagePass {
 public:
  // `pipeline`: one rank per stage, in order; null: one stage. `rank` and `pipeline` must outlive this
  // object.
  StagePass(Rank& rank, comm::Communicator* pipeline, const PipelineShape& shape);

  // Begins the tape for a chunk.
  using Begin = FunctionRef<void(int chunk)>;
  // Runs a chunk on the tape and returns the input of the next part, with the shape given to run(). `x`: the
  // previous part's output; empty for the first part. The last part returns an empty Value.
  using Forward = FunctionRef<Value(int chunk, Value x)>;
  // Runs this stage's chunks. Afterwards, the tape holds the last chunk.
  void run(Tape& tape, DType dtype, const Shape& shape, Begin begin, Forward forward);

  // Broadcasts `data` to every stage from the stage that has the last part.
  void broadcast_from_last(const Tensor& data);

 private:
  // Runs a collective on the communication stream; the compute stream waits for it.
  void communicate(FunctionRef<void(Stream& stream)> collective);

  Rank& rank_;
  comm::Communicator* pipeline_;
  PipelineShape shape_;
  int stage_;
  std::unique_ptr<Event> computed_, transferred_;
};

}  // namespace primus::engine
