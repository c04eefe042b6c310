// Tests the tape with operators that exist only here: the order of calls, lifetimes and addresses of memory,
// and refused calls.
#include "engine/runtime/tape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "engine/refusal.h"
#include "engine/runtime/weight_gradient_queue.h"
#include "turbo/cpu/cpu_kernels.h"

namespace primus::engine {
namespace {

using test::refusal;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Lt;
using ::testing::StartsWith;

constexpr std::int64_t kElements = 4;  // per value; a value takes one block of the arena
using Numbers = std::vector<float>;
using Log = std::vector<std::string>;

// The attributes of an operator call.
struct Noted {
  Log* log;
  std::atomic<bool>* stop = nullptr;  // set by backward_input
};

void note(const OperatorCall& op, const char* what) {
  std::string line = what + std::string(op.name());
  if (op.has_parameter()) line += " " + op.parameter().name;
  op.attributes<Noted>().log->push_back(std::move(line));
}

float* data(const Tensor& tensor) { return static_cast<float*>(tensor.data); }

template <class Function>
void fill(const Tensor& out, Function&& of) {
  for (std::int64_t i = 0; i < kElements; ++i) data(out)[i] = of(i);
}

struct Sum {
  enum In : InputName { kA, kB };
  enum Out : OutputName { kSum };
};

struct Tenfold {
  enum In : InputName { kX };
  enum Out : OutputName { kFirst, kTenfold };
};

// Adds this operator's part to the gradients of other users of the input.
template <class Function>
void contribute(OperatorCall& op, Function&& part) {
  const auto [out, previous] = op.d_in(Unary::kX);
  fill(out, [&part, previous = previous](std::int64_t i) {
    return part(i) + (previous.absent() ? 0 : data(previous)[i]);
  });
}

void twice_forward(OperatorCall& op) {
  note(op, "");
  fill(op.out(Unary::kY),
       [x = op.in_or_out(Unary::kX, Unary::kY)](std::int64_t i) { return 2 * data(x)[i]; });
}
void twice_backward(OperatorCall& op) {
  note(op, "d ");
  contribute(op, [d = op.d_out(Unary::kY)](std::int64_t i) { return 2 * data(d)[i]; });
}
constexpr Operator kTwice{.name = "twice",
                          .operator_class = OperatorClass::kRope,
                          .forward = twice_forward,
                          .backward_input = twice_backward,
                          .in_place = true};

void square_forward(OperatorCall& op) {
  note(op, "");
  fill(op.out(Unary::kY), [x = op.in(Unary::kX)](std::int64_t i) { return data(x)[i] * data(x)[i]; });
}
void square_backward(OperatorCall& op) {
  note(op, "d ");
  contribute(op, [x = op.in(Unary::kX), d = op.d_out(Unary::kY)](std::int64_t i) {
    return 2 * data(x)[i] * data(d)[i];
  });
  if (std::atomic<bool>* const stop = op.attributes<Noted>().stop) *stop = true;
}
constexpr Operator kSquare{.name = "square",
                           .operator_class = OperatorClass::kActivation,
                           .forward = square_forward,
                           .backward_input = square_backward,
                           .for_input = saves(Unary::kX)};

// Reads an input in the backward pass without having saved it.
constexpr Operator kForgetful{.name = "forgetful",
                              .operator_class = OperatorClass::kActivation,
                              .forward = square_forward,
                              .backward_input = square_backward};

void sum_forward(OperatorCall& op) {
  note(op, "");
  fill(op.out(Sum::kSum),
       [a = op.in(Sum::kA), b = op.in(Sum::kB)](std::int64_t i) { return data(a)[i] + data(b)[i]; });
}
void sum_backward(OperatorCall& op) {
  note(op, "d ");
  op.pass_d_in(Sum::kA, Sum::kSum);
  op.pass_d_in(Sum::kB, Sum::kSum);
}
constexpr Operator kSum{.name = "sum",
                        .operator_class = OperatorClass::kAdd,
                        .forward = sum_forward,
                        .backward_input = sum_backward};

// x * factor + shift. A missing factor is 1. No gradient of the factor is computed.
struct Affine {
  enum In : InputName { kX, kFactor, kShift };
  enum Out : OutputName { kY };
};
void affine_forward(OperatorCall& op) {
  note(op, "");
  const Tensor factor = op.optional_in(Affine::kFactor);
  fill(op.out(Affine::kY), [&, x = op.in(Affine::kX), shift = op.in(Affine::kShift)](std::int64_t i) {
    return data(x)[i] * (factor.absent() ? 1 : data(factor)[i]) + data(shift)[i];
  });
}
void affine_backward(OperatorCall& op) {
  note(op, "d ");
  EXPECT_FALSE(op.has_in(Affine::kFactor) || op.needs_d_in(Affine::kFactor));
  op.pass_d_in(Affine::kX, Affine::kY);
  op.pass_d_in(Affine::kFactor, Affine::kY);
  op.pass_d_in(Affine::kShift, Affine::kY);
}
constexpr Operator kAffine{.name = "affine",
                           .operator_class = OperatorClass::kActivation,
                           .forward = affine_forward,
                           .backward_input = affine_backward,
                           .for_input = saves(Affine::kFactor, Affine::kShift)};

// Names of inputs convert only to places of inputs, and names of outputs only to places of outputs. Integers
// convert to neither kind of place.
static_assert(std::is_convertible_v<Affine::In, InputPlace> &&
              std::is_convertible_v<Affine::Out, OutputPlace>);
static_assert(!std::is_convertible_v<Affine::Out, InputPlace> &&
              !std::is_convertible_v<Affine::In, OutputPlace>);
static_assert(!std::is_convertible_v<int, InputPlace> && !std::is_convertible_v<int, OutputPlace>);
static_assert(!std::is_constructible_v<InputPlace, Affine::Out> &&
              !std::is_constructible_v<OutputPlace, DType>);
static_assert(saves(Affine::kShift, Affine::kY, Affine::kX).inputs == 0b101 &&
              saves(Affine::kY).outputs == 1);

// Multiplies by a parameter, element by element.
void multiply_forward(OperatorCall& op) {
  note(op, "");
  fill(op.out(Unary::kY),
       [x = op.in(Unary::kX), w = op.weight()](std::int64_t i) { return data(x)[i] * data(w)[i]; });
}
void multiply_backward(OperatorCall& op) {
  note(op, "d ");
  contribute(op,
             [w = op.weight(), d = op.d_out(Unary::kY)](std::int64_t i) { return data(w)[i] * data(d)[i]; });
}
void multiply_weight(OperatorCall& op) {
  note(op, "w ");
  const auto [d_w, accumulate] = op.d_weight();
  fill(d_w, [d_w = d_w, accumulate = accumulate, x = op.in(Unary::kX), d = op.d_out(Unary::kY)](
                std::int64_t i) { return data(x)[i] * data(d)[i] + (accumulate ? data(d_w)[i] : 0); });
}
constexpr Operator kMultiply{.name = "multiply",
                             .operator_class = OperatorClass::kLinear,
                             .forward = multiply_forward,
                             .backward_input = multiply_backward,
                             .backward_weight = multiply_weight,
                             .for_weight = saves(Unary::kX)};

void failing_weight(OperatorCall&) { throw invalid("the device is gone"); }
constexpr Operator kFailing{.name = "failing",
                            .operator_class = OperatorClass::kLinear,
                            .forward = multiply_forward,
                            .backward_input = multiply_backward,
                            .backward_weight = failing_weight};

// Outputs x + 1 and 10 (x + 1). The second can be recomputed from the first.
void tenfold_from_first(OperatorCall& op) {
  note(op, "from first ");
  fill(op.out(Tenfold::kTenfold), [y = op.out(Tenfold::kFirst)](std::int64_t i) { return 10 * data(y)[i]; });
}
void tenfold_forward(OperatorCall& op) {
  note(op, "");
  fill(op.out(Tenfold::kFirst), [x = op.in(Tenfold::kX)](std::int64_t i) { return data(x)[i] + 1; });
  fill(op.out(Tenfold::kTenfold), [y = op.out(Tenfold::kFirst)](std::int64_t i) { return 10 * data(y)[i]; });
}
void tenfold_backward(OperatorCall& op) {
  note(op, "d ");
  contribute(op, [d = op.d_out(Tenfold::kTenfold)](std::int64_t i) { return 10 * data(d)[i]; });
}
constexpr Operator kTenfold{.name = "tenfold",
                            .operator_class = OperatorClass::kNorm,
                            .forward = tenfold_forward,
                            .from_first = tenfold_from_first,
                            .backward_input = tenfold_backward};

// A loss, at which the backward pass begins. Element 0 of the output is the sum of all elements of the input,
// and the other elements are 0.
void loss_forward(OperatorCall& op) {
  note(op, "");
  fill(op.out(Unary::kY), [x = op.in(Unary::kX)](std::int64_t i) {
    return i > 0 ? 0 : data(x)[0] + data(x)[1] + data(x)[2] + data(x)[3];
  });
}
void loss_backward(OperatorCall& op) {
  note(op, "d ");
  contribute(op, [](std::int64_t) { return 1.0F; });
}
constexpr Operator kLoss{.name = "loss",
                         .operator_class = OperatorClass::kLoss,
                         .forward = loss_forward,
                         .backward_input = loss_backward,
                         .is_loss = true};

class TapeTest : public ::testing::Test {
 protected:
  // A parameter with its own memory.
  struct Weight {
    Weight(std::string name, float value, std::vector<int> uses = {0}) : values(kElements, value) {
      parameter.name = std::move(name);
      parameter.shape = {kElements};
      parameter.uses = std::move(uses);
      parameter.value = Tensor(values.data(), DType::kF32, {kElements});
      parameter.gradient = Tensor(gradient.data(), DType::kF32, {kElements});
    }
    Numbers values, gradient = Numbers(kElements, 77);
    Parameter parameter;
  };

