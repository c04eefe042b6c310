// Wraps any device and adds streams that can be recorded (Device::capture), as on a GPU. Counts kernels and
// replays. Actions that a GPU forbids during a recording are errors here. The recording thread may not wait
// for the stream, use events on the stream, or allocate memory. Other threads and streams continue.
//
//   auto counts = std::make_shared<RecordingDevice::Counts>();
//   RecordingDevice device(turbo::make_cpu_device(2), counts);
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "device/forwarding_device.h"

namespace primus::test {

// Adds graph support to the properties of a device without it.
inline DeviceProperties with_graphs(DeviceProperties properties) {
  properties.graphs = true;
  return properties;
}

class RecordingDevice final : public ForwardingDevice {
 public:
  struct Counts {
    int captures = 0;
    int replays = 0;                    // launches of graphs, including the first of each
    std::int64_t kernels = 0;           // started one by one on the compute stream
    std::int64_t replayed_kernels = 0;  // started by graphs
  };
  using Counter = std::shared_ptr<Counts>;

  // Calls `at_end` when the device is destroyed.
  RecordingDevice(std::unique_ptr<Device> below, Counter counts,
                  std::function<void(const Counts& counts)> at_end = {})
      : ForwardingDevice(std::move(below)), counts_(std::move(counts)), at_end_(std::move(at_end)) {}
  ~RecordingDevice() override {
    if (at_end_) at_end_(*counts_);
  }
  RecordingDevice(const RecordingDevice&) = delete;
  RecordingDevice& operator=(const RecordingDevice&) = delete;

  DeviceProperties properties() const override { return with_graphs(ForwardingDevice::properties()); }
  std::unique_ptr<Stream> create_stream(StreamKind kind) override {
    return std::make_unique<RecordingStream>(below().create_stream(kind), *this, kind);
  }
  void* allocate(std::int64_t bytes) override {
    refuse_while_recording();
    return ForwardingDevice::allocate(bytes);
  }
  void* allocate_pinned(std::int64_t bytes) override {
    refuse_while_recording();
    return ForwardingDevice::allocate_pinned(bytes);
  }
  std::unique_ptr<Graph> capture(Stream& stream, const std::function<void()>& work) override {
    refuse_while_recording();
    auto graph = std::make_unique<Recorded>(*counts_);
    ++counts_->captures;
    recording_ = graph.get();
    recorder_ = std::this_thread::get_id();
    recorded_stream_ = &stream;
    const auto end = [this] {
      recorded_stream_ = nullptr;
      recorder_ = std::thread::id();
    };
    try {
      work();
    } catch (...) {
      end();
      throw;
    }
    end();
    return graph;
  }

 private:
  using Piece = std::function<void(Stream&)>;

  class Recorded final : public Graph {
   public:
    explicit Recorded(Counts& counts) : counts_(counts) {}
    void launch(Stream& stream) override {
      ++counts_.replays;
      counts_.replayed_kernels += kernels;
      for (const Piece& piece : pieces) piece(static_cast<RecordingStream&>(stream).below());
    }
    std::vector<Piece> pieces;
    std::int64_t kernels = 0;

   private:
    Counts& counts_;
  };

  class RecordingStream final : public ForwardingStream {
   public:
    RecordingStream(std::unique_ptr<Stream> below, RecordingDevice& device, StreamKind kind)
        : ForwardingStream(std::move(below)), device_(device), kind_(kind) {}

    void launch(KernelFunction kernel, const void* arguments, std::size_t bytes) override {
      if (!recorded()) {
        if (kind_ == StreamKind::kCompute) ++device_.counts_->kernels;
        return below().launch(kernel, arguments, bytes);
      }
      ++device_.recording_->kernels;
      const auto* from = static_cast<const std::byte*>(arguments);
      enqueue([kernel, copy = std::vector<std::byte>(from, from + bytes)](Stream& s) {
        s.launch(kernel, copy.data(), copy.size());
      });
    }
    void copy_to_device(void* device, const void* host, std::int64_t bytes) override {
      enqueue([=](Stream& s) { s.copy_to_device(device, host, bytes); });
    }
    void copy_to_host(void* host, const void* device, std::int64_t bytes) override {
      enqueue([=](Stream& s) { s.copy_to_host(host, device, bytes); });
    }
    void copy_on_device(void* to, const void* from, std::int64_t bytes) override {
      enqueue([=](Stream& s) { s.copy_on_device(to, from, bytes); });
    }
    void fill_zero(void* device, std::int64_t bytes) override {
      enqueue([=](Stream& s) { s.fill_zero(device, bytes); });
    }
    void record(Event& event) override {
      if (recorded()) device_.refuse_while_recording();
      below().record(event);
    }
    void wait(Event& event) override {
      if (recorded()) device_.refuse_while_recording();
      below().wait(event);
    }
    void synchronize() override {
      if (recorded()) device_.refuse_while_recording();
      below().synchronize();
    }

   private:
    bool recorded() const { return device_.recorded_stream_ == this; }
    void enqueue(const Piece& piece) {
      if (recorded()) {
        device_.recording_->pieces.push_back(piece);
      } else {
        piece(below());
      }
    }
    RecordingDevice& device_;
    StreamKind kind_;
  };

  void refuse_while_recording() const {
    if (recorder_ == std::this_thread::get_id())
      throw std::logic_error("this may not be done while a stream is recorded");
  }

  Counter counts_;
  std::function<void(const Counts&)> at_end_;
  Recorded* recording_ = nullptr;  // used by the recording thread
  std::atomic<const Stream*> recorded_stream_ = nullptr;
  std::atomic<std::thread::id> recorder_{};
};

}  // namespace primus::test
