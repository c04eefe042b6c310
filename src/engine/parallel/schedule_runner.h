// Runs one stage's list of a pipeline schedule (engine/parallel/pipeline_schedule.h): the forward passes,
// backward passes, weight gradients and transfers of a step, with one tape per active chunk and microbatch.
// Training on one device is the simplest schedule: one stage.
//
// Each part sends one tensor, the residual stream, to the next part. The tensor's gradient returns in the
// same type. Between parts on one stage, memory is passed on without a copy. Transfers run on the rank's
// communication stream and overlap the kernels. Consecutive transfers of the list form one batch, whose sends
// and receives run together. A receive that follows computation in the list begins concurrently with the
// computation. At most two batches with sends hold memory at a time.
//
// With Settings::strands, a backward pass alternates with the next microbatch's forward pass (Strands): one
// computes while the experts' tokens of the other are in transit. Gradients are added in the same order as
// without strands, so results have the same bits.
//
// A measuring rank runs the same list, so the memory of the entire schedule is measured exactly. Not
// thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/system/strands.h"
#include "engine/parallel/data_parallel.h"
#include "engine/parallel/pipeline_schedule.h"
#include "engine/parallel/schedule_clock.h"
#include "engine/parallel/stage_pass.h"
#include "engine/runtime/rank.h"
#include "engine/runtime/tape.h"
#include "engine/runtime/weight_gradient_queue.h"

namespace primus::engine {

// A stage's chunks of a model.
class ChunkedModel {
 public:
  virtual ~ChunkedModel() = default;

  struct Outputs {
    Value next;                 // the next part's input; empty: this is the last part
    std::vector<Value> losses;  // only the last part has losses
  };
  // Runs the forward pass of a chunk on `tape`, for training or evaluation. `x`: the previous part's output;
  // empty for the first part.
  virtual Outputs forward(Tape& tape, int chunk, std::int64_t microbatch, Value x) = 0;
  // Called when kernels enqueued from now on can read the losses of a microbatch. In training, this is after
  // the backward pass of the last part has been enqueued.
  virtual void losses_ready(const std::vector<Value>& losses) = 0;
};

class ScheduleRunner {
 public:
  struct Settings {
    PipelineSchedule schedule;
    int stage = 0;
    comm::Communicator* pipeline = nullptr;  // one rank per stage, in order; null: one stage
    // Type and shape of the tensor between parts; unused with a single part.
    DType dtype = DType::kF32;
    Shape shape = {};
    std::vector<RecomputePolicy> recompute = {};  // one policy per chunk; empty: no recomputation
    PrecisionRecipe precision = {};               // also applies to evaluation
    bool adapters = true;                         // whether evaluation uses adapters (Tape::Settings)
    // For schedules that do not split backward passes; all other schedules defer weight gradients.
    WeightGradientQueue::Policy weight_gradients = WeightGradientQueue::Policy::kInline;
    // Alternates between microbatches; null: each pass ends before the next begins. Only with a single part,
    // and without Sharding::kParameters.
    Strands* strands = nullptr;
  };

  // All arguments must outlive this object. The caller calls DataParallel::begin_step.
  ScheduleRunner(Rank& rank, DataParallel& parallel, ChunkedModel& model, Settings settings);

  // Returns to the beginning of the list. Abandons an unfinished step. `microbatches`: the step consists of
  // this number of microbatches; -1: all microbatches of the schedule. Fewer than all are allowed only if
  // in_turn() returns true.
  void begin(std::int64_t microbatches = -1);
  // Continues until the end of the list, or until the next forward pass needs a microbatch >= `microbatches`;
  // with strands, also before a backward pass that alternates with such a forward pass.
  // Inputs of such microbatches are not available yet. Throws StopRequest if a stop was requested; then call
  // abandon().
  void run(std::int64_t microbatches);
  // Evaluation: runs one microbatch through this stage's chunks. All stages call it in the same order, each
  // with its own tape. `microbatch` is passed to the model.
  void evaluate(Tape& tape, std::int64_t microbatch);
  // Abandons an unfinished step, after StopRequest. Only for single ranks.
  void abandon();
  // Sets the observer of gradients for the tapes of training steps (Tape::set_gradient_observer).
  void set_gradient_observer(Tape::GradientObserver observer) { gradient_observer_ = std::move(observer); }
  // See Tape::Settings::stop.
  void set_stop(const std::atomic<bool>* stop) { stop_ = stop; }

