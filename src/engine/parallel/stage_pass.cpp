#include "engine/parallel/stage_pass.h"

#include <utility>

#include "base/check.h"

namespace primus::engine {

StagePass::StagePass(Rank& rank, comm::Communicator* pipeline, const PipelineShape& shape)
    : rank_(rank), pipeline_(pipeline), shape_(shape), stage_(pipeline ? pipeline->rank() : 0) {
  PRIMUS_CHECK("StagePass", shape.stages == (pipeline ? pipeline->size() : 1));
  if (!pipeline) return;
  computed_ = rank.device().create_event();
  transferred_ = rank.device().create_event();
}

void StagePass::run(Tape& tape, DType dtype, const Shape& shape, Begin begin, Forward forward) {
  Buffer carried;
  for (int chunk = 0; chunk < shape_.chunks; ++chunk) {
    const int part = shape_.part(stage_, chunk);
    begin(chunk);
    Value x;
    if (part > 0) {
      if (const int from = shape_.stage_of(part - 1); from != stage_) {
        carried = rank_.stash().allocate(shape.elements() * size_of(dtype));
        const comm::Transfer receive = comm::Transfer::receive(carried.view(dtype, shape), from);
        communicate([&](Stream& stream) { pipeline_->exchange(stream, {&receive, 1}); });
      }
      x = tape.input(dtype, shape, false, std::exchange(carried, {}));
    }
    const Value next = forward(chunk, std::move(x));
    if (part + 1 == shape_.parts()) continue;
    if (const int to = shape_.stage_of(part + 1); to != stage_) {
      const comm::Transfer send = comm::Transfer::send(next.tensor(), to);
      communicate([&](Stream& stream) { pipeline_->exchange(stream, {&send, 1}); });
    } else {
      carried = tape.share(next);
    }
  }
}

void StagePass::broadcast_from_last(const Tensor& data) {
  if (!pipeline_) return;
  const int from = shape_.stage_of(shape_.parts() - 1);
  communicate([&](Stream& stream) { pipeline_->broadcast(stream, data, from); });
}

void StagePass::communicate(FunctionRef<void(Stream& stream)> collective) {
  Stream& stream = rank_.communication();
  rank_.compute().record(*computed_);
  stream.wait(*computed_);
  collective(stream);
  stream.record(*transferred_);
  rank_.compute().wait(*transferred_);
}

}  // namespace primus::engine