  TapeTest() { begin(); }
  ~TapeTest() override {
    tape_.abandon();
    EXPECT_EQ(blocks(), 0) << "an abandoned tape must hold no memory";
  }

  void begin() { tape_.begin({.weight_gradients = &queue_}); }
  std::int64_t blocks() const { return arena_.in_use() / Arena::kAlignment; }

  Value input(Tape& tape, bool differentiable = true) {
    Value x = tape.input(DType::kF32, {kElements}, differentiable);
    fill(x.tensor(), [](std::int64_t i) { return static_cast<float>(i + 1); });
    return x;
  }
  Value input(bool differentiable = true) { return input(tape_, differentiable); }
  Value call(const Operator& op, const Value& x, Parameter* w = nullptr) {
    return x.tape().record(op, {{Unary::kX, x}}, w, {{Unary::kY, DType::kF32, {kElements}}},
                           Noted{&log_})[Unary::kY];
  }
  Value multiply(const Value& x, Weight& w) { return call(kMultiply, x, &w.parameter); }
  Value sum(const Value& a, const Value& b) {
    return a.tape().record(kSum, {{Sum::kA, a}, {Sum::kB, b}}, nullptr,
                           {{Sum::kSum, DType::kF32, {kElements}}}, Noted{&log_})[Sum::kSum];
  }