  // Sets the clock that times the work of steps; null: none. It must outlive the steps.
  void set_clock(ScheduleClock* clock) { clock_ = clock; }

  // Returns whether this stage has the entire model and each microbatch ends before the next microbatch
  // begins. Then run() leaves no work in flight. False with strands.
  bool in_turn() const;

  // Returns whether the entire list has been enqueued.
  bool finished() const { return position_ == end_ && alive_.empty(); }
  const WeightGradientQueue& weight_gradients() const { return queue_; }

 private:
  // Before the first step: makes one transfer to and from every rank that the list names.
  void connect();
  // One chunk of one microbatch, from its forward pass until its memory is released.
  struct Lane {
    Lane(turbo::Context& context, Stash& stash) : tape(context, stash) {}
    Tape tape;
    Value received;  // the previous part's output
    int sent = -1;   // slot of the value sent to the next part
    std::vector<Value> losses;
    bool done = false;  // only weight gradients that wait for their turn remain
  };
  // A batch of transfers in flight.
  struct Flight {
    std::unique_ptr<Event> event;  // null: the compute stream has already waited
    std::vector<Buffer> sent;      // memory of the sends, held until the compute stream has waited
  };
  struct Arrival {
    Buffer buffer;
    std::shared_ptr<Flight> flight;  // null: the tensor was made on this stage
  };
  using Key = std::pair<int, std::int64_t>;  // chunk, microbatch

  const std::vector<Work>& list() const {
    return settings_.schedule.stages[static_cast<std::size_t>(settings_.stage)];
  }
  const PipelineShape& shape() const { return settings_.schedule.shape; }
  int part_of(const Work& work) const { return shape().part(settings_.stage, work.chunk); }

  // Returns whether this stage has the entire model and the list is sorted by microbatch.
  bool in_order() const;
  // Returns whether `work`, the next item of the list, alternates with the item after it.
  bool alternates(const Work& work) const;
  Stream* labelled_stream() const;
  void forward(const Work& work);
  void backward(const Work& work);
  void weight(const Work& work);
  void end_lane(Lane& lane);
  void release_lanes();
  // Passes the result of `work` to another part.
  void hand_on(const Work& work, int to_part, bool gradient, Buffer buffer);
  // Returns the received tensor of a chunk, for kernels enqueued from now on.
  Buffer take_arrival(const Work& work, bool gradient);
  // Starts the transfers [position_, end) of the list.
  void transfer(std::size_t end);
  // Returns the end of the run of transfers in the list that begins at `from`.
  std::size_t transfers_end(std::size_t from, bool receives_only) const;
  void wait_for(Flight& flight);
  // Runs `batch` on the communication stream after the kernels enqueued up to now. `works`: the items of the
  // list that the batch performs.
  void exchange(std::span<const comm::Transfer> batch, Event& done, std::span<const Work> works = {});
  // Waits until at most `maximum` batches with sends are in flight.
  void retire_flights(std::size_t maximum);

  Rank& rank_;
  DataParallel& parallel_;
  ChunkedModel& model_;
  Settings settings_;
  StagePass evaluation_;
  bool splits_backward_;
  WeightGradientQueue queue_;
  const std::atomic<bool>* stop_ = nullptr;
  ScheduleClock* clock_ = nullptr;
  std::unique_ptr<Event> computed_;
  Tape::GradientObserver gradient_observer_;

  std::size_t position_ = 0, end_ = 0;  // next item of the list, and the end of this step's items
  std::deque<Lane> lanes_;
  std::vector<Lane*> idle_;
  std::map<Key, Lane*> alive_;
  // Index 0: activations, 1: gradients. arrivals_: received tensors for a chunk, complete or in flight.
  // departures_: results of a chunk that must be sent.
  std::map<Key, Arrival> arrivals_[2];
  std::map<Key, Buffer> departures_[2];
  std::deque<std::shared_ptr<Flight>> flights_;  // batches with sends, oldest first
  std::vector<std::unique_ptr<Event>> events_;   // unused events, for reuse
};

}  // namespace primus::engine
