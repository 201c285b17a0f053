// A client without the library: it can say and write whatever it likes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/protocol/session.h"

namespace tensorlane::test {

struct Answer {
  protocol::MessageHeader header;
  std::vector<std::byte> body;
  std::vector<int> fds;  // the caller's
  std::string error;     // of a kError: "WHAT: WHERE: WHAT TO DO"
  Code code = Code::kOk;
};

class RawClient {
 public:
  explicit RawClient(const std::string& socket);
  ~RawClient();

  int fd() const { return fd_; }
  // One packet with a right header, unless `version` or `magic` say otherwise. False when the daemon has closed.
  bool send(protocol::MessageType type, std::uint32_t request, std::span<const std::byte> body,
            std::uint16_t version = protocol::kSessionVersion, std::uint32_t magic = protocol::kSessionMagic);
  bool send_bytes(std::span<const std::byte> bytes);
  // The next packet; nothing when the daemon has closed or has been silent for `timeout_ms`.
  std::optional<Answer> receive(int timeout_ms = 5000);
  // True once the daemon has closed (after what it said before).
  bool closed(int timeout_ms = 5000);

  // Joins a job of one rank and maps the rings.
  bool join(const std::string& job);
  protocol::RingPage& page() { return *reinterpret_cast<protocol::RingPage*>(rings_); }
  protocol::SubmissionEntry* submissions() {
    return reinterpret_cast<protocol::SubmissionEntry*>(rings_ + protocol::kRingPageBytes);
  }
  int wake_fd() const { return wake_fd_; }
  std::uint32_t entries() const { return entries_; }
  int ring_fd() const { return ring_fd_; }
  // A segment; its descriptor, or -1. Before a tensor is registered in it, it is to be sealed.
  int arena(std::uint64_t bytes);

 private:
  int fd_ = -1, wake_fd_ = -1, ring_fd_ = -1;
  std::byte* rings_ = nullptr;
  std::size_t ring_bytes_ = 0;
  std::uint32_t entries_ = 0;
};

protocol::HelloBody hello(const std::string& job, std::uint32_t rank = 0, std::uint32_t world_size = 1);

// A group "g" of one tensor at the beginning of the first segment.
struct RegistrationOfOne {
  protocol::RegisterBody head;
  protocol::TensorBody tensor;
};
RegistrationOfOne registration_of_one(const char* name, std::uint64_t elements,
                                      Operation operation = Operation::kAllreduce);

template <typename T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

// As a client does with an arena that it has mapped.
bool seal(int arena);

}  // namespace tensorlane::test