  static Numbers numbers(const Tensor& tensor) { return {data(tensor), data(tensor) + kElements}; }
  Log take_log() { return std::exchange(log_, {}); }

  static constexpr std::int64_t kBytes = 64 * Arena::kAlignment;
  struct Release {
    Device* device;
    void operator()(void* memory) const { device->release(memory); }
  };
  std::unique_ptr<Device> device_ = turbo::make_cpu_device(1);
  std::unique_ptr<Stream> stream_ = device_->create_stream(StreamKind::kCompute);
  std::unique_ptr<void, Release> memory_{device_->allocate(2 * kBytes), Release{device_.get()}};
  Arena arena_{"stash", memory_.get(), kBytes};
  Arena scratch_{"scratch", static_cast<char*>(memory_.get()) + kBytes, kBytes};
  turbo::Meter meter_;
  turbo::Context context_{*device_, *stream_, scratch_, meter_};
  Stash stash_{arena_};
  WeightGradientQueue queue_, deferred_{WeightGradientQueue::Policy::kDeferred};
  Log log_;
  Tape tape_{context_, stash_};
};

// --- Order

// The backward pass visits calls in reverse order.
TEST_F(TapeTest, BackwardBeginsWithTheLastCall) {
  Weight a("a", 2), b("b", 3);
  const Value x = input();
  call(kLoss, multiply(call(kSquare, multiply(x, a)), b));
  EXPECT_THAT(take_log(), ElementsAre("multiply a", "square", "multiply b", "loss"));
  tape_.backward();
  EXPECT_THAT(take_log(), ElementsAre("d loss", "d multiply b", "w multiply b", "d square", "d multiply a",
                                      "w multiply a"));
  // y = b (a x)^2, for x = 1, 2, 3, 4.
  EXPECT_EQ(numbers(tape_.gradient(x)), (Numbers{24, 48, 72, 96}));
  EXPECT_EQ(a.gradient, (Numbers{12, 48, 108, 192}));
  EXPECT_EQ(b.gradient, (Numbers{4, 16, 36, 64}));
}

// Deferred weight gradients are computed only when the queue runs.
TEST_F(TapeTest, DeferredWeightGradientsRunLater) {
  Weight a("a", 2), b("b", 3);
  tape_.begin({.weight_gradients = &deferred_});
  call(kLoss, multiply(call(kSquare, multiply(input(), a)), b));
  take_log();
  tape_.backward();
  EXPECT_THAT(take_log(), ElementsAre("d loss", "d multiply b", "d square", "d multiply a"));
  EXPECT_FALSE(tape_.settled());
  EXPECT_EQ(deferred_.pending(), 2U);
  deferred_.run(tape_);
  EXPECT_THAT(take_log(), ElementsAre("w multiply b", "w multiply a"));
  EXPECT_TRUE(tape_.settled());
  EXPECT_EQ(a.gradient, (Numbers{12, 48, 108, 192}));
}

// The second microbatch runs backward first, so its weight gradient is parked together with its operands.
TEST_F(TapeTest, GradientsAreSummedInTheOrderOfMicrobatches) {
  Weight w("w", 2);
  Tape second(context_, stash_);
  second.begin({.microbatch = 1, .weight_gradients = &queue_});
  call(kLoss, multiply(input(), w));
  call(kLoss, multiply(input(second), w));
  take_log();
  second.backward();
  EXPECT_THAT(take_log(), ElementsAre("d loss", "d multiply w"));
  EXPECT_FALSE(second.settled());
  EXPECT_EQ(queue_.pending(), 1U);
  EXPECT_FALSE(w.parameter.has_gradient);
  tape_.backward();
  EXPECT_THAT(take_log(), ElementsAre("d loss", "d multiply w", "w multiply w", "w multiply w"));
  EXPECT_TRUE(second.settled());
  EXPECT_EQ(queue_.pending(), 0U);
  EXPECT_EQ(w.parameter.turn, 2);
  EXPECT_EQ(w.gradient, (Numbers{2, 4, 6, 8}));
}

// The uses of a parameter add to its gradient in the order of the backward pass. The first one overwrites the
// old content.
TEST_F(TapeTest, EveryUseOfAParameterAddsToItsGradient) {
  Weight w("w", 2, {0, 0});
  call(kLoss, multiply(multiply(input(), w), w));
  tape_.backward();
  EXPECT_EQ(w.parameter.turn, 2);
  EXPECT_EQ(w.gradient, (Numbers{4, 8, 12, 16}));  // d (w^2 x) / dw = 2 w x
}

// A use of a parameter counts even if no gradient reaches the operator (Parameter::turn).
TEST_F(TapeTest, UnreachedValuesHaveNoGradient) {
  Weight aside("aside", 2), used("used", 3);
  const Value x = input();
  multiply(x, aside);
  call(kLoss, multiply(x, used));
  take_log();
  tape_.backward();
  EXPECT_THAT(take_log(), ElementsAre("d loss", "d multiply used", "w multiply used"));
  EXPECT_EQ(aside.parameter.turn, 1);
  EXPECT_FALSE(aside.parameter.has_gradient);
  EXPECT_EQ(aside.gradient, Numbers(kElements, 77));
  EXPECT_TRUE(tape_.settled());
}

// Calls are recorded only if an input is differentiable. A frozen parameter gets no gradient.
TEST_F(TapeTest, OnlyCallsWithAGradientAreRecorded) {
  Weight frozen("frozen", 2);
  frozen.parameter.trainable = false;
  {
    const Value x = input(false);
    call(kTwice, multiply(x, frozen));
    EXPECT_EQ(blocks(), 1) << "calls without a gradient keep nothing";
    EXPECT_THAT(refusal([&] { tape_.set_gradient(x, x.tensor()); }), StartsWith("Tape::set_gradient: "));
  }
  const Value x = input();
  call(kLoss, multiply(x, frozen));
  take_log();
  tape_.backward();
  EXPECT_THAT(take_log(), ElementsAre("d loss", "d multiply frozen"))
      << "a frozen parameter passes gradients on";
  EXPECT_EQ(numbers(tape_.gradient(x)), Numbers(kElements, 2));
}

// --- Memory

TEST_F(TapeTest, AValueLivesUntilItsLastOwnerIsDestroyed) {
  const Value x = input();
  {
    Value y = call(kTwice, x);
    const Value copy = y;
    EXPECT_EQ(blocks(), 2);
    y = {};
    EXPECT_EQ(blocks(), 2);
    EXPECT_EQ(numbers(copy.tensor()), (Numbers{2, 4, 6, 8}));
  }
  EXPECT_EQ(blocks(), 1) << "the gradient needs neither input nor output";
}

// Three kinds of saved values: an operator's input, an intermediate output, and an input of the tape.
TEST_F(TapeTest, InputsOfAGradientLiveUntilItIsComputed) {
  Weight w("w", 3);
  tape_.begin({.weight_gradients = &deferred_});
  call(kLoss, multiply(call(kSquare, call(kTwice, input())), w));
  EXPECT_EQ(blocks(), 3) << "the tape's input, the input of square, the input of multiply";
  tape_.backward();
  EXPECT_EQ(blocks(), 4) << "the input, its gradient, the input of multiply, the gradient of its output";
  deferred_.run(tape_);
  EXPECT_EQ(blocks(), 2) << "the input and its gradient";
  begin();
  EXPECT_EQ(blocks(), 0);
}

TEST_F(TapeTest, AnInPlaceOperatorUsesItsInputsMemory) {
  const Value x = input();
  const Value y = call(kTwice, x);
  void* const address = y.tensor().data;
  EXPECT_NE(address, x.tensor().data) << "inputs of the tape are not overwritten";
  const Value z = call(kTwice, y);
  EXPECT_EQ(z.tensor().data, address);
  EXPECT_EQ(numbers(z.tensor()), (Numbers{4, 8, 12, 16}));
  EXPECT_THAT(refusal([&] { y.tensor(); }), StartsWith("Value::tensor: check failed")) << "y was overwritten";
  call(kLoss, z);
  tape_.backward();
  EXPECT_EQ(numbers(tape_.gradient(x)), Numbers(kElements, 4));
}

// An in-place operator uses new memory if another handle or a gradient needs its input.
TEST_F(TapeTest, ValuesWithOtherUsersAreNotOverwritten) {
  const Value x = input();
  const Value held = call(kTwice, x), copy = held;
  EXPECT_NE(call(kTwice, held).tensor().data, held.tensor().data) << "another handle holds it";
  const Value saved = call(kTwice, x);
  const Value squared = call(kSquare, saved);
  EXPECT_NE(call(kTwice, saved).tensor().data, saved.tensor().data) << "a gradient needs it";
  EXPECT_EQ(numbers(saved.tensor()), (Numbers{2, 4, 6, 8}));
}

// The inputs of a sum share the memory of its gradient until another gradient is added to one of the inputs.
TEST_F(TapeTest, EqualGradientsShareMemoryUntilOneIsAddedTo) {
  const Value a = input(), b = input();
  {
    const Value square = call(kSquare, a);
    call(kLoss, sum(sum(a, b), square));
  }
  tape_.backward();
  EXPECT_EQ(numbers(tape_.gradient(a)), (Numbers{3, 5, 7, 9}));
  EXPECT_EQ(numbers(tape_.gradient(b)), Numbers(kElements, 1));
  EXPECT_EQ(blocks(), 4);
}

TEST_F(TapeTest, GradientsOfAddendsAreNotCopied) {
  const Value a = input(), b = input();
  call(kLoss, sum(a, b));
  tape_.backward();
  EXPECT_EQ(tape_.gradient(a).data, tape_.gradient(b).data);
  EXPECT_EQ(blocks(), 3);
}

// Every microbatch gets the same addresses, because recorded graphs contain addresses.
TEST_F(TapeTest, EveryMicrobatchHasTheSameAddresses) {
  Weight w("w", 3);
  const auto addresses = [&] {
    begin();
    w.parameter.turn = 0;
    std::vector<void*> found;
    const Value x = input();
    {
      const Value h = call(kTwice, x), s = call(kSquare, h), y = multiply(s, w);
      for (const Value& value : {x, h, s, y}) found.push_back(value.tensor().data);
      call(kLoss, y);
    }
    tape_.backward();
    found.push_back(tape_.gradient(x).data);
    return found;
  };
  const std::vector<void*> first = addresses();
  const std::int64_t maximum = arena_.high_water();
  EXPECT_EQ(addresses(), first);
  EXPECT_EQ(arena_.high_water(), maximum);
}

// Buffers from share() and share_gradient() stay valid after the tape begins again.
TEST_F(TapeTest, SharedValuesOutliveTheTape) {
  Buffer value, gradient;
  {
    const Value x = input();
    value = tape_.share(x);
    call(kLoss, x);
    tape_.backward();
    gradient = tape_.share_gradient(x);
  }
  begin();
  EXPECT_EQ(blocks(), 2);
  EXPECT_EQ(numbers(value.view(DType::kF32, {kElements})), (Numbers{1, 2, 3, 4}));
  EXPECT_EQ(numbers(gradient.view(DType::kF32, {kElements})), Numbers(kElements, 1));
}

// A pipeline stage uses received memory in place: the activation from the preceding part, and the gradient
// from the following part. The gradient can be set even if no handle of the value exists any more.
TEST_F(TapeTest, StagesUseReceivedMemoryWithoutACopy) {
  Buffer received = stash_.allocate(kElements * 4);
  void* const address = received.view(DType::kF32, {kElements}).data;
  const Value x = tape_.input(DType::kF32, {kElements}, true, std::move(received));
  EXPECT_EQ(x.tensor().data, address);
  fill(x.tensor(), [](std::int64_t i) { return static_cast<float>(i); });
  const int sent = call(kSquare, x).slot();
  Buffer gradient = stash_.allocate(kElements * 4);
  fill(gradient.view(DType::kF32, {kElements}), [](std::int64_t) { return 3.0F; });
  EXPECT_EQ(blocks(), 2);
  tape_.set_gradient(sent, std::move(gradient));
  tape_.backward();
  EXPECT_EQ(numbers(tape_.gradient(x)), (Numbers{0, 6, 12, 18}));
  EXPECT_EQ(blocks(), 2) << "the chunk's input and its gradient";
}

// --- Optional inputs

// An optional input may be missing without shifting the following inputs.
TEST_F(TapeTest, AnInputKeepsItsPlaceIfAnotherIsMissing) {
  const auto weighted = [this](const Value& x, const Value& factor, const Value& shift) {
    return tape_.record(kAffine, {{Affine::kX, x}, {Affine::kFactor, factor}, {Affine::kShift, shift}},
                        nullptr, {{Affine::kY, DType::kF32, {kElements}}}, Noted{&log_})[Affine::kY];
  };
  // A replayed call gives the same result.
  for (const bool drop : {false, true}) {
    tape_.begin({.recompute = {.classes = drop ? RecomputePolicy::bit(OperatorClass::kActivation) : 0U},
                 .weight_gradients = &queue_});
    const Value x = input(), shift = input();
    {
      const Value y = weighted(x, {}, shift);
      EXPECT_EQ(numbers(y.tensor()), (Numbers{2, 4, 6, 8}));
      call(kLoss, call(kSquare, y));
    }
    tape_.backward();
    EXPECT_EQ(numbers(tape_.gradient(x)), (Numbers{4, 8, 12, 16}));
    EXPECT_EQ(numbers(tape_.gradient(shift)), (Numbers{4, 8, 12, 16}));
  }
}

// --- Recomputation

TEST_F(TapeTest, DroppedOutputsAreComputedAgainWhenNeeded) {
  Weight w("w", 3);
  tape_.begin({.recompute = {.classes = RecomputePolicy::bit(OperatorClass::kActivation)},
               .weight_gradients = &queue_});
  Log observed;
  tape_.set_observer([&](OperatorCall& op) { observed.emplace_back(op.name()); });
  const Value x = input();
  tape_.enter_block(0);
  call(kLoss, multiply(call(kSquare, call(kTwice, x)), w));
  tape_.leave_block();
  EXPECT_EQ(blocks(), 2) << "the tape's input and the input of square; the square was dropped";
  EXPECT_THAT(observed, ElementsAre("twice", "square", "multiply", "loss"));
  take_log();
  tape_.backward();
  EXPECT_THAT(take_log(),
              ElementsAre("d loss", "square", "d multiply w", "w multiply w", "d square", "d twice"));
  EXPECT_THAT(observed, ElementsAre("twice", "square", "multiply", "loss", "square"));
  EXPECT_EQ(numbers(tape_.gradient(x)), (Numbers{24, 48, 72, 96}));
  EXPECT_EQ(w.gradient, (Numbers{4, 16, 36, 64}));
  tape_.set_observer({});
}

// A replay recomputes the block's values from its input, once each and in order.
TEST_F(TapeTest, AReplayBeginsAtTheBlocksInput) {
  tape_.begin({.recompute = {.full_layers = 1}, .weight_gradients = &queue_});
  const Value x = input();
  tape_.enter_block(0);
  const int squared = call(kSquare, call(kSquare, call(kTwice, x))).slot();
  tape_.leave_block();
  EXPECT_EQ(blocks(), 1);
  Buffer gradient = stash_.allocate(kElements * 4);
  fill(gradient.view(DType::kF32, {kElements}), [](std::int64_t) { return 1.0F; });
  tape_.set_gradient(squared, std::move(gradient));
  take_log();
  tape_.backward();
  EXPECT_THAT(take_log(), ElementsAre("twice", "square", "d square", "d square", "d twice"));
  EXPECT_EQ(numbers(tape_.gradient(x)), (Numbers{64, 512, 1728, 4096}));  // d (2 x)^4 / dx
}

// If the second output is recomputed from the first, the first one is kept.
TEST_F(TapeTest, ReplaysFromAnOutputKeepIt) {
  tape_.begin(
      {.recompute = {.classes = RecomputePolicy::bit(OperatorClass::kNorm)}, .weight_gradients = &queue_});
  const Value x = input();
  tape_.enter_block(0);
  {
    const Value h = call(kTwice, x);
    Tape::Outputs both = tape_.record(
        kTenfold, {{Tenfold::kX, h}}, nullptr,
        {{Tenfold::kFirst, DType::kF32, {kElements}}, {Tenfold::kTenfold, DType::kF32, {kElements}}},
        Noted{&log_});
    call(kLoss, call(kSquare, both[Tenfold::kTenfold]));
  }
  tape_.leave_block();
  EXPECT_EQ(blocks(), 2) << "the input and output 0; h and output 1 were dropped";
  take_log();
  tape_.backward();
  EXPECT_THAT(take_log(), ElementsAre("d loss", "from first tenfold", "d square", "d tenfold", "d twice"));
  EXPECT_EQ(numbers(tape_.gradient(x)), (Numbers{1200, 2000, 2800, 3600}));  // d (10 (2 x + 1))^2 / dx
}

// A policy drops values only within blocks. A model's set_replay() drops them under any policy.
TEST_F(TapeTest, DropsOutputsByPolicyAndModel) {
  tape_.begin({.recompute = {.classes = RecomputePolicy::bit(OperatorClass::kActivation)},
               .weight_gradients = &queue_});
  EXPECT_FALSE(tape_.drops(OperatorClass::kActivation));
  tape_.enter_block(0);
  EXPECT_TRUE(tape_.drops(OperatorClass::kActivation));
  EXPECT_FALSE(tape_.drops(OperatorClass::kLinear));
  EXPECT_FALSE(tape_.set_replay(true));
  EXPECT_TRUE(tape_.drops(OperatorClass::kLinear));
  EXPECT_TRUE(tape_.set_replay(false));
  tape_.leave_block();
  tape_.begin({.train = false, .recompute = {.full_layers = 1}});
  tape_.enter_block(0);
  EXPECT_FALSE(tape_.drops(OperatorClass::kActivation)) << "an evaluation drops nothing for replay";
  tape_.leave_block();
}

// --- Evaluation

TEST_F(TapeTest, EvaluationKeepsNothing) {
  tape_.begin({.train = false});
  EXPECT_FALSE(tape_.training());
  Weight w("w", 1);
  std::vector<std::int64_t> used;
  std::vector<int> slots;
  {
    Value x = input();
    for (int i = 0; i < 100; ++i) {
      x = multiply(call(kSquare, x), w);
      used.push_back(blocks());
      slots.push_back(x.slot());
    }
    EXPECT_THAT(refusal([&] { tape_.set_gradient(x, x.tensor()); }), StartsWith("Tape::set_gradient: "));
  }
  EXPECT_THAT(used, Each(1));
  EXPECT_LE(arena_.high_water(), 3 * Arena::kAlignment) << "the input and the outputs of two calls";
  EXPECT_THAT(slots, Each(Lt(4))) << "slots are reused";
  EXPECT_EQ(blocks(), 0);
  EXPECT_THAT(refusal([&] { tape_.backward(); }), StartsWith("Tape::backward: check failed"));
}

// --- Stops and errors

TEST_F(TapeTest, NoOperatorBeginsAfterAStopRequest) {
  std::atomic<bool> stop = false;
  tape_.begin({.weight_gradients = &queue_, .stop = &stop});
  {
    const Value x = input(), y = call(kSquare, x);
    stop = true;
    EXPECT_THROW(call(kSquare, y), StopRequest);
  }
  EXPECT_THAT(take_log(), ElementsAre("square"));
  tape_.abandon();
  EXPECT_EQ(blocks(), 0);
}

TEST_F(TapeTest, AStopInTheBackwardPassLeavesNothingBehind) {
  Weight first("first", 2), second("second", 3);
  std::atomic<bool> stop = false;
  // Microbatch 0 never runs, so the weight gradient of microbatch 1 stays parked.
  tape_.begin({.microbatch = 1, .weight_gradients = &queue_, .stop = &stop});
  {
    const Value x = multiply(input(), first);
    const Value y = tape_.record(kSquare, {{Unary::kX, x}}, nullptr, {{Unary::kY, DType::kF32, {kElements}}},
                                 Noted{.log = &log_, .stop = &stop})[Unary::kY];
    call(kLoss, multiply(y, second));
  }
  take_log();
  EXPECT_THROW(tape_.backward(), StopRequest);
  EXPECT_THAT(take_log(), ElementsAre("d loss", "d multiply second", "d square"));
  EXPECT_FALSE(tape_.settled());
  EXPECT_EQ(queue_.pending(), 1U);
  tape_.abandon();
  EXPECT_TRUE(tape_.settled());
  EXPECT_EQ(queue_.pending(), 0U);
  EXPECT_EQ(blocks(), 0);
}

// The error reaches the caller instead of a failed assertion in the tape's destructor.
TEST_F(TapeTest, AnErrorInAWeightGradientReachesTheCaller) {
  Weight w("w", 2);
  {
    Tape tape(context_, stash_);
    tape.begin({.weight_gradients = &queue_});
    call(kLoss, call(kFailing, input(tape), &w.parameter));
    EXPECT_THROW(tape.backward(), Error);
    EXPECT_FALSE(tape.settled());
  }
  EXPECT_EQ(blocks(), 0);
  EXPECT_EQ(queue_.pending(), 0U);
}

// --- Misuse

// begin() is refused while handles exist or weight gradients are pending.
TEST_F(TapeTest, BeginNeedsAnEndOfThePreviousPass) {
  Weight w("w", 2);
  {
    const Value x = input();
    EXPECT_THAT(refusal([&] { begin(); }), AllOf(StartsWith("Tape::begin: "), HasSubstr("handles")));
    EXPECT_EQ(numbers(x.tensor()), (Numbers{1, 2, 3, 4})) << "a refused begin() changes nothing";
  }
  tape_.begin({.weight_gradients = &deferred_});
  call(kLoss, multiply(input(), w));
  tape_.backward();
  EXPECT_THAT(refusal([&] { begin(); }), AllOf(StartsWith("Tape::begin: "), HasSubstr("settled")));
  deferred_.run(tape_);
  EXPECT_EQ(refusal([&] { begin(); }), "accepted");
}

// A backward pass that reads a value which its operator did not save is refused.
TEST_F(TapeTest, AnOperatorReadsOnlyTensorsThatItSaves) {
  const Value x = call(kForgetful, call(kTwice, input()));
  call(kLoss, x);
  EXPECT_EQ(refusal([&] { tape_.backward(); }), "forgetful: check failed: slot.data");
}

// Calls with too many inputs or outputs, a name twice, or a missing output are refused.
TEST_F(TapeTest, CallsThatFitNoEntryAreRefused) {
  const Value x = input();
  const auto output = [](int j) { return Tape::Output{OutputPlace(j), DType::kF32, {kElements}}; };
  const auto of_input = [&](int i) {
    return refusal([&] {
      tape_.record(kSum, {{Sum::kA, x}, {InputPlace(i), x}}, nullptr, {output(0)}, Noted{&log_});
    });
  };
  EXPECT_THAT(of_input(Entry::kMaxInputs), StartsWith("sum: check failed"));
  EXPECT_THAT(of_input(Sum::kA), StartsWith("sum: check failed")) << "the same name twice";
  const auto of_outputs = [&](std::initializer_list<Tape::Output> outputs) {
    return refusal([&] { tape_.record(kSum, {{Sum::kA, x}, {Sum::kB, x}}, nullptr, outputs, Noted{&log_}); });
  };
  EXPECT_THAT(of_outputs({output(0), output(1), output(2), output(3)}), StartsWith("sum: check failed"));
  EXPECT_THAT(of_outputs({output(1)}), StartsWith("sum: check failed")) << "the first output is missing";
  EXPECT_THAT(log_, IsEmpty());
}

TEST_F(TapeTest, AnInputThatACallDoesNotHaveIsNotRead) {
  const Value x = input();
  EXPECT_EQ(
      refusal([&] {
        tape_.record(kSum, {{Sum::kA, x}}, nullptr, {{Sum::kSum, DType::kF32, {kElements}}}, Noted{&log_});
      }),
      "sum: check failed: has_in(i)");
}

TEST_F(TapeTest, AGradientIsSeededOnceAndInItsValuesType) {
  const Value x = call(kSquare, input());
  const Value one = input(false);
  EXPECT_THAT(refusal([&] { tape_.set_gradient(x, Tensor(one.tensor().data, DType::kBF16, {kElements})); }),
              StartsWith("Tape::set_gradient: "));
  tape_.set_gradient(x, one.tensor());
  EXPECT_THAT(refusal([&] { tape_.set_gradient(x, one.tensor()); }), StartsWith("Tape::set_gradient: "));
  EXPECT_THAT(refusal([&] { tape_.set_gradient(x.slot(), stash_.allocate(16)); }),
              StartsWith("Tape::set_gradient: "));
}

}  // namespace
}  // namespace primus::engine
