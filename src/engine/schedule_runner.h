// Runs one stage's list of a pipeline schedule (engine/pipeline_schedule.h): a step's forward passes,
// backward passes, weight gradients and transfers, over one tape for each chunk and microbatch that is alive.
// Training on one device is the simplest schedule, of one stage.
//
// What goes from part to part is one tensor, the residual stream, and its gradient on the way back, in the
// same type; between parts on one stage its memory is handed on. Transfers run on the rank's communication
// stream beside the kernels. Transfers that follow each other in the list are one batch, in which sends and
// receives go both ways at once; and a receive that follows computing work begins beside it. At most two
// batches with sends hold memory without the compute stream having waited for them.
//
// A rank that measures runs the same list, so the whole schedule's memory is found exactly. Not thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/data_parallel.h"
#include "engine/pipeline_schedule.h"
#include "engine/rank.h"
#include "engine/stage_pass.h"
#include "engine/tape.h"
#include "engine/weight_gradient_queue.h"

namespace primus::engine {

// A stage's chunks of a model.
class ChunkedModel {
 public:
  virtual ~ChunkedModel() = default;

  struct Outputs {
    Value next;                 // for the part behind; empty: this is the last
    std::vector<Value> losses;  // of the last part
  };
  // Runs the forward pass of a chunk on `tape`, in training or in evaluation. `x`: what the part before gave;
  // empty for the first part.
  virtual Outputs forward(Tape& tape, int chunk, std::int64_t microbatch, Value x) = 0;
  // The losses of a microbatch have their values for kernels from now on: in training once the backward pass
  // of the last part is enqueued.
  virtual void losses_ready(const std::vector<Value>& losses) = 0;
};

class ScheduleRunner {
 public:
  struct Settings {
    PipelineSchedule schedule;
    int stage = 0;
    comm::Communicator* pipeline = nullptr;  // a rank for each stage, in order; null: there is one stage
    // Of what goes from part to part; of no meaning with a single part.
    DType dtype = DType::kF32;
    Shape shape = {};
    std::vector<RecomputePolicy> recompute = {};  // by chunk; empty: nothing is recomputed
    PrecisionRecipe precision = {};               // in evaluation, too
    bool adapters = true;                         // of evaluation (Tape::Settings)
    // Of schedules that do not split backward passes; those that do have their own.
    WeightGradientQueue::Policy weight_gradients = WeightGradientQueue::Policy::kInline;
  };

  // All must outlive this. DataParallel::begin_step is the caller's.
  ScheduleRunner(Rank& rank, DataParallel& parallel, ChunkedModel& model, Settings settings);

  // Goes to the beginning of the list. A step that was left half-way is abandoned.
  void begin();
  // Runs on, up to the first forward pass of a microbatch from `microbatches` on, whose inputs are not at
  // hand yet; with all at hand, to the end. Throws StopRequest: abandon() then.
  void run(std::int64_t microbatches);
  // Evaluation: passes one microbatch through this stage's chunks. All stages call it alike, each on a tape
  // of its own. `microbatch` is handed to the model.
  void evaluate(Tape& tape, std::int64_t microbatch);
  // Leaves a step half-way, after StopRequest. For ranks that are alone.
  void abandon();
  // As Tape::Settings::stop.
  void set_stop(const std::atomic<bool>* stop) { stop_ = stop; }

  // Whether the stage has all of the model, and each microbatch ends before the next one begins: run() then
  // leaves nothing on its way.
  bool in_turn() const;

  // Whether all of the list has been enqueued.
  bool finished() const { return position_ == list().size() && alive_.empty(); }
  const WeightGradientQueue& weight_gradients() const { return queue_; }

 private:
  // Before the first step: a transfer to and from every rank that the list names.
  void connect();
  // One chunk of one microbatch, from its forward pass until nothing of it is needed.
  struct Lane {
    Lane(turbo::Context& context, Stash& stash) : tape(context, stash) {}
    Tape tape;
    Value received;  // what the part before gave
    int sent = -1;   // slot of what the part behind gets
    std::vector<Value> losses;
    bool done = false;  // nothing is left to do but weight gradients out of turn
  };
  // A batch of transfers on its way.
  struct Flight {
    std::unique_ptr<Event> event;  // null: the compute stream has waited
    std::vector<Buffer> sent;      // held until then
  };
  struct Arrival {
    Buffer buffer;
    std::shared_ptr<Flight> flight;  // null: it was made on this stage
  };
  using Key = std::pair<int, std::int64_t>;  // chunk, microbatch

  const std::vector<Work>& list() const {
    return settings_.schedule.stages[static_cast<std::size_t>(settings_.stage)];
  }
  const PipelineShape& shape() const { return settings_.schedule.shape; }
  int part_of(const Work& work) const { return shape().part(settings_.stage, work.chunk); }

  void forward(const Work& work);
  void backward(const Work& work);
  void weight(const Work& work);
  void end_lane(Lane& lane);
  void release_lanes();
  // What `work` made, for another part.
  void hand_on(const Work& work, int to_part, bool gradient, Buffer buffer);
  // What has come for a chunk, for kernels enqueued from now on.
  Buffer take_arrival(const Work& work, bool gradient);
  // Starts the transfers [position_, end) of the list.
  void transfer(std::size_t end);
  // The end of the transfers of the list that begin at `from`.
  std::size_t transfers_end(std::size_t from, bool receives_only) const;
  void wait_for(Flight& flight);
  // Hands `batch` to the communication stream, behind the kernels enqueued so far. `works`: what it is of the
  // list.
  void exchange(std::span<const comm::Transfer> batch, Event& done, std::span<const Work> works = {});
  // Until at most so many with sends are on their way.
  void retire_flights(std::size_t most);

  Rank& rank_;
  DataParallel& parallel_;
  ChunkedModel& model_;
  Settings settings_;
  StagePass evaluation_;
  bool splits_backward_;
  WeightGradientQueue queue_;
  const std::atomic<bool>* stop_ = nullptr;
  std::unique_ptr<Event> computed_;

  std::size_t position_ = 0;  // in the list
  std::deque<Lane> lanes_;
  std::vector<Lane*> idle_;
  std::map<Key, Lane*> alive_;
  // Activations and gradients: what has come, or is coming, for a chunk; and what a chunk made, to be sent.
  std::map<Key, Arrival> arrivals_[2];
  std::map<Key, Buffer> departures_[2];
  std::deque<std::shared_ptr<Flight>> flights_;  // those with sends, oldest first
  std::vector<std::unique_ptr<Event>> events_;   // to be used again
};

}  // namespace primus::engine
