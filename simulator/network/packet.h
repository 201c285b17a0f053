// What travels in the simulated network.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/base/units.h"
#include "common/protocol/frame.h"

namespace tensorlane::simulator {

// Levels of service, 0 first: control, then the data classes.
inline constexpr std::size_t kLevels = kMaxDataClasses + 1;
constexpr std::size_t level_of(ClassId cls) {
  return cls == kControlClass ? 0 : std::size_t{cls.value} + 1;
}
constexpr ClassId class_of(std::size_t level) {
  return level == 0 ? kControlClass : ClassId(static_cast<std::uint8_t>(level - 1));
}

// A flow as the host at one of its ends knows it.
struct Channel {
  std::size_t job = 0;  // its number in the run
  HostIndex peer;
  std::size_t level = 0;
  bool operator==(const Channel&) const = default;
};

// One transport operation. The payload is what the sender's memory held when it was sent.
struct Frame {
  std::size_t job = 0;  // its number in the run
  HostIndex from, to;
  ClassId cls;
  protocol::FrameHeader header;
  std::vector<std::byte> payload;
  std::span<const std::byte> source;  // where the payload lies with the sender
  const char* lie = nullptr;          // which rule it breaks; the engine of the sender did not send it
  std::uint64_t token = 0;            // of the sender's engine; 0: no SendDone wanted

  Bytes bytes() const { return Bytes(protocol::kFrameHeaderBytes + payload.size()); }
};
using FramePtr = std::shared_ptr<const Frame>;

struct Delivered;  // simulator/host/watched_traffic.h

// "I live", and which jobs the sender has aborted.
struct Heartbeat {
  std::uint32_t aborted = 0;                             // bits, by the number of the job
  std::shared_ptr<const Delivered> delivered = nullptr;  // where somebody watches
};

// A piece of a frame, or a heartbeat (frame == nullptr), which nobody sends again when it is lost.
struct Packet {
  HostIndex from, to;
  std::size_t level = 0;
  std::uint64_t connection = 0;  // of the flow; those of an older one are dropped
  std::uint64_t order = 0;       // in its connection
  std::uint32_t attempts = 0;    // times it was sent before
  Bytes bytes;                   // on the wire
  FramePtr frame;
  std::uint64_t begin = 0, end = 0;  // of the frame's payload
  bool last = false;                 // of its frame
  bool marked = false;               // by a crowded switch
  bool foreign = false;              // others': it carries nothing of ours
  Heartbeat beat;
};

}  // namespace tensorlane::simulator
